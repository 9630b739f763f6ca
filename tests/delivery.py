"""Helpers for tests of delivery: a real receiver, a lake that forwards to it, and the oracle that compares the two."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from sqlalchemy import delete, insert

from strandline import create
from strandline.cli.main import run
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.sinks import deliveries
from strandline.ledger.sinks.dead_letters import RefusedRow, bury
from strandline.ledger.sinks.deliveries import read_streams
from strandline.ledger.sinks.sinks import find_sink
from strandline.model.delivery.sinks import FollowedStream, Mark, Stream
from strandline.model.ids import lease_of_stream
from strandline.model.values.wire import encode
from strandline.operations.core.beats import holding
from strandline.sinks.marks import draft
from strandline.sinks.reading import UnitPlan
from tests.kit import COLUMNS, environment, real_strand, strand_json
from tests.proxy import PASS, Hurt, Seen, answer

GATEWAY = "laptop"

# A process is forked from one that has imported everything, which takes a small part of the time that a start takes.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.delivery", "strandline.server.run"])


def _command(arguments: Sequence[str], env: Mapping[str, str], out: Connection) -> None:
    """A command in a process of its own; what it prints goes into a pipe."""
    os.environ.clear()
    os.environ.update(env)
    os.dup2(out.fileno(), sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(run(list(arguments)))


class Receiver:
    """A lake of its own with a `strand serve` before it, as a real process that can be killed and started again."""

    def __init__(self, root: Path, *, ledger: str | None = None) -> None:
        self.root = root
        create.create(root, ledger=ledger).close()
        self.token = self.new_token(GATEWAY)
        self.port = 0
        self._process: ForkServerProcess | None = None

    def new_token(self, actor: str) -> str:
        """A token for a gateway."""
        return str(strand_json(self.root, "token", "create", actor)["token"])

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Serve; on the same port as before, if there was one."""
        told, out = _FORKS.Pipe(duplex=False)
        listen = "--listen", f"127.0.0.1:{self.port}"
        arguments = "--lake", str(self.root), "--json", "serve", *listen
        self._process = _FORKS.Process(target=_command, args=(arguments, environment(), out), daemon=True)
        self._process.start()
        out.close()
        with told, os.fdopen(os.dup(told.fileno())) as lines:
            self.port = int(json.loads(lines.readline())["listen"].rpartition(":")[2])

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.join(timeout=30)
            self._process = None

    def stop(self) -> None:
        """Ask it to end."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(timeout=30)
            self.kill()

    def make_table(self, name: str = "messages", columns: dict[str, str] | None = None, **options: Any) -> None:
        """The same table as the sender's, unless told otherwise."""
        with Lake(self.root) as lake:
            lake.create_table(name, columns or COLUMNS, **options)

    def rows(self, query: str = "select part_id from messages order by _seq") -> list[Any]:
        """What it holds."""
        with Lake(self.root, read_only=True) as lake:
            found = lake.view().sql(query).rows()
        return [row[0] if len(row) == 1 else row for row in found]


@contextmanager
def receiving(folder: Path, *tables: str) -> Iterator[Receiver]:
    """A receiver that serves, with these tables."""
    receiver = Receiver(folder)
    try:
        for table in tables or ("messages",):
            receiver.make_table(table)
        receiver.start()
        yield receiver
    finally:
        receiver.stop()


@contextmanager
def wiped(receiver: Receiver) -> Iterator[Receiver]:
    """An empty lake in the receiver's place, at the same address, with the same table."""
    receiver.stop()
    receiver.root.rename(receiver.root.with_name("gone"))
    fresh = Receiver(receiver.root)
    fresh.make_table()
    fresh.port = receiver.port
    fresh.start()
    try:
        yield fresh
    finally:
        fresh.stop()


def forward(lake: Lake, receiver: Receiver, name: str = "central", *, url: str | None = None, **settings: Any) -> None:
    """Let a lake forward to a receiver, in small chunks, without retries unless told otherwise."""
    given = {
        "url": url or receiver.url,
        "gateway": GATEWAY,
        "token": receiver.token,
        "chunk_rows": 3,
        "max_attempts": 1,
        **settings,
    }
    start = given.pop("start", 0)
    lake.add_sink(name, "forward", given, start=start, check=False)


