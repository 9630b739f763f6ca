"""Which places of a sweep a run visits.

A sweep does the same at many places: it dies at every failpoint, or puts a hostile text wherever one can stand. All of
them take over an hour, so a run takes a slice. Its number comes from the commit, so that every place is visited over
time, and one commit is judged by the same places everywhere. The run's head prints it; `SLICE=7 make test` runs slice 7
on any commit, and `make test-all` runs all places.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

SLICES = 12
ALL = "all"
VARIABLE = "STRAND_TEST_SLICE"

T = TypeVar("T")


def all_places() -> bool:
    """Whether this run visits every place of every sweep."""
    return os.environ.get(VARIABLE) == ALL


@cache
def number() -> int:
    """The number of this run's slice: as the caller says, or the commit's."""
    text = os.environ.get(VARIABLE, "")
    if text not in ("", ALL):
        if not (text.isdecimal() and int(text) < SLICES):
            raise ValueError(f"SLICE={text} is none: it is a number from 0 to {SLICES - 1}, or {ALL}")
        return int(text)
    return int(commit(), 16) % SLICES


@cache
def commit() -> str:
    """The id of the commit that is tested; 0 in a tree without git."""
    here = Path(__file__).parent
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "0"


def head() -> str:
    """What a run says of its slice."""
    if all_places():
        return "sweeps: every place"
    return f"sweeps: slice {number()} of {SLICES} (commit {commit()[:9]}); SLICE={number()} runs the same again"


def share(places: Iterable[T], stride: int, *, shift: int = 0) -> list[T]:
    """Every `stride`-th place, from another one on in each slice; `stride` slices in a row visit all of them.

    Several that sweep the same places each have a `shift`, so that one run has every place between them.
    """
    assert SLICES % stride == 0, f"{SLICES} slices would visit some places of a stride of {stride} more often"
    listed = list(places)
    if all_places() or not listed:
        return listed
    first = number() + shift
    return listed[first % stride :: stride] or [listed[first % len(listed)]]


def turn(places: Iterable[T], count: int) -> list[T]:
    """So many of the places, those whose turn it is; for what takes several processes at each."""
    listed = list(places)
    if all_places() or count >= len(listed):
        return listed
    first = number() * count
    return [listed[place % len(listed)] for place in range(first, first + count)]
