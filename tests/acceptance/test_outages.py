"""Outages of a ledger's database that pass by themselves: it is full, restarts, fails over, or ends a statement."""

from __future__ import annotations

import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from strandline import create
from strandline.errors import Busy, Environment, StrandError
from strandline.lake import Lake
from strandline.ledger.database import connections, sessions
from tests.kit import call, make_table, message, part_ids, python_process, wait_until
from tests.postgres import PASSWORD, Server, serving, standing_by
from tests.wire import wire_before

soon = partial(wait_until, timeout_s=40)
OPEN = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name = 'strandline'"


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[list[object]]:
    """Do it in a thread; what it said, an error too, is there when the block has ended."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except StrandError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join()


def connections_of(server: Server, url: str) -> int:
    return int(server.execute(OPEN, [urlsplit(url).path[1:]])[0][0])


# -- connections run out -----------------------------------------------------------------------------------------------

CROWD = """
import os, sys, threading, time
import strandline as sl
from strandline.errors import Busy
from tests.kit import message
root, processes, acks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
over = os.path.join(root, "over")
os.setpgid(0, 0)

def work(number):
    lake = sl.open(root)
    def append(thread):
        n = 0
        while not os.path.exists(over):
            try:
                lake.append("messages", [message(n, f"{number}-{thread}-")])
                lake.ledger.lake_id()
            except Busy:
                continue
            n += 1
            if n == acks:
                print(f"{number}-{thread}", flush=True)
    threads = [threading.Thread(target=append, args=(thread,)) for thread in range(2)]
    [thread.start() for thread in threads]
    time.sleep(600)  # what is idle has to be given back by who lives

for number in range(processes):
    if os.fork() == 0:
        work(number)
sys.stdin.readline()
os.killpg(0, 9)
"""


def test_f102_every_process_has_its_turn_where_there_are_more_than_connections(tmp_path: Path) -> None:
    """Eight processes of two threads that never pause, on a server of twelve: all are acked, and a person gets in.

    When they have nothing to do any more, everything is given back.
    """
    with serving(max_connections="12") as server:
        url = server.new_role("plain", urlsplit(server.new_database()).path[1:])
        with create.create(tmp_path / "lake", ledger=url) as lake:
            make_table(lake)
        crowd = python_process(CROWD, str(tmp_path / "lake"), "8", "8")
        assert crowd.stdout is not None and crowd.stdin is not None
        acked: set[str] = set()
        listening = threading.Thread(target=lambda lines: acked.update(map(str.strip, lines)), args=(crowd.stdout,))
        listening.start()
        try:
            soon(lambda: is_let_in(server, url))
            soon(lambda: len(acked) == 16)
            (tmp_path / "lake" / "over").touch()
            soon(lambda: connections_of(server, url) == 0)
        finally:
            crowd.stdin.close()
            crowd.wait(timeout=60)
            listening.join()
        with Lake(tmp_path / "lake") as lake:
            stored = part_ids(lake)
        assert len(stored) == len(set(stored)) >= 16 * 8


def is_let_in(server: Server, url: str) -> bool:
    """Whether a user who is nobody special gets a connection."""
    with suppress(psycopg.OperationalError), psycopg.connect(url):
        return True
    return False


def test_f102_idle_connections_are_given_back(postgres: Server, tmp_path: Path) -> None:
    """A process that does nothing has no connection, however many it needed; the next call opens one."""
    url = postgres.new_database()
    with create.create(tmp_path / "lake", ledger=url) as lake:
        make_table(lake)
        threads = [threading.Thread(target=lambda: part_ids(lake)) for _ in range(12)]
        for thread in threads:
            thread.start()
        most = max(connections_of(postgres, url) for _ in range(20))
        for thread in threads:
            thread.join()
        assert 0 < most <= connections.READS + connections.WRITES
        soon(lambda: connections_of(postgres, url) == 0)
        lake.append("messages", [message(1)])
        assert part_ids(lake) == ["p1"]


@pytest.fixture(params=["server", "role", "database"])
def small(request: pytest.FixtureRequest) -> Iterator[tuple[Server, str, str]]:
    """A server, the URL of a database where few connections may be open, and what sees to that."""
    if request.param == "server":
        with serving(max_connections="10") as server:
            yield server, server.new_role("plain", urlsplit(server.new_database()).path[1:]), ""
        return
    server = request.getfixturevalue("postgres")
    name = urlsplit(server.new_database()).path[1:]
    role = f"plain_{name}"
    yield server, server.new_role(role, name), f"ALTER {request.param} {role if request.param == 'role' else name}"


def test_f102_a_full_server_is_waited_for_and_serves_again(
    small: tuple[Server, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others hold every connection: who writes, reads or opens waits, is told so in the end, and needs no restart."""
    server, url, alter = small
    monkeypatch.setattr(connections, "IDLE_S", 0.1)
    with ExitStack() as others, create.create(tmp_path / "lake", ledger=url) as lake:
        make_table(lake)
        if alter:
            server.execute(f"{alter} CONNECTION LIMIT 4")
        soon(lambda: connections_of(server, url) == 0)
        taken = fill(others, url)
        with monkeypatch.context() as patch, pytest.raises(Busy, match="no connection left") as caught:
            patch.setattr(sessions, "PATIENCE_S", 0.3)
            lake.append("messages", [message(0)])
        assert caught.value.detail["reason"] == "ledger_behind" and "max_connections" in caught.value.hint
        with (
            beside(lambda: lake.append("messages", [message(1)]).rows) as acked,
            beside(lambda: part_ids(lake)) as rows,
            beside(lambda: call("--lake", lake.root, "status").code) as codes,
        ):
            for other in taken[:3]:
                other.close()
        assert (acked, codes) == ([1], [0]) and not isinstance(rows[0], StrandError)
        assert part_ids(lake) == ["p1"]


