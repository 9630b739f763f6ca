"""The receiver over HTTP: how many clients that each post one row at a time can share a commit.

The server is a real `strand serve`, and the clients are processes of their own (`receiver_client.py`), so that neither
waits for the other's interpreter.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns
from strandline.ledger.tokens import create_token

GATEWAY = "bench"
ROOT = Path(__file__).parent.parent
CLIENTS = 8
PROCESSES = 4
ROUND_S = 4.0
TABLE = "messages"


@dataclass(frozen=True)
class Receiver:
    """A lake behind `strand serve`, in a process of its own."""

    root: Path
    url: str
    token: str

    def requests(self) -> int:
        """How many requests it has answered, but for those that ask this."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        counts = re.findall(r'^strand_http_requests_total\{.*route="([^"]*)".*\} (\S+)$', text, re.MULTILINE)
        return round(sum(float(count) for route, count in counts if route != "/metrics"))

    def stored(self, table: str) -> int:
        """How many rows are in a table."""
        with strandline.open(self.root, read_only=True) as lake:
            return lake.view().branch_table(table).head.books.acked

    def settings(self, **more: Any) -> dict[str, Any]:
        """Those of a forward sink to it."""
        return {"url": self.url, "gateway": GATEWAY, "token": self.token, **more}


@contextmanager
def receiving(root: Path, tables: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Receiver]:
    """A receiver that serves these tables, until the block ends."""
    with strandline.init(root) as lake:
        for table in tables:
            lake.create_table(table, columns or rows.COLUMNS, actor="bench")
        token = create_token(lake.ledger, GATEWAY)[1]
    command = ["-m", "strandline", "--lake", str(root), "--json", "serve", "--listen", "127.0.0.1:0"]
    with server(command) as url:
        yield Receiver(root, url, token)


@contextmanager
def server(command: Sequence[str]) -> Iterator[str]:
    """A Python process that prints where it listens; it is asked to end when the block does."""
    child = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield f"http://{json.loads(child.stdout.readline())['listen']}"
    finally:
        child.terminate()
        try:
            child.communicate(timeout=30)
        finally:
            child.kill()


class Clients:
    """A process with some clients that post single rows when they are told to."""

    def __init__(self, receiver: Receiver, threads: int) -> None:
        command = [sys.executable, "-m", "bench.receiver_client", receiver.url, TABLE, str(threads)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._child = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        lines = [orjson.dumps(row).decode() for row in rows.dicts(0, 100)]
        self._say(json.dumps({"token": receiver.token, "rows": lines}))

    def begin(self, seconds: float) -> None:
        """Post for so long."""
        self._say(str(seconds))

    def end(self) -> list[float]:
        """The seconds that each ack took."""
        assert self._child.stdout is not None
        return [float(ack_s) for ack_s in json.loads(self._child.stdout.readline())]

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.communicate()

    def _say(self, text: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{text}\n")
        self._child.stdin.flush()


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Eight clients against one."""
    seconds = max(0.2, ROUND_S / scale.divisor)
    latencies: dict[int, list[float]] = {1: [], CLIENTS: []}
    with receiving(folder / "receiver", [TABLE]) as receiver, ExitStack() as ends:
        crowds: dict[int, list[Clients]] = {1: [Clients(receiver, 1)]}
        crowds[CLIENTS] = [Clients(receiver, CLIENTS // PROCESSES) for _ in range(PROCESSES)]
        for crowd in crowds.values():
            for clients in crowd:
                ends.callback(clients.close)

        def turn(count: int) -> float:
            for crowd in crowds[count]:
                crowd.begin(seconds)
            taken = [ack for crowd in crowds[count] for ack in crowd.end()]
            latencies[count] += taken
            return len(taken) / seconds

        before = receiver.stored(TABLE)
        many, single = in_turns(scale.rounds(5), lambda _: turn(CLIENTS), lambda _: turn(1), warm_ups=1)
        acks = sum(len(taken) for taken in latencies.values())
        assert receiver.stored(TABLE) - before == acks, "another number of rows than acks"
    yield Line(
        what=f"receiver: {CLIENTS} clients posting single rows",
        against="1 client",
        ours=statistics.median(many),
        baseline=statistics.median(single),
        unit="acks/s",
        reach=Reach(2, at_least=True),
        notes={f"clients_{count}": _figures(taken) for count, taken in latencies.items()},
    )


def _figures(latencies: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    return {
        "acks": len(ordered),
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 2),
        "p99_ms": round(1000 * ordered[len(ordered) * 99 // 100], 2),
    }
