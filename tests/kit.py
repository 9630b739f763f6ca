"""Helpers for tests: rows with names, crashes, real processes, and one check of what recovery must leave behind."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, text

from strandline import config, failpoints
from strandline.cli.main import run
from strandline.lake import Lake
from strandline.ledger.audit import read_audit
from strandline.ledger.publish import owner
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.publish.publishing import Intent
from strandline.model.operations import Recovered
from tests import documents, slices

COLUMNS = {"part_id": "string", "source": "string", "n": "long", "body": "string?"}


def make_table(lake: Lake, name: str = "messages", **options: Any) -> None:
    """A table of agent messages, with `part_id` as its row key unless told otherwise."""
    options.setdefault("row_key", ["part_id"])
    lake.create_table(name, COLUMNS, **options)


def message(n: int, prefix: str = "p", source: str = "claude") -> dict[str, Any]:
    """One row, told apart by its number."""
    return {"part_id": f"{prefix}{n}", "source": source, "n": n, "body": f"body of {prefix}{n}"}


def messages(start: int, stop: int, prefix: str = "p") -> list[dict[str, Any]]:
    """Rows `start` to `stop - 1`."""
    return [message(n, prefix) for n in range(start, stop)]


def part_ids(lake: Lake, table: str = "messages") -> list[str]:
    """What a reader sees, in seq order: repeated rows would be there twice."""
    return [row[0] for row in lake.view().sql(f"select part_id from {table} order by _seq").rows()]


def log_part_ids(lake: Lake, table: str = "messages") -> list[str]:
    """What is in the Iceberg log at the pin, read by Spark, in seq order; the tail is left out."""
    state = lake.view().branch_table(table)
    if state.head.log_snapshot is None:
        return []
    rows = lake.spark.read.option("versionAsOf", str(state.head.log_snapshot)).table(
        f"strand.{state.table.iceberg_name}"
    )
    return [row.part_id for row in rows.orderBy("_seq").select("part_id").collect()]


def outside_catalog(lake: Lake) -> Any:
    """The lake's catalog as PyIceberg finds it, who knows its address alone."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(
        "strand",
        type="sql",
        uri=lake.config.catalog_database.replace("postgresql://", "postgresql+psycopg://"),
        warehouse=lake.config.warehouse,
        **({"s3.endpoint": lake.config.store.endpoint} if lake.config.store.endpoint else {}),
    )


WAYPOINTS = frozenset({"reserve.after_commit", "stage.after_append", "staged.after_commit", "settle.before_ref"})
"""One for each way in which an operation ends that died: undone, undone with its files, done, and settled."""


def swept(points: Iterable[str]) -> list[str]:
    """Those failpoints of an operation that a run dies at: of the steps that are written once, a few; of all others,
    a third.

    A flush dies at all of these in every run.
    """
    listed = list(points)
    others = slices.share([point for point in listed if point.split("@")[0] not in WAYPOINTS], 3)
    return [point for point in listed if point in others or point.split("@")[0] in WAYPOINTS]


@contextmanager
def crash(lake: Lake) -> Iterator[None]:
    """The block dies at an armed failpoint, and with it everything the open lake held."""
    try:
        yield
    except failpoints.FailpointReached:
        owner.unregister(lake.context.owner)
        lake.ledger.close()
    else:
        raise AssertionError("the failpoint was not reached")
    finally:
        failpoints.arm(None)


def reopened(lake: Lake, *, recovering: bool = True) -> Lake:
    """The same lake, opened anew: recovery's ledger half runs here, unless a test wants to get in before it."""
    if recovering:
        return Lake(lake.root)
    original = Lake.refresh
    Lake.refresh = lambda self: []  # type: ignore[method-assign]
    try:
        return Lake(lake.root)
    finally:
        Lake.refresh = original  # type: ignore[method-assign]


def recovery_dies(lake: Lake, *points: str) -> None:
    """Recovery is begun for each of these failpoints, and dies there; where it does not come by, it ends."""
    for point in points:
        failpoints.arm(f"{point}=raise")
        again = None
        try:
            again = Lake(lake.root)
            again.recover()
        except failpoints.FailpointReached:
            pass
        finally:
            failpoints.arm(None)
            if again is not None:
                again.close()


def intents_of(lake: Lake) -> list[Any]:
    """Everything under way."""
    with lake.ledger.read() as conn:
        return list(read_intents(conn))


def audits(lake: Lake) -> list[dict[str, Any]]:
    """The audit, newest first."""
    with lake.ledger.read() as conn:
        return [asdict(row) for row in read_audit(conn)]


