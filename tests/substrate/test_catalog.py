"""The JDBC catalog: what Spark, PyIceberg and the ledger must agree on, and what they must not share."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from strandline.engines.spark.iceberg import TABLE_PROPERTIES
from strandline.engines.spark.session import catalog_properties
from strandline.lake import Lake
from tests.substrate.conftest import NAME, Trial


def catalog_file(lake: Lake) -> Path:
    return Path(lake.config.catalog_uri.removeprefix("jdbc:sqlite:").partition("?")[0])


def pyiceberg(lake: Lake, name: str = "strand") -> SqlCatalog:
    uri = f"sqlite:///{catalog_file(lake)}"
    return SqlCatalog(name, uri=uri, warehouse=lake.config.warehouse, init_catalog_tables="false")


def test_the_catalogs_name_is_part_of_the_key(trial: Trial) -> None:
    """Under another name the same database is another, empty catalog: a second `flush` would start its tables anew."""
    config = trial.lake.config
    login = trial.lake.ledger.database.login()
    properties = catalog_properties(config.catalog_uri, config.warehouse, login, config.store)
    build = trial.jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog
    hadoop = trial.spark._jsparkSession.sparkContext().hadoopConfiguration()
    table = trial.jvm.org.apache.iceberg.catalog.TableIdentifier.parse(NAME)
    found = {
        name: build(name, trial.jvm.java.util.HashMap(properties), hadoop).tableExists(table)
        for name in ("strand", "another")
    }
    assert found == {"strand": True, "another": False}


@pytest.mark.sqlite_only
def test_pyiceberg_shares_the_catalog_under_the_same_name_alone(trial: Trial) -> None:
    """What DESIGN promises to outside engines: name, URI and warehouse are enough to find every table."""
    snapshot = trial.grow_main()
    table = pyiceberg(trial.lake).load_table(NAME)
    current = table.current_snapshot()
    assert current is not None and current.snapshot_id == snapshot
    assert table.location().startswith("file:")
    assert sorted(table.scan(selected_fields=("_seq",)).to_arrow()["_seq"].to_pylist()) == [1, 2, 3]
    with pytest.raises(NoSuchTableError):
        pyiceberg(trial.lake, "another").load_table(NAME)


def test_a_table_is_read_anew_each_time(trial: Trial) -> None:
    """With Iceberg's cache on, a process would go on reading the metadata of before another one's commit."""
    trial.grow_main(1)
    count = trial.spark.table(f"strand.{NAME}").count()
    other = Lake(trial.lake.root)
    try:
        Trial(other, other.iceberg()).grow_main(10)
    finally:
        other.close()
    assert (count, trial.spark.table(f"strand.{NAME}").count()) == (3, 6)


@pytest.mark.sqlite_only
def test_the_busy_timeout_and_the_wal_reach_the_driver(trial: Trial) -> None:
    """Without the timeout in the URI the driver waits 3 s, and a longer lock fails a Spark job half-way."""

    def pragma(uri: str, name: str) -> str:
        connection: Any = trial.jvm.java.sql.DriverManager.getConnection(uri)
        try:
            answer = connection.createStatement().executeQuery(f"PRAGMA {name}")
            answer.next()
            return str(answer.getString(1))
        finally:
            connection.close()

    uri = trial.lake.config.catalog_uri
    assert (pragma(uri, "busy_timeout"), pragma(uri, "journal_mode")) == ("30000", "wal")
    assert pragma(uri.partition("?")[0], "busy_timeout") == "3000"


@pytest.mark.sqlite_only
def test_a_commit_waits_for_a_lock_on_the_catalog(trial: Trial) -> None:
    """If it failed at once, two processes that stage at the same time would fail each other's flush."""
    holder = sqlite3.connect(catalog_file(trial.lake), isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    released: list[float] = []

    def release() -> None:
        released.append(time.monotonic())
        holder.execute("ROLLBACK")

    timer = threading.Timer(0.5, release)
    timer.start()
    try:
        trial.iceberg.create_branch(NAME, "waited", None)
        assert released and time.monotonic() >= released[0]
    finally:
        timer.join()
        holder.close()
    assert "waited" in trial.refs


@pytest.mark.sqlite_only
def test_a_spark_commit_does_not_wait_for_the_ledger(trial: Trial) -> None:
    """The catalog is a file of its own: in one file with the ledger, every append would hold up every Spark commit."""
    ledger = trial.lake.config.ledger_path
    assert ledger is not None
    assert catalog_file(trial.lake) != ledger and catalog_file(trial.lake).parent == ledger.parent
    with trial.lake.ledger.write():
        trial.iceberg.create_branch(NAME, "meanwhile", None)
        assert "meanwhile" in trial.refs


def test_commits_are_retried_so_that_two_writers_on_their_own_branches_both_survive(trial: Trial) -> None:
    """Without retries the loser deletes manifests that a committed snapshot may use, when only the answer was lost."""
    snapshot = trial.grow_main()
    for branch in ("one", "two"):
        trial.iceberg.create_branch(NAME, branch, snapshot)
    first, second = trial.java, trial.java  # both know the same metadata
    (file,) = first.snapshot(snapshot).addedDataFiles(first.io())
    for table, branch in ((first, "one"), (second, "two")):
        table.newFastAppend().appendFile(file).toBranch(branch).commit()
    tips = trial.refs
    assert tips["main"] == snapshot
    assert len({tips["main"], tips["one"], tips["two"]}) == 3
    assert trial.seqs(tips["one"]) == trial.seqs(tips["two"]) == [1, 1, 2, 2, 3, 3]
    assert not any(key.startswith("commit.retry") for key in TABLE_PROPERTIES), "the default retries stay on"


def test_processes_that_make_the_same_namespace_at_once_both_succeed(lake: Lake) -> None:
    """The catalog looks and then inserts; whoever comes second finds the row there, which is what it wanted."""
    iceberg = lake.iceberg()
    together = threading.Barrier(4)

    def ensure(names: Sequence[str]) -> None:
        for name in names:
            together.wait(timeout=60)
            iceberg.ensure_namespace(name)

    names = [f"space{n}" for n in range(20)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(ensure, names) for _ in range(4)]:
            done.result(timeout=120)
