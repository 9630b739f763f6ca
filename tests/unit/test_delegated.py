"""Work that may be a worker's: what is asked for, when no worker is of use, and what the answers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from strandline import create
from strandline.errors import NotFound
from strandline.lake import Lake
from strandline.lake.operations import declared
from strandline.model.operations import Flushed, Loaded
from strandline.worker import delegated, delegation


@dataclass(frozen=True)
class Request:
    """A request as it would travel, and who could do it."""

    kind: str
    arguments: Mapping[str, Any]
    in_this_process: bool
    local_files: bool


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """With a row in the tail of one of two tables."""
    with create.create(tmp_path / "lake") as made:
        made.create_table("messages", {"id": "string"})
        made.create_table("notes", {"id": "string"})
        made.append("messages", [{"id": "1"}], actor="a")
        yield made


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What was asked for, in order; the answers are of plain values, as a worker's are."""
    made: list[Request] = []
    loaded = Loaded("messages", 1, 0, first_seq=1, last_seq=1, commit=None)
    flushed = Flushed("messages", "main", 1, 0, flushed_seq=1, snapshot_id=7, operation="o1")
    answers = {"flush": [asdict(flushed)], "load": asdict(loaded), "adopt": asdict(loaded)}

    def carry_out(
        _lake: Lake, kind: str, arguments: Mapping[str, Any], *, in_this_process: bool, local_files: bool, **_: Any
    ) -> Any:
        made.append(Request(kind, arguments, in_this_process, local_files))
        return answers.get(kind, [])

    monkeypatch.setattr(delegation, "carry_out", carry_out)
    return made


def test_a_flush_names_each_table_once_and_asks_nobody_where_nothing_waits(lake: Lake, requests: list[Request]) -> None:
    (flushed,) = delegated.flush(lake, ["MESSAGES", "messages"], actor="eve")
    delegated.flush(lake, ["notes"])
    delegated.flush(lake)
    assert (flushed.table, flushed.flushed_seq) == ("messages", 1)
    assert [request.arguments["tables"] for request in requests] == [["messages"], ["notes"], ["messages", "notes"]]
    assert [request.in_this_process for request in requests] == [False, True, False]
    assert requests[0].arguments["actor"] == "eve" and requests[0].arguments["branch"] == "main"
    with pytest.raises(NotFound):
        delegated.flush(lake, ["nobody"])


def test_a_worker_is_asked_for_a_large_load_alone(
    lake: Lake, requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for what would be loaded once more when it is taken back. It gets names that it finds from its folder."""
    monkeypatch.setattr(Lake, "load_needs_spark", staticmethod(lambda _files: False))
    delegated.load(lake, "messages", ["rows.jsonl"])
    monkeypatch.setattr(Lake, "load_needs_spark", staticmethod(lambda _files: True))
    loaded = delegated.load(lake, "messages", ["rows.jsonl", "s3://bucket/rows"], key="k")
    delegated.load(lake, "messages", ["rows.jsonl"], again=True)
    delegated.load(lake, "messages", ["rows.jsonl"], mode="merge")
    delegated.load(lake, "messages", ["s3://bucket/rows"])
    assert loaded.rows == 1
    assert [request.in_this_process for request in requests] == [True, False, True, True, False]
    assert [request.local_files for request in requests] == [True, True, True, True, False]
    assert requests[0].arguments["files"] == ["rows.jsonl"]
    assert requests[1].arguments["files"] == [str(Path.cwd() / "rows.jsonl"), "s3://bucket/rows"]
    assert requests[1].arguments["key"] == "k"


def test_a_source_that_is_no_path_is_named_as_it_is(lake: Lake, requests: list[Request], tmp_path: Path) -> None:
    delegated.adopt(lake, "events", str(tmp_path), row_key=["id"])
    delegated.adopt(lake, "events", "catalog.events")
    assert [request.arguments["source"] for request in requests] == [str(tmp_path), "catalog.events"]
    assert requests[0].arguments["row_key"] == ["id"] and requests[0].arguments["dedupe"] == "table"


def test_an_operation_travels_as_it_was_declared(lake: Lake, requests: list[Request]) -> None:
    operation = declared("compact")()
    delegated.maintain(lake, operation, ["messages"], branch="main", actor="eve", in_this_process=True)
    (request,) = requests
    assert (request.kind, request.in_this_process) == ("compact", True)
    assert request.arguments == operation.request(["messages"], "main", "eve")


def test_rows_are_not_removed_for_good_without_a_yes(lake: Lake) -> None:
    """The refusal says how many they are, by a dry run; a dry run itself needs nobody's yes."""
    purging = declared("purge")
    refusal = lake.maintenance.unagreed(purging(where="id = '1'"), ["messages"])
    assert refusal is not None and refusal.detail["count"] == 1
    assert lake.maintenance.unagreed(purging(where="id = '1'", dry_run=True), ["messages"]) is None
    assert lake.view().table("messages").num_rows == 1, "nothing was removed"
    assert lake.maintenance.unagreed(declared("compact")(), ["messages"]) is None
    with pytest.raises(NotFound):
        lake.maintenance.unagreed(declared("compact")(), ["nobody"])
