"""What is measured, how, and what counts as reached."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Work = Callable[[int], float]
"""One turn: it gets the number of its round, prepares what it likes, and returns the seconds of what counts."""


@dataclass(frozen=True)
class Scale:
    """How much is done: the sizes of the full run, divided by `divisor`, in so many rounds."""

    divisor: int = 1
    quick: bool = False

    def rows(self, full: int) -> int:
        """A number of rows, never so few that there is nothing to measure."""
        return max(10, full // self.divisor)

    def rounds(self, full: int) -> int:
        """A number of repetitions; a quick run only shows that everything works."""
        return 2 if self.quick else full


@dataclass(frozen=True)
class Reach:
    """What a ratio has to be: at the most, or at the least."""

    limit: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"

    def holds(self, ratio: float) -> bool:
        """Whether the ratio is good enough."""
        return ratio >= self.limit if self.at_least else ratio <= self.limit


@dataclass(frozen=True)
class Line:
    """One line of the table: ours against a baseline, in the same unit."""

    what: str
    against: str
    ours: float
    baseline: float
    unit: str
    reach: Reach
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Ours as a multiple of the baseline."""
        return self.ours / self.baseline

    @property
    def reached(self) -> bool:
        """Whether that is good enough."""
        return self.reach.holds(self.ratio)

    def to_json(self) -> dict[str, Any]:
        """The line for machines."""
        return {
            "what": self.what,
            "against": self.against,
            "ours": self.ours,
            "baseline": self.baseline,
            "unit": self.unit,
            "ratio": round(self.ratio, 3),
            "reach": str(self.reach),
            "reached": self.reached,
            "notes": dict(self.notes),
        }


def timed(work: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_turns(rounds: int, *works: Work, warm_ups: int = 0) -> list[list[float]]:
    """Every work in every round, one after another; the seconds of each, without those of the warm-ups."""
    seconds: list[list[float]] = [[] for _ in works]
    for number in range(warm_ups + rounds):
        for work, taken in zip(works, seconds, strict=True):
            taken.append(work(number))
    return [taken[warm_ups:] for taken in seconds]


def spread(seconds: list[float]) -> str:
    """A median's company, for whoever doubts it."""
    return f"{min(seconds):.4g}..{max(seconds):.4g} s, median {statistics.median(seconds):.4g} s of {len(seconds)}"


def tell(text: str) -> None:
    """Say what is being done, beside the results."""
    print(text, file=sys.stderr, flush=True)
