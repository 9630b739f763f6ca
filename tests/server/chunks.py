"""Chunks as a sender makes them, for tests of the receiver."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from strandline.lake import Lake
from strandline.model.delivery import chunk_rows
from strandline.model.delivery.inbound import Chunk, Received, Source, batch_id
from strandline.model.delivery.sinks import Stream
from tests.kit import message

AT = dt.datetime(2026, 1, 31, 12, 0, tzinfo=dt.UTC)
STREAM = Stream("branch1", "table1", "all")


@dataclass(frozen=True)
class Sender:
    """A sender of rows n, n+1, … under the seqs of the same numbers."""

    source: Source = field(default_factory=lambda: Source("lake1", "sink1", STREAM))
    gateway: str = "edge"
    epoch: int = 1

    def at(self, **changes: Any) -> Sender:
        return replace(self, **changes)

    def chunk(self, since: int, until: int, body: bytes, rows: int, **more: Any) -> Chunk:
        told = self.source
        name = batch_id(told.sink_id, told.stream.text(), self.epoch, since, until, body)
        return Chunk(told, self.epoch, since, until, rows, name, **more)


def rows(seqs: Sequence[int]) -> list[dict[str, Any]]:
    """Messages with what a sender adds."""
    return [{**message(seq), "_seq": seq, "_at": AT.isoformat(), "_actor": f"actor{seq % 3}"} for seq in seqs]


def ndjson(objects: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in objects)


def arrow(objects: Sequence[dict[str, Any]]) -> bytes:
    table = pa.Table.from_pylist([{**row, "_at": dt.datetime.fromisoformat(row["_at"])} for row in objects])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def send(
    lake: Lake, sender: Sender, since: int, until: int, seqs: Sequence[int] | None = None, **more: Any
) -> Received:
    """A chunk as the server hands it to the lake, without HTTP."""
    listed = list(range(since + 1, until + 1)) if seqs is None else list(seqs)
    body = ndjson(rows(listed))
    chunk = sender.chunk(since, until, body, len(listed), **more)
    taken = chunk_rows.from_lines(body)
    chunk_rows.check(chunk, taken)
    return lake.receive("messages", chunk, taken, gateway=sender.gateway)


def origin(lake: Lake) -> list[tuple[Any, ...]]:
    """Gateway and origin seq of every row, in the order they were stored."""
    if not lake.view().branch_table("messages").table.inbound:
        return []
    return lake.view().sql("select _gateway, _origin_seq from messages order by _seq").rows()
