"""Compaction: files change, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline import failpoints
from strandline.engines.spark.session import lake_session
from strandline.errors import Damaged, HistoryGone
from strandline.lake import Lake
from strandline.operations.maintain import compact as compacting
from tests import files
from tests.acceptance.test_failpoints import FLUSH_POINTS
from tests.kit import (
    assert_recovered,
    audits,
    crash,
    log_part_ids,
    make_table,
    message,
    messages,
    part_ids,
    reopened,
    swept,
)

REWRITE_POINTS = {name: outcome for name, outcome in FLUSH_POINTS.items() if not name.endswith("_files")}
"""A rewrite has no files of its own to write before Spark writes."""


def small_files(lake: Lake, count: int, rows: int = 5, sources: tuple[str, ...] = ("a", "b")) -> list[str]:
    """So many flushes, each with rows of every source."""
    expected: list[str] = []
    for n in range(count):
        some = [message(n * rows + k, source=sources[k % len(sources)]) for k in range(rows)]
        lake.append("messages", some)
        lake.flush("messages")
        expected += [row["part_id"] for row in some]
    return expected


def seqs(lake: Lake) -> list[tuple[str, int, str]]:
    """Every row with the columns that we add."""
    return [tuple(row) for row in lake.view().sql("select part_id, _seq, _at, _actor from messages order by 2").rows()]


def assert_disjoint(lake: Lake) -> None:
    """The files of a partition don't overlap in seqs, each is sorted, and the ledger's figures of each are true."""
    reach: dict[str, int] = {}
    for file in lake.view().files("messages"):
        table = files.rows(file.path)
        found = table.column("_seq").to_pylist()
        assert found == sorted(set(found)), "a file is not in seq order"
        assert (found[0], found[-1], len(found)) == (file.first_seq, file.last_seq, file.rows)
        at = [moment.timestamp() for moment in table.column("_at").to_pylist()]
        assert (file.oldest_us, file.newest_us) == (round(at[0] * 1e6), round(at[-1] * 1e6))
        assert file.first_seq > reach.get(file.partition, 0), "two files of a partition overlap"
        reach[file.partition] = file.last_seq


def test_small_files_become_one_for_each_partition_and_no_row_changes(lake: Lake) -> None:
    """Rows, seqs, times and books are the same before and after; outside engines see the same rows on main."""
    make_table(lake, partition_by=["source"])
    expected = small_files(lake, 6)
    before, books = seqs(lake), lake.view().branch_table("messages").head.books
    (planned,) = lake.compact("messages", dry_run=True)
    assert (planned.before["files"], planned.after["files"], planned.complete) == (12, 2, False)
    assert len(lake.view().files("messages")) == 12, "a dry run changes nothing"
    (done,) = lake.compact("messages")
    assert (done.before["files"], done.after["files"], done.complete) == (12, 2, True)
    assert seqs(lake) == before
    assert lake.view().branch_table("messages").head.books == books
    assert log_part_ids(lake) == expected
    assert lake.spark.table("strand.lake.messages").count() == len(expected)
    assert_disjoint(lake)
    assert lake.compact("messages")[0].operations == (), "again, there is nothing to do"
    assert_recovered(lake)


def test_a_run_is_bounded_and_the_next_one_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget of bytes it takes one bite and says that something is left; bites are operations of their own."""
    make_table(lake)
    expected = small_files(lake, 6, sources=("a",))
    monkeypatch.setattr(compacting, "BITE_BYTES", 1)
    lake.set_table("messages", target_file_bytes=lake.view().files("messages")[0].size_bytes * 5 // 2)
    (first,) = lake.compact("messages", max_bytes=1)
    assert (first.after["files"], first.complete, len(first.operations)) == (5, False, 1)
    (rest,) = lake.compact("messages")
    assert rest.complete and len(rest.operations) >= 2
    assert part_ids(lake) == expected
    assert_disjoint(lake)


def test_the_neediest_table_comes_first(lake: Lake) -> None:
    """Tables are compacted in the order of how many files can be merged."""
    make_table(lake, "few")
    make_table(lake)
    for n in range(2):
        lake.append("few", [message(n)])
        lake.flush("few")
    small_files(lake, 3)
    assert [done.table for done in lake.compact(dry_run=True)] == ["messages", "few"]


@pytest.mark.parametrize("name", swept(REWRITE_POINTS))
def test_f05_a_compaction_that_dies_anywhere_loses_and_repeats_nothing(lake: Lake, name: str) -> None:
    """Whatever step it dies at, the table is the old one or the new one, and the next compaction works."""
    make_table(lake, partition_by=["source"])
    expected = small_files(lake, 2)
    lake.append("messages", messages(100, 103))
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.compact("messages")
    with reopened(lake) as again:
        assert part_ids(again) == [*expected, "p100", "p101", "p102"]
        assert_recovered(again, REWRITE_POINTS[name])
        again.compact("messages")
        assert log_part_ids(again)[: len(expected)] == expected
        assert_disjoint(again)


def test_a_rewrite_that_lost_a_row_is_not_published(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is compared with what was read; a difference undoes the operation."""
    make_table(lake)
    expected = small_files(lake, 2)
    real = compacting.added_files

    def one_less(*arguments: object) -> object:
        from dataclasses import replace

        return tuple(replace(file, rows=file.rows - 1) for file in real(*arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(compacting, "added_files", one_less)
    with pytest.raises(Damaged, match="nothing was published"):
        lake.compact("messages")
    assert part_ids(lake) == expected and len(lake.view().files("messages")) == 2
    assert audits(lake)[0]["outcome"] == "rolled_back"


def test_an_older_view_reads_the_files_it_named(lake: Lake) -> None:
    """Compaction leaves a view's files alone until they expire; then the view says so, instead of showing less."""
    make_table(lake)
    expected = small_files(lake, 3)
    view = lake.view()
    lake.compact("messages")
    assert [row[0] for row in view.sql("select part_id from messages order by _seq").rows()] == expected
    lake.expire("messages", grace_s=0)
    for read in (
        lambda: view.sql("select part_id from messages").rows(),
        lambda: list(view.read("messages")),
        lambda: view.spark("messages"),
    ):
        with pytest.raises(HistoryGone):
            read()
    assert part_ids(lake) == expected


def test_compaction_works_while_the_session_of_another_catalog_is_active(lake: Lake, tmp_path: Path) -> None:
    """Iceberg looks for a rewrite in the thread's active session: that of a sink's target, after a copy."""
    make_table(lake)
    expected = small_files(lake, 2)
    uri = f"jdbc:sqlite:{tmp_path}/catalog.db"
    elsewhere = {"type": "jdbc", "uri": uri, "jdbc.schema-version": "V1", "warehouse": f"file://{tmp_path}/there"}
    other = lake_session(lake.spark, elsewhere)
    other.createDataFrame([(1,)], "n long")
    assert other.getActiveSession().conf.get("spark.sql.catalog.strand.uri") == uri, "another one is active"
    (done,) = lake.compact("messages")
    assert (done.after["files"], log_part_ids(lake)) == (1, expected)
