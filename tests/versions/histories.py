"""A checker of histories: whether transactions of many processes can have come one after another.

Each transaction reads lists and appends numbers to some of them; a number is appended once in all. So a list tells the
order in which its numbers came, and every read of it, how much had come by then. From that follows who must have come
before whom: the writer of a number before that of the next one (ww), a writer before who has read its number (wr), a
reader before the writer of the first number that it has not seen (rw), and who had ended before another began (time).
If these go in a circle, there is no such order: an update was lost, a read was torn, or two did not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

Status = Literal["stored", "refused", "unknown"]


@dataclass(frozen=True)
class Transaction:
    """What one transaction has read and appended, and when; `unknown` is one whose process died on the way."""

    name: str
    status: Status
    began: int
    ended: int
    reads: Mapping[str, Sequence[int]] = field(default_factory=dict)
    appends: Mapping[str, Sequence[int]] = field(default_factory=dict)


def anomalies(history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> list[str]:
    """What is wrong with a history, `final` being the lists in the end; nothing, if it can have been so."""
    readings = [(one.name, key, list(seen)) for one in history for key, seen in one.reads.items()]
    found = [*_unordered(readings, final), *_unsound(history, final, readings)]
    return found or list(_circle(_counted(history, final), final))


def _unordered(readings: Sequence[tuple[str, str, list[int]]], final: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Every read of a list is a beginning of what it is in the end, and no number is in it twice."""
    for key, numbers in final.items():
        if len(set(numbers)) < len(numbers):
            yield f"twice: {key} is {list(numbers)}"
    for name, key, seen in readings:
        if seen != list(final.get(key, ()))[: len(seen)]:
            yield f"not a beginning: {name} read {key} as {seen}, in the end it is {list(final.get(key, ()))}"


def _unsound(
    history: Sequence[Transaction], final: Mapping[str, Sequence[int]], readings: Sequence[tuple[str, str, list[int]]]
) -> Iterator[str]:
    """What was stored is there, whole; what was refused is not, and nobody has read it, or half of it."""
    for one in history:
        there = {key: [n for n in numbers if n in final.get(key, ())] for key, numbers in one.appends.items()}
        missing = any(there[key] != list(numbers) for key, numbers in one.appends.items())
        if one.status == "stored" and missing:
            yield f"lost: of {one.name} {there} is there"
        if one.status == "refused" and any(there.values()):
            yield f"dirty: {one.name} was refused, and {there} is there"
        if one.status == "unknown" and missing and any(there.values()):
            yield f"torn: of {one.name} {there} is there"
        for name, key, seen in readings:
            numbers = one.appends.get(key, ())
            if 0 < sum(n in seen for n in numbers) < len(numbers) and name != one.name:
                yield f"halfway: {name} read {key} in the middle of {one.name}"


def _counted(history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> list[Transaction]:
    """Those that happened: what was stored, and of the unknown what is there."""
    there = {n for numbers in final.values() for n in numbers}
    return [
        one
        for one in history
        if one.status == "stored"
        or (one.status == "unknown" and any(n in there for numbers in one.appends.values() for n in numbers))
    ]


def _circle(history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> Iterator[str]:
    before: dict[str, dict[str, str]] = {one.name: {} for one in history}
    for earlier, later, why in _orders(history, final):
        if earlier != later:
            before[later].setdefault(earlier, why)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        steps = [f"{one} -{before[other][one]}-> {other}" for one, other in pairwise(circle)]
        yield f"circle: {', '.join(steps)}"


def _orders(history: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, str]]:
    """Who must have come before whom, and why."""
    writers = {n: one.name for one in history for numbers in one.appends.values() for n in numbers}
    for numbers in final.values():
        for earlier, later in pairwise(numbers):
            yield writers[earlier], writers[later], "ww"
    for one in history:
        for key, seen in one.reads.items():
            after = list(final.get(key, ()))[len(seen) :]
            if seen:
                yield writers[seen[-1]], one.name, "wr"
            if after:
                yield one.name, writers[after[0]], "rw"
        for other in history:
            if one.ended < other.began:
                yield one.name, other.name, "time"
