"""Rows that can be read once, kept while they are read.

A schema may change while rows are validated, and they are then validated again. A generator, a reader or a stream has
no beginning any more by then. So what was taken from it is kept, up to a limit; a larger input is not, and its caller
is told to begin again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.ledger.rows.encode import Rows

KEPT_BYTES = 64 << 20

T = TypeVar("T")


class RereadableInput(Generic[T]):
    """An input that is taken from its source once, and read as often as needed while it `is_whole`."""

    def __init__(self, source: Iterable[T], size_of: Callable[[T], int]) -> None:
        self._rest = iter(source)
        self._size_of = size_of
        self._pieces: list[T] = []
        self._room_bytes = KEPT_BYTES
        self._failure: Exception | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it can be read from its beginning."""
        return self._room_bytes >= 0

    def __iter__(self) -> Iterator[T]:
        assert self.is_whole, "an input whose beginning was not kept is read again"
        yield from self._pieces
        while self._failure is None:
            try:
                piece = next(self._rest)
            except StopIteration:
                return
            except Exception as error:
                self._failure = error  # a generator that has failed looks like one that has ended
                break
            self._keep(piece)
            yield piece
        assert self._failure is not None
        raise self._failure

    def _keep(self, piece: T) -> None:
        if not self.is_whole:
            return
        self._room_bytes -= self._size_of(piece)
        self._pieces.append(piece)
        if not self.is_whole:
            self._pieces.clear()


class KeptBatches(RereadableInput["pa.RecordBatch"]):
    """A reader of Arrow batches."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        super().__init__(reader, lambda batch: int(batch.nbytes))


def kept_rows(rows: Rows) -> Rows:
    """Rows as they are if they can be read again, and else so that they can.

    Dicts of a generator are not counted: they are listed anyway, to be validated together.
    """
    import pyarrow as pa  # not above: a process that only asks has no rows

    if isinstance(rows, pa.RecordBatchReader):
        return KeptBatches(rows)
    return RereadableInput(rows, lambda _row: 0) if isinstance(rows, Iterator) else rows


def kept_lines(lines: Iterable[bytes]) -> Iterable[bytes]:
    """The same for JSON lines."""
    return RereadableInput(lines, len) if isinstance(lines, Iterator) else lines
