"""A lake whose warehouse is in a store that goes away, refuses and comes back: nothing is given up, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import create
from strandline.engines import storage
from strandline.engines.spark import session
from strandline.errors import Busy, Environment, HistoryGone, StrandError, in_our_words, may_pass
from strandline.lake import Lake
from strandline.ledger.tables.tables import list_tables
from strandline.ledger.workers.jobs import read_jobs
from strandline.worker.loop import Worker
from tests import outage
from tests.kit import in_ledger, log_part_ids, make_table, messages, strand
from tests.outage import Illness, StoreProxy, store_before
from tests.s3 import S3, new_bucket

QUICK_ICEBERG = {
    "s3.retry.num-retries": "1",
    "s3.retry.min-wait-ms": "50",
    "s3.retry.max-wait-ms": "100",
    "http-client.apache.socket-timeout-ms": "1000",
}
QUICK_HADOOP = {
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.retry.interval": "50ms",
    "fs.s3a.retry.throttle.limit": "1",
    "fs.s3a.retry.throttle.interval": "50ms",
}
"""Clients that try again for seconds and not for minutes: what they say in the end is the same."""


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[StoreProxy]:
    with store_before(s3_endpoint) as standing:
        yield standing


@pytest.fixture
def bucket(s3_endpoint: str) -> S3:
    return new_bucket(s3_endpoint)


@pytest.fixture
def distant(bucket: S3, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake in a bucket behind the proxy, with ten rows in its log."""
    monkeypatch.setattr(storage, "REQUEST_TIMEOUT_S", 1)
    monkeypatch.setattr(session, "iceberg_settings", lambda store: storage.iceberg_settings(store) | QUICK_ICEBERG)
    monkeypatch.setattr(session, "hadoop_settings", lambda store: storage.hadoop_settings(store) | QUICK_HADOOP)
    monkeypatch.setenv("STRAND_WORKER_ATTEMPTS", "2")
    with create.create(tmp_path / "lake", warehouse=bucket.uri, store=S3(proxy.endpoint, bucket.bucket).store) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 10))
        lake.flush("messages")
        yield lake


def test_f103_spark_s_errors_of_a_store_are_one_kind(distant: Lake, proxy: StoreProxy) -> None:
    """By Iceberg's own client and Hadoop's, in the driver and in a task, and wrapped as Spark wraps them."""
    with distant.ledger.read() as conn:
        name = list_tables(conn)[0].iceberg_name
    files, spark = distant.iceberg().load(name).io(), distant.spark
    (file,) = distant.view().files("messages")
    numbers = iter(range(100))
    ways: dict[str, Callable[[], Any]] = {
        "Iceberg's head": lambda: files.newInputFile(file.path).getLength(),
        "Iceberg's read": lambda: files.newInputFile(file.path).newStream().read(),
        "Iceberg's delete": lambda: files.deleteFile(f"{file.path}.none"),
        "Hadoop's read": lambda: spark.read.parquet(file.path),
        "a task's write": lambda: spark.sql(f"CREATE TABLE strand.x.t{next(numbers)} USING iceberg AS SELECT 1 AS a"),
    }
    for illness in outage.EVERY:
        slow = illness == outage.HANGS  # where Hadoop waits for 15 seconds at least, whatever it is told
        chosen = list(ways)[:1] if slow else list(ways)
        proxy.fall_ill(illness)
        for way in chosen:
            error = in_our_words(_raised(ways[way]))
            assert may_pass(error), f"{illness.name}, {way}: {error!r}"
            refused = illness in (outage.EXPIRED, outage.DENIED, outage.UNKNOWN_KEY)
            assert isinstance(error, Busy) or (refused and isinstance(error, Environment)), f"{illness.name}, {way}"
        proxy.recover()


