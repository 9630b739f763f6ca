"""Kept lakes as fixtures, with their ledgers in SQLite as they were made, or in Postgres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.kept.unpacking import Kept, unpacked

Unpack = Callable[..., AbstractContextManager[Kept]]


@pytest.fixture(params=["sqlite", "postgres"])
def unpack(request: pytest.FixtureRequest) -> Unpack:
    """How a test puts a kept lake into its place, on each database in its turn."""
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return lambda name, **options: unpacked(name, server, **options)


@pytest.fixture
def kept(unpack: Unpack) -> Iterator[Kept]:
    """The ledgers of a sender and a receiver, as the old code left them; without their warehouses."""
    with unpack("whole", ledgers_alone=True) as found:
        yield found
