"""A ledger in Postgres: several writers, stopped ones, a server that restarts, and addresses that are wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Text, literal, select

from strandline import create
from strandline.errors import BadRequest, Busy, Conflict, Displaced, InvalidRows, LeaseLost, StrandError
from strandline.lake import Lake
from strandline.ledger.database import postgres as postgres_ledger
from strandline.ledger.database import schema
from strandline.ledger.database.prepared import Bound
from strandline.ledger.ledger import _MOVE, Ledger, Txn
from strandline.ledger.publish.leases import note_waiting
from strandline.ledger.rows.batches import sweep
from strandline.ledger.tokens import create_token
from strandline.operations.core.beats import holding
from strandline.reports.doctor import examine
from tests.delivery import Receiver, assert_once, forward
from tests.kit import (
    assert_recovered,
    call,
    environment,
    in_ledger,
    kill,
    log_part_ids,
    make_table,
    message,
    messages,
    part_ids,
    python_process,
    wait_until,
)
from tests.postgres import PASSWORD, Server, serving


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.new_database()


@pytest.fixture
def on_postgres(url: str, tmp_path: Path) -> Iterator[Lake]:
    with create.create(tmp_path / "lake", ledger=url) as made:
        make_table(made)
        yield made


# -- several writers ---------------------------------------------------------------------------------------------------


def test_writers_of_every_kind_meet_and_none_is_refused(on_postgres: Lake) -> None:
    """Whoever writes locks the counter first, so they queue: no deadlock, no serialisation error, whatever they do."""
    lake, errors = on_postgres, list[BaseException]()
    works: list[Callable[[int], object]] = [
        lambda n: lake.append("messages", [message(n)]),
        lambda n: lake.append("messages", messages(n * 100, n * 100 + 70, "m")),
        lambda n: lake.create_table(f"t{n}", {"a": "long"}),
        lambda n: create_token(lake.ledger, f"actor{n}"),
        lambda n: note_waiting(lake.ledger, "table:x:y"),
        lambda n: sweep(lake.ledger, grace_s=0),
        lambda n: lake.view().sql("select count(*) from messages").rows(),
    ]

    def loop(work: Callable[[int], object]) -> None:
        try:
            for n in range(15):
                work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(work,)) for work in works for _ in range(1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(part_ids(lake)) == 15 + 15 * 70
    assert len(lake.view().tables) == 16


def test_a_ledger_that_is_locked_for_long_is_busy(on_postgres: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for another's transaction in vain is told so, and what to look at."""
    monkeypatch.setattr(postgres_ledger, "LOCK_TIMEOUT_S", 0.2)
    with on_postgres.ledger.write(), Lake(on_postgres.root, read_only=True) as reader:
        with pytest.raises(Busy, match="locked by another process") as caught:
            Ledger.open(on_postgres.config.ledger).run(lambda txn: txn.allocate(1))
        assert caught.value.detail["reason"] == "ledger_behind" and "pg_stat_activity" in caught.value.hint
        assert part_ids(reader) == [], "readers wait for nobody"


@pytest.mark.parametrize("statements", [1, 2])
def test_a_writer_that_is_stopped_in_a_transaction_keeps_nobody_waiting(
    on_postgres: Lake, monkeypatch: pytest.MonkeyPatch, statements: int
) -> None:
    """Its session is ended, the others go on; when it wakes, it runs its transaction again, once.

    By the server where it was stopped behind one statement. Behind several that were sent together the server counts
    nothing, and whoever has waited in vain ends it.
    """
    monkeypatch.setattr(postgres_ledger, "IDLE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(postgres_ledger, "LOCK_TIMEOUT_S", 2.0)
    asleep, wake = threading.Event(), threading.Event()
    seqs: list[int] = []

    def work(txn: Txn) -> int:
        seq = txn.allocate(1)
        txn.conn.exec_driver_sql("SELECT %s", [(n,) for n in range(statements)])
        if not asleep.is_set():
            asleep.set()
            wake.wait(60)
        txn.write_last([Bound(_MOVE, {"seq": seq})])  # with the commit, as an append's statements are
        return seq

    with Lake(on_postgres.root) as sleeper:
        thread = threading.Thread(target=lambda: seqs.append(sleeper.ledger.run(work)))
        thread.start()
        assert asleep.wait(60)
        with Lake(on_postgres.root) as other:
            ack = other.append("messages", [message(1)])
        wake.set()
        thread.join()
    assert ack.last_seq is not None and seqs == [ack.last_seq + 1]


DISTANT_HOLDER = """
import os, sys, time
here = os.uname()
os.uname = lambda: os.uname_result((here.sysname, "another-host", *here[2:]))
os.getpid = lambda: 1 << 22  # which no process has here
import strandline as sl
from strandline.ledger.publish import owner
from strandline.operations.core.beats import holding
owner._boot = lambda: "another-boot"
lake = sl.open(sys.argv[1])
with holding(lake.context, "stream:s:x"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("hours", [-1, 1])
def test_f62_a_lease_of_another_host_is_taken_over_after_its_silence_alone(
    on_postgres: Lake, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process elsewhere nothing is known but its beat: alive it is left alone, whatever the clocks say."""
    lake = on_postgres
    holder = python_process(DISTANT_HOLDER, str(lake.root))
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3_600_000_000_000)
        with pytest.raises(Busy), holding(lake.context, "stream:s:x", wait_s=4):
            raise AssertionError("a live holder lost its lease")
    finally:
        kill(holder)
    with holding(lake.context, "stream:s:x", wait_s=60) as hold:
        lake.ledger.run(hold.check)


