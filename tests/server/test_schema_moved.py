"""Rows that arrive after their table's schema was changed elsewhere: the next call sees it, whatever it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pytest

from strandline.errors import Conflict, InvalidRows
from strandline.lake import Lake
from strandline.ledger.rows import rereading
from tests.kit import make_table, message, messages, part_ids
from tests.server.chunks import Sender, ndjson, rows
from tests.server.conftest import NDJSON, Running
from tests.server.test_rows import ARROW, arrow


def change_schema(lake: Lake, change: Callable[[dict[str, Any]], Any]) -> None:
    """As another process does it: through a lake of its own."""
    with Lake(lake.root) as other:
        doc = other.schema()
        change(doc["tables"]["messages"]["columns"])
        other.schema_apply(doc)


def add_column(lake: Lake, name: str = "late") -> None:
    change_schema(lake, lambda columns: columns.update({name: "string?"}))


def drop_column(lake: Lake, name: str) -> None:
    change_schema(lake, lambda columns: columns.pop(name))


def late(n: int) -> dict[str, Any]:
    """A row with the column that was added."""
    return {**message(n), "late": f"late {n}"}


def table_of(listed: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(listed)


def as_reader(listed: list[dict[str, Any]]) -> pa.RecordBatchReader:
    table = table_of(listed)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1))


class Rows:
    """Rows that are neither a list nor an iterator, and can be read as often as one likes."""

    def __init__(self, listed: list[dict[str, Any]]) -> None:
        self.listed = listed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.listed)


KINDS: dict[str, Callable[[Lake, list[dict[str, Any]]], object]] = {
    "dicts": lambda lake, listed: lake.append("messages", listed),
    "many dicts": lambda lake, listed: lake.append("messages", listed, idempotency_key=str(listed)),
    "an iterable": lambda lake, listed: lake.append("messages", Rows(listed)),
    "a generator": lambda lake, listed: lake.append("messages", (row for row in listed)),
    "an Arrow table": lambda lake, listed: lake.append("messages", table_of(listed)),
    "an Arrow batch": lambda lake, listed: lake.append("messages", table_of(listed).to_batches()[0]),
    "a reader": lambda lake, listed: lake.append("messages", as_reader(listed)),
    "lines": lambda lake, listed: lake.append_json_lines("messages", ndjson(listed).splitlines()),
    "a generator of lines": lambda lake, listed: lake.append_json_lines("messages", iter(ndjson(listed).splitlines())),
}


@pytest.mark.both_ledgers(only=["a reader", "a generator of lines"])
@pytest.mark.parametrize("kind", KINDS)
def test_f77_the_next_append_sees_a_schema_that_another_process_changed(lake: Lake, kind: str) -> None:
    """Whatever the rows come as: a new column is taken, and rows of the old shape are judged by the new schema."""
    make_table(lake)
    append = KINDS[kind]
    append(lake, messages(0, 2))
    add_column(lake)
    append(lake, [late(2), late(3)])
    drop_column(lake, "body")
    with pytest.raises(InvalidRows, match="no such column"):
        append(lake, [message(4)])
    add_column(lake, "body")
    append(lake, [message(5)])
    found = lake.view().sql("select part_id, late from messages order by _seq").rows()
    assert found == [("p0", None), ("p1", None), ("p2", "late 2"), ("p3", "late 3"), ("p5", None)]


HTTP: dict[str, tuple[str, Callable[[list[dict[str, Any]]], bytes]]] = {
    "lines": (NDJSON, ndjson),
    "an array": ("application/json", orjson.dumps),
    "Arrow": (ARROW, arrow),
}


@pytest.mark.both_ledgers(only=["lines"])
@pytest.mark.parametrize("kind", HTTP)
def test_f77_a_server_takes_rows_by_the_schema_that_there_is_now(lake: Lake, server: Running, kind: str) -> None:
    """It has judged rows by the old one, and nobody tells it that a command changed it."""
    media, write = HTTP[kind]
    assert server.append(write(messages(0, 1)), media).status_code == 201
    add_column(lake)
    answer = server.append(write([late(1)]), media)
    assert answer.status_code == 201, answer.text
    add_column(lake, "later")
    answer = server.append(write([late(2)]), media, Idempotency_Key="k")  # fits the old one too
    assert answer.status_code == 201, answer.text
    assert part_ids(lake) == ["p0", "p1", "p2"]


@pytest.mark.both_ledgers
def test_f77_a_receiver_takes_chunks_by_the_schema_that_there_is_now(lake: Lake, server: Running) -> None:
    """A forwarded chunk with a column that was added after the receiver had begun arrives."""
    sender = Sender()
    assert server.send(sender, 0, 2, opens=True).status_code == 200
    add_column(lake)
    body = ndjson([{**row, "late": "x"} for row in rows([3])])
    answer = server.post(sender.chunk(2, 3, body, 1), body)
    assert answer.status_code == 200, answer.text
    add_column(lake, "later")
    assert server.send(sender, 3, 4).status_code == 200
    assert len(part_ids(lake)) == 4


def changing(lake: Lake, change: Callable[[], None], listed: Iterable[Any]) -> Iterator[Any]:
    """The first of these; the schema changes; the others."""
    for place, row in enumerate(listed):
        if place == 1:
            change()
        yield row


@pytest.mark.parametrize("kind", ["dicts", "lines", "batches"])
def test_f77_what_was_read_of_a_generator_is_judged_again_when_the_schema_moves(lake: Lake, kind: str) -> None:
    """The schema moves in the middle of an input that can be read once: all of its rows are stored, once."""
    make_table(lake)
    lake.append("messages", messages(0, 1))
    listed = [message(1), late(2), late(3)]

    def add() -> None:
        add_column(lake)

    if kind == "dicts":
        ack = lake.append("messages", changing(lake, add, listed))
    elif kind == "lines":
        ack = lake.append_json_lines("messages", changing(lake, add, ndjson(listed).splitlines()))
    else:
        batches = table_of(listed).to_batches(max_chunksize=1)
        reader = pa.RecordBatchReader.from_batches(batches[0].schema, changing(lake, add, batches))
        ack = lake.append("messages", reader)
    assert ack.rows == 3 and part_ids(lake) == ["p0", "p1", "p2", "p3"]


def test_f77_a_generator_that_fails_is_no_generator_that_ends(lake: Lake) -> None:
    """What was read before its error is not stored as if it were all, though the schema moved meanwhile."""
    make_table(lake)
    lake.append("messages", messages(0, 1))

    def failing() -> Iterator[dict[str, Any]]:
        yield message(1)
        add_column(lake)
        raise InvalidRows("the source has had enough", rows=[], bad=0)

    with pytest.raises(InvalidRows, match="had enough"):
        lake.append("messages", failing())
    assert part_ids(lake) == ["p0"]


def test_f77_an_input_too_large_to_keep_is_asked_for_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller is told that the schema moved; one that moved before it began costs nothing."""
    monkeypatch.setattr(rereading, "KEPT_BYTES", 10)
    make_table(lake)
    lake.append("messages", messages(0, 1))
    add_column(lake)
    lake.append_json_lines("messages", iter(ndjson([late(1), late(2)]).splitlines()))
    lines = ndjson([{**late(n), "later": "x"} for n in (3, 4)]).splitlines()
    with pytest.raises(Conflict) as moved:
        lake.append_json_lines("messages", changing(lake, lambda: add_column(lake, "later"), lines))
    assert moved.value.detail["kind"] == "schema_moved"
    lake.append_json_lines("messages", iter(lines))
    assert part_ids(lake) == ["p0", "p1", "p2", "p3", "p4"]


