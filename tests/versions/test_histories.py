"""Many processes at once, and afterwards a look at what each has read and written: can it have been one by one?

What is promised: what a view shows is one moment of the lake, and a mutation that expects the rows its caller has read
(`expect=sl.row(…)`) comes as if nothing else had happened since that view. So transactions made of these two can be put
into one order, which is also that of time. Who reads and does not expect is promised the moment alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import pytest

import strandline as sl
from strandline.lake import Lake
from tests.kit import python_process
from tests.versions.histories import Status, Transaction, anomalies

TABLES = ("left", "right")
SHAPE = {"id": "string", "items": "list<long>"}

WORKER = """
import json, random, sys, time
import strandline as sl
from strandline.errors import Conflict

root, branch, seed, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(seed)
say = lambda **what: print(json.dumps(what), flush=True)

def look(lake, keys):
    parts = [f"select '{table}', id, items, _seq from \\"{table}\\" where id = '{key}'" for table, key in keys]
    found = lake.view(branch).sql(" union all ".join(parts)).rows()
    return {(table, key): (items, seq) for table, key, items, seq in found}

with sl.open(root) as lake:
    say(ready=True)
    sys.stdin.readline()
    for n in range(rounds):
        name = f"{seed}.{n}"
        keys = sorted({(chance.choice(["left", "right"]), chance.choice("abc")) for _ in range(3)})
        changed = keys[: chance.randrange(len(keys) + 1)]
        appends = {key: [seed * 100_000 + n * 100 + 10 * at + more for more in range(chance.choice([1, 2]))]
                   for at, key in enumerate(changed)}
        said = {"/".join(key): numbers for key, numbers in appends.items()}
        say(name=name, began=time.monotonic_ns(), appends=said)
        seen = look(lake, keys)
        status = "stored"
        if changed:
            puts = [sl.put(at[0], {"id": at[1], "items": seen[at][0] + appends[at]}) for at in changed]
            try:
                lake.mutate(puts, branch=branch, expect=[sl.row(*key, seq) for key, (_, seq) in seen.items()])
            except Conflict as error:
                assert error.detail["kind"] == "row_moved", error
                status = "refused"
        reads = {"/".join(key): items for key, (items, _) in seen.items()}
        say(name=name, ended=time.monotonic_ns(), status=status, reads=reads)
