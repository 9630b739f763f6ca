"""Operations: pauses, zombies, late clean-ups, unreadable records and moved clocks change nothing for the rows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from strandline import failpoints
from strandline.errors import Damaged, LeaseLost, RecoveryRequired
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.ledger import Connection
from strandline.ledger.publish import leases
from strandline.ledger.publish.publishing import Effect, Effects
from strandline.ledger.tables.tables import read_branch_tables, read_head
from strandline.model.tables import BranchTable
from strandline.operations.core import settle as settling
from strandline.operations.core.context import Context
from strandline.operations.core.steps import Coverage, RunningOperation, run
from strandline.operations.core.watch import Watch
from strandline.operations.maintain.flush import flush_effects, scope_of
from strandline.operations.maintain.stage_tail import prepare_branch, stage_tail
from tests import files
from tests.kit import (
    assert_recovered,
    audits,
    crash,
    environment,
    intents_of,
    kill,
    log_part_ids,
    make_table,
    message,
    messages,
    outside_catalog,
    part_ids,
    phases,
    python_process,
    read_only_fingerprint,
    reopened,
    strand,
    strand_json,
    swept,
    wait_until,
)

FLUSHER = """
import sys
import strandline as sl

lake = sl.open(sys.argv[1])
try:
    print("flushed", lake.flush("messages")[0].rows, flush=True)
except sl.StrandError as error:
    print("refused", error.code, error, flush=True)
