"""A writer process: calls with idempotency keys, and a record of what was offered and what was acked.

A line is written before each call and one after its answer, so a call that was killed in between is known as one whose
answer was lost. Started again, the writer asks again about every second one of these; the others it never learns of,
and their rows may be there or not, but not twice.

A ledger that has gone back has forgotten its idempotency keys too. So a call belongs to an era, and one of an era that
is over is not asked for again: its rows may have been delivered, and would be other rows in a ledger that lost them.

Rows of the timed table carry the time of the writer's clock, which may be wrong, and now and then one that is days old.
A row that is too old by then is left out before the ack, and the answer says how many there were.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strandline.errors import TransientError
from strandline.lake import Lake
from tests.soak.scene import KEYED, PLAIN, TIME, TIMED, Scene

MOST_ROWS = 60
PAUSE_S = 0.25
SOURCES = 3
TABLE_SHARES = {KEYED: 0.45, PLAIN: 0.35, TIMED: 0.2}
ANCIENT_SHARE = 0.3
ANCIENT_S = 5 * 24 * 3600.0
"""No clock of a soak is so far behind that a row of this age would be young."""
ANCIENT = "ancient"


@dataclass(frozen=True)
class Call:
    """One append, the same whenever it is asked for. `at_us` is what the clock said when it was first offered."""

    seed: int
    writer: str
    number: int
    era: int = 0
    at_us: int = 0

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return f"{self.writer}/{self.number}"

    @property
    def table(self) -> str:
        """Where it goes."""
        shares = TABLE_SHARES
        return self._random("table").choices(list(shares), weights=list(shares.values()))[0]

    @property
    def asked_again(self) -> bool:
        """Whether a writer that lost its answer asks again."""
        return self._random("again").random() < 0.5

    @property
    def ancient_ids(self) -> list[str]:
        """Those of its rows that were too old when it was first offered, by any clock."""
        if self.table != TIMED or self._random("ancient").random() >= ANCIENT_SHARE:
            return []
        return [f"{self.key}/{ANCIENT}/{n}" for n in range(1 + self._random("ancients").randrange(3))]

    @property
    def young_ids(self) -> list[str]:
        """The ids of its other rows; in the keyed table one of them is offered by everybody."""
        own = [f"{self.key}/{n}" for n in range(self._random("rows").randint(1, MOST_ROWS))]
        return [f"shared/{self.era}/{self.number // 4}", *own] if self.table == KEYED else own

    def part_ids(self) -> list[str]:
        """The ids of all of its rows."""
        return [*self.ancient_ids, *self.young_ids]

    def kept_ids(self, too_old: int) -> list[str] | None:
        """The rows that were stored when the answer says so many were too old; None if it can't be told."""
        kept = {0: self.part_ids(), len(self.ancient_ids): self.young_ids, len(self.part_ids()): []}
        return kept.get(too_old)

    def rows(self) -> list[dict[str, Any]]:
        """What is appended."""
        if self.table != TIMED:
            return [row_of(part_id) for part_id in self.part_ids()]
        ancient = set(self.ancient_ids)
        return [self._timed(part_id, ANCIENT_S if part_id in ancient else 0.0) for part_id in self.part_ids()]

    def _timed(self, part_id: str, age_s: float) -> dict[str, Any]:
        at = dt.datetime.fromtimestamp(self.at_us / 1e6 - age_s, dt.UTC)
        return {**row_of(part_id), TIME: at.isoformat()}

    def _random(self, what: str) -> random.Random:
        return random.Random(f"{what} {self.seed}/{self.key}")


def row_of(part_id: str) -> dict[str, Any]:
    """Everything about a row follows from its id, its time aside."""
    n = sum(part_id.encode())
    return {"part_id": part_id, "source": f"s{n % SOURCES}", "n": n, "body": f"body of {part_id} " * (1 + n % 20)}


@dataclass
class Calls:
    """What a writer wrote down: its calls by number, in the order of their first offer, and what was answered."""

    offered: dict[int, Call] = field(default_factory=dict)
    too_old: dict[int, int] = field(default_factory=dict)
    """By number: how many rows the answer left out. A call without an entry has no answer."""


def read_calls(file: Path, seed: int, writer: str) -> Calls:
    """A writer's record; half a line at its end counts for nothing."""
    calls = Calls()
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    for line in lines:
        if not line.endswith(b"\n"):
            continue
        what, number, *more = line.decode().split()
        if what == "offer":
            era, at_us = (int(word) for word in [*more, "0", "0"][:2])
            calls.offered.setdefault(int(number), Call(seed, writer, int(number), era, at_us))
        else:
            calls.too_old[int(number)] = int(more[0]) if more else 0
    return calls


def next_calls(seed: int, writer: str, file: Path, era: int) -> Iterator[Call]:
    """What a writer that starts now asks for, one after another."""
    calls = read_calls(file, seed, writer)
    number = max(calls.offered, default=-1)
    if number >= 0 and number not in calls.too_old:
        lost = calls.offered[number]
        if lost.asked_again and lost.era == era:
            yield lost
    while True:
        number += 1
        yield Call(seed, writer, number, era, time.time_ns() // 1000)


def write(lake: Lake, scene: Scene, seed: int, writer: str) -> None:
    """Append until told to stop, or until whoever started this process is gone."""
    parent, file = os.getppid(), scene.calls(writer)
    with file.open("ab", buffering=0) as out:
        for call in next_calls(seed, writer, file, scene.read_era()):
            if scene.stop.exists() or os.getppid() != parent:
                return
            append_call(lake, call, out)
            time.sleep(random.uniform(0, 2 * PAUSE_S))


def append_call(lake: Lake, call: Call, out: Any) -> None:
    """Offer a call, and write down what was answered."""
    out.write(f"offer {call.number} {call.era} {call.at_us}\n".encode())
    while True:
        try:
            ack = lake.append(call.table, call.rows(), actor=call.writer, idempotency_key=call.key)
            break
        except TransientError:
            time.sleep(0.1)
    out.write(f"acked {call.number} {getattr(ack, 'too_old', 0)}\n".encode())


def main(folder: str, seed: str, writer: str) -> None:
    """`python -m tests.soak.writer FOLDER SEED NAME`."""
    scene = Scene(Path(folder))
    with Lake(scene.lake) as lake:
        write(lake, scene, int(seed), writer)


if __name__ == "__main__":
    main(*sys.argv[1:])
