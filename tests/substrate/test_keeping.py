"""What Iceberg keeps and what it throws away: snapshots, files, metadata."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from strandline.engines.duck.relations import local_path
from strandline.engines.spark.iceberg import FILTER, FILTER_PROPERTIES, STATE_PROPERTIES, TABLE_PROPERTIES
from tests.substrate.conftest import FULL_NAME, NAME, Trial
from tests.substrate.test_catalog import pyiceberg

MAX_AGE = "history.expire.max-snapshot-age-ms"


@pytest.fixture
def aged(trial: Trial) -> tuple[Trial, dict[str, int]]:
    """A table with history: an ancestor of main, a snapshot without a ref, another one, and main."""
    ancestor = trial.grow_main(1)
    loose = {}
    for name, first in (("one", 10), ("two", 20)):
        trial.iceberg.create_branch(NAME, name, ancestor)
        loose[name] = trial.append(name, first)
        trial.java.manageSnapshots().removeBranch(name).commit()
    main = trial.grow_main(4)
    return trial, {"ancestor": ancestor, **loose, "main": main}


def expire(trial: Trial, *snapshots: int) -> None:
    ids = f", snapshot_ids => array({', '.join(map(str, snapshots))})" if snapshots else ""
    trial.spark.sql(f"CALL strand.system.expire_snapshots(table => '{NAME}'{ids})").collect()


def test_expiry_by_id_removes_exactly_these(aged: tuple[Trial, dict[str, int]]) -> None:
    """Our own expiry names what no pin needs. One snapshot more, and a view or a delivery loses its rows."""
    trial, ids = aged
    before = trial.snapshots
    expire(trial, ids["one"])
    assert before - trial.snapshots == {ids["one"]} and trial.snapshots < before
    assert trial.seqs(ids["two"]) == [1, 2, 3, 20, 21, 22]


def test_expiry_by_id_also_removes_what_is_over_age(aged: tuple[Trial, dict[str, int]]) -> None:
    """Naming ids does not switch the age off, so explicit ids alone are not enough: the property must be raised too."""
    trial, ids = aged
    trial.set_property(MAX_AGE, "1")
    expire(trial, ids["one"])
    assert trial.snapshots == {ids["main"]}


def test_a_default_expiry_by_somebody_else_removes_nothing_of_ours(aged: tuple[Trial, dict[str, int]]) -> None:
    """Any engine may run it. With Iceberg's default age of 5 days it drops snapshots that our pins name."""
    trial, ids = aged
    default = trial.jvm.org.apache.iceberg.TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT
    assert default == 5 * 24 * 3600 * 1000 < int(TABLE_PROPERTIES[MAX_AGE])
    before = trial.snapshots
    trial.java.expireSnapshots().commit()
    assert trial.snapshots == before > {ids["one"], ids["two"]}
    trial.set_property(MAX_AGE, "1")
    trial.java.expireSnapshots().commit()
    assert trial.snapshots == {ids["main"]}


def test_compaction_on_a_branch_leaves_main_alone_and_a_wap_branch_does_not_redirect_it(trial: Trial) -> None:
    """With `spark.wap.branch` a compaction would move `main` before its publish; the argument `branch` it must be."""
    for first in (1, 4):
        trial.grow_main(first)
    main = trial.refs["main"]
    trial.iceberg.create_branch(NAME, "op_1", main)
    sort = "strategy => 'sort', sort_order => '_seq', options => map('rewrite-all', 'true')"
    trial.spark.sql(f"CALL strand.system.rewrite_data_files(table => '{NAME}', branch => 'op_1', {sort})").collect()
    compacted = trial.refs
    assert compacted["main"] == main and compacted["op_1"] != main
    assert trial.seqs(compacted["op_1"]) == [1, 2, 3, 4, 5, 6]

    trial.set_property("write.wap.enabled", "true")
    trial.spark.conf.set("spark.wap.branch", "op_1")
    try:
        trial.spark.sql(f"CALL strand.system.rewrite_data_files(table => '{NAME}', {sort})").collect()
    finally:
        trial.spark.conf.unset("spark.wap.branch")
    assert trial.refs["main"] != main
    assert trial.refs["op_1"] == compacted["op_1"]


def test_old_metadata_files_are_deleted(trial: Trial) -> None:
    """Every operation makes three; without the two properties a table's folder grows with its history for ever."""
    kept = int(TABLE_PROPERTIES["write.metadata.previous-versions-max"])
    main = trial.grow_main(1)
    folder = Path(local_path(trial.java.operations().current().metadataFileLocation())).parent
    for number in range(kept // 2 + 1):
        trial.iceberg.create_branch(NAME, f"op_{number}", main)
        trial.java.manageSnapshots().removeBranch(f"op_{number}").commit()
    assert len(list(folder.glob("*.metadata.json"))) == kept + 1
    trial.set_property("write.metadata.delete-after-commit.enabled", "false")
    trial.iceberg.create_branch(NAME, "one_more", main)
    assert len(list(folder.glob("*.metadata.json"))) > kept + 1


@pytest.mark.sqlite_only
def test_pyiceberg_starts_a_branch_that_does_not_exist_empty(trial: Trial) -> None:
    """Used for writing, it would publish a log without its history; it is for planning reads."""
    trial.grow_main(1)
    rows = pa.table({"id": ["r9"], "_seq": pa.array([9], pa.int64())})
    pyiceberg(trial.lake).load_table(NAME).append(rows, branch="fresh")
    assert (trial.seqs("main"), trial.seqs("fresh")) == ([1, 2, 3], [9])


def test_the_properties_of_our_tables_are_ones_that_iceberg_knows(trial: Trial) -> None:
    """Iceberg takes any property and ignores what it does not know: a misspelt one would protect nothing."""
    known = {
        str(field.get(None))
        for field in trial.jvm.java.lang.Class.forName("org.apache.iceberg.TableProperties").getFields()
        if field.getType().getSimpleName() == "String"
    }
    prefixes = tuple(name for name in known if name.endswith("."))
    ours = {**TABLE_PROPERTIES, **STATE_PROPERTIES, **FILTER_PROPERTIES}
    unknown = {name for name in ours if name not in known and not name.startswith(prefixes)}
    assert unknown == set() and FILTER in prefixes
    stored = trial.java.properties()
    assert {name: stored[name] for name in TABLE_PROPERTIES if name != "format-version"} == {
        name: value for name, value in TABLE_PROPERTIES.items() if name != "format-version"
    }
    assert trial.spark.table(FULL_NAME).columns == ["id", "_seq"]
