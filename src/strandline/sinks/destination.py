"""What every kind of sink does with a unit; the tick does the rest.

A destination never decides what is sent: it is given a unit that the ledger already describes, and ships it so that a
second shipment of the same unit changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from strandline import logs
from strandline.engines.duck.ranges import Piece, SeqRange, read_range
from strandline.errors import Conflict, OwnedByAnother
from strandline.json_types import JsonObject
from strandline.ledger.sinks.dead_letters import RefusedRow
from strandline.model.delivery.sinks import DeadLetter, Delivery, Mark, Shipped, SinkSettings, Standing, Stream
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import SEQ
from strandline.model.values.row_digest import digest_of
from strandline.model.values.wire import encode
from strandline.redaction import redacted

log = logs.Logger("strandline.sinks")


class Later(Exception):
    """Not delivered, or not known to be: the same unit again, after a while.

    `told_s` is how long the destination asked us to wait, if it did; `progressed` is whether some of the unit arrived.
    """

    def __init__(self, reason: str, *, told_s: float | None = None, progressed: bool = False) -> None:
        super().__init__(redacted(reason))
        self.told_s = told_s
        self.progressed = progressed


class Park(Exception):
    """The destination won't take it however often it is asked; a person has to look."""

    def __init__(self, reason: str) -> None:
        super().__init__(redacted(reason))


class Resume(Exception):
    """The destination has another mark than it said when it was asked: ask again, and decide anew."""

    def __init__(self, mark: Mark | None) -> None:
        super().__init__(f"the destination's mark is {mark}")
        self.mark = mark


def _bury_nothing(rows: Sequence[RefusedRow]) -> None:
    raise Park(f"{len(rows)} rows were refused, and this kind of sink has no dead letters")


@dataclass(frozen=True)
class Unit:
    """One delivery and how its rows are read; `dead` are its dead letters, and `bury` makes more of them.

    Those of a keyed table, whose `key` this is, are versions of its rows. Up to `confirmed` the destination has said
    that it has the unit. Of the rows up to `lacking_upto` only those are shipped that the destination lacks. Some of
    those up to `hole_upto` were removed here, and a person said to go on without them.
    """

    delivery: Delivery
    rows: SeqRange
    schema: Schema
    partition_by: tuple[str, ...]
    dead: frozenset[int] = frozenset()
    bury: Callable[[Sequence[RefusedRow]], None] = _bury_nothing
    key: tuple[str, ...] = ()
    confirmed: int = 0
    lacking_upto: int = 0
    hole_upto: int = 0

    @property
    def sent_key(self) -> tuple[str, ...]:
        """The columns of the key that the sink does not leave out."""
        return tuple(name for name in self.key if name in self.rows.schema.names)

    def pieces(self) -> Iterator[Piece]:
        """The unit's rows in the order of `_seq`, without its dead letters, a few thousand at a time."""
        for piece in read_range(self.rows):
            yield replace(piece, rows=without_dead(piece.rows, self.dead))

    def digest_in(self, since: int, until: int) -> str:
        """The digest of the unit's rows in a range, without its dead letters: what a chunk of them says of itself."""
        clipped = replace(self.rows, since=max(since, self.rows.since), until=min(until, self.rows.until))
        return digest_of(without_dead(piece.rows, self.dead) for piece in read_range(clipped))


def letters_of(rows: pa.RecordBatch, answers: Mapping[int, JsonObject]) -> list[RefusedRow]:
    """Rows that were refused, by their places, each with the answer it got: what `Unit.bury` takes."""
    return [
        RefusedRow(rows.column(SEQ)[place].as_py(), encode(pa.concat_batches([rows.slice(place, 1)])), answer)
        for place, answer in sorted(answers.items())
    ]


def without_dead(rows: pa.RecordBatch, dead: frozenset[int]) -> pa.RecordBatch:
    """The rows that are no dead letters."""
    if not dead:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows.column(SEQ), value_set=pa.array(sorted(dead), pa.int64()))))


class Destination(Protocol):
    """A place that rows are delivered to.

    The tick asks it where it is (`standing`) before each unit, and a pure function (`resuming.py`) decides whether the
    unit goes on, a new epoch begins at the destination's mark, or a person is needed. So a destination only answers;
    it compares nothing itself, but for what another process may change between the answer and the shipment.
    """

    def probe(self) -> None:
        """Raise a StrandError when it can't be reached, refuses us, or belongs to another sink."""

    def look(self) -> None:
        """The same, as far as it can be told without writing anything there."""

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        """How far it has come by its own account; raises Later, Park or a StrandError when it can't be told."""

    def ship(self, unit: Unit) -> Shipped:
        """Deliver the unit, once however often this is called; else raise Later, Park, Resume or a StrandError.

        `Shipped.chunk` is what the destination keeps with its mark: a range and `digest_in` of its rows. A unit whose
        `since` lies above the mark leaves a gap, in every epoch: Resume.
        """

    def close(self) -> None:
        """Let go of connections."""


