"""Reading pins, and which files are opened for it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions as sf

from strandline.engines.duck.relations import local_path
from strandline.engines.files import Input, shape_of
from strandline.engines.spark.source import write_parquet
from tests.substrate.conftest import FULL_NAME, NAME, Trial
from tests.substrate.test_catalog import pyiceberg


def test_a_pin_by_id_is_read_with_its_own_schema(trial: Trial) -> None:
    """A view must not change when a column is added later: by id it doesn't, by branch name it would."""
    snapshot = trial.grow_main(1)
    trial.java.updateSchema().addColumn("later", trial.jvm.org.apache.iceberg.types.Types.LongType.get()).commit()

    def columns(version: str) -> list[str]:
        return list(trial.spark.read.option("versionAsOf", version).table(FULL_NAME).columns)

    assert columns(str(snapshot)) == ["id", "_seq"]
    assert columns("main") == ["id", "_seq", "later"]


def test_the_option_snapshot_id_is_gone(trial: Trial) -> None:
    """`versionAsOf` is the one way to read a pin; the old option must not look as if it worked."""
    snapshot = trial.grow_main(1)
    trial.grow_main(4)
    with pytest.raises(IllegalArgumentException, match="use Spark built-in `versionAsOf`"):
        trial.spark.read.option("snapshot-id", str(snapshot)).table(FULL_NAME).count()


def test_a_snapshot_without_a_ref_stays_readable_by_id(trial: Trial) -> None:
    """Views and open deliveries hold pins, not refs; a snapshot that went with its branch would take their rows."""
    main = trial.grow_main(1)
    trial.iceberg.create_branch(NAME, "op_1", main)
    staged = trial.append("op_1", 4)
    trial.java.manageSnapshots().removeBranch("op_1").commit()
    trial.grow_main(7)
    assert trial.seqs(staged) == [1, 2, 3, 4, 5, 6]


@pytest.mark.sqlite_only
def test_files_are_pruned_by_seq(trial: Trial) -> None:
    """Ticks and tails read a range of seqs; without pruning each would read the whole log. Spark and PyIceberg both."""
    for first in (1, 101, 201):
        trial.grow_main(first, 100)
    table = pyiceberg(trial.lake).load_table(NAME)
    everything = {task.file.file_path for task in table.scan().plan_files()}
    wanted = {task.file.file_path for task in table.scan(row_filter="_seq > 250").plan_files()}
    assert (len(everything), len(wanted)) == (3, 1)
    for path in everything - wanted:
        Path(local_path(path)).unlink()  # whoever opens one of these fails
    rows = trial.spark.table(FULL_NAME).where("_seq > 250")
    assert [row._seq for row in rows.orderBy("_seq").collect()] == list(range(251, 301))
    with pytest.raises(Exception, match=r"FileNotFound|does not exist"):
        trial.spark.table(FULL_NAME).agg(sf.sum("_seq"), sf.max("id")).collect()


def test_arrow_rows_beyond_a_threshold_come_in_a_partition_for_every_10_000(trial: Trial) -> None:
    """Each would be a file of its own, so rows go to Spark as Parquet files, one task each, and not through this."""
    rows = pa.table({"_seq": pa.array(range(25_000), pa.int64())})
    setting = "spark.sql.execution.arrow.localRelationThreshold"
    assert trial.spark.conf.get(setting) == f"{48 << 20}b"
    assert trial.spark.createDataFrame(rows).rdd.getNumPartitions() == 2  # spread over the cores while it is small
    trial.spark.conf.set(setting, "1kb")
    try:
        assert trial.spark.createDataFrame(rows).rdd.getNumPartitions() == 3
    finally:
        trial.spark.conf.unset(setting)


def test_one_staged_file_is_one_task(trial: Trial, tmp_path: Path) -> None:
    """Spark packs small files into one task by default; then a data file would hold several ranges of seqs."""
    paths = []
    for first in (1, 101, 201):
        paths.append(str(tmp_path / f"{first}.parquet"))
        trial.rows(first, 100).write.parquet(paths[-1])
    assert trial.spark.read.parquet(*paths).rdd.getNumPartitions() == 3


def test_row_index_counts_from_zero_within_its_file(trial: Trial, tmp_path: Path) -> None:
    """A load numbers its rows by it, in two passes that must agree; Spark and DuckDB have to count the same."""
    trial.rows(100, 500).write.parquet(str(tmp_path / "rows"))
    (file,) = (tmp_path / "rows").glob("*.parquet")
    found = trial.spark.read.parquet(str(file)).select("_seq", sf.col("_metadata.row_index").alias("place")).collect()
    with duckdb.connect() as connection:
        query = "SELECT _seq, file_row_number FROM read_parquet(?, file_row_number = true)"
        expected = connection.execute(query, [str(file)]).fetchall()
    assert sorted((row._seq, row.place) for row in found) == sorted(expected) == [(n + 100, n) for n in range(500)]


def test_spark_writes_timestamps_that_say_utc_only_when_told_to(trial: Trial, tmp_path: Path) -> None:
    """Spark's default is INT96, which has no time zone: adopting a table would read its times as local ones."""
    rows = trial.spark.sql("SELECT TIMESTAMP '2020-01-01 00:00:00' AS ts")
    rows.write.parquet(str(tmp_path / "plain"))
    write_parquet(rows, str(tmp_path / "ours"))

    def kind(folder: str) -> pa.DataType:
        (file,) = (tmp_path / folder).glob("*.parquet")
        return shape_of(Input(str(file), "parquet", file.stat().st_size, "")).field("ts").type

    assert kind("plain") == pa.timestamp("ns")
    assert kind("ours") == pa.timestamp("us", "UTC")