"""


def told(name: str, lines: list[str]) -> list[Transaction]:
    """What a process said that it did; of what it did not end, nobody knows."""
    begun: dict[str, dict[str, object]] = {}
    for line in lines:
        said = json.loads(line)
        if "name" in said:
            begun.setdefault(said.pop("name"), {"status": "unknown", "ended": 2**63}).update(said)
    assert begun, f"{name} did nothing"
    return [Transaction(one, **facts) for one, facts in begun.items()]  # type: ignore[arg-type]


@pytest.mark.both_ledgers
def test_what_processes_read_and_write_can_have_come_one_by_one(lake: Lake) -> None:
    """Four change lists in rows of two tables of a branch, each on what it has seen; one is killed on its way."""
    for table in TABLES:
        lake.create_table(table, SHAPE, key=["id"])
    branch = lake.branch("x").name
    lake.mutate([sl.put(table, {"id": key, "items": []}) for table in TABLES for key in "abc"], branch=branch)
    workers = [python_process(WORKER, str(lake.root), branch, str(seed), "12") for seed in range(1, 5)]
    outputs: list[list[str]] = [[] for _ in workers]
    for worker, output in zip(workers, outputs, strict=True):
        assert worker.stdout is not None
        output.append(worker.stdout.readline())
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    assert workers[0].stdout is not None
    outputs[0] += [workers[0].stdout.readline() for _ in range(5)]
    time.sleep(0.05)
    workers[0].kill()
    for worker, output in zip(workers, outputs, strict=True):
        rest, errors = worker.communicate(timeout=120)
        output += [line for line in rest.splitlines() if line.endswith("}")]
        assert worker.returncode == 0 or worker is workers[0], errors
    history = [one for seed, lines in enumerate(outputs) for one in told(str(seed), lines)]
    view = lake.view(branch)
    final = {
        f"{table}/{key}": items
        for table in TABLES
        for key, items in view.sql(f'select id, items from "{table}"').rows()
    }
    assert {one.status for one in history} >= {"stored", "refused"}, "they did not meet"
    assert anomalies(history, final) == []


Lists = Mapping[str, Sequence[int]]


def done(
    name: str, reads: Lists | None = None, appends: Lists | None = None, status: Status = "stored", at: int = 0
) -> Transaction:
    """A transaction that overlaps all others, unless it is told when it was."""
    return Transaction(name, status, at, at + 5 if at and status != "unknown" else 99, reads or {}, appends or {})


PLANTED: dict[str, tuple[list[Transaction], Lists]] = {
    "lost": ([done("a", {"x": []}, {"x": [1]}), done("b", {"x": []}, {"x": [2]})], {"x": [2]}),
    "twice": ([done("a", {"x": []}, {"x": [1]})], {"x": [1, 1]}),
    "not a beginning": (
        [done("a", {"x": []}, {"x": [1]}), done("b", {"x": []}, {"x": [2]}), done("c", {"x": [2, 1]})],
        {"x": [1, 2]},
    ),
    "dirty": ([done("a", {"x": []}, {"x": [1]}, "refused"), done("b", {"x": [1]}, {"x": [2]})], {"x": [1, 2]}),
    "torn": ([done("a", {}, {"x": [1], "y": [2]}, "unknown"), done("b", {"x": [1], "y": []})], {"x": [1], "y": []}),
    "halfway": ([done("a", {"x": []}, {"x": [1, 2]}), done("b", {"x": [1]})], {"x": [1, 2]}),
    "an update on what was not the last": (
        [done("a", {"x": []}, {"x": [1]}), done("b", {"x": []}, {"x": [2]})],
        {"x": [1, 2]},
    ),
    "a fractured read": (
        [done("a", {"x": [], "y": []}, {"x": [1], "y": [2]}), done("b", {"x": [1], "y": []})],
        {"x": [1], "y": [2]},
    ),
    "two that did not see each other": (
        [done("a", {"x": [], "y": []}, {"x": [1]}), done("b", {"x": [], "y": []}, {"y": [2]})],
        {"x": [1], "y": [2]},
    ),
    "three in a circle": (
        [
            done("a", {"x": []}, {"y": [1]}),
            done("b", {"y": []}, {"z": [2]}),
            done("c", {"z": []}, {"x": [3]}),
        ],
        {"x": [3], "y": [1], "z": [2]},
    ),
    "writes in two orders": (
        [done("a", {}, {"x": [1], "y": [2]}), done("b", {}, {"x": [3], "y": [4]})],
        {"x": [1, 3], "y": [4, 2]},
    ),
    "an old moment": ([done("a", {"x": []}, {"x": [1]}, at=10), done("b", {"x": []}, at=20)], {"x": [1]}),
}

BY_NAME = ("lost", "twice", "not a beginning", "dirty", "torn", "halfway")
"""The others are found as a circle."""


@pytest.mark.parametrize("name", PLANTED)
def test_the_checker_finds_what_is_planted(name: str) -> None:
    """A history for each way in which it can go wrong."""
    found = anomalies(*PLANTED[name])
    assert [one.split(":")[0] for one in found[:1]] == [name if name in BY_NAME else "circle"], found


def test_the_checker_finds_nothing_in_a_history_that_is_right() -> None:
    """One after another, at the same time on other lists, refused, and gone without a trace."""
    history = [
        done("a", {"x": [], "y": []}, {"x": [1, 2]}, at=10),
        done("b", {"x": [1, 2]}, {"y": [3]}),
        done("c", {"x": [1, 2], "y": []}, {"x": [4]}, "refused"),
        done("d", {"x": [1, 2], "y": [3]}, at=20),
        done("e", {}, {"x": [5], "y": [6]}, "unknown"),
        done("f", {"x": [1, 2]}, {"x": [7]}, "unknown", at=15),
    ]
    assert anomalies(history, {"x": [1, 2, 7], "y": [3]}) == []
