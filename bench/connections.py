"""`python -m bench.connections`: many processes on a Postgres that has fewer connections than they could use.

Every process appends single rows and opens views in several threads for a while, and then does nothing. Measured are
the acks of each process, the connections over time, whether a person gets one, and what is still open long after. The
processes are forked from one that has imported everything, so that many of them fit a small machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from tests.postgres import Server

import strandline
from bench.measure import tell
from strandline.errors import StrandError

TABLE = "events"


def main() -> None:
    """Measure, and print one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.connections", description="Turns on a crowded Postgres.")
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--connections", type=int, default=100, help="max_connections of the server")
    parser.add_argument("--seconds", type=float, default=60, help="how long the processes work")
    parser.add_argument("--idle", type=float, default=600, help="how long they live on")
    args = parser.parse_args()
    server = Server()
    try:
        server.start(max_connections=str(args.connections))
        with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
            print(json.dumps(_measure(server, Path(folder), args), indent=2))
    finally:
        server.remove()


def _measure(server: Server, folder: Path, args: argparse.Namespace) -> dict[str, object]:
    name = urlsplit(server.new_database()).path[1:]
    url = server.new_role("plain", name)
    with strandline.init(folder / "lake", ledger=url) as lake:
        lake.create_table(TABLE, {"n": "long"}, actor="bench")
        lake.append(TABLE, [{"n": 0}], actor="bench")  # what is imported now, no child has to import
        lake.view()
    begin_s = time.monotonic() + 3
    children = [_fork(folder, number, args.threads, begin_s, args.seconds) for number in range(args.processes)]
    watching = psycopg.connect(server.url("postgres"), autocommit=True)
    samples: list[tuple[int, int]] = []
    people: list[bool] = []
    try:
        while time.monotonic() < begin_s + args.seconds + args.idle:
            at_s = round(time.monotonic() - begin_s)
            samples.append((at_s, _count(watching, name)))
            if 0 <= at_s < args.seconds:
                people.append(_gets_in(url))
            time.sleep(1)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return _report(folder, args, samples, people)


def _fork(folder: Path, number: int, threads: int, begin_s: float, seconds: float) -> int:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _work(folder, number, threads, begin_s, seconds)
        finally:
            while os.getppid() == parent:
                time.sleep(1)
            os._exit(0)
    return child


def _work(folder: Path, number: int, threads: int, begin_s: float, seconds: float) -> None:
    time.sleep(max(0.0, begin_s - time.monotonic()))
    acks: list[float] = []
    errors: list[str] = []
    lake: strandline.Lake | None = None
    while lake is None and time.monotonic() < begin_s + seconds:
        try:
            lake = strandline.open(folder / "lake")
        except StrandError as error:
            errors.append(error.code)

    def loop(thread: int) -> None:
        n = 0
        while lake is not None and time.monotonic() < begin_s + seconds:
            try:
                lake.append(TABLE, [{"n": n}], actor=f"bench{number}")
                acks.append(time.monotonic() - begin_s)
                if n % 10 == thread:
                    lake.view()
            except StrandError as error:
                errors.append(error.code)
            n += 1
            time.sleep(0.02)

    workers = [threading.Thread(target=loop, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    first = min(acks, default=None)
    gaps = [later - earlier for earlier, later in zip(sorted(acks), sorted(acks)[1:], strict=False)]
    report = {"acks": len(acks), "first_s": first, "longest_gap_s": max(gaps, default=None), "errors": errors[:20]}
    (folder / f"{number}.json").write_text(json.dumps(report))


def _count(watching: psycopg.Connection[tuple[int]], name: str) -> int:
    row = watching.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]).fetchone()
    assert row is not None
    return row[0]


def _gets_in(url: str) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(url):
        return True
    return False


def _report(
    folder: Path, args: argparse.Namespace, samples: list[tuple[int, int]], people: list[bool]
) -> dict[str, object]:
    reports = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    acks = [process["acks"] for process in reports] + [0] * (args.processes - len(reports))
    working = [count for at_s, count in samples if 0 <= at_s < args.seconds]
    tell(f"{min(acks)} to {max(acks)} acks in each of {args.processes} processes")
    return {
        "processes": args.processes,
        "threads": args.threads,
        "max_connections": args.connections,
        "seconds": args.seconds,
        "acks": {"least": min(acks), "median": statistics.median(acks), "most": max(acks), "sum": sum(acks)},
        "first_ack_s": {"last": max((process["first_s"] or args.seconds for process in reports), default=None)},
        "longest_gap_s": max((process["longest_gap_s"] or args.seconds for process in reports), default=None),
        "errors": sum(len(process["errors"]) for process in reports),
        "connections": {"median": statistics.median(working), "most": max(working)},
        "a_person_got_in": f"{sum(people)} of {len(people)}",
        "connections_at_s": {str(at_s): count for at_s, count in samples if at_s % 5 == 0},
    }


if __name__ == "__main__":
    main()