"""


def _flusher(lake: Lake, at: str) -> Any:
    """A real process that flushes and stops for good at a failpoint."""
    return python_process(FLUSHER, str(lake.root), env=environment(STRAND_FAILPOINTS=f"{at}=sleep(600000)"))


@pytest.fixture
def two_flushed(lake: Lake) -> Lake:
    """A table with rows in the log and rows in the tail."""
    make_table(lake)
    lake.append("messages", messages(0, 10))
    lake.flush("messages")
    lake.append("messages", messages(10, 20))
    return lake


@pytest.mark.both_ledgers
def test_f06_a_paused_process_cannot_publish_after_losing_its_lease(two_flushed: Lake) -> None:
    """A flush stopped past its lease wakes up to find its work done by another: it publishes nothing and says why."""
    lake = two_flushed
    env = environment(STRAND_FAILPOINTS="staged.after_commit=sleep(4000)")
    zombie = python_process(FLUSHER, str(lake.root), env=env)
    wait_until(lambda: "staged" in phases(lake))
    zombie.send_signal(signal.SIGSTOP)
    try:
        (flushed,) = lake.flush("messages")
        assert part_ids(lake) == [f"p{n}" for n in range(20)]
        snapshot = lake.view().branch_table("messages").head.log_snapshot
    finally:
        zombie.send_signal(signal.SIGCONT)
    out, err = zombie.communicate(timeout=60)
    assert out.startswith("refused lease_lost"), out + err
    assert "another process took over" in out
    assert lake.view().branch_table("messages").head.log_snapshot == snapshot
    assert log_part_ids(lake) == [f"p{n}" for n in range(20)]
    assert flushed.rows in (0, 10), "the other one published it, or recovery rolled it forward first"
    assert_recovered(lake, "rolled_forward")


def test_f28_recovery_never_touches_a_live_process(two_flushed: Lake) -> None:
    """A second process opens read-write, recovers and refreshes while the first one stages: it is left alone."""
    lake = two_flushed
    live = python_process(FLUSHER, str(lake.root), env=environment(STRAND_FAILPOINTS="stage.after_append=sleep(2500)"))
    wait_until(lambda: phases(lake) == ["staging"])
    assert [done["outcome"] for done in strand_json(lake, "recover")] == ["alive"], "it was heard out, and left alone"
    tried = 0
    while phases(lake) == ["staging"]:
        assert lake.recover() == []
        tried += 1
    assert tried >= 4
    out, err = live.communicate(timeout=60)
    assert out == "flushed 10\n", out + err
    assert audits(lake) == []
    assert_recovered(lake)


def test_f29_an_operation_in_which_nothing_changes_recovers_like_any_other(lake: Lake) -> None:
    """A flush whose rows are all duplicates writes no snapshot; killed when it was staged, it is rolled forward."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    lake.flush("messages")
    before = lake.view().branch_table("messages").head.log_snapshot
    lake.append("messages", messages(0, 5))
    failpoints.arm("staged.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake) as again:
        state = again.view().branch_table("messages")
        assert (state.tail, state.head.log_snapshot, state.head.books.dropped) == ((), before, 5)
        assert_recovered(again, "rolled_forward")


@dataclass
class FlushSeveral:
    """An operation over several tables: each tail is staged on its table's branch, and one publish shows them all."""

    tables: list[str]
    actor: str = "tester"
    kind: str = "flush"
    states: list[BranchTable] = field(default_factory=list)

    def cover(self, conn: Connection) -> Coverage | None:
        """All of the tables."""
        self.states = read_branch_tables(conn, "main", self.tables)
        return Coverage(self.states[0].head.branch_id, tuple(scope_of(state) for state in self.states))

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Every tail, one after another."""
        effects: list[Effect] = []
        for state in self.states:
            prepare_branch(ctx, state, running.op_id)
            effects += flush_effects(state, stage_tail(ctx, state, state.tail, running.op_id))
        return tuple(effects)


@pytest.mark.both_ledgers(only=["stage.after_append@2", "staged.after_commit", "settle.before_ref@2"])
@pytest.mark.parametrize(
    "at",
    swept(["stage.before_branch", "stage.before_branch@2", "stage.after_append", "stage.after_append@2",
           "staged.before_commit", "staged.after_commit", "publish.before_commit", "publish.after_commit",
           "settle.before_ref", "settle.before_ref@2", "settle.after_ref"]),
)  # fmt: skip
def test_f27_an_operation_over_several_tables_is_visible_in_all_or_in_none(lake: Lake, at: str) -> None:
    """Killed at every step, it has moved both tables or neither; a table with nothing to do counts as moved."""
    for name in ("messages", "others", "idle"):
        make_table(lake, name)
    lake.append("messages", messages(0, 6))
    lake.append("others", messages(0, 4))
    name, _, nth = at.partition("@")
    failpoints.arm(f"{name}=raise" + (f"@{nth}" if nth else ""))
    with crash(lake):
        run(lake.context, FlushSeveral(["messages", "others", "idle"]))
    with reopened(lake) as again:
        heads = [again.view().branch_table(table).head for table in ("messages", "others")]
        assert len({head.version for head in heads}) == 1, "both or neither"
        assert part_ids(again) == [f"p{n}" for n in range(6)]
        assert part_ids(again, "others") == [f"p{n}" for n in range(4)]
        forward = heads[0].version == 1
        assert forward == (name.split(".")[0] in ("publish", "settle") or at == "staged.after_commit")
        for table in ("messages", "others"):
            assert_recovered(again, "rolled_forward" if forward else "rolled_back", table=table)


def test_f30_an_unreadable_intent_blocks_its_table_alone(lake: Lake) -> None:
    """The lake opens, other tables work, reads and appends of this one too; its operations say what to do."""
    for name in ("messages", "others"):
        make_table(lake, name)
        lake.append(name, messages(0, 3))
    failpoints.arm("staged.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake, recovering=False) as writer, writer.ledger.write() as txn:
        txn.conn.execute(update(schema.intents).values(body='{"scopes": "nonsense"'))
    with Lake(lake.root) as again:
        (unreadable,) = intents_of(again)
        again.flush("others")
        assert log_part_ids(again, "others") == ["p0", "p1", "p2"]
        again.append("messages", messages(3, 5))
        assert part_ids(again) == [f"p{n}" for n in range(5)]
        with pytest.raises(RecoveryRequired, match=unreadable.op_id) as caught:
            again.flush("messages")
        assert f"recover --discard {unreadable.op_id}" in caught.value.hint
        doctor = strand(again, "--json", "doctor").json
        assert any(unreadable.op_id in json.dumps(finding) for finding in doctor["findings"])
        strand_json(again, "recover", "--discard", unreadable.op_id)
        again.flush("messages")
        assert log_part_ids(again) == [f"p{n}" for n in range(5)]


def test_f30_an_intent_of_a_newer_format_is_left_alone(lake: Lake) -> None:
    """An operation of a version that does not exist yet is neither finished nor undone."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    failpoints.arm("staged.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake, recovering=False) as writer, writer.ledger.write() as txn:
        txn.conn.execute(update(schema.intents).values(format=99))
    with Lake(lake.root) as again:
        assert again.recover() == [] and len(intents_of(again)) == 1
        assert part_ids(again) == ["p0", "p1", "p2"]
        with pytest.raises(RecoveryRequired, match="format is 99"):
            again.flush("messages")


