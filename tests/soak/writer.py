"""A writer process: calls with idempotency keys, and a record of what was offered and what was acked.

A line is written before each call and one after its answer, so a call that was killed in between is known as one whose
answer was lost. Started again, the writer asks again about every second one of these; the others it never learns of,
and their rows may be there or not, but not twice.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.errors import TransientError
from strandline.lake import Lake
from tests.soak.scene import KEYED, PLAIN, Scene

MOST_ROWS = 60
PAUSE_S = 0.25
SOURCES = 3


@dataclass(frozen=True)
class Call:
    """One append, the same whenever it is asked for."""

    seed: int
    writer: str
    number: int

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return f"{self.writer}/{self.number}"

    @property
    def table(self) -> str:
        """Where it goes."""
        return KEYED if self._random("table").random() < 0.5 else PLAIN

    @property
    def asked_again(self) -> bool:
        """Whether a writer that lost its answer asks again."""
        return self._random("again").random() < 0.5

    def part_ids(self) -> list[str]:
        """The ids of its rows; in the keyed table one of them is offered by everybody."""
        own = [f"{self.key}/{n}" for n in range(self._random("rows").randint(1, MOST_ROWS))]
        return [f"shared/{self.number // 4}", *own] if self.table == KEYED else own

    def rows(self) -> list[dict[str, Any]]:
        """What is appended."""
        return [row_of(part_id) for part_id in self.part_ids()]

    def _random(self, what: str) -> random.Random:
        return random.Random(f"{what} {self.seed}/{self.key}")


def row_of(part_id: str) -> dict[str, Any]:
    """Everything about a row follows from its id."""
    n = sum(part_id.encode())
    return {"part_id": part_id, "source": f"s{n % SOURCES}", "n": n, "body": f"body of {part_id} " * (1 + n % 20)}


def read_calls(file: Path) -> tuple[list[int], set[int]]:
    """The calls that were offered, in order and with repetitions, and those that were acked."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    told = [line.decode().split() for line in lines if line.endswith(b"\n")]
    return [int(n) for what, n in told if what == "offer"], {int(n) for what, n in told if what == "acked"}


def _next(seed: int, writer: str, file: Path) -> Iterator[Call]:
    offered, acked = read_calls(file)
    number = max(offered, default=-1)
    if number >= 0 and number not in acked:
        lost = Call(seed, writer, number)
        if lost.asked_again:
            yield lost
    while True:
        number += 1
        yield Call(seed, writer, number)


def write(lake: Lake, scene: Scene, seed: int, writer: str) -> None:
    """Append until told to stop, or until whoever started this process is gone."""
    parent, file = os.getppid(), scene.calls(writer)
    with file.open("ab", buffering=0) as out:
        for call in _next(seed, writer, file):
            if scene.stop.exists() or os.getppid() != parent:
                return
            out.write(f"offer {call.number}\n".encode())
            _append(lake, call)
            out.write(f"acked {call.number}\n".encode())
            time.sleep(random.uniform(0, 2 * PAUSE_S))


def _append(lake: Lake, call: Call) -> None:
    while True:
        try:
            lake.append(call.table, call.rows(), actor=call.writer, idempotency_key=call.key)
            return
        except TransientError:
            time.sleep(0.1)


def main(folder: str, seed: str, writer: str) -> None:
    """`python -m tests.soak.writer FOLDER SEED NAME`."""
    scene = Scene(Path(folder))
    with Lake(scene.lake) as lake:
        write(lake, scene, int(seed), writer)


if __name__ == "__main__":
    main(*sys.argv[1:])