def test_f62_a_distant_holder_that_was_silent_can_write_nothing_any_more(on_postgres: Lake) -> None:
    """Stopped past its lease, it wakes to find that another has it, and says so."""
    lake = on_postgres
    code = DISTANT_HOLDER.replace('"held", flush=True)\n    time.sleep(600)', '"held", flush=True)\n    CHECK')
    check = """sys.stdin.readline()
    try:
        lake.ledger.run(hold.check)
    except sl.StrandError as error:
        print(error.code, flush=True)"""
    code = code.replace("CHECK", check).replace('"stream:s:x"):', '"stream:s:x") as hold:')
    holder = python_process(code, str(lake.root))
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        with holding(lake.context, "stream:s:x", wait_s=60):
            holder.send_signal(signal.SIGCONT)
            out, err = holder.communicate("\n", timeout=60)
        assert out == f"{LeaseLost.code}\n", err
    finally:
        kill(holder)


# -- a server that goes away -------------------------------------------------------------------------------------------


def test_a_restart_between_two_calls_is_not_noticed(tmp_path: Path) -> None:
    """Every connection is dead after it. Readers and writers take new ones, and wait for a server that starts."""
    with serving() as server, create.create(tmp_path / "lake", ledger=server.new_database()) as lake:
        make_table(lake)
        lake.append("messages", [message(0)])
        server.stop(signal.SIGQUIT)
        server.start()
        assert part_ids(lake) == ["p0"]
        lake.append("messages", [message(1)])
        server.stop(signal.SIGQUIT)
        starting = threading.Timer(0.5, server.start)
        starting.start()
        lake.append("messages", [message(2)])
        starting.join()
        assert part_ids(lake) == ["p0", "p1", "p2"]


WRITER = """
import sys, time
import strandline as sl
from tests.kit import message
lake, prefix, n = sl.open(sys.argv[1]), sys.argv[2], 0
print("ready", flush=True)
while True:
    lake.append("messages", [message(n, prefix), message(n + 1, prefix)])
    print(n, flush=True)
    n += 2
    time.sleep(0.03)
"""