@pytest.mark.parametrize(
    "at", ["begin.after_commit", "stage.after_append", "staged.after_commit", "publish.after_commit"]
)
def test_f32_a_read_only_open_changes_nothing(lake: Lake, at: str) -> None:
    """Opened read-only beside any crashed operation, read and closed: no file and no row is different."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    failpoints.arm(f"{at}=raise")
    with crash(lake):
        lake.flush("messages")
    before = read_only_fingerprint(lake.root)
    with Lake(lake.root, read_only=True) as reader:
        assert part_ids(reader) == [f"p{n}" for n in range(5)]
        assert len(intents_of(reader)) == 1
    assert read_only_fingerprint(lake.root) == before
    done = strand(lake, "--json", "sql", "select count(*) as n from messages")
    assert done.json["rows"] == [{"n": 5}]
    assert strand(lake, "status").code == 0
    assert read_only_fingerprint(lake.root) == before


def test_f46_a_failed_settle_is_a_warning_and_is_settled_later(
    two_flushed: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks after the publish, the caller hears of a success; the rows are visible; recovery settles."""
    lake = two_flushed

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the catalog does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(settling, "_settle_table", broken)
        (flushed,) = lake.flush("messages")
        assert flushed.rows == 10 and "not settled yet" in flushed.warnings[0]
        assert part_ids(lake) == [f"p{n}" for n in range(20)]
    with monkeypatch.context() as patch:
        patch.setattr(lake.context.staging.__class__, "remove", broken)
        lake.append("messages", messages(20, 25))
        (flushed,) = lake.flush("messages")
        assert flushed.rows == 5 and flushed.warnings
    assert_recovered(lake, "rolled_forward")
    assert {row["outcome"] for row in audits(lake)} == {"rolled_forward"}


def test_f46_the_command_exits_0_when_only_settling_failed(two_flushed: Lake) -> None:
    """`strand flush` warns on stderr and exits 0; the next command settles."""
    lake = two_flushed
    env = environment(STRAND_FAILPOINTS="settle.before_ref=sleep(3000)")
    command = [sys.executable, "-m", "strandline", "--lake", str(lake.root), "--json", "flush"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: "published" in phases(lake))
    folder = files.on_disk(f"{lake.config.warehouse}/lake/messages")
    hidden = (folder / "metadata").rename(folder / "away")
    out, err = process.communicate(timeout=120)
    hidden.rename(folder / "metadata")
    assert process.returncode == 0, out + err
    assert "not settled yet" in err and json.loads(out)[0]["rows"] == 10
    assert part_ids(lake) == [f"p{n}" for n in range(20)]
    with reopened(lake) as again:
        assert_recovered(again, "rolled_forward")


