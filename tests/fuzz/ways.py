"""The ways by which Arrow comes from outside, each up to the bytes that the ledger would store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.create import create
from strandline.engines.files import FilePart, Input, RowShape, Skipped, read_chunk
from strandline.ledger.rows.encode import encode_rows
from strandline.ledger.rows.intake import Intake
from strandline.model.delivery import chunk_rows
from strandline.model.values import wire
from strandline.model.values.arrow_stream import read_stream
from tests.fuzz.streams import COLUMNS

TABLE = "fuzzed"


class Ways:
    """A lake with a table, and what becomes of a body that is sent to it."""

    def __init__(self, folder: str) -> None:
        self._lake = create(Path(folder) / "lake")
        self._lake.create_table(TABLE, COLUMNS, unknown_fields="json")
        self._state = self._lake.view().branch_table(TABLE)
        self._file = Path(folder) / "stream.arrow"
        self.by_name: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
            "append": lambda body: self._encoded(read_stream(body)),
            "receive": self._received,
            "table": lambda body: self._encoded(pa.ipc.open_stream(body).read_all()),
            "batches": lambda body: self._encoded(pa.ipc.open_stream(body)),
            "file": self._loaded,
        }

    def _encoded(self, rows: Any) -> list[dict[str, Any]]:
        """As an append over HTTP or in Python stores them."""
        batches = encode_rows(rows, self._state, Intake(self._lake.ledger, self._state.table)).batches
        return _rows(wire.decode(batch.payload) for batch in batches)

    def _received(self, body: Any) -> list[dict[str, Any]]:
        """As the receiver of another lake's chunks stores them."""
        rows = chunk_rows.from_arrow(body)
        return _rows([chunk_rows.validated(rows, self._state.schema, extra=True, gateway="edge", above=0).stored])

    def _loaded(self, body: Any) -> list[dict[str, Any]]:
        """As a load of a file reads them."""
        self._file.write_bytes(body)
        chunk = FilePart(Input(str(self._file), "arrow", len(body), ""))
        request = RowShape(self._state.schema, extra=True)
        batches = []
        for _size, batch in read_chunk(chunk, request, table=TABLE, skipped=Skipped()):
            if isinstance(batch, Exception):
                raise batch
            batches.append(batch)
        return _rows(batches)


def _rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def opened() -> tuple[Ways, tempfile.TemporaryDirectory[str]]:
    """The ways into a lake of their own."""
    folder = tempfile.TemporaryDirectory(prefix="strandline-fuzz-")
    return Ways(folder.name), folder