def streams(lake: Lake, sink: str = "central") -> list[FollowedStream]:
    """How far a sink is."""
    with lake.ledger.read() as conn:
        return read_streams(conn, find_sink(conn, sink))


def refused_rows(root: Path, *seqs: int) -> None:
    """A forward sink whose destination has refused these rows: what a tick leaves, without Spark and without HTTP."""
    with Lake(root) as lake:
        lake.add_sink("central", "forward", {"url": "http://127.0.0.1:9"}, check=False)
        head = lake.view().branch_table("messages").head
        stream = Stream(head.branch_id, head.table_id, "all")
        key = {"branch_id": stream.branch_id, "table_id": stream.table_id, "partition": "all"}
        with lake.ledger.read() as conn:
            sink = find_sink(conn, "central")
        with holding(lake.context, lease_of_stream(sink.sink_id, stream.text())) as hold, lake.ledger.write() as txn:
            txn.conn.execute(insert(schema.stream_heads).values(**key, last_seq=4, pruned_upto=0))
            deliveries.open_epoch(txn, hold, sink.sink_id, stream, Mark(1, 4))
            delivery = draft(
                sink, stream, "messages", Mark(1, 0), UnitPlan(4, version=1, snapshot=0, schema_version=1), {}
            )
            row = lake.view().table("messages").to_batches()[0].slice(0, 1)
            bury(txn, hold, delivery, [RefusedRow(seq, encode(row), {"status": 422}) for seq in seqs])


def watermark(lake: Lake, sink: str = "central") -> int:
    """The watermark of a sink's only stream."""
    (state,) = streams(lake, sink)
    assert state.mark is not None
    return state.mark.seq


def assert_once(expected: list[str], found: list[str]) -> None:
    """The oracle: everything that was acked is there, and nothing is there twice."""
    counted = Counter(found)
    assert sorted(set(expected) - set(found)) == [], "lost"
    assert sorted(one for one, times in counted.items() if times > 1) == [], "repeated"
    assert sorted(set(found) - set(expected)) == [], "from nowhere"


def tick_process(lake: Lake, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A real `strand sink tick` to its end."""
    return real_strand(lake, "--json", "sink", "tick", *arguments, **env)


def start_tick(lake: Lake, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """A real `strand sink tick` that goes on by itself."""
    return start(lake, "sink", "tick", *arguments, **env)


def start(lake: Lake, *command: str, **env: str) -> subprocess.Popen[str]:
    """A real command that goes on by itself."""
    return subprocess.Popen(
        [sys.executable, "-m", "strandline", "--lake", str(lake.root), "--json", *command],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def out_of_reach(lake: Lake) -> Iterator[None]:
    """A lake whose files can't be opened meanwhile; those in a bucket stay where they are."""
    folder = Path(lake.config.warehouse.removeprefix("file://"))
    if not lake.config.warehouse.startswith("file://"):
        yield
        return
    hidden = folder.rename(folder.with_name("hidden"))
    try:
        yield
        assert not folder.exists(), "something was written there"
    finally:
        hidden.rename(folder)


def wipe_marks(lake: Lake) -> None:
    """Lose a sender's state, as a bad restore does."""
    with lake.ledger.write() as txn:
        txn.conn.execute(delete(schema.deliveries))
        txn.conn.execute(delete(schema.watermarks))


def pause(process: subprocess.Popen[str]) -> None:
    """SIGSTOP."""
    os.kill(process.pid, signal.SIGSTOP)


def resume(process: subprocess.Popen[str]) -> None:
    """SIGCONT."""
    os.kill(process.pid, signal.SIGCONT)


LAST = 11
"""The seq of the last of the ten messages: making the table took the first seq."""


def refuse_part(part_id: str, *, named: bool = True) -> Any:
    """A rule: 422 for every chunk that holds this row."""
    import pyarrow as pa
    import zstandard

    def rule(_n: int, seen: Seen) -> Hurt:
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(seen.body)
        parts = pa.ipc.open_stream(raw).read_all().column("part_id").to_pylist()
        if part_id not in parts:
            return PASS
        row = {"index": parts.index(part_id), "field": "body", "value": "?", "reason": "I don't like it"}
        said = {"error": {"code": "invalid_rows", "message": "bad rows", "hint": "", "detail": {"rows": [row]}}}
        return answer(422, json.dumps(said).encode() if named else b"no")

    return rule
