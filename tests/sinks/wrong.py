"""A destination that is right, and the same with one fault each: what the acceptance kit has to find.

The heap keeps a file for each unit, named by its stream, epoch and range, and a mark for each stream.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from strandline.sinks.api import (
    Delivery,
    Key,
    Mark,
    Park,
    Resume,
    Sender,
    Shipped,
    SinkType,
    Standing,
    Stream,
    Unit,
    letters_of,
    plain_text,
)
from strandline.testing import Subject

REFUSED = "no good"


class Heap:
    """The right one."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._path = Path(sender.settings["path"])

    def probe(self) -> None:
        self.look()

    def look(self) -> None:
        assert self._path.is_dir()

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        return Standing(self._mark(stream))

    def ship(self, unit: Unit) -> Shipped:
        delivery = unit.delivery
        mark = self._mark(delivery.stream)
        self._refuse_older(mark, delivery)
        self._refuse_gap(mark, delivery)
        rows = self._kept(unit)
        self._store(unit, rows)
        self._advance(delivery.stream, mark, Mark(delivery.epoch, delivery.until))
        return Shipped(len(rows), sum(piece.withheld for piece in unit.pieces()))

    def close(self) -> None:
        pass

    def _refuse_older(self, mark: Mark | None, delivery: Delivery) -> None:
        if mark is not None and mark.epoch > delivery.epoch:
            raise Park("another epoch")

    def _refuse_gap(self, mark: Mark | None, delivery: Delivery) -> None:
        if (self._sender.sink.start_seq if mark is None else mark.seq) < delivery.since:
            raise Resume(mark)

    def _kept(self, unit: Unit) -> list[str]:
        kept = []
        for piece in unit.pieces():
            rows = piece.rows.to_pylist()
            refused = {place: {"message": REFUSED} for place, row in enumerate(rows) if row["body"] == REFUSED}
            if refused:
                unit.bury(letters_of(piece.rows, refused))
            kept += [row["id"] for place, row in enumerate(rows) if place not in refused]
        return kept

    def _name(self, unit: Unit) -> str:
        delivery = unit.delivery
        return f"{self._key(delivery.stream)}-{delivery.epoch}-{delivery.since}-{delivery.until}.rows"

    def _store(self, unit: Unit, rows: list[str]) -> None:
        self._write(self._name(unit), "".join(f"{row}\n" for row in rows))

    def _advance(self, stream: Stream, before: Mark | None, mark: Mark) -> None:
        if before is None or (before.epoch, before.seq) < (mark.epoch, mark.seq):
            self._write(f"{self._key(stream)}.mark", json.dumps([mark.epoch, mark.seq]))

    def _mark(self, stream: Stream) -> Mark | None:
        path = self._path / f"{self._key(stream)}.mark"
        return Mark(*json.loads(path.read_text())) if path.exists() else None

    def _write(self, name: str, text: str) -> None:
        temporary = self._path / f".{uuid4().hex}"
        temporary.write_text(text)
        temporary.rename(self._path / name)

    def _key(self, stream: Stream) -> str:
        return hashlib.sha256(stream.text().encode()).hexdigest()[:12]


class StoresTwice(Heap):
    """Takes a unit that it has for a new one."""

    def _name(self, unit: Unit) -> str:
        return f"{uuid4().hex}.rows"


class MarksFirst(Heap):
    """Moves the mark before the rows are there, and takes the mark's word for them."""

    def ship(self, unit: Unit) -> Shipped:
        mark = self._mark(unit.delivery.stream)
        return Shipped(0) if mark == Mark(unit.delivery.epoch, unit.delivery.until) else super().ship(unit)

    def _store(self, unit: Unit, rows: list[str]) -> None:
        delivery = unit.delivery
        self._advance(delivery.stream, self._mark(delivery.stream), Mark(delivery.epoch, delivery.until))
        super()._store(unit, rows)