def let_go(place: Destination) -> None:
    """Close a destination. One that can't let go has delivered what it has, and keeps no other sink from its turn."""
    try:
        place.close()
    except Exception as error:
        log.warning("a destination does not close", error=f"{type(error).__name__}: {error}")


@contextmanager
def closing_after(place: Destination) -> Iterator[None]:
    """Close a destination after it was asked; that it can't be closed hides no error from before."""
    try:
        yield
    except BaseException:
        let_go(place)
        raise
    place.close()


@runtime_checkable
class CountsReplayed(Protocol):
    """A destination that keeps which dead letters were replayed to it; its standing counts them."""

    def replayed(self, stream: Stream, table: str) -> frozenset[int]:
        """The seqs of those that it has stored."""


@runtime_checkable
class Replays(Protocol):
    """A destination that takes a dead letter again, when a person has seen to the reason."""

    def replay(self, letter: DeadLetter, settings: SinkSettings) -> None:
        """Store it, once however often this is called; else raise Later or Park."""


@runtime_checkable
class Marked(Protocol):
    """A destination that carries a marker of the sink it belongs to, for all of it or for each table."""

    def has_lost(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> bool:
        """Whether a person has to say that the stream begins anew: the marker is gone, or everything that it had."""

    def highest_epoch(self, table: str) -> int:
        """The highest epoch that the place has anything of, for a table; 0 where it has nothing."""


def marker_gone(where: str, sink: str) -> Conflict:
    """The error for a place that a sink has delivered to, and that carries no marker now.

    A disk that is not mounted, an emptied bucket or a wrong address looks like a place that was never used. What was
    written there would be lost, and count as delivered.
    """
    return Conflict(
        f"{where} is not there, although the sink {sink!r} has delivered to this place: it is not mounted, was "
        "emptied, or is another place than before",
        kind="marker_gone",
        hint=f"Bring the place back, then `strand sink retry {sink}`. If it is lost for good, "
        f"`strand sink retry {sink} --take-over` begins anew there, with every row.",
        expected=where,
        actual=None,
    )


@dataclass(frozen=True)
class Owned:
    """Whose a place is, by its marker: the ids count, the sink's name is for people. An older marker has no name."""

    lake_id: str
    sink_id: str
    name: str | None = None

    @property
    def ids(self) -> tuple[str, str]:
        """What two of them are compared by: a sink may have been renamed since."""
        return self.lake_id, self.sink_id


def refusal(where: str, owner: Owned, ours: Owned, name_of: Callable[[str], str | None]) -> Conflict:
    """The error for a place that belongs to another sink; `name_of` knows the sinks of this lake by their ids."""
    return OwnedByAnother(
        f"{where} belongs to {_owner_text(owner, ours, name_of)}",
        hint="Give this sink a place of its own. If the other one is gone for good, "
        f"`strand sink retry {ours.name} --take-over` takes its place over.",
        expected={"lake": ours.lake_id, "sink": ours.sink_id},
        actual={"lake": owner.lake_id, "sink": owner.sink_id},
    )


def _owner_text(owner: Owned, ours: Owned, name_of: Callable[[str], str | None]) -> str:
    if owner.lake_id == ours.lake_id:
        name = name_of(owner.sink_id)
        if name is not None:
            return f"the sink {name!r} of this lake"
        was = f"the sink {owner.name!r}" if owner.name else f"a sink (id {owner.sink_id})"
        return f"{was} of this lake, which was removed"
    name = f"the sink {owner.name!r}" if owner.name else f"a sink (id {owner.sink_id})"
    return f"{name} of another lake (id {owner.lake_id})"


def unmarked(where: str, ours: Owned) -> Conflict:
    """The error for a table that has rows, and no marker that says whose it is."""
    return OwnedByAnother(
        f"{where} has rows already, and no sink has marked it as its own",
        hint="Give this sink a namespace of its own. If the rows there may stay and get others beside them, "
        f"`strand sink retry {ours.name} && strand sink tick {ours.name} --take-over` takes the table over.",
        expected={"lake": ours.lake_id, "sink": ours.sink_id},
        actual={"lake": "unknown", "sink": "unknown"},
    )
