"""Keyed tables and branches: what a change, a look-up, a branch and a merge cost, and whether size matters."""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import strandline
import strandline as sl
from bench.measure import Line, Reach, Scale, in_turns, spread, timed
from bench.spark import spark_ends
from strandline.lake import Lake
from strandline.model.history.mutations import Put

COLUMNS = {"id": "string", "name": "string", "age": "long", "body": "string"}
PART = 200_000
"""Rows of one file."""
THREADS = 8
TABLES = 50
LARGE, SMALL = 1_000_000, 1_000
UNFOLDED = 50_000
MIXER = 0x9E3779B97F4A7C15
"""Odd, so that its multiples are all different in 64 bits, and in no order."""


def rows(first: int, last: int) -> pa.Table:
    """So many rows, the same whenever they are asked for."""
    numbers = range(first, last)
    return pa.table(
        {
            "id": [f"row-{n:09d}" for n in numbers],
            "name": [f"name {n % 977}" for n in numbers],
            "age": pa.array([n % 90 for n in numbers], pa.int64()),
            "body": [f"{n * 2654435761 % 2**64:016x}" * 4 for n in numbers],
        }
    )


def fill(lake: Lake, table: str, count: int, folder: Path, *, fold: bool = True) -> None:
    """A keyed table with so many rows, all in its state."""
    lake.create_table(table, COLUMNS, key=["id"], actor="bench")
    lake.load(table, [str(file) for file in files(folder / table, count)], actor="bench")
    if fold:
        lake.flush(table, actor="bench")
        lake.fold(table)


def files(folder: Path, count: int) -> list[Path]:
    """Parquet files with so many rows."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for first in range(0, count, PART):
        paths.append(folder / f"{first:09d}.parquet")
        if not paths[-1].exists():
            pq.write_table(rows(first, min(count, first + PART)), paths[-1])
    return paths


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Everything that is the same at any size, or should be."""
    large = scale.rows(LARGE)
    with spark_ends(), strandline.init(folder / "lake") as lake:
        fill(lake, "large", large, folder)
        fill(lake, "small", SMALL, folder)
        yield _single(scale, lake, large)
        yield _folded_threads(scale, lake, large)
        yield from _ruled(scale, lake, large, folder)
        yield from _merges(scale, lake, large, folder)
        yield from _reads(scale, lake, large, folder)
        yield _loads(scale, lake, large, folder)
        yield _large_merge(scale, lake, folder)
    with spark_ends():
        yield _branches(scale, large, folder)


def thread_lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """Many threads, many changes: without Spark."""
    with strandline.init(folder / "lake") as lake:
        yield from _threads(scale, lake)
        yield from _late(scale, lake, folder)


def _patch(lake: Lake, table: str, n: int) -> object:
    return lake.mutate([sl.patch(table, f"row-{n:09d}", {"age": n})], actor="bench")


def _single(scale: Scale, lake: Lake, large: int) -> Line:
    """Patches of rows that are in the state, far from each other."""
    rounds = scale.rounds(200)

    def in_(table: str, size: int) -> Callable[[int], float]:
        return lambda number: timed(lambda: _patch(lake, table, (number * 7919) % size))

    ours, other = in_turns(rounds, in_("large", large), in_("small", SMALL), warm_ups=5)
    return _at_sizes("single-row mutate", large, ours, other)


def _folded_threads(scale: Scale, lake: Lake, large: int) -> Line:
    """Patches of rows that are in the state, by eight threads and by one."""
    each = scale.rows(50)
    left = iter(range(large))

    def by(threads: int) -> Callable[[int], float]:
        def work(_: int) -> float:
            shares = [[next(left) * 7907 % large for _ in range(each)] for _ in range(threads)]
            return each * threads / _together([partial(_patch_all, lake, "large", share) for share in shares])

        return work

    many, single = in_turns(scale.rounds(5), by(THREADS), by(1), warm_ups=1)
    return _faster(f"{THREADS} threads, disjoint rows of a state of {large:,}", "1 thread", many, single, 2)


