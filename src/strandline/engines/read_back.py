"""Which rows of a range objects in a place hold already.

A ledger that was put back by hand gives old seqs to new rows, so a seq alone does not tell whether a destination has a
row: its content does. Parquet gives rows back as they were written. A line of JSON has lost the types of its values, so
there the lines are compared, without their nulls.

A column that came since, with a default or without, was dropped or has another name now makes no other row: where both
say when a row was appended, those columns are compared that an object and the rows have in common.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from strandline.engines.objects import ObjectPlace, reaching
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import AT, SEQ
from strandline.model.values.row_digest import ROW_DIGEST_BYTES, row_digests
from strandline.model.values.wire import to_json_lines

Common: TypeAlias = frozenset[str] | None
"""The columns that an object and the rows that are asked about have in common; None where all of both count."""

Rows: TypeAlias = dict[Common, set[tuple[int, bytes]]]
"""Rows by seq and digest of the columns that count."""


@dataclass(frozen=True)
class Present:
    """The rows that are there, by the kind of object that holds them."""

    rows: Rows = field(default_factory=dict)
    lines: Rows = field(default_factory=dict)

    def lacks(self, batch: pa.RecordBatch, schema: Schema | None) -> pa.BooleanArray:
        """For each row of a batch whether it is not there."""
        seqs = batch.column(SEQ).to_pylist()
        present = [False] * len(seqs)
        for common, rows in self.rows.items():
            digests = row_digests(batch, without=() if common is None else set(batch.schema.names) - common)
            present = [
                already or row in rows for already, row in zip(present, zip(seqs, digests, strict=True), strict=True)
            ]
        lines = [orjson.loads(line) for line in to_json_lines(batch, schema)] if self.lines else []
        for common, rows in self.lines.items():
            digests = [_line_digest(line, common) for line in lines]
            present = [
                already or row in rows for already, row in zip(present, zip(seqs, digests, strict=True), strict=True)
            ]
        return pa.array([not is_present for is_present in present], pa.bool_())


def read_present(place: ObjectPlace, names: Iterable[str], since: int, until: int, columns: Iterable[str]) -> Present:
    """The rows with a seq in `(since, until]` that these objects hold, for rows of these columns."""
    present, sought = Present(), frozenset(columns)
    for name in names:
        with reaching(place, name), place.system.open_input_file(place.path(name)) as file:
            rows = _parquet_rows(file, sought) if name.endswith(".parquet") else _lines(file, name, sought)
            held = present.rows if name.endswith(".parquet") else present.lines
            for common, seq, digest in rows:
                if since < seq <= until:
                    held.setdefault(common, set()).add((seq, digest))
    return present


def _common(columns: Iterable[str], sought: frozenset[str]) -> Common:
    common = sought.intersection(columns)
    return common if AT in common else None


def _parquet_rows(file: IO[bytes], sought: frozenset[str]) -> Iterator[tuple[Common, int, bytes]]:
    for batch in pq.ParquetFile(file).iter_batches():
        batch.validate(full=True)  # the place is not ours alone, and what lies there may be another's
        common = _common(batch.schema.names, sought)
        digests = row_digests(batch, without=() if common is None else set(batch.schema.names) - common)
        for seq, digest in zip(batch.column(SEQ).to_pylist(), digests, strict=True):
            yield common, seq, digest


def _lines(file: IO[bytes], name: str, sought: frozenset[str]) -> Iterator[tuple[Common, int, bytes]]:
    with _unpacked(file, name) as content:
        for text in _split(content):
            line = orjson.loads(text)
            common = _common(line, sought)
            yield common, line[SEQ], _line_digest(line, common)


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


def _line_digest(line: Mapping[str, Any], common: Common) -> bytes:
    counts = (item for item in line.items() if common is None or item[0] in common)
    values = {name: value for name, value in counts if value is not None}
    canonical = orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=ROW_DIGEST_BYTES).digest()