def _raised(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("the store was ill, and nobody noticed")


@pytest.mark.parametrize(
    ("at", "illness"),
    [
        (rb"PUT /\S*/data/\S*\.parquet", outage.INTERNAL_ERROR),
        (rb"PUT /\S*metadata\S*\.avro", outage.SLOW_DOWN),
        (rb"GET /\S*_staging\S*parquet", outage.EXPIRED),
        (rb"(GET|HEAD) /\S*_strand.json", outage.DENIED),
        (rb"(GET|HEAD) /\S*_strand.json", outage.AWAY),
        (rb"/", outage.NO_BUCKET),
        (rb"/\S*(_staging|/data/)", outage.NO_BUCKET),
    ],
)
def test_f103_a_worker_never_gives_up_a_flush_while_the_store_is_away(
    distant: Lake, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch, at: bytes, illness: Illness
) -> None:
    """However often it fails, it is not parked; and when the store is back it goes on, and every row is there once."""
    distant.append("messages", messages(10, 15))
    monkeypatch.setattr("strandline.ledger.workers.jobs.BACKOFF_S", 0.0)
    worker = Worker(distant)
    proxy.fall_ill_at(at, illness)
    for failures in (1, 2, 3):
        worker.once()
        with distant.ledger.read() as conn:
            record = read_jobs(conn)["flush:messages"]
        assert (record.outcome, record.failures) == ("failed", failures), record.error
        assert record.error is not None and "s3://" in record.error
    proxy.recover()
    worker.once()
    with distant.ledger.read() as conn:
        record = read_jobs(conn)["flush:messages"]
    assert (record.outcome, record.failures) == ("done", 0), record.error
    assert sorted(log_part_ids(distant)) == sorted(f"p{n}" for n in range(15))


@pytest.mark.parametrize("illness", [outage.UNAVAILABLE, outage.AWAY])
def test_f104_a_query_that_can_t_reach_the_store_is_busy(distant: Lake, proxy: StoreProxy, illness: Illness) -> None:
    """It says which file of which store, and is no matter of SQL; when the store is back, the same view answers."""
    view = distant.view()
    proxy.fall_ill(illness)
    for read in (lambda: view.sql("SELECT * FROM messages").rows(), lambda: list(view.read("messages"))):
        with pytest.raises(Busy, match=r"s3://\S+\.parquet: the store can't be reached") as away:
            read()
        assert "Traceback" not in away.value.message and "SQL" not in away.value.hint
    answer = strand(distant.root, "sql", "SELECT count(*) FROM messages")
    assert answer.code == 5 and "error[busy]" in answer.err and "Traceback" not in answer.err
    proxy.recover()
    assert view.sql("SELECT count(*) FROM messages").rows() == [(10,)]


def test_f105_a_refusal_is_an_attempt_and_parks_a_stream_at_the_last(
    distant: Lake, proxy: StoreProxy, bucket: S3
) -> None:
    """Keys roll over: the first refusals are tried again like an outage, and a delivery that gets through is over."""
    where = {"uri": f"s3://{bucket.bucket}/blobs", "endpoint": proxy.endpoint, "max_attempts": 3}
    distant.add_sink("blobs", "blob", where)
    proxy.fall_ill_at(rb"(PUT|POST) /\S*blobs/\S*parquet", outage.DENIED)
    attempts = []
    for _ in range(2):
        (done,) = distant.tick("blobs", patient=False)
        assert done.outcome == "waiting" and "does not let us in" in (done.error or ""), done
        attempts += in_ledger(distant, "SELECT attempts, parked FROM deliveries")
        in_ledger(distant, "UPDATE deliveries SET not_before_us = 0")
    assert [(row[0], row[1]) for row in attempts] == [(1, None), (2, None)]
    (done,) = distant.tick("blobs", patient=False)
    assert done.outcome == "parked"
    proxy.recover()
    strand(distant.root, "sink", "retry", "blobs")
    assert [(unit.outcome, unit.rows) for unit in distant.tick("blobs")] == [("delivered", 10)]


@pytest.mark.parametrize(
    ("kind", "at"),
    [("blob", rb"(GET|HEAD) /\S*/data/\S*\.parquet"), ("iceberg", rb"(GET|HEAD|PUT|POST) /\S*/_copies/")],
)
def test_f103_a_sink_is_not_parked_for_an_outage_of_the_lake_s_own_store(
    distant: Lake, proxy: StoreProxy, tmp_path: Path, kind: str, at: bytes
) -> None:
    """It can't read its unit, or stage it: the error names the store and not the disk it writes to, and no attempt is
    counted.
    """
    target = {"uri": f"jdbc:sqlite:{tmp_path}/other.db", "warehouse": f"file://{tmp_path}/other", "catalog": "jdbc"}
    where = {"uri": f"file://{tmp_path}/other"} if kind == "blob" else target
    distant.add_sink("disk", kind, {**where, "max_attempts": 2})
    proxy.fall_ill_at(at, outage.UNAVAILABLE)
    for _ in range(3):
        (done,) = distant.tick("disk", patient=False)
        assert done.outcome == "waiting", done
        assert done.error is not None and "s3://" in done.error and f"{tmp_path}/other" not in done.error
        in_ledger(distant, "UPDATE deliveries SET not_before_us = 0")
    assert in_ledger(distant, "SELECT attempts FROM deliveries")[0][0] == 0
    proxy.recover()
    assert [(unit.outcome, unit.rows) for unit in distant.tick("disk")] == [("delivered", 10)]


def test_f103_maintenance_of_a_store_that_is_away_is_typed(distant: Lake, proxy: StoreProxy) -> None:
    """Also of several tables at once: nobody takes a warning for a job that is done."""
    make_table(distant, "other")
    proxy.fall_ill(outage.UNAVAILABLE)
    calls: list[Callable[[], Any]] = [distant.sweep, distant.expire]
    for call in [*calls, lambda: distant.load("messages", [f"{distant.config.warehouse}/x.jsonl"])]:
        with pytest.raises(Busy, match="s3://"):
            call()
    proxy.recover()
    assert distant.sweep()[0].complete


def test_f103_a_bucket_that_is_not_there_passes_too(distant: Lake, proxy: StoreProxy) -> None:
    """As a mount point that is empty: Spark, DuckDB and the fence say so in words of their own."""
    distant.append("messages", messages(10, 14))
    view = distant.view()
    proxy.fall_ill(outage.NO_BUCKET)
    with pytest.raises((Busy, HistoryGone)):  # as of a file that is gone: a query does not ask whose the warehouse is
        view.sql("SELECT count(*) FROM messages").rows()
    calls: list[Callable[[], Any]] = [lambda: distant.flush("messages"), distant.sweep, distant.expire]
    for call in calls:
        with pytest.raises(StrandError) as error:
            call()
        assert may_pass(error.value), error.value
    proxy.recover()
    assert view.sql("SELECT count(*) FROM messages").rows() == [(14,)]
    distant.flush("messages")
    assert distant.sweep()[0].complete
