"""The person who looks after the lake: does what `strand status` and the docs say about what waits for a person.

A stream parks when its ledger was put back by hand, and `strand sink continue` lets it go on; one whose rows retention
has removed meanwhile goes on past the hole. A clock that was ahead once keeps deletions waiting for a person's word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from strandline.errors import StrandError
from strandline.lake import Lake
from strandline.ledger.sinks.deliveries import read_streams
from strandline.ledger.sinks.sinks import list_sinks
from tests.soak.scene import TIMED
from tests.soak.stage import Stage

CONTINUE = "sink continue"


@dataclass(frozen=True)
class Parked:
    """A stream that waits, and why."""

    sink: str
    table: str
    reason: str

    @property
    def is_hole(self) -> bool:
        """Whether rows are missing that nobody can send any more."""
        return "past-hole" in self.reason

    @property
    def wants_to_continue(self) -> bool:
        """Whether it is to be continued, and not merely tried again."""
        return CONTINUE in self.reason


class Person:
    """Looks now and then."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def look(self) -> None:
        """See to everything that is parked."""
        for sink, streams in self._by_sink().items():
            for stream in streams:
                self._stage.done[f"parked: {_in_general(stream.reason)}"] += 1
                self._stage.tell(f"{sink} {stream.table} is parked: {stream.reason[:300]}")
                if stream.is_hole and stream.table != TIMED:
                    self._stage.wrong.append(
                        f"a hole in {stream.table}, which keeps its rows for good: {stream.reason}"
                    )
            if any(stream.wants_to_continue for stream in streams):
                past = ["--past-hole"] if any(stream.is_hole for stream in streams) else []
                done = self._stage.strand(self._stage.scene.lake, "sink", "continue", sink, "--yes", *past)
                self._stage.note(f"sink continued{' past a hole' if past else ''}: {done.code}")
            else:
                done = self._stage.strand(self._stage.scene.lake, "sink", "retry", sink)
            if done.code not in (0, 5):
                self._stage.tell(f"{sink}: {done.error}")

    def give_word_on_the_clock(self) -> None:
        """`strand doctor --fix`: from now on deletions go by the wall clock."""
        done = self._stage.strand(self._stage.scene.lake, "doctor", "--fix")
        kinds = sorted({finding["kind"] for finding in (done.document or {}).get("findings", [])})
        self._stage.note(f"doctor --fix: {done.code}")
        self._stage.tell(f"doctor still says: {', '.join(kinds) or 'nothing'}")

    def _by_sink(self) -> dict[str, list[Parked]]:
        found: dict[str, list[Parked]] = {}
        with suppress(StrandError):
            for stream in parked_streams(self._stage):
                found.setdefault(stream.sink, []).append(stream)
        return found


def parked_streams(stage: Stage) -> Iterator[Parked]:
    """Every stream that waits for a person."""
    with Lake(stage.scene.lake, read_only=True) as lake, lake.ledger.read() as conn:
        for sink in list_sinks(conn):
            for state in read_streams(conn, sink):
                reason = state.last_error if state.delivery is None else state.delivery.parked
                if reason and (state.delivery is not None or CONTINUE in reason):
                    yield Parked(sink.name, state.table, reason)


def _in_general(reason: str) -> str:
    """A reason without its numbers, so that equal ones are counted together."""
    return "".join("#" if letter.isdigit() else letter for letter in reason.split(". ", maxsplit=1)[0])[:90]
