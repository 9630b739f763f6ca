"""Exports: the rows of tables as JSON lines or Arrow, piece by piece, so that memory does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from strandline import private
from strandline.errors import BadRequest

if TYPE_CHECKING:
    from strandline.views.view import View

ExportFormat = Literal["jsonl", "arrow"]


@dataclass(frozen=True)
class ExportPiece:
    """Some bytes of an export, and how many rows of which table are in them."""

    table: str
    rows: int
    data: bytes


@dataclass(frozen=True)
class ExportedTable:
    """How many rows of a table were written."""

    table: str
    rows: int


@dataclass(frozen=True)
class Exported:
    """A file that an export was written to, and what is in it."""

    file: str
    tables: tuple[ExportedTable, ...]


class Export:
    """The rows of tables as one view has them. It is read once, by `pieces` or by `write`."""

    def __init__(self, view: View, tables: Sequence[str], format: ExportFormat) -> None:
        self.tables = tuple(view.branch_table(name).table.name for name in tables or view.tables)
        self._view, self._format = view, format
        if format == "arrow" and len(self.tables) != 1:
            raise BadRequest(
                f"an Arrow export is of one table, and this is {len(self.tables)}", hint="Name it with --tables."
            )

    def pieces(self) -> Iterator[ExportPiece]:
        """The bytes, in order."""
        return _arrow(self._view, self.tables[0]) if self._format == "arrow" else _lines(self._view, self.tables)

    def write(self, to: str) -> Exported:
        """Write all of it to a file, or nothing under that name: half an export looks like a whole one."""
        path = Path(to)
        if path.is_dir():
            raise BadRequest(f"{path} is a folder", hint="Name a file.")
        partial = path.with_name(f".{path.name}.partial")
        rows_of = dict.fromkeys(self.tables, 0)
        try:
            with open(partial, "wb", opener=private.opener) as file:
                for piece in self.pieces():
                    file.write(piece.data)
                    rows_of[piece.table] += piece.rows
            partial.replace(path)
        except FileNotFoundError as error:
            raise BadRequest(f"there is no folder {path.parent}", hint="Make it first.") from error
        finally:
            partial.unlink(missing_ok=True)
        return Exported(to, tuple(ExportedTable(name, rows) for name, rows in rows_of.items()))


def _lines(view: View, names: Sequence[str]) -> Iterator[ExportPiece]:
    from strandline.model.values.wire import to_json_lines

    for name in names:
        branch_table = view.branch_table(name)
        head = b'{"_table":' + orjson.dumps(name) + b"," if len(names) > 1 else b"{"
        for batch in view.rows(name):
            extras = batch.column("_extra").to_pylist() if branch_table.table.extra else [None] * batch.num_rows
            lines = to_json_lines(batch.select(list(branch_table.schema.names)), branch_table.schema)
            data = b"".join(_line(line, head, extra) for line, extra in zip(lines, extras, strict=True))
            yield ExportPiece(name, batch.num_rows, data)


def _line(line: bytes, head: bytes, extra: str | None) -> bytes:
    """A row with its table's name in front, and with its unknown fields where they were when they came."""
    inside = line[1 : line.rindex(b"}")]
    more = b"," + extra.strip()[1:-1].encode() if extra else b""
    return head + inside + more + b"}\n"


def _arrow(view: View, name: str) -> Iterator[ExportPiece]:
    import pyarrow as pa
    from pyarrow import ipc

    from strandline.model.values.arrow import stored_schema

    branch_table = view.branch_table(name)
    schema = stored_schema(branch_table.schema, branch_table.table.extra)
    buffered = _Drain()
    with ipc.new_stream(pa.PythonFile(buffered, mode="w"), schema) as writer:
        for batch in view.rows(name):
            writer.write_batch(batch.select(schema.names).cast(schema))
            yield ExportPiece(name, batch.num_rows, buffered.drain())
    yield ExportPiece(name, 0, buffered.drain())


class _Drain:
    """A file that hands on what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep it until it is drained."""
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def drain(self) -> bytes:
        """What was written since the last time."""
        data, self._pieces = b"".join(self._pieces), []
        return data