def test_everything_resumes_after_a_server_crashed_under_it(tmp_path: Path) -> None:
    """Writers, a worker and a receiver on one Postgres, which crashes and comes back twice: no row is lost or doubled.

    Nobody restarts anything: each process goes on by itself.
    """
    with serving() as server:
        receiver = Receiver(tmp_path / "receiver", ledger=server.new_database())
        receiver.make_table()
        receiver.start()
        with create.create(tmp_path / "lake", ledger=server.new_database()) as lake:
            make_table(lake)
            forward(lake, receiver, max_attempts=8, every="1s", chunk_rows=1000)
            env = environment(STRAND_FLUSH_MAX_AGE="1s")
            worker = subprocess.Popen(
                [sys.executable, "-m", "strandline", "--lake", str(lake.root), "worker"],
                env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            writers = [python_process(WRITER, str(lake.root), f"w{k}-") for k in range(2)]
            acked: list[str] = []
            readers = [threading.Thread(target=_collect, args=(one, k, acked)) for k, one in enumerate(writers)]
            try:
                for reader in readers:
                    reader.start()
                for _ in range(2):
                    delivered = len(receiver.rows())
                    wait_until(lambda: len(receiver.rows()) > delivered + 20)  # noqa: B023
                    server.stop(signal.SIGQUIT)
                    server.start()
                seen = len(acked)
                wait_until(lambda: len(acked) > seen + 20)
            finally:
                for writer in writers:
                    writer.kill()
                for reader in readers:
                    reader.join()
                errors = [one.communicate()[1] for one in writers]
            assert not any("Error" in text or "error" in text for text in errors), errors
            stored = part_ids(lake)
            assert_once(stored, stored)
            assert set(acked) <= set(stored), "an acked row is gone"
            wait_until(lambda: len(receiver.rows()) == len(stored))
            assert worker.poll() is None, "the worker gave up"
            worker.send_signal(signal.SIGTERM)
            worker.communicate(timeout=60)
            assert_once(stored, receiver.rows())
            assert_once(stored, log_part_ids(lake))
            assert_recovered(lake)
        receiver.stop()


def _collect(writer: subprocess.Popen[str], number: int, acked: list[str]) -> None:
    assert writer.stdout is not None
    for line in writer.stdout:
        if line.strip().isdigit():
            acked += [f"w{number}-{int(line)}", f"w{number}-{int(line) + 1}"]


# -- wrong addresses ---------------------------------------------------------------------------------------------------


def refused(*arguments: str | Path) -> dict[str, object]:
    """The error of a command that must fail, which shows no password."""
    done = call("--json", *arguments)
    assert done.code != 0 and PASSWORD not in done.out + done.err
    assert done.error["hint"], "an error without advice"
    return {**done.error, "exit": done.code}


def test_an_address_that_is_wrong_is_refused_and_nothing_is_made(postgres: Server, tmp_path: Path) -> None:
    """No server, no such database, another password, another user, a host without an address: each says which."""
    name = postgres.new_database().rpartition("/")[2]
    wrong = {
        postgres.url(name, port=1): ("busy", "does not answer"),
        postgres.url("nowhere"): ("environment", '"nowhere" does not exist'),
        postgres.url(name, password="guess"): ("environment", "password authentication failed"),
        postgres.url(name, password=None): ("environment", "password"),
        postgres.url(name).replace("strand:", "stranger:"): ("environment", "stranger"),
        postgres.url(name).replace("127.0.0.1", "no.such.host.invalid"): ("environment", "no.such.host"),
    }
    for address, (code, text) in wrong.items():
        error = refused("init", tmp_path / "lake", "--ledger", address)
        assert error["code"] == code and text in str(error["message"]), error
    assert not (tmp_path / "lake" / "strand.toml").exists()
    assert postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database=name) == [(0,)]


def test_a_lake_whose_database_went_away_says_so_at_once(postgres: Server, on_postgres: Lake) -> None:
    """Opening asks once and does not wait: who typed it wants to know."""
    text = (on_postgres.root / "strand.toml").read_text()
    (on_postgres.root / "strand.toml").write_text(text.replace(str(postgres.port), "1"))
    error = refused("--lake", on_postgres.root, "status")
    assert (error["code"], error["exit"]) == ("busy", 5)


def test_a_database_belongs_to_one_lake(postgres: Server, url: str, tmp_path: Path) -> None:
    """A second lake in it is refused, used or not; so is a database in which somebody else's tables are."""
    with create.create(tmp_path / "one", ledger=url) as first:
        assert refused("init", tmp_path / "two", "--ledger", url)["code"] == "conflict"
        make_table(first)
        assert refused("init", tmp_path / "two", "--ledger", url)["code"] == "conflict"
        assert first.append("messages", [message(1)]).rows == 1
    other = postgres.new_database()
    postgres.execute("CREATE TABLE files (a int)", database=other.rpartition("/")[2])
    assert "something else" in str(refused("init", tmp_path / "three", "--ledger", other)["message"])


