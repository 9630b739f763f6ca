"""What tests of maintenance share."""

from __future__ import annotations

from tests.acceptance.conftest import bulky, proxy, receiver, source

__all__ = ["bulky", "proxy", "receiver", "source"]
