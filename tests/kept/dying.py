"""How operations of every kind were left in every phase: a part of `make.py`, which runs with the old code alone."""

from __future__ import annotations

import datetime as dt
import json
import os
from contextlib import contextmanager
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

import strandline as sl
from strandline import failpoints
from strandline.engines import files as engine_files
from strandline.lake import Lake
from strandline.operations import load, load_keyed, merge, recovery
from tests.kit import COLUMNS, crash, in_ledger, intents_of, make_table, message, messages

PHASES = {"staging": "stage.after_append", "staged": "staged.after_commit", "published": "publish.after_commit"}
PEOPLE = {"id": "string", "name": "string?", "age": "long?"}
DAY_S = 24 * 3600
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@contextmanager
def nothing_is_recovered():
    """What died stays as it is while other things die."""
    with patch.object(recovery, "recover", lambda *_, **__: []), patch.object(Lake, "refresh", lambda _self: []):
        yield


@contextmanager
def everything_is_large():
    """Loads and merges of a few rows are operations."""
    with (
        patch.object(load, "SMALL_BYTES", 0),
        patch.object(load, "BITE_PARTS", 1),
        patch.object(load_keyed, "SMALL_BYTES", -1),
        patch.object(merge, "MOST_ROWS", 0),
        patch.object(engine_files, "CHUNK_BYTES", 200),
    ):
        yield


def dies(root, point, work):
    """Do something in an open lake of its own, which dies at a failpoint."""
    lake = Lake(root)
    name, _, nth = point.partition("@")
    failpoints.arm(f"{name}=raise" + (f"@{nth}" if nth else ""))
    with crash(lake):
        work(lake)