def test_f54_a_late_settle_never_moves_a_ref_back(two_flushed: Lake) -> None:
    """A process stopped between publish and settle, overtaken by a newer flush, leaves the ref at the newest pin."""
    lake = two_flushed
    late = python_process(FLUSHER, str(lake.root), env=environment(STRAND_FAILPOINTS="settle.before_ref=sleep(1500)"))
    wait_until(lambda: "published" in phases(lake))
    late.send_signal(signal.SIGSTOP)
    try:
        lake.append("messages", messages(20, 30))
        lake.flush("messages")
        newest = lake.view().branch_table("messages").head.log_snapshot
        assert lake.iceberg().refs("lake.messages")["main"] == newest
    finally:
        late.send_signal(signal.SIGCONT)
    out, err = late.communicate(timeout=60)
    assert out == "flushed 10\n", out + err
    assert lake.iceberg().refs("lake.messages") == {"main": newest}
    assert log_part_ids(lake) == [f"p{n}" for n in range(30)]
    assert_recovered(lake)


def test_f54_a_pin_that_moves_while_its_ref_is_set_wins(two_flushed: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another flush is published and settled right after a settle has read the pin: the older pin is not set."""
    lake = two_flushed
    newest: list[int | None] = []

    def overtaken(*arguments: Any) -> Any:
        head = read_head(*arguments)
        if not newest:
            newest.append(None)
            with Lake(lake.root) as other:
                other.append("messages", messages(20, 30))
                other.flush("messages")
                newest[0] = other.view().branch_table("messages").head.log_snapshot
        return head

    monkeypatch.setattr(settling, "read_head", overtaken)
    lake.flush("messages")
    assert lake.iceberg().refs("lake.messages") == {"main": newest[0]}
    assert log_part_ids(lake) == [f"p{n}" for n in range(30)]
    assert_recovered(lake)


def test_a_ref_that_somebody_else_moved_is_reported_and_left_alone(two_flushed: Lake) -> None:
    """A foreign commit on main stays where it is; the lake's own rows are complete; the flush says so."""
    lake = two_flushed
    lake.spark.sql("INSERT INTO strand.lake.messages (part_id, source, n, _seq) VALUES ('foreign', 'x', 1, 999)")
    foreign = lake.iceberg().refs("lake.messages")["main"]
    (flushed,) = lake.flush("messages")
    assert flushed.rows == 10 and "changed from outside" in flushed.warnings[0]
    assert lake.iceberg().refs("lake.messages") == {"main": foreign}
    assert part_ids(lake) == [f"p{n}" for n in range(20)]
    assert "foreign" not in log_part_ids(lake)


def test_f62_clocks_are_never_compared(two_flushed: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock jumps an hour back and forth: seqs and times stay in order, and a live owner is left alone."""
    lake = two_flushed
    real = time.time_ns
    live = python_process(FLUSHER, str(lake.root), env=environment(STRAND_FAILPOINTS="stage.after_append=sleep(2500)"))
    wait_until(lambda: phases(lake) == ["staging"])
    for hours in (-1, 1, -2):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: real() + hours * 3_600_000_000_000)
        assert lake.recover() == []
        lake.append("messages", [message(100 + hours)])
    monkeypatch.undo()
    out, err = live.communicate(timeout=60)
    assert out.startswith("flushed"), out + err
    lake.append("messages", [message(200)])
    lake.flush("messages")
    rows = lake.view().sql("select _seq, _at from messages order by _seq").rows()
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    assert len(rows) == 24
    assert_recovered(lake)


def test_f62_an_observer_that_slept_takes_nobody_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the observer was away, one look is not enough; silence must be seen again and again."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = Watch(ttl_s=10)
    elsewhere = json.dumps(
        {"host": "another", "boot": "b", "namespace": "n", "pid": 1, "started": "1", "instance": "i"}
    )
    lease = leases.Lease("op:1", fence=3, owner=elsewhere, op_id="1", beat=7, waiting=0)
    assert not watch.is_dead(lease)
    clock[0] += 86_400
    assert not watch.is_dead(lease), "a day asleep counts as one look"
    assert not watch.is_dead(leases.Lease("op:1", 3, elsewhere, "1", 8, 0)), "it beat: the count starts anew"
    looks = 0
    while not watch.is_dead(leases.Lease("op:1", 3, elsewhere, "1", 8, 0)):
        clock[0] += 1
        looks += 1
    assert looks == 10, "dead after its time of silence, in steps the observer really saw"


def test_f62_a_process_that_slept_past_its_lease_goes_on_if_nobody_wanted_it(two_flushed: Lake) -> None:
    """Asleep longer than its lease, with nobody else about: it wakes up, still holds its fence, and publishes."""
    lake = two_flushed
    sleeper = python_process(
        FLUSHER, str(lake.root), env=environment(STRAND_FAILPOINTS="stage.after_append=sleep(1000)")
    )
    wait_until(lambda: phases(lake) == ["staging"])
    sleeper.send_signal(signal.SIGSTOP)
    time.sleep(4)
    sleeper.send_signal(signal.SIGCONT)
    out, err = sleeper.communicate(timeout=60)
    assert out == "flushed 10\n", out + err
    assert_recovered(lake)


def test_a_pin_without_its_snapshot_makes_the_table_refuse_writes(two_flushed: Lake) -> None:
    """Recovery that finds a published snapshot missing touches nothing, refuses writes there, and audits the damage."""
    lake = two_flushed
    failpoints.arm("publish.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake, recovering=False) as writer:
        writer.append("messages", [message(50)])
        right = writer.view().branch_table("messages").head.log_snapshot
        with writer.ledger.write() as txn:
            txn.conn.execute(update(schema.heads).values(log_snapshot=12345))
    with Lake(lake.root) as again:
        again.recover()
        assert audits(again)[0]["outcome"] == "damaged"
        with pytest.raises(Damaged, match="12345"):
            again.append("messages", [message(1)])
        with pytest.raises(Damaged):
            again.flush("messages")
        with again.ledger.write() as txn:
            txn.conn.execute(update(schema.heads).values(log_snapshot=right))
        assert [one.outcome for one in again.recover()] == ["rolled_forward"], "put right by hand, it works again"
        again.flush("messages")
        assert part_ids(again) == [*(f"p{n}" for n in range(20)), "p50"]
        assert_recovered(again)


@pytest.mark.both_ledgers
def test_a_lost_lease_is_noticed_in_the_publish_itself(two_flushed: Lake) -> None:
    """Only the fence decides: another fence on the lease, and the publish changes nothing."""
    lake = two_flushed

    @dataclass
    class Robbed(FlushSeveral):
        def stage(self, ctx: Context, running: RunningOperation) -> Effects:
            effects = super().stage(ctx, running)
            with ctx.ledger.write() as txn:
                txn.conn.execute(update(schema.leases).values(fence=schema.leases.c.fence + 1))
            return effects

    with pytest.raises(LeaseLost):
        run(lake.context, Robbed(["messages"]))
    assert sum(ref.rows for ref in lake.view().branch_table("messages").tail) == 10


STREAM = """
import strandline as sl

lake = sl.open(sys.argv[1])
(
    lake.spark.readStream.schema("part_id string, n long")
    .parquet(sys.argv[2])
    .writeStream.foreachBatch(lake.foreach_batch("stream"))
    .option("checkpointLocation", sys.argv[3])
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
"""


def test_f08_a_replayed_micro_batch_is_published_once(lake: Lake, tmp_path: Path) -> None:
    """A query that died after its rows were stored, or whose checkpoint lost a commit, replays the batch: once."""
    lake.create_table("stream", {"part_id": "string", "n": "long"})
    spark = lake.spark
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def feed(start: int) -> None:
        rows = [(f"p{n}", n) for n in range(start, start + 20)]
        spark.createDataFrame(rows, "part_id string, n long").write.mode("append").parquet(str(source))

    def run_query() -> None:
        exec(STREAM, {"sys": SimpleNamespace(argv=["", str(lake.root), str(source), str(checkpoint)])})

    def forget_last_commit() -> None:
        numbered = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
        last = max(numbered, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    feed(0)
    env = environment(STRAND_FAILPOINTS="append.after_commit=exit")
    killed = python_process("import sys\n" + STREAM, str(lake.root), str(source), str(checkpoint), env=env)
    killed.communicate(timeout=120)
    assert killed.returncode == 137
    assert len(part_ids(lake, "stream")) == 20, "stored, although nobody was told"
    run_query()
    forget_last_commit()
    run_query()
    lake.flush("stream")
    forget_last_commit()
    run_query()
    assert len(part_ids(lake, "stream")) == 20
    feed(20)
    run_query()
    assert sorted(part_ids(lake, "stream")) == sorted(f"p{n}" for n in range(40))
    assert lake.context.staging.listing() == []


def test_outside_engines_find_the_same_rows_by_the_catalog_alone(two_flushed: Lake) -> None:
    """PyIceberg, knowing only the catalog, and Spark SQL in a session of its own read what the lake reads."""
    lake = two_flushed
    lake.flush("messages")
    seen = outside_catalog(lake).load_table("lake.messages").scan().to_arrow()
    assert sorted(seen.column("part_id").to_pylist()) == sorted(part_ids(lake))
    assert set(seen.column_names) == {"part_id", "source", "n", "body", "_seq", "_at", "_actor"}
    outside = lake.spark.newSession()
    store = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": lake.config.store.endpoint,
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
    }
    outside.conf.set("spark.sql.catalog.strand", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {
        "type": "jdbc",
        "uri": lake.config.catalog_uri,
        "warehouse": lake.config.warehouse,
        "jdbc.schema-version": "V1",
        **lake.ledger.database.login(),
        **(store if lake.config.store.endpoint else {}),
    }.items():
        outside.conf.set(f"spark.sql.catalog.strand.{key}", value)
    rows = outside.sql("select part_id from strand.lake.messages order by _seq").collect()
    assert [row.part_id for row in rows] == part_ids(lake)


def test_a_killed_flush_leaves_no_java_behind(two_flushed: Lake) -> None:
    """kill -9 of a process that flushes: its JVM ends by itself, and the table is free for the next one."""
    import psutil

    lake = two_flushed
    process = _flusher(lake, "stage.after_branch")
    wait_until(lambda: phases(lake) == ["staging"])
    wait_until(lambda: any("java" in child.name() for child in psutil.Process(process.pid).children(recursive=True)))
    children = psutil.Process(process.pid).children(recursive=True)
    kill(process)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    with reopened(lake) as again:
        again.flush("messages")
        assert log_part_ids(again) == [f"p{n}" for n in range(20)]
        assert_recovered(again)


COMPACTOR = """
import sys
import strandline as sl

session = sl.open(sys.argv[1], read_only=True).spark
while True:
    options = "map('min-input-files', '2', 'rewrite-all', 'true')"
    try:
        session.sql(f"CALL strand.system.rewrite_data_files(table => 'lake.messages', options => {options})").collect()
        print("compacted", flush=True)
    except Exception as error:
        print("lost the race", type(error).__name__, flush=True)
"""


def test_f05_a_compaction_in_another_process_beside_flushes_loses_nothing(lake: Lake) -> None:
    """Another process compacts the Iceberg table in a loop while rows are appended and flushed: readers miss none."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    lake.flush("messages")
    compactor = python_process(COMPACTOR, str(lake.root))
    assert compactor.stdout is not None
    try:
        assert compactor.stdout.readline() == "compacted\n"
        for n in range(5, 45, 5):
            lake.append("messages", messages(n, n + 5))
            lake.flush("messages")
            assert part_ids(lake) == [f"p{k}" for k in range(n + 5)]
        assert compactor.stdout.readline()
    finally:
        kill(compactor)
    assert log_part_ids(lake) == [f"p{n}" for n in range(45)]
