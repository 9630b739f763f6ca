"""Staging on private branches: what operations do to Iceberg, and what Iceberg answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from strandline.engines.spark.stage import append_to_branch
from strandline.model.schema.types import Column, Primitive
from tests.substrate.conftest import COLUMNS, FULL_NAME, NAME, Trial, refused


def test_a_branch_starts_at_the_pin_it_is_given(trial: Trial) -> None:
    """A staging branch that began at the newest snapshot instead would publish rows that another operation staged."""
    older = trial.grow_main(1)
    newer = trial.grow_main(4)
    trial.iceberg.create_branch(NAME, "op_1", older)
    assert trial.refs == {"main": newer, "op_1": older}
    assert trial.seqs("op_1") == [1, 2, 3]


def test_a_table_without_snapshots_takes_a_branch_that_is_empty(trial: Trial) -> None:
    """A first flush stages like this: its branch has a snapshot without rows, and there is no `main`."""
    trial.iceberg.create_branch(NAME, "op_1", None)
    assert set(trial.refs) == {"op_1"}
    assert trial.java.currentSnapshot() is None
    assert trial.seqs("op_1") == []


def test_an_append_to_a_branch_leaves_main_alone(trial: Trial) -> None:
    """If `main` moved, readers outside would see rows that are not published, and that recovery may still undo."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "op_1", main)
    staged = trial.append("op_1", 4)
    assert trial.refs == {"main": main, "op_1": staged}
    assert (trial.seqs("main"), trial.seqs(staged)) == ([1, 2, 3], [1, 2, 3, 4, 5, 6])


def test_an_append_stamps_the_snapshot_with_its_operation(trial: Trial) -> None:
    """Without the stamp nobody can tell from outside which operation made a snapshot."""
    trial.iceberg.create_branch(NAME, "op_1", None)
    staged = trial.append("op_1")
    summary = trial.java.snapshot(staged).summary()
    assert (summary["strand-op"], summary["added-records"]) == ("op-op_1", "3")


def test_the_first_settle_must_create_main(trial: Trial) -> None:
    """`replaceBranch` refuses a ref that does not exist; if it took it, `settle` would have one case less."""
    trial.iceberg.create_branch(NAME, "op_1", None)
    staged = trial.append("op_1")
    with refused("IllegalArgumentException", "Branch does not exist: main"):
        trial.java.manageSnapshots().replaceBranch("main", staged).commit()
    trial.java.manageSnapshots().createBranch("main", staged).removeBranch("op_1").commit()
    assert trial.refs == {"main": staged}


def test_a_settle_moves_main_and_drops_the_branch_in_one_commit(trial: Trial) -> None:
    """As two commits a crash between them would leave a state that recovery has no name for."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "op_1", main)
    staged = trial.append("op_1", 4)
    before = trial.java.operations().current()
    trial.java.manageSnapshots().replaceBranch("main", staged).removeBranch("op_1").commit()
    after = trial.java.operations().current()
    assert trial.refs == {"main": staged}
    previous = [entry.file() for entry in after.previousFiles()]
    assert previous[-1] == before.metadataFileLocation(), "there is more than one commit between them"


def test_moving_a_ref_is_not_retried_even_for_another_ref(trial: Trial) -> None:
    """`settle` and `create_branch` count on the refusal: they load anew and look again, so no ref ever moves back."""
    main = trial.grow_main(1)
    change = trial.java.manageSnapshots().createBranch("op_1", main)
    trial.iceberg.create_branch(NAME, "somebody_else", main)
    with refused("CommitFailedException", "metadata refresh is required"):
        change.commit()
    assert set(trial.refs) == {"main", "somebody_else"}


def test_the_metadata_that_a_change_of_refs_starts_from_is_taken_by_manage_snapshots(trial: Trial) -> None:
    """Not when the table is loaded: whatever must be read after the metadata has to be read after this call."""
    main = trial.grow_main(1)
    table = trial.java
    trial.iceberg.create_branch(NAME, "somebody_else", main)
    change = table.manageSnapshots()
    assert table.snapshot("somebody_else") is not None, "the table has the same newer metadata from here on"
    change.createBranch("op_1", main).commit()
    assert set(trial.refs) == {"main", "op_1", "somebody_else"}


def test_our_own_branching_starts_over_when_somebody_was_first(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other half of it: what Iceberg refuses to retry, `create_branch` does."""
    main = trial.grow_main(1)
    load, stale = trial.iceberg.load, [trial.java.manageSnapshots()]
    trial.iceberg.create_branch(NAME, "somebody_else", main)

    def late(name: str) -> Any:
        return SimpleNamespace(manageSnapshots=stale.pop) if stale else load(name)

    monkeypatch.setattr(trial.iceberg, "load", late)
    trial.iceberg.create_branch(NAME, "op_1", main)
    assert stale == []
    assert set(trial.refs) == {"main", "op_1", "somebody_else"}


