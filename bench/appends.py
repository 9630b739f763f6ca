"""Appends beside bare SQLite: the same bytes, the same disk, the same promise that they are on it."""

from __future__ import annotations

import sqlite3
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import strandline
from bench import rows
from bench.measure import Line, Reach, Scale, in_turns, timed
from strandline.lake import Lake
from strandline.ledger.rows.encode import encode_rows
from strandline.ledger.rows.intake import Intake

TABLE = "messages"
THREADS = 8


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Single rows, batches, and threads."""
    with strandline.init(folder / "lake") as lake:
        lake.create_table(TABLE, rows.COLUMNS, actor="bench")
        bare = BareSqlite(folder / "bare.db")
        yield single_rows(scale, lake, bare)
        yield from in_batches(scale, lake, bare)
        yield in_threads(scale, lake)
        bare.close()


class BareSqlite:
    """A table with nothing but bytes in it, as durable as the ledger."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE payloads (id INTEGER PRIMARY KEY, payload BLOB)")

    def insert(self, payload: bytes) -> None:
        """One transaction."""
        self._connection.execute("INSERT INTO payloads (payload) VALUES (?)", (payload,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def single_rows(scale: Scale, lake: Lake, bare: BareSqlite) -> Line:
    """The time until one row is durable."""
    many = scale.rows(2_000)
    ours = rows.dicts(0, many)
    payloads = [_payload(lake, [row]) for row in ours]
    appends, inserts = in_turns(
        many,
        lambda at: timed(lambda: lake.append(TABLE, [ours[at % many]], actor="bench")),
        lambda at: timed(lambda: bare.insert(payloads[at % many])),
        warm_ups=20,
    )
    return Line(
        what="durable append of 1 row, p50",
        against="bare SQLite WAL/FULL insert of the same bytes",
        ours=statistics.median(appends) * 1000,
        baseline=statistics.median(inserts) * 1000,
        unit="ms",
        reach=Reach(3),
        notes={
            "pairs": many,
            "payload_bytes": len(payloads[0]),
            "ours_p99_ms": _p99_ms(appends),
            "bare_p99_ms": _p99_ms(inserts),
        },
    )


def in_batches(scale: Scale, lake: Lake, bare: BareSqlite) -> Iterator[Line]:
    """Rows per second in batches of 1,000, as Python has them and as Arrow has them."""
    size, turns = 1_000, scale.rows(300)
    as_arrow = [rows.batch(at * size, size) for at in range(20)]
    kinds: dict[str, Sequence[Any]] = {
        "dicts": [rows.dicts(at * size, size) for at in range(len(as_arrow))],
        "Arrow": as_arrow,
    }
    payloads = [_payload(lake, table) for table in as_arrow]
    seconds = in_turns(
        turns,
        *(_append_turn(lake, batches) for batches in kinds.values()),
        lambda at: timed(lambda: bare.insert(payloads[at % len(payloads)])),
        warm_ups=5,
    )
    *ours, other = (statistics.median(taken) for taken in seconds)
    for kind, taken in zip(kinds, ours, strict=True):
        yield Line(
            what=f"append in batches of 1,000 ({kind})",
            against="bare SQLite insert of the same payloads",
            ours=size / taken,
            baseline=size / other,
            unit="rows/s",
            reach=Reach(0.4, at_least=True),
            notes={"batches": turns, "payload_bytes": len(payloads[0])},
        )


def _append_turn(lake: Lake, batches: Sequence[Any]) -> Callable[[int], float]:
    return lambda at: timed(lambda: lake.append(TABLE, batches[at % len(batches)], actor="bench"))


def in_threads(scale: Scale, lake: Lake) -> Line:
    """Acks per second of eight threads, against the same rows one after another."""
    per_thread = scale.rows(100)
    share = [rows.dicts(at * per_thread, per_thread) for at in range(THREADS)]

    def append_share(mine: Sequence[Any]) -> None:
        for row in mine:
            lake.append(TABLE, [row], actor="bench")

    def together() -> None:
        threads = [threading.Thread(target=append_share, args=(mine,)) for mine in share]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def one_by_one() -> None:
        for mine in share:
            append_share(mine)

    ours, other = in_turns(scale.rounds(11), lambda _: timed(together), lambda _: timed(one_by_one), warm_ups=1)
    acks = THREADS * per_thread
    return Line(
        what=f"{THREADS} threads appending single rows",
        against="the same rows one after another",
        ours=acks / statistics.median(ours),
        baseline=acks / statistics.median(other),
        unit="acks/s",
        reach=Reach(2, at_least=True),
        notes={"acks_per_round": acks, "rounds": len(ours)},
    )


def _payload(lake: Lake, new_rows: Any) -> bytes:
    state = lake.view().branch_table(TABLE)
    (batch,) = encode_rows(new_rows, state, Intake(lake.ledger, state.table)).batches
    return batch.payload


def _p99_ms(seconds: Sequence[float]) -> float:
    return round(statistics.quantiles(seconds, n=100)[98] * 1000, 3)