def test_f77_a_thread_whose_schema_another_thread_forgot_looks_again(lake: Lake, server: Running) -> None:
    """Eight clients at the moment of the change: those that were judged by the old schema are judged again."""
    server.append(ndjson(messages(0, 1)))
    statuses: list[int] = []

    def client(number: int) -> None:
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}) as one:
            for n in range(10):
                row = {**message(n, prefix=f"c{number}-"), "late": "x"}
                answer = one.post("/v1/tables/messages/rows", content=ndjson([row]), headers={"Content-Type": NDJSON})
                statuses.append(answer.status_code)

    add_column(lake)
    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [201] * 80
    assert len(part_ids(lake)) == 81


def test_f77_a_load_reads_its_files_again_when_the_schema_moves(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema moves between the files and the transaction: the load is done by the new one, once."""
    from strandline.operations.load import load as loading

    make_table(lake)
    lake.append("messages", messages(0, 1))
    file = tmp_path / "rows.jsonl"
    file.write_bytes(ndjson([late(1), late(2)]))
    changed: list[str] = []
    original = loading.cut

    def cut(inputs: Any) -> Any:
        if not changed:
            changed.append("late")
            add_column(lake)
        return original(inputs)

    monkeypatch.setattr(loading, "cut", cut)
    assert lake.load("messages", [str(file)], again=True).rows == 2
    assert lake.load("messages", [str(file)]).already_loaded
    assert part_ids(lake) == ["p0", "p1", "p2"]