def _patch_all(lake: Lake, table: str, numbers: Iterable[int]) -> None:
    for n in numbers:
        _patch(lake, table, n)


def _ruled(scale: Scale, lake: Lake, large: int, folder: Path) -> Iterator[Line]:
    """Changes that are judged by rows which are found by their values, all of them in the state."""
    for size, name in ((large, "large"), (SMALL, "small")):
        _fill_ruled(lake, f"group_{name}", f"member_{name}", size, folder)

    def put(table: str) -> Callable[[int], float]:
        def work(number: int) -> float:
            row = {"id": f"new-{number}", "email": _scattered(-1 - number), "of": None}
            return timed(lambda: lake.mutate([sl.put(table, row)], actor="bench"))

        return work

    def delete(table: str, size: int) -> Callable[[int], float]:
        def work(number: int) -> float:
            key = _scattered(2 * ((number * 7919) % (size // 2)) + 1)
            return timed(lambda: lake.mutate([sl.delete(table, key)], actor="bench"))

        return work

    rounds = scale.rounds(100)
    puts = in_turns(rounds, put("member_large"), put("member_small"), warm_ups=5)
    yield _at_sizes("single-row put with a unique column", large, *puts)
    deletes = in_turns(rounds, delete("group_large", large), delete("group_small", SMALL), warm_ups=5)
    yield _at_sizes("delete of a row that others may refer to", large, *deletes)


def _fill_ruled(lake: Lake, group: str, member: str, count: int, folder: Path) -> None:
    """As many groups as members, which refer to every other one of them; no value is in the order of the keys."""
    lake.create_table(group, {"id": "string"}, key=["id"], actor="bench")
    rules = ["unique(email)", f"reference(of -> {group}, restrict)"]
    columns = {"id": "string", "email": "string", "of": "string?"}
    lake.create_table(member, columns, key=["id"], constraints=rules, actor="bench")
    numbers = range(count)
    members = {
        "id": [f"row-{n:09d}" for n in numbers],
        "email": [_scattered(n) for n in numbers],
        "of": [_scattered(n - n % 2) for n in numbers],
    }
    for table, rows_of in ((group, {"id": members["email"]}), (member, members)):
        path = folder / f"{table}.parquet"
        pq.write_table(pa.table(rows_of), path)
        lake.load(table, [str(path)], actor="bench")
        lake.flush(table, actor="bench")
        lake.fold(table)


def _scattered(number: int) -> str:
    return f"{number * MIXER % 2**64:016x}"


def _at_sizes(what: str, large: int, ours: list[float], other: list[float]) -> Line:
    ranked = sorted(ours)
    return Line(
        what=f"{what} at {large:,} rows, p50",
        against=f"at {SMALL:,} rows",
        ours=statistics.median(ours),
        baseline=statistics.median(other),
        unit="s",
        reach=Reach(5),
        notes={
            "large": spread(ours),
            "small": spread(other),
            "p99": round(ranked[int(len(ranked) * 0.99) - 1], 4),
            "per_second": round(1 / statistics.median(ours), 1),
        },
    )


def _merges(scale: Scale, lake: Lake, large: int, folder: Path) -> Iterator[Line]:
    """A hundred rows changed on each side; nobody asks Spark."""
    middle = scale.rows(10_000)
    fill(lake, "middle", middle, folder)
    read: dict[str, int] = {}

    def in_(table: str, size: int) -> Callable[[int], float]:
        def work(number: int) -> float:
            branch = f"{table}-{number}"
            lake.branch(branch)
            for name, first in ((branch, 0), ("main", size // 2)):
                changes = [
                    sl.patch(table, f"row-{(first + n * (size // 250)) % size:09d}", {"age": number})
                    for n in range(100)
                ]
                lake.mutate(changes, branch=name, actor="bench")
            begun = time.perf_counter()
            done = lake.merge(branch, actor="bench")
            taken = time.perf_counter() - begun
            assert done.outcome == "merged", done
            read[table] = done.rows_read
            lake.delete_branch(branch, force=True)
            return taken

        return work

    ours, other = in_turns(scale.rounds(7), in_("large", large), in_("middle", middle), warm_ups=1)
    yield Line(
        what=f"merge of 100 changed rows on each side at {large:,} rows, without Spark, p50",
        against=f"at {middle:,} rows",
        ours=statistics.median(ours),
        baseline=statistics.median(other),
        unit="s",
        reach=Reach(1.5),
        notes={"large": spread(ours), "middle": spread(other), "rows_read": read},
    )


def _reads(scale: Scale, lake: Lake, large: int, folder: Path) -> Iterator[Line]:
    """The same table twice: all in its state, and with some later than that."""
    unfolded = scale.rows(UNFOLDED)
    fill(lake, "later", large, folder)
    for first in range(0, unfolded, 10_000):
        numbers = range(first, min(unfolded, first + 10_000))
        lake.mutate(
            [sl.patch("later", f"row-{n * (large // unfolded):09d}", {"age": 1}) for n in numbers], actor="bench"
        )
    lake.flush("large", actor="bench")
    lake.fold("large")

    def point(table: str) -> Callable[[int], float]:
        def work(number: int) -> float:
            key = f"row-{(number * 104729) % large:09d}"
            return timed(lambda: lake.view().sql(f"select name, age from {table} where id = '{key}'").rows())

        return work

    ours, other = in_turns(scale.rounds(30), point("later"), point("large"), warm_ups=2)
    notes = {"unfolded": spread(ours), "folded": spread(other)}
    what = f"point read by key at {large:,} rows, {unfolded:,} of them unfolded"
    yield Line(what, "folded", statistics.median(ours), statistics.median(other), "s", Reach(2), notes)
    compileall.compile_dir(str(Path(strandline.__file__).parent), quiet=1)
    ours, other = in_turns(
        scale.rounds(9),
        lambda _: timed(lambda: _count(folder / "lake", "later", large)),
        lambda _: timed(lambda: _count(folder / "lake", "large", large)),
        warm_ups=1,
    )
    notes = {"unfolded": spread(ours), "folded": spread(other)}
    what = f"`strand sql` count(*) with {unfolded:,} unfolded of {large:,}, whole process"
    yield Line(what, "folded", statistics.median(ours), statistics.median(other), "s", Reach(2), notes)


def _count(root: Path, table: str, expected: int) -> None:
    strand = [
        str(Path(sys.executable).with_name("strand")),
        "--lake",
        str(root),
        "sql",
        f"select count(*) from {table}",
    ]
    printed = subprocess.run(strand, check=True, capture_output=True, text=True, timeout=120).stdout
    assert str(expected) in printed.replace(",", ""), printed


def _loads(scale: Scale, lake: Lake, large: int, folder: Path) -> Line:
    """The same files into a keyed table, as one commit, and into a log table; both until they are in Iceberg."""
    parts = [str(part) for part in files(folder / "large", large)]

    def into(kind: str) -> Callable[[int], float]:
        def work(number: int) -> float:
            table = f"{kind}_{number}"
            lake.create_table(table, COLUMNS, key=["id"] if kind == "keyed" else [], actor="bench")

            def load() -> None:
                lake.load(table, parts, actor="bench")
                lake.flush(table, actor="bench")

            return timed(load)

        return work

    ours, other = in_turns(scale.rounds(2), into("keyed"), into("log"))
    return Line(
        what=f"load of {large:,} keyed rows, one commit",
        against="load of the same into a log table",
        ours=statistics.median(ours),
        baseline=statistics.median(other),
        unit="s",
        reach=Reach(2.5),
        notes={"keyed": spread(ours), "log": spread(other)},
    )


def _large_merge(scale: Scale, lake: Lake, folder: Path) -> Line:
    """Many changed rows: against Spark's own MERGE of the same rows into an Iceberg table with the same state."""
    size, changed = scale.rows(LARGE), scale.rows(100_000)
    fill(lake, "merged", size, folder)
    spark = lake.spark
    path = files(folder / "merged", size)
    spark.read.parquet(*map(str, path)).writeTo("strand.lake.bare_merged").createOrReplace()

    def ours(number: int) -> float:
        branch = f"many-{number}"
        lake.branch(branch)
        source = folder / f"changed-{number}.parquet"
        table = rows(0, changed)
        ages = pa.array([100 + number] * changed, pa.int64())
        pq.write_table(table.set_column(2, "age", ages), source)
        lake.load("merged", [str(source)], mode="merge", branch=branch, actor="bench")
        lake.mutate([sl.patch("merged", f"row-{size - 1:09d}", {"age": number})], actor="bench")
        taken = timed(lambda: lake.merge(branch, actor="bench"))
        lake.delete_branch(branch, force=True)
        return taken

    def bare(number: int) -> float:
        spark.read.parquet(str(folder / f"changed-{number}.parquet")).createOrReplaceTempView("changed")
        statement = (
            "MERGE INTO strand.lake.bare_merged t USING changed s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        return timed(lambda: spark.sql(statement).collect())

    ours_s, bare_s = in_turns(scale.rounds(3), ours, bare, warm_ups=1)
    return Line(
        what=f"merge of {changed:,} changed rows at {size:,}",
        against="bare Spark MERGE of the same rows into the same state, same session",
        ours=statistics.median(ours_s),
        baseline=statistics.median(bare_s),
        unit="s",
        reach=Reach(1.5),
        notes={"ours": spread(ours_s), "bare": spread(bare_s)},
    )


def _branches(scale: Scale, large: int, folder: Path) -> Line:
    """Fifty tables, of which one is large in the one lake and small in the other."""
    lakes = {size: strandline.init(folder / f"branches-{size}") for size in (large, SMALL)}
    for size, lake in lakes.items():
        for n in range(TABLES):
            lake.create_table(f"t{n}", COLUMNS, key=["id"], actor="bench")
        for file in files(folder / f"branches-files-{size}", size):
            lake.load("t0", [str(file)], actor="bench")
        lake.flush("t0", actor="bench")
        lake.fold("t0")

    def at(size: int) -> Callable[[int], float]:
        return lambda number: timed(lambda: lakes[size].branch(f"b{number}"))

    ours, other = in_turns(scale.rounds(30), at(large), at(SMALL), warm_ups=2)
    for lake in lakes.values():
        lake.close()
    return Line(
        what=f"branch create at {large:,} rows and {TABLES} tables",
        against=f"at {SMALL:,} rows and {TABLES} tables",
        ours=statistics.median(ours),
        baseline=statistics.median(other),
        unit="s",
        reach=Reach(1.2),
        notes={"large": spread(ours), "small": spread(other)},
    )


def _threads(scale: Scale, lake: Lake) -> Iterator[Line]:
    """Changes by eight threads and by one: of other rows, of other tables, of one row."""
    each = scale.rows(400)
    names = [f"t{n}" for n in range(THREADS)]
    for name in [*names, "one"]:
        lake.create_table(name, COLUMNS, key=["id"], actor="bench")
        lake.mutate([_row(name, n) for n in range(each * THREADS)], actor="bench")

    def change(table: str, numbers: range) -> Callable[[], object]:
        return partial(_patch_all, lake, table, numbers)

    spans = [range(n * each, (n + 1) * each) for n in range(THREADS)]
    alone = each * THREADS
    rounds = scale.rounds(3)
    many, single = in_turns(
        rounds,
        lambda _: alone / _together([change("one", span) for span in spans]),
        lambda _: each / timed(change("one", spans[0])),
        warm_ups=1,
    )
    yield _faster(f"{THREADS} threads, disjoint rows of one table", "1 thread", many, single, 2)
    apart, shared = in_turns(
        rounds,
        lambda _: alone / _together([change(name, span) for name, span in zip(names, spans, strict=True)]),
        lambda _: alone / _together([change("one", span) for span in spans]),
    )
    yield _faster(f"{THREADS} threads on disjoint tables", f"{THREADS} threads on one table", apart, shared, 0.9)
    yield _one_row(scale, lake, each // 4)


def _faster(what: str, against: str, ours: list[float], other: list[float], least: float) -> Line:
    """A line whose figures are changes in a second."""
    medians = statistics.median(ours), statistics.median(other)
    return Line(what, against, *medians, "changes/s", Reach(least, at_least=True))


def _one_row(scale: Scale, lake: Lake, each: int) -> Line:
    """All change one row, and a change that another came before is tried again inside: each must leave a version."""
    lake.create_table("hot", {"id": "string", "n": "long"}, key=["id"], actor="bench")
    lake.mutate([sl.put("hot", {"id": "a", "n": 0})], actor="bench")
    changed = 1

    def change() -> None:
        for n in range(each):
            lake.mutate([sl.patch("hot", "a", {"n": n})], actor="bench")

    def by(threads: int) -> Callable[[int], float]:
        def work(_: int) -> float:
            nonlocal changed
            changed += each * threads
            return each * threads / _together([change] * threads)

        return work

    many, single = in_turns(scale.rounds(3), by(THREADS), by(1), warm_ups=1)
    ((stored,),) = lake.view().sql('select count(*) from "hot$log"').rows()
    assert stored == changed, f"{changed - stored} updates were lost"
    line = _faster(f"{THREADS} threads updating one row, retried inside", "1 thread", many, single, 0.5)
    return replace(line, notes={"lost_updates": changed - stored})


def _row(table: str, n: int) -> Put:
    row = {"id": f"row-{n:09d}", "name": "n", "age": 0, "body": "b"}
    return sl.put(table, row)


def _together(works: list[Callable[[], object]]) -> float:
    threads = [threading.Thread(target=work) for work in works]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return timed(run)


def _late(scale: Scale, lake: Lake, folder: Path) -> Iterator[Line]:
    """Whether a long history slows anything: around the 2,000th change against around the 10th."""
    last = scale.rows(2000)
    lake.create_table("early", COLUMNS, key=["id"], actor="bench")
    lake.create_table("late", COLUMNS, key=["id"], actor="bench")
    for name in ("early", "late"):
        lake.mutate([_row(name, n) for n in range(100)], actor="bench")
    before = _size(folder)
    for n in range(last):
        _patch(lake, "late", n % 100)
    after = _size(folder)

    def change(table: str) -> Callable[[int], float]:
        return lambda number: timed(lambda: _patch(lake, table, number % 100))

    def read(table: str) -> Callable[[int], float]:
        return lambda number: timed(lambda: lake.view().sql(f"select count(*), sum(age) from {table}").rows())

    per_1000 = {
        "files": round(1000 * (after[0] - before[0]) / last),
        "bytes": round(1000 * (after[1] - before[1]) / last),
    }
    for what, work in (("mutate", change), ("read", read)):
        rounds = scale.rounds(10 if what == "mutate" else 30)
        ours, other = in_turns(rounds, work("late"), work("early"))
        yield Line(
            what=f"the {last:,}th {what}",
            against="the 10th",
            ours=statistics.median(ours),
            baseline=statistics.median(other),
            unit="s",
            reach=Reach(1.2),
            notes={"late": spread(ours), "early": spread(other), "on_disk_per_1000": per_1000},
        )


def _size(folder: Path) -> tuple[int, int]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return len(paths), sum(path.stat().st_size for path in paths)
