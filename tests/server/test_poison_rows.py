"""What is wrong with one row is told by its index, whatever is wrong with it: a sender can then go on with the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

import strandline as sl
from strandline.errors import InvalidRows
from strandline.lake import Lake
from tests.kit import make_table, message, part_ids
from tests.server import chunks
from tests.server.chunks import Sender, ndjson, rows
from tests.server.conftest import NDJSON, Running, error
from tests.server.test_rows import ARROW, arrow

LONG = "x" * 2001
"""As a partition's text this is longer than an index of the ledger takes."""


@pytest.fixture
def parted(lake: Lake) -> Lake:
    """A lake whose table `parts` is partitioned by a text of the rows."""
    make_table(lake, "parts", row_key=[], partition_by=["body"])
    return lake


def poisoned(*bad: int) -> list[dict[str, Any]]:
    """Four rows, of which these have too long a partition."""
    return [{**message(n), "body": LONG if n in bad else "fine"} for n in range(4)]


KINDS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], bytes], int]] = {
    "lines": (NDJSON, ndjson, 0),
    "lines behind a blank one": (NDJSON, lambda listed: b"\n" + ndjson(listed), 1),
    "an array": ("application/json", orjson.dumps, 0),
    "Arrow": (ARROW, arrow, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_f81_too_long_a_partition_is_told_by_its_row(parted: Lake, serve: Callable[..., Any], kind: str) -> None:
    """It is a fault of these rows alone: 422 with their indices, and nothing is stored."""
    media, write, before = KINDS[kind]
    with serve(parted) as server:
        answer = server.append(write(poisoned(1, 3)), media, "parts")
    assert (answer.status_code, error(answer)["code"]) == (422, "invalid_rows"), answer.text
    listed = error(answer)["detail"]["rows"]
    assert [(row["index"], row["field"]) for row in listed] == [(1 + before, "body"), (3 + before, "body")]
    assert "2005 bytes" in error(answer)["message"] and part_ids(parted, "parts") == []


@pytest.mark.parametrize("write", [chunks.ndjson, chunks.arrow])
def test_f81_a_receiver_names_the_row_of_a_chunk_that_it_will_never_take(
    parted: Lake, serve: Callable[..., Any], write: Callable[[list[dict[str, Any]]], bytes]
) -> None:
    """422 with the row's place in the chunk, from which a sender makes a dead letter."""
    sender = Sender()
    body = write([{**row, "body": LONG if row["_seq"] == 2 else "fine"} for row in rows([1, 2, 3])])
    media = ARROW if write is chunks.arrow else NDJSON
    with serve(parted) as server:
        answer = server.post(sender.chunk(0, 3, body, 3, opens=True), body, table="parts", Content_Type=media)
    assert answer.status_code == 422, answer.text
    assert [row["index"] for row in error(answer)["detail"]["rows"]] == [1]


def test_f81_unknown_fields_that_are_no_object_are_told_by_their_row(server: Running) -> None:
    """A sender's `_extra` that can't be read is the fault of its row, and of no other."""
    body = ndjson([{**row, "_extra": "[" * 2000 if row["_seq"] == 3 else None} for row in rows([1, 2, 3])])
    answer = server.post(Sender().chunk(0, 3, body, 3, opens=True), body)
    assert (answer.status_code, error(answer)["detail"]["rows"][0]["index"]) == (422, 2), answer.text


def test_f81_text_inside_a_list_that_is_not_utf8_is_told_by_its_row(lake: Lake) -> None:
    """Arrow checks the column as a whole; the rows that it means are found, and not looked into."""
    lake.create_table("notes", {"id": "long", "tags": "list<string>?", "by": "string?"})
    words = pa.array([b"fine", b"\xff\xfe", b"good", b"\xc0"], pa.binary()).cast(pa.string(), safe=False)
    tags = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), words)
    table = pa.table({"id": pa.array([0, 1, 2, 3]), "tags": tags})
    with pytest.raises(InvalidRows) as refused:
        lake.append("notes", pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    listed = refused.value.detail["rows"]
    assert [(row["index"], row["field"]) for row in listed] == [(1, "tags"), (3, "tags")]


def test_f81_mutations_and_loads_name_the_row_whose_partition_is_too_long(lake: Lake, tmp_path: Path) -> None:
    """A put by its statement, a line of a file by its number, a line of CSV without its fields too."""
    lake.create_table("person", {"id": "string", "name": "string?"}, key=["id"], partition_by=["id"])
    with pytest.raises(InvalidRows) as refused:
        lake.mutate([sl.put("person", {"id": "a"}), sl.put("person", {"id": LONG})])
    assert [row["index"] for row in refused.value.detail["rows"]] == [1]
    with pytest.raises(InvalidRows) as refused:
        lake.mutate([sl.put("person", {"id": "a"}), sl.patch("person", "a", {"age": 1})])
    assert [(row["index"], row["field"]) for row in refused.value.detail["rows"]] == [(1, "age")]
    make_table(lake, "parts", row_key=[], partition_by=["body"])
    for table, lines in {"parts": poisoned(2), "person": [{"id": "a"}, {"id": "b"}, {"id": LONG}]}.items():
        file = tmp_path / f"{table}.jsonl"
        file.write_bytes(ndjson(lines))
        with pytest.raises(InvalidRows) as refused:
            lake.load(table, [str(file)])
        assert [row["index"] for row in refused.value.detail["rows"]] == [2]
    file = tmp_path / "rows.csv"
    file.write_text("part_id,source,n,body\na,b,1,c\na,b\na,b,2,c,d\n")
    with pytest.raises(InvalidRows) as refused:
        lake.load("parts", [str(file)])
    assert [row["index"] for row in refused.value.detail["rows"]] == [1, 2]


def test_f81_partitions_at_the_limit_are_taken(parted: Lake) -> None:
    """2,000 bytes with quotes and brackets, also where characters are escaped; one more is not."""
    fitting = ["x" * 1996, "é" * 998, "\u0000" * 332, None]
    parted.append("parts", [{**message(n), "body": body} for n, body in enumerate(fitting)])
    for long in ("x" * 1997, "é" * 999, "\u0000" * 333):
        with pytest.raises(InvalidRows):
            parted.append("parts", [{**message(9), "body": long}])
    assert part_ids(parted, "parts") == ["p0", "p1", "p2", "p3"]
