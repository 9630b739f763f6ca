"""What the acceptance tests share."""

from __future__ import annotations

import pytest

from strandline.engines import files
from strandline.operations import load as loading


@pytest.fixture
def bulky(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is a bulk load of several bites."""
    monkeypatch.setattr(loading, "SMALL_BYTES", 0)
    monkeypatch.setattr(loading, "BITE_PARTS", 1)
    monkeypatch.setattr(files, "CHUNK_BYTES", 2000)
