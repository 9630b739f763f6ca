"""Origin columns through Iceberg: files from before the first forwarded row, and after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandline.lake import Lake
from strandline.operations.load import load_request
from strandline.views.spark_sql import spark_sql
from tests.kit import assert_recovered, make_table, messages, outside_catalog
from tests.server.chunks import AT, Sender, send

QUERY = "select part_id, _gateway, _origin_seq, _origin_at, _origin_actor from messages order by _seq"


def expected() -> list[tuple[Any, ...]]:
    here = [(f"p{n}", None, None, None, None) for n in (100, 101)]
    there = [(f"p{n}", "edge", n, AT, f"actor{n % 3}") for n in (1, 2)]
    after = [("p102", None, None, None, None), ("q0", None, None, None, None)]
    return [*here, *there, *after]


def from_iceberg(lake: Lake) -> list[tuple[Any, ...]]:
    """The rows as an engine from outside finds them."""
    table = outside_catalog(lake).load_table("lake.messages").scan().to_arrow().sort_by("_seq")
    columns = ["part_id", "_gateway", "_origin_seq", "_origin_at", "_origin_actor"]
    return [tuple(row[name] for name in columns) for row in table.select(columns).to_pylist()]


def test_every_engine_reads_files_from_before_and_after_the_first_forwarded_row(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns are added to the Iceberg table by the flush that needs them; older files and snapshots give nulls."""
    monkeypatch.setattr(load_request, "SMALL_BYTES", 0)
    make_table(lake)
    lake.append("messages", messages(100, 102))
    lake.flush("messages")
    before = lake.view()
    send(lake, Sender(), 0, 2, opens=True)
    in_between = lake.view()
    assert in_between.sql(QUERY).rows() == expected()[:4], "old files, forwarded rows in the tail"
    frame = in_between.spark("messages").orderBy("_seq")
    assert [row._origin_seq for row in frame.collect()] == [None, None, 1, 2], "a snapshot from before the columns"
    lake.append("messages", messages(102, 103))
    lake.flush("messages")
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"part_id": "q0", "source": "x", "n": 0}) + "\n")
    lake.load("messages", [str(source)])
    view = lake.view()
    assert [file.origin for file in view.files("messages")] == [False, True, True]
    assert view.sql(QUERY).rows() == expected()
    read = [row for batch in view.read("messages") for row in batch.to_pylist()]
    assert [row["_origin_seq"] for row in read] == [None, None, 1, 2, None, None]
    assert [row._origin_actor for row in view.spark("messages").orderBy("_seq").collect()] == [
        row[4] for row in expected()
    ]
    assert spark_sql(view, lake.spark, QUERY)[1] == expected()
    assert spark_sql(view, lake.spark, "select * from messages")[0] == ["part_id", "source", "n", "body"]
    assert from_iceberg(lake) == expected()
    assert [row[0] for row in before.sql("select part_id from messages order by _seq").rows()] == ["p100", "p101"]
    assert before.spark("messages").count() == 2, "a view from before still reads its own snapshot"
    assert_recovered(lake)
