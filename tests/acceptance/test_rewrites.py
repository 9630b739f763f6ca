"""`heads.rewrites`: the token that says whether rows that were read may still be shown.

It moves with whatever changes visible rows otherwise than by later versions, on every branch that sees them, and with
nothing else: a process that keeps rows would build them anew for nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import failpoints
from strandline.lake import Lake
from strandline.ledger.rows.batches import discard_quarantined, list_quarantined
from strandline.operations.load import load_request
from strandline.operations.merge import merge
from strandline.reports.repairs import fix
from tests.acceptance.test_capture import damage_batch
from tests.kit import crash, in_ledger, make_table, message, messages, part_ids, reopened
from tests.versions.kit import PEOPLE

DAY_S = 24 * 3600


def tokens(lake: Lake) -> dict[tuple[str, str], int]:
    """The token of every (branch or tag, table)."""
    found = in_ledger(
        lake,
        "select b.name, t.name, h.rewrites from heads h join branches b using (branch_id) "
        "join tables t using (table_id) where b.deleted_at_us is null",
    )
    return {(branch, table): rewrites for branch, table, rewrites in found}


def moved(lake: Lake, work: Callable[[], Any]) -> set[tuple[str, str]]:
    """The (branch, table)s whose token something moves; it never goes back."""
    before = tokens(lake)
    work()
    after = tokens(lake)
    assert all(after[place] >= before[place] for place in before.keys() & after.keys())
    return {place for place in before.keys() & after.keys() if before[place] != after[place]}


@pytest.mark.both_ledgers
def test_the_token_stays_with_changes_that_are_later_versions(lake: Lake) -> None:
    """Append, mutate, branch, tag, schema change, fast-forward and merge in the ledger."""
    make_table(lake)
    lake.create_table("person", PEOPLE, key=["id"])

    def work() -> None:
        lake.append("messages", messages(0, 5))
        lake.mutate([sl.put("person", {"id": key, "age": 1}) for key in "abc"])
        lake.branch("x")
        lake.mutate([sl.patch("person", "a", {"age": 2}), sl.delete("person", "b")], branch="x")
        assert lake.merge("x").outcome == "fast_forward"
        lake.mutate([sl.patch("person", "a", {"age": 3})])
        lake.mutate([sl.patch("person", "c", {"name": "C"})], branch="x")
        assert lake.merge("x").outcome == "merged"
        doc = lake.schema()
        doc["tables"]["person"]["columns"]["city"] = "string?"
        lake.schema_apply(doc)

    assert moved(lake, work) == set()
    assert set(tokens(lake).values()) == {0}


@pytest.mark.both_ledgers
def test_the_token_moves_with_a_batch_that_is_set_aside_and_with_its_end(lake: Lake) -> None:
    """Its rows were shown while it could be read; other tables keep their tokens."""
    make_table(lake)
    make_table(lake, "others")
    for n in range(3):
        lake.append("messages", [message(n)])
    damage_batch(lake, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert moved(lake, lambda: fix(lake)) == {("main", "messages")}
    with lake.ledger.read() as conn:
        (batch,) = list_quarantined(conn)

    def discard() -> None:
        with lake.ledger.write() as txn:
            discard_quarantined(txn, batch.batch_id)

    assert moved(lake, discard) == {("main", "messages")}


@pytest.mark.both_ledgers
def test_a_branch_that_takes_over_another_s_table_takes_over_its_token(lake: Lake) -> None:
    """A purge goes from branch to branch: one may be adopted that has lost rows which the other still shows."""
    lake.create_table("person", PEOPLE, key=["id"])
    lake.mutate([sl.put("person", {"id": "a"})])

    def forward(name: str) -> Callable[[], Any]:
        lake.branch(name)
        lake.mutate([sl.put("person", {"id": name})], branch=name)
        return lambda: lake.merge(name)

    merged = forward("x")
    in_ledger(lake, "update heads set rewrites = 3 where branch_id = (select branch_id from branches where name = 'x')")
    assert moved(lake, merged) == {("main", "person")}
    assert tokens(lake)["main", "person"] == 3, "later ones are taken over, so that the next adoption finds them equal"
    assert moved(lake, forward("y")) == set()
    merged = forward("z")
    in_ledger(lake, "update heads set rewrites = 1 where branch_id = (select branch_id from branches where name = 'z')")
    assert moved(lake, merged) == {("main", "person")}
    assert tokens(lake)["main", "person"] > 3


def test_the_token_moves_with_what_takes_rows_away_and_with_no_other_operation(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Purge, hard erase and retention; not flush, fold, compaction, expiry, sweep, large loads and large merges."""
    lake.create_table("messages", {"part_id": "string", "n": "long", "body": "string?", "ts": "timestamp?"})
    lake.append("messages", [{"part_id": "first", "n": 1, "body": "secret"}])
    lake.flush("messages")

    def erase() -> None:
        doc = {"tables": {"messages": lake.schema()["tables"]["messages"]}}
        del doc["tables"]["messages"]["columns"]["body"]
        lake.schema_apply(doc, hard=True)

    assert moved(lake, erase) == {("main", "messages")}
    lake.create_table("person", PEOPLE, key=["id"])
    lake.mutate([sl.put("person", {"id": key, "age": 1, "name": key}) for key in "abcd"])
    lake.branch("x")
    lake.tag("v1")
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)

    def harmless() -> None:
        lake.append("messages", [{"part_id": f"p{n}", "n": n} for n in range(4)])
        lake.flush()
        lake.append("messages", [{"part_id": "old", "n": 9, "ts": long_ago}])
        lake.mutate([sl.patch("person", "a", {"age": 2})])
        lake.mutate([sl.patch("person", "b", {"age": 2})], branch="x")
        lake.flush()
        lake.fold("person")
        monkeypatch.setattr(merge, "MOST_ROWS", 0)
        assert lake.merge("x").outcome == "merged"
        file = tmp_path / "rows.jsonl"
        file.write_text(json.dumps({"id": "loaded"}) + "\n")
        monkeypatch.setattr(load_request, "SMALL_BYTES", -1)
        lake.load("person", [str(file)], mode="merge")
        lake.flush()
        lake.compact()
        lake.expire(grace_s=0)
        lake.sweep(grace_s=0)

    assert moved(lake, harmless) == set()
    assert moved(lake, lambda: lake.purge("messages", "n = 1")) == {("main", "messages")}
    assert moved(lake, lambda: lake.purge("person", "id = 'd'")) == {
        ("main", "person"),
        ("x", "person"),
        ("tag:v1", "person"),
    }
    lake.set_table("messages", retention_s=DAY_S, time_column="ts")
    assert moved(lake, lambda: lake.retain("messages")) == {("main", "messages")}
    lake.delete_branch("x")
    lake.delete_tag("v1")

    in_ledger(lake, "update commits set at_us = at_us - :ago", ago=100 * DAY_S * 1_000_000)
    lake.mutate([sl.patch("person", "a", {"age": 3})])
    lake.set_table("person", retention_s=30 * DAY_S)
    lake.flush()
    assert moved(lake, lambda: lake.retain("person")) == {("main", "person")}, "versions in its log are gone"


def test_the_token_moves_when_a_load_comes_below_rows_that_were_shown(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that was appended while the load's range was reserved gives way to the load's; else nothing moves."""
    make_table(lake)
    monkeypatch.setattr(load_request, "SMALL_BYTES", 0)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for file, n in ((first, 1), (second, 2)):
        file.write_text(json.dumps(message(n)) + "\n")
    assert moved(lake, lambda: lake.load("messages", [str(first)])) == set()
    failpoints.arm("staged.after_commit=raise")
    with crash(lake):
        lake.load("messages", [str(second)])
    with reopened(lake, recovering=False) as again:
        again.append("messages", [message(2), message(3)])
        assert moved(again, again.refresh) == {("main", "messages")}
        again.recover()
        assert part_ids(again) == ["p1", "p2", "p3"]
