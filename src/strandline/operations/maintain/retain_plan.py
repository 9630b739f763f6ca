"""What planners of retention say: what of a table may go now, and what has to stay for which sink.

A log table and a keyed one differ in what is old, and in nothing else: `retain` drives both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from strandline.errors import PreconditionFailed
from strandline.json_types import JsonObject
from strandline.model.wording import counted
from strandline.operations.maintain.removal import Removal

WORTH_SHARE = 0.25
"""Of a file's rows, or of a keyed table's versions: when so many may go, the worker does it."""


@dataclass(frozen=True)
class RetentionBite:
    """One bite: what goes, the highest seq that goes of each stream, and what else the publish notes."""

    removal: Removal
    pruned: Mapping[str, int]
    kept_from: int = 0
    barrier: bool = False


@dataclass(frozen=True)
class Behind:
    """So many old rows of a stream that a sink, which has come to a seq, has still to deliver."""

    sink: str
    partition: str
    seq: int
    rows: int


@dataclass(frozen=True)
class Words:
    """How a planner speaks of what goes."""

    noun: str
    of_stream: str
    delivered: str


class Planner(Protocol):
    """What may go of a table, as it was at one moment."""

    @property
    def words(self) -> Words:
        """How it speaks of what goes."""

    def refuse_everything(self) -> None:
        """Refuse to leave nothing, unless a person says yes."""

    def next_change(self, bite_bytes: int) -> RetentionBite | None:
        """The next bite; None when nothing may go."""

    def rows(self) -> int:
        """How many rows may go."""

    def after(self, before: Mapping[str, int]) -> dict[str, int]:
        """The table's figures when they have gone."""

    def is_complete(self, *, is_spent: bool) -> bool:
        """Whether nothing is left to do."""

    def held(self) -> Sequence[Behind]:
        """What stays for which sink."""

    def lost(self) -> Sequence[Behind]:
        """What each sink would never get, if its watermark is no limit."""

    def notes(self) -> Sequence[str]:
        """What a person should know besides."""

    def detail(self) -> JsonObject:
        """How far back the table is kept."""

    def preview(self) -> JsonObject:
        """What only a dry run says."""


def refuse_past_sinks(planner: Planner) -> None:
    """Refuse to take from sinks what they have not delivered, unless a person says yes."""
    lost = planner.lost()
    if not lost:
        return
    words = planner.words
    who_loses = "; ".join(
        f"{behind.sink} never gets {counted(behind.rows, words.noun)} of {words.of_stream}{behind.partition}"
        for behind in lost
    )
    raise PreconditionFailed(
        f"{words.noun}s would go that sinks have not delivered: {who_loses}",
        hint="`--yes` removes them all the same.",
        lost=[asdict(behind) for behind in lost],
    )


def why_held(planner: Planner, behind: Behind) -> str:
    """Why rows of a stream stay."""
    words = planner.words
    return (
        f"{behind.rows:,} old {words.noun}s of stream {behind.partition} stay: sink {behind.sink!r} has come to seq "
        f"{behind.seq} there, and still has to deliver {words.delivered}"
    )
