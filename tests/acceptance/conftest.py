"""What the acceptance tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.engines import files
from strandline.lake import Lake
from strandline.operations.load import load as loading
from strandline.operations.load import load_request
from tests.acceptance.places import Blobs, Copies
from tests.delivery import Receiver, receiving
from tests.kit import make_table, messages
from tests.proxy import Proxy, proxy_before


@pytest.fixture
def bulky(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is a bulk load of several bites."""
    monkeypatch.setattr(load_request, "SMALL_BYTES", 0)
    monkeypatch.setattr(loading, "BITE_PARTS", 1)
    monkeypatch.setattr(files, "CHUNK_BYTES", 2000)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path / "receiver") as made:
        yield made


@pytest.fixture
def proxy(receiver: Receiver) -> Iterator[Proxy]:
    with proxy_before(receiver.url) as made:
        yield made


@pytest.fixture
def source(lake: Lake) -> Lake:
    """A lake with ten messages in its log."""
    make_table(lake)
    lake.append("messages", messages(0, 10))
    lake.flush("messages")
    return lake


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "archive")


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path / "copies")
