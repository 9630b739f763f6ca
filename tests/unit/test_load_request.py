"""The request that every load is: its options are checked, and its key chosen, in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.kit import make_table
from tests.versions.kit import make_people

from strandline.engines.files import find_inputs
from strandline.errors import BadRequest, NotFound
from strandline.lake import Lake
from strandline.operations.load import load_request as requests
from strandline.operations.load.load_request import NAMED, LoadRequest, is_large, load_request


def request_for(lake: Lake, table: str, file: Path, **options: Any) -> LoadRequest:
    options = {"branch": "main", "mode": "append", "actor": "ann", "key": None, "again": False, **options}
    return load_request(lake.ledger, table, [str(file)], **options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a"}\n')
    return path


def test_a_load_is_known_by_its_key_or_by_what_is_loaded(lake: Lake, file: Path) -> None:
    """Merges and overwrites have no key unless their user gives one: they run every time."""
    make_table(lake)
    make_people(lake)
    for table in ("messages", "person", NAMED):
        request = request_for(lake, table, file)
        assert request.key == request.digest and request_for(lake, table, file, key="k").key == "k"
    assert request_for(lake, "person", file, mode="merge").key is None
    assert request_for(lake, "person", file, mode="merge", key="k").key == "k"
    requested = [
        request_for(lake, "person", file),
        request_for(lake, "person", file, mode="merge"),
        request_for(lake, "person", file, branch="other"),
        request_for(lake, "messages", file),
        request_for(lake, NAMED, file),
    ]
    assert len({request.digest for request in requested}) == len(requested)
    file.write_text('{"id": "other"}\n')
    assert request_for(lake, "person", file).digest not in {request.digest for request in requested}


def test_a_request_knows_what_kind_of_table_it_is_for(lake: Lake, file: Path) -> None:
    make_table(lake)
    make_people(lake)
    seen = {table: request_for(lake, table, file) for table in ("messages", "Person", NAMED)}
    assert {table: (request.is_keyed, request.table, request.only) for table, request in seen.items()} == {
        "messages": (False, "messages", "messages"),
        "Person": (True, "person", "person"),
        NAMED: (True, NAMED, None),
    }


def test_options_that_there_are_not_are_refused(lake: Lake, file: Path) -> None:
    make_table(lake)
    make_people(lake)
    for table, mode, why in (
        ("messages", "overwrite", "log table has no 'overwrite'"),
        ("messages", "replace", "log table has no 'replace'"),
        ("person", "replace", "the mode is 'replace'"),
        (NAMED, "replace", "the mode is 'replace'"),
    ):
        with pytest.raises(BadRequest, match=why):
            request_for(lake, table, file, mode=mode)
    with pytest.raises(NotFound, match="no table 'persn'"):
        request_for(lake, "persn", file)


def test_what_is_large_is_told_before_it_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = find_inputs([str(file)])
    assert not is_large(inputs) and not is_large(inputs, most_rows=0), "lines say nothing of their number"
    monkeypatch.setattr(requests, "SMALL_BYTES", inputs[0].size_bytes)
    assert not is_large(inputs)
    monkeypatch.setattr(requests, "SMALL_BYTES", inputs[0].size_bytes - 1)
    assert is_large(inputs)