def test_a_settle_whose_pin_grew_old_while_it_ran_moves_nothing_back(trial: Trial) -> None:
    """F54 at its narrowest: another operation publishes and settles between our look at the pin and our commit."""
    trial.iceberg.create_branch(NAME, "older", trial.grow_main(1))
    older = trial.append("older", 4)
    trial.iceberg.create_branch(NAME, "newer", older)
    newer = trial.append("newer", 7)
    answers = [older]

    def pin() -> int:
        if not answers:
            return newer
        trial.iceberg.settle(NAME, "main", "newer", lambda: newer, lambda _: True)
        return answers.pop()

    report = trial.iceberg.settle(NAME, "main", "older", pin, lambda _: True)
    assert trial.refs == {"main": newer}, "the late settle moved main back"
    assert report.after == newer


def test_an_empty_dataframe_makes_a_snapshot_all_the_same(trial: Trial) -> None:
    """So a flush with nothing but duplicates must not reach Spark: every idle flush would leave a snapshot behind."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "op_1", main)
    staged = trial.append("op_1", 4, count=0)
    assert staged != main
    assert trial.seqs(staged) == [1, 2, 3]


def test_merge_and_delete_write_a_branch_by_its_name_and_are_stamped_by_a_setting(trial: Trial) -> None:
    """Keyed tables are to be staged like this; if `main` moved, a merge would be visible before its publish."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "op_1", main)
    trial.rows(3, 2).createOrReplaceTempView("incoming")
    setting = "spark.sql.iceberg.snapshot-property.strand-op"
    trial.spark.conf.set(setting, "op-1")
    try:
        trial.spark.sql(
            f"MERGE INTO {FULL_NAME}.branch_op_1 t USING incoming s ON t._seq = s._seq "
            "WHEN MATCHED THEN UPDATE SET id = 'again' WHEN NOT MATCHED THEN INSERT *"
        )
        merged = trial.refs["op_1"]
        trial.spark.sql(f"DELETE FROM {FULL_NAME}.branch_op_1 WHERE _seq = 1")
    finally:
        trial.spark.conf.unset(setting)
    refs = trial.refs
    assert refs["main"] == main and len({main, merged, refs["op_1"]}) == 3
    assert (trial.seqs("main"), trial.seqs(merged), trial.seqs("op_1")) == ([1, 2, 3], [1, 2, 3, 4], [2, 3, 4])
    stamps = [trial.java.snapshot(one).summary()["strand-op"] for one in (merged, refs["op_1"])]
    assert stamps == ["op-1", "op-1"]


def test_a_mark_and_rows_go_to_main_in_one_commit(trial: Trial) -> None:
    """The Iceberg sink's promise: a mark without its rows skips them, rows without their mark come twice."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "op_1", main)
    staged = trial.append("op_1", 4)
    before = trial.java.operations().current().metadataFileLocation()
    transaction = trial.java.newTransaction()
    transaction.updateProperties().set("strand.mark", "6").commit()
    transaction.manageSnapshots().fastForwardBranch("main", "op_1").commit()
    assert trial.refs["main"] == main and "strand.mark" not in trial.java.properties()
    transaction.commitTransaction()
    after = trial.java.operations().current()
    assert trial.refs["main"] == staged and trial.java.properties()["strand.mark"] == "6"
    assert [entry.file() for entry in after.previousFiles()][-1] == before


def test_a_late_writer_of_a_mark_is_refused_and_leaves_nothing(trial: Trial) -> None:
    """A sink that was paused must not put its rows beside those of the one that took over, nor set its mark back."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "late", main)
    trial.append("late", 4)
    won = trial.grow_main(7)
    transaction = trial.java.newTransaction()
    transaction.updateProperties().set("strand.mark", "6").commit()
    with refused("IllegalArgumentException", "main is not an ancestor of late"):
        transaction.manageSnapshots().fastForwardBranch("main", "late").commit()
    assert trial.refs["main"] == won and "strand.mark" not in trial.java.properties()


def test_a_race_for_a_mark_has_one_winner(trial: Trial) -> None:
    """Two tickers that began from the same state: the second is refused at its commit, with rows and mark."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "slow", main)
    trial.append("slow", 4)
    transaction = trial.java.newTransaction()
    transaction.updateProperties().set("strand.mark", "6").commit()
    transaction.manageSnapshots().fastForwardBranch("main", "slow").commit()
    won = trial.grow_main(7)
    with pytest.raises(Py4JJavaError, match="metadata refresh is required"):
        transaction.commitTransaction()
    assert trial.refs["main"] == won and "strand.mark" not in trial.java.properties()


def test_an_append_keeps_one_file_open_at_a_time(trial: Trial) -> None:
    """Rows of two partitions in turns are refused: a writer that took them would keep a file open for each."""
    name = "trial.parted"
    trial.iceberg.ensure_table(name, COLUMNS, ["id"])
    columns = [Column("id", Primitive("string")), Column("_seq", Primitive("long"))]
    trial.iceberg.create_branch(name, "op_1", None)
    rows = trial.spark.range(1, 7, 1, 1).selectExpr("concat('r', id % 2) AS id", "id AS _seq")
    with refused("SparkException", "clustered"):
        append_to_branch(rows, name, "op_1", "unsorted", columns)
    append_to_branch(rows, name, "op_1", "sorted", columns, ["id"])
    stored = trial.spark.table(f"strand.{name}.branch_op_1").collect()
    assert sorted((row._seq, row.id) for row in stored) == [(n, f"r{n % 2}") for n in range(1, 7)]
