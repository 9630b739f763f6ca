"""Which rows of a range objects in a place hold already.

A ledger that was put back by hand gives old seqs to new rows, so a seq alone does not tell whether a destination has a
row: its content does. Parquet gives rows back as they were written. A line of JSON has lost the types of its values, so
there the lines are compared, without their nulls: a column that was added since makes no other row.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from strandline.engines.objects import Place, reaching
from strandline.model.row_digest import ROW_DIGEST_BYTES, row_digests
from strandline.model.schema import Schema
from strandline.model.types import SEQ
from strandline.model.wire import to_json_lines

Rows = set[tuple[int, bytes]]
"""Rows by seq and digest."""


@dataclass(frozen=True)
class Present:
    """The rows that are there, by the kind of object that holds them."""

    rows: Rows = field(default_factory=set)
    lines: Rows = field(default_factory=set)

    def lacks(self, batch: pa.RecordBatch, schema: Schema | None) -> pa.BooleanArray:
        """For each row of a batch whether it is not there."""
        seqs = batch.column(SEQ).to_pylist()
        there = [False] * len(seqs)
        if self.rows:
            there = [(seq, digest) in self.rows for seq, digest in zip(seqs, row_digests(batch), strict=True)]
        if self.lines:
            lines = (_line_digest(line) for line in to_json_lines(batch, schema))
            there = [
                known or (seq, digest) in self.lines for known, seq, digest in zip(there, seqs, lines, strict=True)
            ]
        return pa.array([not known for known in there], pa.bool_())


def read_present(place: Place, names: Iterable[str], since: int, until: int) -> Present:
    """The rows with a seq in `(since, until]` that these objects hold."""
    present = Present()
    for name in names:
        with reaching(place, name), place.system.open_input_file(place.path(name)) as file:
            if name.endswith(".parquet"):
                present.rows.update(_parquet_rows(file, since, until))
            else:
                present.lines.update(_lines(file, name, since, until))
    return present


def _parquet_rows(file: IO[bytes], since: int, until: int) -> Iterator[tuple[int, bytes]]:
    for batch in pq.ParquetFile(file).iter_batches():
        for seq, digest in zip(batch.column(SEQ).to_pylist(), row_digests(batch), strict=True):
            if since < seq <= until:
                yield seq, digest


def _lines(file: IO[bytes], name: str, since: int, until: int) -> Iterator[tuple[int, bytes]]:
    with _unpacked(file, name) as content:
        for line in _split(content):
            seq = orjson.loads(line)[SEQ]
            if since < seq <= until:
                yield seq, _line_digest(line)


def _unpacked(file: IO[bytes], name: str) -> Any:
    """What was packed. An earlier version packed objects twice on their way into a bucket."""
    unpack = _gunzip if name.endswith(".gz") else zstandard.ZstdDecompressor().stream_reader
    content = io.BufferedReader(unpack(file))
    is_packed = content.peek(4).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
    return io.BufferedReader(unpack(content)) if is_packed else content


def _gunzip(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file)


def _split(content: IO[bytes]) -> Iterator[bytes]:
    held = b""
    while chunk := content.read(1 << 20):
        *lines, held = (held + chunk).split(b"\n")
        yield from (line for line in lines if line)
    if held:
        yield held


def _line_digest(line: bytes) -> bytes:
    values = {name: value for name, value in orjson.loads(line).items() if value is not None}
    canonical = orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=ROW_DIGEST_BYTES).digest()