def lines(path, rows):
    """A file of rows, whose time an archive can keep: a load is known by it."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def dying_on_log_tables(root, inbox, phases):
    """Flush, load, compact, retain, purge and erase of log tables."""
    for phase, point in phases.items():
        with Lake(root) as lake:
            for kind in ("flush", "load", "compact", "retain", "purge", "erase"):
                name = f"{kind}_{phase}"
                columns = {**COLUMNS, "ts": "timestamp?"} if kind == "retain" else COLUMNS
                lake.create_table(name, columns, row_key=["part_id"])
                rows = messages(0, 4)
                if kind == "retain":
                    rows = [{**row, "ts": LONG_AGO} for row in rows[:2]] + rows[2:]
                lake.append(name, rows)
                lake.flush(name)
                lake.append(name, messages(3, 6))  # one of them is a duplicate
                if kind in ("load", "compact", "purge", "erase"):
                    lake.flush(name)
            lake.set_table(f"retain_{phase}", retention_s=DAY_S, time_column="ts")
        dies(root, point, lambda lake, phase=phase: lake.flush(f"flush_{phase}", actor="ann"))
        dies(root, point, lambda lake, phase=phase: lake.compact(f"compact_{phase}", actor="ann"))
        dies(root, point, lambda lake, phase=phase: lake.retain(f"retain_{phase}", actor="ann"))
        dies(root, point, lambda lake, phase=phase: lake.purge(f"purge_{phase}", "n < 2 or n = 5", actor="ann"))
        dies(root, point, lambda lake, phase=phase: erase(lake, f"erase_{phase}"))
        file = lines(inbox / f"load_{phase}.jsonl", messages(10, 14))
        with everything_is_large():
            dies(root, point, lambda lake, phase=phase, file=file: lake.load(f"load_{phase}", [str(file)], actor="ann"))
        with Lake(root) as lake:
            for kind in ("flush", "load", "compact", "retain", "purge"):
                lake.append(f"{kind}_{phase}", [message(20)])


def erase(lake, table):
    """Drop a column with its values."""
    doc = {"tables": {table: lake.schema()["tables"][table]}}
    del doc["tables"][table]["columns"]["body"]
    lake.schema_apply(doc, hard=True, actor="ann")


def dying_while_loading(root, inbox):
    """Loads that had only begun, an adopted file, and a micro-batch of a query."""
    for name in ("load_parts", "load_between", "load_reserved"):
        with Lake(root) as lake:
            make_table(lake, name)
            lake.append(name, messages(0, 2))
    for name, point in {
        "load_parts": "load.after_parts", "load_between": "load.between_bites", "load_reserved": "reserve.after_commit",
    }.items():  # fmt: skip
        file = lines(inbox / f"{name}.jsonl", messages(10, 14))
        with everything_is_large():
            dies(root, point, lambda lake, name=name, file=file: lake.load(name, [str(file)], key=f"key of {name}"))
    pq.write_table(pa.Table.from_pylist(messages(0, 5)), inbox / "adopted.parquet")
    with everything_is_large():
        dies(root, "staged.after_commit", lambda lake: lake.adopt("adopted", str(inbox / "adopted.parquet")))
    with Lake(root) as lake:
        make_table(lake, "streamed")

    def stream(lake):
        rows = lake.spark.createDataFrame(
            [("s1", "spark", 1, "x")], "part_id string, source string, n long, body string"
        )
        lake.spark.sparkContext.setLocalProperty("sql.streaming.queryId", "11111111-1111-1111-1111-111111111111")
        with everything_is_large():
            lake.foreach_batch("streamed")(rows, 0)

    dies(root, "staged.after_commit", stream)


def dying_expiries(root):
    """Expire before and after what is condemned is deleted."""
    points = {
        "begun": "begin.after_commit", "staged": "staged.after_commit",
        "condemned": "expire.before_delete", "deleted": "expire.after_delete", "forgotten": "expire.after_forget",
    }  # fmt: skip
    for phase, point in points.items():
        with Lake(root) as lake:
            make_table(lake, f"expire_{phase}")
            for n in range(3):
                lake.append(f"expire_{phase}", [message(n)])
                lake.flush(f"expire_{phase}")
        dies(root, point, lambda lake, phase=phase: lake.expire(f"expire_{phase}", actor="ann", grace_s=0))


def dying_on_keyed_tables(root, inbox, phases):
    """Retention, merges, branches at past commits, then folds, flushes, loads and purges of keyed tables."""
    with Lake(root) as lake:
        lake.create_table("team", PEOPLE, key=["id"])
        past = lake.mutate([sl.put("team", {"id": key, "age": 1}) for key in "ab"]).commit_id
        lake.flush("team")
    dying_retention(root, phases)
    with Lake(root) as lake:
        for phase in (*phases, "refs"):
            lake.branch(f"to_{phase}")
            lake.branch(f"from_{phase}", f"to_{phase}")
            lake.mutate([sl.put("team", {"id": "s", "age": 2}), sl.delete("team", "b")], branch=f"from_{phase}")
            if phase != "refs":
                lake.mutate([sl.put("team", {"id": "t", "age": 3})], branch=f"to_{phase}")
        lake.mutate([sl.put("team", {"id": "later", "age": 4})])
        lake.flush("team")
    for phase, point in phases.items():
        with everything_is_large():
            dies(root, point, lambda lake, phase=phase: lake.merge(f"from_{phase}", into=f"to_{phase}", actor="ann"))
        dies(root, point, lambda lake, phase=phase: lake.branch(f"past_{phase}", past, actor="ann"))
    with Lake(root) as lake:  # a branch that was moved forward in the ledger, and whose refs are still to follow
        lake.flush("team", branch="from_refs")
        assert lake.merge("from_refs", into="to_refs").outcome == "fast_forward"
    for phase, point in phases.items():
        with Lake(root) as lake:
            for kind in ("fold", "change", "keyed", "vanish"):
                name = f"{kind}_{phase}"
                lake.create_table(name, PEOPLE, key=["id"])
                lake.mutate([sl.put(name, {"id": key, "name": key.upper(), "age": 1}) for key in "abc"])
                lake.flush(name)
                lake.mutate([sl.patch(name, "a", {"age": 2}), sl.delete(name, "b")])
            lake.flush(f"vanish_{phase}")
            lake.fold(f"vanish_{phase}")
        dies(root, point, lambda lake, phase=phase: lake.fold(f"fold_{phase}", actor="ann"))
        dies(root, point, lambda lake, phase=phase: lake.flush(f"change_{phase}", actor="ann"))
        dies(root, point, lambda lake, phase=phase: lake.purge(f"vanish_{phase}", "id = 'c'", actor="ann"))
        file = lines(inbox / f"keyed_{phase}.jsonl", [{"id": key, "age": 9} for key in "ax"])
        with everything_is_large():
            loading = lambda lake, phase=phase, file=file: lake.load(  # noqa: E731
                f"keyed_{phase}", [str(file)], mode="merge", key=f"key of {phase}", actor="ann"
            )
            dies(root, point, loading)
    with Lake(root) as lake:
        for name in ("keyed_reserved", "vanish_unforgotten"):
            lake.create_table(name, PEOPLE, key=["id"])
            lake.mutate([sl.put(name, {"id": key, "age": 1}) for key in "abc"])
    with everything_is_large():
        dies(root, "reserve.after_commit", lambda lake: lake.load("keyed_reserved", [str(file)], mode="merge", key="k"))
    dies(root, "purge.before_forget", lambda lake: lake.purge("vanish_unforgotten", "id = 'c'", actor="ann"))


def dying_retention(root, phases):
    """Versions that were replaced before the window; no branch is there yet that could need them."""
    names = [f"prune_{phase}" for phase in phases]
    with Lake(root) as lake:
        for name in names:
            lake.create_table(name, PEOPLE, key=["id"])
            lake.mutate([sl.put(name, {"id": key, "name": key.upper(), "age": 1}) for key in "abc"])
            lake.flush(name)
            lake.mutate([sl.patch(name, "a", {"age": 2}), sl.delete(name, "b")])
            lake.flush(name)
        in_ledger(lake, "update commits set at_us = at_us - :ago", ago=100 * DAY_S * 1_000_000)
        for name in names:
            lake.mutate([sl.patch(name, "a", {"age": 3})])
            lake.flush(name)
            lake.set_table(name, retention_s=30 * DAY_S)
    for name, point in zip(names, phases.values(), strict=True):
        dies(root, point, lambda lake, name=name: lake.retain(name, actor="ann"))


def one_is_given_up(root):
    """A flush whose ledger half is recovered, and whose private branch is still there: phase `abandoned`."""
    with Lake(root) as lake:
        make_table(lake, "flush_abandoned")
        lake.append("flush_abandoned", messages(0, 3))
    before = {intent.op_id for intent in intents_of(Lake(root))}
    dies(root, "stage.after_append", lambda lake: lake.flush("flush_abandoned", actor="ann"))
    with Lake(root) as lake:
        (intent,) = [one for one in intents_of(lake) if one.op_id not in before]
        lease = recovery._operation_lease(lake.context, intent.op_id)
        assert recovery._recover_one(lake.context, intent, lease, with_iceberg=False)