def assert_recovered(lake: Lake, outcome: str | None = None, op_id: str | None = None, table: str = "messages") -> None:
    """What every recovery must leave behind: nothing under way, refs equal to pins, and a lake that works.

    `outcome` is what the audit must say of the operation; None when nothing had to be recovered.
    """
    lake.recover()
    assert intents_of(lake) == [], "an intent is left"
    state = lake.view().branch_table(table)
    iceberg = lake.iceberg()
    if iceberg.exists(state.table.iceberg_name):
        refs = iceberg.refs(state.table.iceberg_name)
        expected = {} if state.head.log_snapshot is None else {"main": state.head.log_snapshot}
        assert refs == expected, "refs are not the pins, or a private branch is left"
    assert lake.context.staging.listing() == [], "a working folder is left"
    found = audits(lake)
    if outcome is not None:
        newest = next(row for row in found if op_id is None or row["op_id"] == op_id)
        assert newest["outcome"] == outcome, newest
        assert newest["actor"] == "strandline:recovery"
        moved = [entry for entry in newest["tables"] if entry["iceberg_name"] == state.table.iceberg_name]
        pinned = state.head.log_snapshot
        assert moved and all(entry["to_snapshot"] in (pinned, entry["from_snapshot"]) for entry in moved)
        if outcome == "rolled_back":
            assert all(entry["to_snapshot"] == entry["from_snapshot"] for entry in moved)
    before = lake.view().branch_table(table), len(found)
    with Lake(lake.root) as second:
        assert second.recover() == []
        assert (second.view().branch_table(table), len(audits(second))) == before, "a second open changed something"
    books = state.head.books
    tail_rows = sum(ref.rows for ref in state.tail)
    assert books.acked == books.log + tail_rows + books.dropped + books.pruned + books.quarantined
    probe = f"probe-{time.time_ns()}"
    lake.append(table, [message(0, probe)])
    lake.flush(table)
    assert f"{probe}0" in part_ids(lake, table), "the next write on the table does not work"


def in_ledger(lake: Lake | Path, statement: str, **values: Any) -> list[Any]:
    """Reach into a ledger past everything that watches over it, its foreign keys included."""
    url = (lake.config if isinstance(lake, Lake) else config.load(lake)).ledger
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    with engine.begin() as conn:
        if conn.dialect.name == "postgresql":  # SQLite minds them only when it is told to
            conn.execute(text("SET LOCAL session_replication_role = replica"))
        found = conn.execute(text(statement), values)
        return list(found.all()) if found.returns_rows else []


def read_only_fingerprint(root: Path) -> dict[str, tuple[int, int]]:
    """Every file of a lake with its size and time, SQLite's -wal and -shm aside."""
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


# -- commands in this process ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str
    arguments: tuple[str, ...] = ()

    @property
    def json(self) -> Any:
        """Its one document, as docs/documents.json describes it; a second one is an error here."""
        document = json.loads(self.out)
        assert documents.faults(self.arguments, document) == []
        return document

    @property
    def error(self) -> dict[str, Any]:
        """Its error document."""
        found: dict[str, Any] = self.json["error"]
        return found


def call(*arguments: str | Path, stdin: bytes = b"") -> Ran:
    """Run a command line in this process."""
    kept = sys.stdin, sys.stdout, sys.stderr
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)))
    texts = sys.stdout, sys.stderr = io.TextIOWrapper(out, "utf-8"), io.TextIOWrapper(err, "utf-8")
    try:
        code = run([str(argument) for argument in arguments])
        for text in texts:
            text.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = kept
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # a worker takes them, and its process would end with it
                signal.signal(number, handler)
    return Ran(code, out.getvalue().decode(), err.getvalue().decode(), tuple(map(str, arguments)))


def strand(lake: Lake | Path, *arguments: str) -> Ran:
    """Run a command on a lake to its end, in this process."""
    return call("--lake", lake.root if isinstance(lake, Lake) else lake, *arguments)


def strand_json(lake: Lake | Path, *arguments: str) -> Any:
    """The JSON document of a command that must work."""
    done = strand(lake, "--json", *arguments)
    assert done.code == 0, done.out + done.err
    return done.json


# -- real processes ----------------------------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    """The environment of a child process: ours, without any failpoint unless it is given."""
    env = {key: value for key, value in os.environ.items() if key != "STRAND_FAILPOINTS"}
    return {**env, **more}


def real_strand(lake: Lake | Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the real command to its end, with these settings."""
    process = strand_process(lake, *arguments, env=environment(**env))
    out, err = process.communicate(timeout=180)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def strand_process(lake: Lake | Path, *arguments: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start the real command, to do something to it before it ends."""
    root = lake.root if isinstance(lake, Lake) else lake
    return subprocess.Popen(
        [sys.executable, "-m", "strandline", "--lake", str(root), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def python_process(code: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A child that runs this code with `sys.argv[1:]` = arguments; its stdout is a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=env or environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    """Poll until something holds; a bound, not a measurement."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def phases(lake: Lake) -> Sequence[str]:
    """The phases of everything under way."""
    return [intent.phase for intent in intents_of(lake) if isinstance(intent, Intent)]


def outcomes(recovered: Sequence[Recovered]) -> list[tuple[str, str]]:
    """What recovery did, by kind and outcome."""
    return [(one.kind, one.outcome) for one in recovered]