def test_two_inits_at_once_make_one_lake(url: str, tmp_path: Path) -> None:
    """They meet in the database: one makes the lake, the others are told that there is one."""
    outcomes: list[str] = []

    def init(n: int) -> None:
        try:
            create.create(tmp_path / f"lake{n}", ledger=url).close()
            outcomes.append("made")
        except Conflict as error:
            outcomes.append(error.detail["kind"])

    threads = [threading.Thread(target=init, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lake_exists"] * 3 + ["made"]


def test_a_newer_format_is_refused_by_readers_and_by_writers_that_are_open(
    postgres: Server, on_postgres: Lake, url: str
) -> None:
    """Somebody upgraded the lake: whoever is older writes nothing more, and opens nothing."""
    postgres.execute("UPDATE counter SET format = 99", database=url.rpartition("/")[2])
    with pytest.raises(StrandError, match="format 99") as caught:
        on_postgres.append("messages", [message(1)])
    assert caught.value.code == "newer_format"
    assert refused("--lake", on_postgres.root, "status")["code"] == "newer_format"


def test_a_database_without_a_ledger_is_no_lake(postgres: Server, on_postgres: Lake) -> None:
    text = (on_postgres.root / "strand.toml").read_text()
    empty = postgres.new_database().rpartition("/")[2]
    name = on_postgres.config.ledger.rpartition("/")[2]
    (on_postgres.root / "strand.toml").write_text(text.replace(f"/{name}", f"/{empty}"))
    error = refused("--lake", on_postgres.root, "status")
    assert error["code"] == "not_found" and "no ledger" in str(error["message"])


def test_a_warehouse_belongs_to_one_lake(postgres: Server, on_postgres: Lake, tmp_path: Path) -> None:
    """Another ledger on the same warehouse is refused by `init`, and where it was written into `strand.toml` later."""
    shared = on_postgres.root / "warehouse"
    other = postgres.new_database()
    error = refused("init", tmp_path / "other", "--ledger", other, "--warehouse", str(shared))
    assert "belongs to another lake" in str(error["message"])
    counted = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert postgres.execute(counted, database=other.rpartition("/")[2]) == [(0,)], "a ledger was left behind"
    with create.create(tmp_path / "third") as third:
        make_table(third)
        third.append("messages", [message(1)])
        text = (third.root / "strand.toml").read_text()
        (third.root / "strand.toml").write_text(text.replace('warehouse = "warehouse"', f'warehouse = "{shared}"'))
    with pytest.raises(Displaced, match=str(shared)):
        Lake(third.root)
    # Even where the ledger says so too, as after a restore by hand, the marker tells whose it is.
    in_ledger(third.root, "UPDATE counter SET warehouse = :uri", uri=f"file://{shared}")
    with Lake(third.root) as moved:
        assert "warehouse_taken" in {finding.kind for finding in examine(moved)}
        with pytest.raises(Conflict, match="belongs to another lake"):
            moved.flush("messages")


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["put away", "PGPASSWORD", "PGPASSFILE"])
def test_a_lake_on_postgres_from_init_to_flush_without_its_password_in_sight(
    postgres: Server, url: str, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password comes from where libpq looks, or from where init put it; Spark gets it too, and nothing shows it."""
    root, name = tmp_path / "lake", url.rpartition("/")[2]
    if way == "PGPASSWORD":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
    elif way == "PGPASSFILE":
        (tmp_path / "pass").write_text(f"127.0.0.1:{postgres.port}:*:strand:{PASSWORD}\n")
        (tmp_path / "pass").chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pass"))
    given = url if way == "put away" else postgres.url(name, password=None)
    said = [call("--json", "init", root, "--ledger", given)]
    said.append(call("--lake", root, "table", "create", "messages", "--columns", "part_id:string,n:long?"))
    said.append(call("--lake", root, "--json", "append", "messages", "-", stdin=b'{"part_id": "p1"}\n'))
    said.append(call("--lake", root, "--json", "flush"))
    said.append(call("--lake", root, "--json", "status"))
    said.append(call("--lake", root, "--json", "doctor"))
    assert [one.code for one in said] == [0] * 6, said
    assert all(PASSWORD not in one.out + one.err for one in said)
    holding_it = [path for path in root.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert [path.name for path in holding_it] == (["ledger.password"] if way == "put away" else [])
    with Lake(root) as lake:
        assert log_part_ids(lake) == ["p1"]


def test_text_that_postgres_can_t_hold_is_noted_all_the_same(on_postgres: Lake) -> None:
    """A destination's error may hold a zero byte; a stream must not be stuck because it can't be written down."""
    with on_postgres.ledger.write() as txn:
        said = txn.conn.execute(select(literal("no\0way", Text))).scalar_one()
    assert said == "no\N{REPLACEMENT CHARACTER}way"


@pytest.mark.both_ledgers
def test_what_no_index_could_hold_is_refused_when_it_is_appended(lake: Lake) -> None:
    """A partition or a key of kilobytes would be accepted, and then never flushed: it is refused first, everywhere."""
    lake.create_table("parts", {"source": "string"}, partition_by=["source"])
    for odd in ("".join(chr(0x4E00 + n) for n in range(600)), "".join(chr(0x4E00 + n) for n in range(700))):
        call = partial(lake.append, "parts", [{"source": odd}])
        if len(odd) == 600:
            assert call(idempotency_key="k" * 500).rows == 1
            continue
        with pytest.raises(InvalidRows, match="partition whose text has"):
            call()
    with pytest.raises(BadRequest, match="characters"):
        lake.append("parts", [{"source": "a"}], idempotency_key="k" * 501)


def test_appends_go_on_after_a_transaction_was_undone(on_postgres: Lake) -> None:
    """What the driver prepared by itself it forgets with a rollback; what appends have prepared must stay."""
    on_postgres.append("messages", messages(0, 5))
    for n in range(9):  # the driver prepares what it was asked for the sixth time
        with suppress(LookupError), on_postgres.ledger.write() as txn:
            txn.conn.execute(select(schema.tables.c.name)).all()
            if n == 8:
                raise LookupError
    on_postgres.append("messages", messages(5, 10))
    assert part_ids(on_postgres) == [f"p{n}" for n in range(10)]