class AcksFirst(Heap):
    """Keeps the last unit in memory, and writes it when it is closed."""

    _held: tuple[str, str] | None = None

    def _write(self, name: str, text: str) -> None:
        if name.endswith(".mark"):
            return super()._write(name, text)
        self.close()
        self._held = name, text
        return None

    def close(self) -> None:
        if self._held is not None:
            super()._write(*self._held)


class WritesInPieces(Heap):
    """Appends row after row to one file: a crash leaves half a unit, which comes again whole."""

    def _store(self, unit: Unit, rows: list[str]) -> None:
        mark = self._mark(unit.delivery.stream)
        if mark is not None and mark.seq >= unit.delivery.until:
            return
        for row in rows:
            with (self._path / "all.rows").open("a") as file:
                file.write(f"{row}\n")


class TakesHalfForWhole(Heap):
    """Writes under the final name at once, and takes what has that name for whole."""

    def _write(self, name: str, text: str) -> None:
        path = self._path / name
        if name.endswith(".mark"):
            super()._write(name, text)
        elif not path.exists():
            path.touch()
            path.write_text(text)


class Swallows(Heap):
    """Leaves refused rows out, and tells nobody."""

    def _kept(self, unit: Unit) -> list[str]:
        rows = [row for piece in unit.pieces() for row in piece.rows.to_pylist()]
        return [row["id"] for row in rows if row["body"] != REFUSED]


class Remembers(Heap):
    """Says where it is by notes of its own, and not by what is there."""

    def _notes(self) -> Path:
        return self._sender.root / "notes.mark"

    def _mark(self, stream: Stream) -> Mark | None:
        return Mark(*json.loads(self._notes().read_text())) if self._notes().exists() else None

    def _advance(self, stream: Stream, before: Mark | None, mark: Mark) -> None:
        if before is None or (before.epoch, before.seq) < (mark.epoch, mark.seq):
            self._notes().write_text(json.dumps([mark.epoch, mark.seq]))


class KnowsNothing(Heap):
    """Never says where it is."""

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        return Standing(None, exact=False)


class TakesMarksBack(Heap):
    """Sets the mark that a unit ends with, whatever is there."""

    def _advance(self, stream: Stream, before: Mark | None, mark: Mark) -> None:
        super()._advance(stream, None, mark)


class ActsOnOldKnowledge(StoresTwice):
    """Looks whether it has a unit when it is asked where it is, and not again before it writes."""

    _seen: Mark | None = None

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        self._seen = self._mark(stream)
        return Standing(self._seen)

    def ship(self, unit: Unit) -> Shipped:
        delivery = unit.delivery
        if self._seen is not None and self._seen.epoch == delivery.epoch and self._seen.seq >= delivery.until:
            return Shipped(0)
        shipped = super().ship(unit)
        self._seen = self._mark(delivery.stream)
        return shipped


class LeavesGaps(Heap):
    """Takes a unit that begins above its mark."""

    def _refuse_gap(self, mark: Mark | None, delivery: Delivery) -> None:
        pass


class TakesOlderEpochs(TakesMarksBack):
    """Takes a unit of an older epoch than its mark's, and goes back to that epoch."""

    def _refuse_older(self, mark: Mark | None, delivery: Delivery) -> None:
        pass


class CountsTwice(Heap):
    """Says of each unit that it has twice the rows."""

    def ship(self, unit: Unit) -> Shipped:
        shipped = super().ship(unit)
        return replace(shipped, rows=2 * shipped.rows)


class OnTheHeap(Subject):
    """How the kit sees any of them."""

    type = "heap"
    refused = {"body": REFUSED}  # noqa: RUF012

    def settings(self) -> dict[str, object]:
        return {"path": str(self.folder)}

    def ids(self) -> list[str]:
        return [row for path in self.folder.glob("*.rows") for row in path.read_text().splitlines()]


def heap_type(made: Any) -> SinkType:
    """The type of sinks that one of them is."""
    return SinkType("heap", {"path": Key(None, plain_text, "the folder")}, made, required=("path",))
