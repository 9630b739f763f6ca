"""What every kind of sink does with a unit; the tick does the rest.

A destination never decides what is sent: it is given a unit that the ledger already describes, and ships it so that a
second shipment of the same unit changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.engines.duck.ranges import Range
from strandline.errors import Conflict
from strandline.ledger.dead_letters import Refused
from strandline.model.schema import Schema
from strandline.model.sinks import Delivery, Mark, Shipped, Stream


class Later(Exception):
    """Not delivered, or not known to be: the same unit again, after a while.

    `told_s` is how long the destination asked us to wait, if it did; `progressed` is whether some of the unit arrived.
    """

    def __init__(self, reason: str, *, told_s: float | None = None, progressed: bool = False) -> None:
        super().__init__(reason)
        self.told_s = told_s
        self.progressed = progressed


class Park(Exception):
    """The destination won't take it however often it is asked; a person has to look."""


class Resume(Exception):
    """The destination has another mark than we thought: go on from there; None is from the sink's beginning."""

    def __init__(self, mark: Mark | None) -> None:
        super().__init__(f"the destination's mark is {mark}")
        self.mark = mark


def _bury_nothing(rows: Sequence[Refused]) -> None:
    raise Park(f"{len(rows)} rows were refused, and this kind of sink has no dead letters")


@dataclass(frozen=True)
class Unit:
    """One delivery and how its rows are read; `dead` are its dead letters, and `bury` makes more of them.

    Those of a keyed table, whose `key` this is, are versions of its rows.
    """

    delivery: Delivery
    rows: Range
    schema: Schema
    partition_by: tuple[str, ...]
    dead: frozenset[int] = frozenset()
    bury: Callable[[Sequence[Refused]], None] = _bury_nothing
    key: tuple[str, ...] = ()

    @property
    def sent_key(self) -> tuple[str, ...]:
        """The columns of the key that the sink does not leave out."""
        return tuple(name for name in self.key if name in self.rows.schema.names)


class Destination(Protocol):
    """A place that rows are delivered to. It is `exact` when its mark moves with every unit, also one without rows."""

    exact: bool

    def probe(self) -> None:
        """Raise a StrandError when it can't be reached, refuses us, or belongs to somebody else."""

    def look(self) -> None:
        """The same, as far as it can be told without writing anything there."""

    def find_mark(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Mark | None:
        """How far it has come by its own account; None when it has nothing of this stream. Asked when we don't know.

        A mark in a later epoch than ours means that delivery goes on in that epoch.
        """

    def ship(self, unit: Unit) -> Shipped:
        """Deliver the unit, once however often this is called; else raise Later, Park, Resume or a StrandError."""

    def close(self) -> None:
        """Let go of connections."""


def refusal(where: str, owner: tuple[str, str], ours: tuple[str, str]) -> Conflict:
    """The error for a place that belongs to somebody else; both are (lake id, sink id)."""
    lake, sink = owner
    return Conflict(
        f"{where} belongs to the sink {sink} of the lake {lake}",
        kind="owner",
        hint="Give this sink a place of its own. If the other one is gone for good, add the sink with --take-over.",
        expected={"lake": ours[0], "sink": ours[1]},
        actual={"lake": lake, "sink": sink},
    )