def fill(others: ExitStack, url: str) -> list[psycopg.Connection[tuple[object, ...]]]:
    """Take every connection that a user can have."""
    taken = []
    while True:
        try:
            taken.append(others.enter_context(psycopg.connect(url)))
        except psycopg.OperationalError:
            return taken


# -- failover and restart ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server, str]]:
    """A primary, a standby that follows it at every commit, and the URL of a database that both are named in."""
    with serving() as primary, standing_by(primary) as standby:
        url = primary.new_database()
        for setting in ("synchronous_standby_names = '*'", "synchronous_commit = 'remote_apply'"):
            primary.execute(f"ALTER SYSTEM SET {setting}")
        primary.execute("SELECT pg_reload_conf()")
        soon(lambda: primary.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
        yield primary, standby, url.replace("127.0.0.1:", f"127.0.0.1:{standby.port},127.0.0.1:")


def test_f106_a_standby_that_stays_one_is_read_and_not_written(
    pair: tuple[Server, Server, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is busy, and no matter of permissions; who opens read-only may read there."""
    primary, standby, _ = pair
    with create.create(tmp_path / "lake", ledger=primary.new_database()) as lake:
        make_table(lake)
        lake.append("messages", [message(0)])
    toml = tmp_path / "lake" / "strand.toml"
    toml.write_text(toml.read_text().replace(str(primary.port), str(standby.port)))
    with Lake(tmp_path / "lake", read_only=True) as reader:
        assert part_ids(reader) == ["p0"]
    monkeypatch.setattr(sessions, "PATIENCE_S", 0.3)
    with pytest.raises(Busy, match="it is a standby"):
        Lake(tmp_path / "lake")


def test_f106_a_failover_is_waited_for(pair: tuple[Server, Server, str], tmp_path: Path) -> None:
    """The primary dies, its standby only reads for a while and is promoted then: writers wait, and are acked once.

    One has an address that leads to the other server from then on. One names both servers in its URL, the standby
    first, as libpq has it.
    """
    primary, standby, both = pair
    name = urlsplit(primary.new_database()).path[1:]
    with (
        wire_before(primary.port) as wire,
        create.create(tmp_path / "one", ledger=primary.url(name, port=wire.port)) as lake,
        create.create(tmp_path / "other", ledger=both) as named,
    ):
        make_table(lake)
        make_table(named)
        for each in (lake, named):
            each.append("messages", [message(0)])
        primary.stop(signal.SIGQUIT)
        wire.server_port, before = standby.port, wire.accepted
        with (
            beside(lambda: lake.append("messages", [message(1)]).rows) as acked,
            beside(lambda: part_ids(lake)) as rows,
            beside(lambda: named.append("messages", [message(1)]).rows) as acked_of_named,
        ):
            soon(lambda: wire.accepted > before + 4)
            assert (acked, rows, acked_of_named) == ([], [], []), "a standby was taken for the primary"
            standby.promote()
        assert acked == acked_of_named == [1] and not isinstance(rows[0], StrandError)
        assert part_ids(lake) == part_ids(named) == ["p0", "p1"]
    assert PASSWORD not in (tmp_path / "other" / "strand.toml").read_text()
    assert call("--lake", tmp_path / "other", "status").code == 0


SAYING = """
CREATE TABLE saying (state text);
CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM saying) THEN
        RAISE EXCEPTION 'said so' USING ERRCODE = (SELECT state FROM saying);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER say BEFORE UPDATE ON counter FOR EACH ROW EXECUTE FUNCTION say();
"""


@pytest.mark.parametrize("state", ["25006", "57P01", "57P02", "57P03", "08006"])
def test_f106_a_server_that_says_that_it_goes_away_is_waited_for(
    postgres: Server, tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it says so to a connection that is open, as a primary does that was made a reader."""
    url = postgres.new_database()
    name = urlsplit(url).path[1:]
    with (
        wire_before(postgres.port) as wire,
        create.create(tmp_path / "lake", ledger=postgres.url(name, port=wire.port)) as lake,
    ):
        make_table(lake)
        postgres.execute(SAYING, database=name)
        postgres.execute(f"INSERT INTO saying VALUES ('{state}')", database=name)
        before = wire.accepted
        with beside(lambda: lake.ledger.run(lambda txn: txn.allocate(1))) as seqs:
            soon(lambda: wire.accepted > before + 2)
            postgres.execute("DELETE FROM saying", database=name)
        assert len(seqs) == 1 and isinstance(seqs[0], int), seqs
        postgres.execute(f"INSERT INTO saying VALUES ('{state}')", database=name)
        monkeypatch.setattr(sessions, "PATIENCE_S", 0.3)
        with pytest.raises(Busy):
            lake.ledger.run(lambda txn: txn.allocate(1))


@pytest.fixture
def no_collection() -> Iterator[None]:
    """As in a process that does nothing: garbage stays."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_f106_a_server_that_does_not_say_a_word_is_waited_for(postgres: Server, tmp_path: Path) -> None:
    """Its host is cut off, or too busy to answer: a connection that takes too long is given up, and tried again."""
    name = urlsplit(postgres.new_database()).path[1:]
    with wire_before(postgres.port) as wire, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{postgres.url(name, port=wire.port)}?connect_timeout=2"
        with create.create(tmp_path / "lake", ledger=url) as lake:
            make_table(lake)
            wire.server_port, before = silent.getsockname()[1], wire.accepted
            wire.cut_all()
            with beside(lambda: lake.append("messages", [message(1)]).rows) as acked:
                soon(lambda: wire.accepted > before + 1)
                wire.server_port = postgres.port
            assert acked == [1]
            given_up, _ = silent.accept()
            given_up.settimeout(20)
            with given_up:
                while given_up.recv(1024):
                    pass


def test_f106_who_opens_a_server_that_shuts_down_or_starts_waits(tmp_path: Path) -> None:
    """Postgres answered, so its address is right: also who comes then for the first time waits for it."""
    with serving() as server, wire_before(server.port) as wire:
        url = server.url(urlsplit(server.new_database()).path[1:], port=wire.port)
        create.create(tmp_path / "lake", ledger=url).close()
        before = wire.accepted
        keeps_it_up = psycopg.connect(server.url("postgres"))
        server.shut_down()
        with beside(lambda: call("--lake", tmp_path / "lake", "status").code) as codes:
            soon(lambda: wire.accepted > before + 1)
            keeps_it_up.close()
            server.stop()
            server.start()
        assert codes == [0]


# -- what ended a statement --------------------------------------------------------------------------------------------


def test_a_statement_timeout_is_called_what_it_is(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is blamed for it: the error has Postgres' own words, and says what to set."""
    url = postgres.new_database()
    with create.create(tmp_path / "lake", ledger=url) as lake:
        make_table(lake)
        postgres.execute(f"ALTER DATABASE {urlsplit(url).path[1:]} SET statement_timeout = '200ms'")
        monkeypatch.setattr("strandline.ledger.ledger.PATIENCE_S", 0.0)
        with (
            Lake(lake.root) as other,
            lake.ledger.write(),
            pytest.raises(Busy, match="due to statement timeout") as caught,
        ):
            other.append("messages", [message(1)])
        assert "locked by another" not in caught.value.message and "statement_timeout" in caught.value.hint


def test_a_pooler_that_changes_sessions_is_refused(postgres: Server, tmp_path: Path) -> None:
    """Settings would be another's: isolation, time limits, what an ack means. Reads and writes say so, and do nothing.

    What such a pooler does is done here by forgetting what the session was told.
    """
    with create.create(tmp_path / "lake", ledger=postgres.new_database()) as lake:
        make_table(lake)
        lake.append("messages", [message(1)])
        forget = "SELECT set_config('strand.session', 'of somebody else', false)"
        with lake.ledger.write() as txn:
            txn.conn.exec_driver_sql(forget)
        with lake.ledger.read() as conn:
            conn.exec_driver_sql(forget)
            conn.exec_driver_sql("COMMIT")  # a read would undo it
        with pytest.raises(Environment, match="behind a pooler") as caught:
            lake.append("messages", [message(2)])
        assert "session mode" in caught.value.hint
        with pytest.raises(Environment, match="behind a pooler"):
            lake.ledger.lake_id()
    with Lake(tmp_path / "lake") as lake:
        assert part_ids(lake) == ["p1"]
