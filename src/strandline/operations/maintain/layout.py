"""Which files of a log belong together: decided from the ledger's list alone.

The files of a partition don't overlap in seqs, and a reader relies on it: a range opens only the files that hold it,
and sorting runs of files sorts all of them. So only neighbours are ever written together.

Merging the same rows again and again would make the work grow with the square of the table. A run of small files is
merged when none of them is larger than all the others together, so that a row is rewritten about once for each
doubling of the file it is in; otherwise the largest is left alone, and what lies on either side of it is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from strandline.model.tables import DataFile

MIN_FILES = 4
SMALL_SHARE = 0.75
"""Of the target size: what has come so close to it is left alone."""

Group = tuple[DataFile, ...]


def mergeable(files: Sequence[DataFile], target_bytes: int, *, eager: bool) -> list[Group]:
    """Groups of small neighbours, each to become one file of about the target size; oldest first.

    `eager` merges whatever two files it finds: a person has asked for it now.
    """
    groups = [
        group
        for run in _small_runs(files, target_bytes)
        for part in (_cut(run, target_bytes) if eager else _worth(run, target_bytes))
        for group in [part]
        if len(group) > 1
    ]
    return sorted(groups, key=lambda group: group[0].first_seq)


def take_bite(groups: Iterable[Group], max_bytes: int, max_groups: int) -> list[Group]:
    """The first groups, as many as one operation takes; at least one if there is one."""
    taken: list[Group] = []
    size_bytes = 0
    for group in groups:
        size_bytes += size_of(group)
        if taken and (size_bytes > max_bytes or len(taken) >= max_groups):
            break
        taken.append(group)
    return taken


def neighbours(
    files: Sequence[DataFile], chosen: Iterable[DataFile], gone: Iterable[DataFile], target_bytes: int
) -> list[Group]:
    """The chosen files of a log as groups of neighbours up to the target size; what is gone lies between none."""
    included = {file.path for file in chosen}
    absent = {file.path for file in gone}
    groups: list[Group] = []
    for ordered in _by_partition(files).values():
        run: list[DataFile] = []
        for file in ordered:
            if file.path in absent:
                continue
            if file.path in included:
                run.append(file)
                continue
            groups.extend(_cut(run, target_bytes))
            run = []
        groups.extend(_cut(run, target_bytes))
    return sorted(groups, key=lambda group: group[0].first_seq)


def size_of(files: Iterable[DataFile]) -> int:
    """The bytes of some files together."""
    return sum(file.size_bytes for file in files)


def _by_partition(files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    by_partition: dict[str, list[DataFile]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.first_seq):
        by_partition[file.partition].append(file)
    return by_partition


def _small_runs(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    for ordered in _by_partition(files).values():
        run: list[DataFile] = []
        for file in ordered:
            if file.size_bytes < SMALL_SHARE * target_bytes:
                run.append(file)
                continue
            yield run
            run = []
        yield run


def _worth(run: list[DataFile], target_bytes: int) -> Iterator[Group]:
    """The parts of a run that are worth being merged now."""
    waiting = [run]
    while waiting:
        part = waiting.pop()
        if len(part) < 2:
            continue
        total, largest = size_of(part), max(part, key=lambda file: file.size_bytes)
        balanced = len(part) >= MIN_FILES and largest.size_bytes * 2 <= total
        if balanced or total >= SMALL_SHARE * target_bytes:
            yield from (
                group for group in _cut(part, target_bytes) if len(group) >= MIN_FILES or _is_full(group, target_bytes)
            )
            continue
        place = part.index(largest)
        waiting += [part[:place], part[place + 1 :]]


def _is_full(group: Group, target_bytes: int) -> bool:
    return len(group) > 1 and size_of(group) >= SMALL_SHARE * target_bytes


def _cut(run: Sequence[DataFile], target_bytes: int) -> Iterator[Group]:
    """A run in pieces of at most the target size; a larger file is a piece of its own."""
    piece: list[DataFile] = []
    size_bytes = 0
    for file in run:
        if piece and size_bytes + file.size_bytes > target_bytes:
            yield tuple(piece)
            piece, size_bytes = [], 0
        piece.append(file)
        size_bytes += file.size_bytes
    if piece:
        yield tuple(piece)
