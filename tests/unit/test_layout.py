"""Which files are merged: pure decisions about lists of files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.model.tables import DataFile
from strandline.operations.maintain.layout import mergeable, neighbours, size_of, take_bite

TARGET = 100


def files(*sizes: int, partition: str = "all", start: int = 1) -> list[DataFile]:
    """Files of these sizes, one after another."""
    return [
        DataFile(f"{partition}-{n}", 10, size, start + 10 * n, start + 10 * n + 9, partition)
        for n, size in enumerate(sizes)
    ]


def sizes(groups: list[tuple[DataFile, ...]]) -> list[list[int]]:
    """The sizes of the files in each group."""
    return [[file.size_bytes for file in group] for group in groups]


def test_small_neighbours_are_merged_up_to_the_target() -> None:
    """A run is cut where a group would become too large; large files are left alone and end a run."""
    assert sizes(mergeable(files(*[30] * 7), TARGET, eager=True)) == [[30, 30, 30], [30, 30, 30]]
    assert sizes(mergeable(files(5, 5, 90, 5, 5), TARGET, eager=True)) == [[5, 5], [5, 5]]
    assert mergeable(files(5, 90, 5), TARGET, eager=True) == []


def test_partitions_are_never_mixed() -> None:
    """Files that lie between each other in seqs and belong to two partitions make two groups."""
    both = [*files(5, 5, partition="a"), *files(6, 6, partition="b", start=4)]
    assert sizes(mergeable(both, TARGET, eager=True)) == [[5, 5], [6, 6]]


def test_a_large_file_is_not_rewritten_for_a_few_small_ones() -> None:
    """Not eager, the largest waits until there is as much beside it; the small ones are merged among themselves."""
    assert mergeable(files(40, 1, 1, 1), TARGET, eager=False) == []
    assert sizes(mergeable(files(40, 1, 1, 1, 1), TARGET, eager=False)) == [[1, 1, 1, 1]]
    assert sizes(mergeable(files(4, 2, 1, 1), TARGET, eager=False)) == [[4, 2, 1, 1]]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=300))
def test_the_work_does_not_grow_with_the_square_of_the_table(arriving: list[int]) -> None:
    """However files arrive, bytes are rewritten a few times at most, and few small files are left over."""
    target = 1000
    log: list[DataFile] = []
    rewritten = 0
    for n, size in enumerate(arriving):
        log.append(DataFile(str(n), 1, size, n, n, "all"))
        while groups := mergeable(log, target, eager=False):
            for group in groups:
                rewritten += size_of(group)
                place = log.index(group[0])
                merged = DataFile(f"m{n}-{place}", 1, size_of(group), group[0].first_seq, group[-1].last_seq, "all")
                log[place : place + len(group)] = [merged]
    assert rewritten <= 11 * sum(arriving)  # log2 of the target and the smallest file
    assert len([file for file in log if file.size_bytes < target * 0.75]) <= 40
    assert [file.first_seq for file in log] == sorted(file.first_seq for file in log)


def test_a_bite_is_bounded_and_never_empty() -> None:
    """At least one group is taken, and then no more than fit."""
    groups = mergeable(files(*[30] * 12), TARGET, eager=True)
    assert len(take_bite(groups, 1, 10)) == 1
    assert len(take_bite(groups, 180, 10)) == 2
    assert len(take_bite(groups, 10_000, 3)) == 3


def test_only_neighbours_are_written_together() -> None:
    """Chosen files with another between them stay apart; one that goes away is between nobody."""
    log = files(10, 10, 10, 10)
    chosen = [log[0], log[2], log[3]]
    assert [len(group) for group in neighbours(log, chosen, [], TARGET)] == [1, 2]
    assert [len(group) for group in neighbours(log, chosen, [log[1]], TARGET)] == [3]
