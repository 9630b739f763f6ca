"""Who deletes rows that refer to deleted ones: a mutation, at its statement. Never a merge, and never a load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.errors import BadRequest, Conflict, MergeConflict, NotFound
from strandline.lake import Lake
from strandline.model.history.merge import resolution_file
from strandline.operations.load import load_request
from strandline.operations.merge import merge
from tests.kit import intents_of
from tests.versions.test_load_large import written


def make(lake: Lake, on_delete: str = "cascade") -> None:
    """Nodes, edges between them, and notes on edges; a branch x."""
    lake.create_table("node", {"id": "string", "n": "long?"}, key=["id"])
    edge = [f"reference(src -> node, {on_delete})", f"reference(dst -> node, {on_delete})"]
    columns = {"id": "string", "src": "string?", "dst": "string?", "n": "long?"}
    lake.create_table("edge", columns, key=["id"], constraints=edge)
    rule = [f"reference(of -> edge, {on_delete})"]
    lake.create_table("note", {"id": "string", "of": "string?"}, key=["id"], constraints=rule)
    lake.mutate([*(node(one) for one in "abc"), edge_of("ab"), edge_of("bc"), note("1", "ab")])
    lake.branch("x")


def node(id: str, n: int | None = None) -> Any:
    return sl.put("node", {"id": id, "n": n})


def edge_of(pair: str, n: int | None = None) -> Any:
    """An edge, named by its ends."""
    return sl.put("edge", {"id": pair, "src": pair[0], "dst": pair[1], "n": n})


def note(id: str, of: str) -> Any:
    return sl.put("note", {"id": id, "of": of})


def ids(lake: Lake, table: str, branch: str = "main") -> list[str]:
    return [row[0] for row in lake.view(branch).sql(f"select id from {table} order by 1").rows()]


def every(lake: Lake, branch: str = "main") -> list[list[str]]:
    return [ids(lake, table, branch) for table in ("node", "edge", "note")]


def conflicts(lake: Lake, source: str, into: str, **how: Any) -> list[tuple[str, str, str]]:
    """What a merge says against it; it has changed nothing."""
    tip = lake.log(into, limit=1)[0].commit_id
    with pytest.raises(MergeConflict) as told:
        lake.merge(source, into, **how)
    assert lake.log(into, limit=1)[0].commit_id == tip
    return sorted((one.kind, one.table, str(one.key["id"])) for one in told.value.conflicts)


# -- statements --------------------------------------------------------------------------------------------------------


def test_a_statement_that_deletes_no_row_takes_none_with_it(lake: Lake) -> None:
    """What refers to a key that is not there yet stays when that is deleted in vain, and its row follows."""
    make(lake)
    lake.mutate([edge_of("ad"), sl.delete("node", "d"), node("d")])
    assert every(lake) == [["a", "b", "c", "d"], ["ab", "ad", "bc"], ["1"]]


# -- merges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["deletes come", "rows come"])
@pytest.mark.parametrize(("on_delete", "size"), [("cascade", "small"), ("restrict", "small"), ("cascade", "large")])
def test_f98_a_merge_deletes_no_row_that_its_source_did_not_delete(
    lake: Lake, on_delete: str, direction: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One side deletes a row, the other adds one that refers to it: an orphan, whichever is merged into the other."""
    if size == "large":
        monkeypatch.setattr(merge, "MOST_ROWS", 0)
    make(lake, on_delete)
    lake.mutate([sl.delete("note", "1"), sl.delete("edge", "ab"), sl.delete("node", "a")], branch="x")
    lake.mutate([edge_of("ca")])
    source, into = ("x", "main") if direction == "deletes come" else ("main", "x")
    assert conflicts(lake, source, into) == [("orphan_edge", "edge", "ca")]
    for side in ("ours", "theirs"):
        assert conflicts(lake, source, into, resolve=side) == [("orphan_edge", "edge", "ca")]
    assert every(lake) == [["a", "b", "c"], ["ab", "bc", "ca"], ["1"]]
    lake.mutate([sl.delete("edge", "ca")])
    assert lake.merge(source, into).outcome == "merged"
    assert every(lake, into) == [["b", "c"], ["bc"], []]
    assert intents_of(lake) == []


@pytest.mark.both_ledgers
def test_f98_a_merge_brings_what_a_delete_took_with_it_on_its_own_side(lake: Lake) -> None:
    """The cascade was the source's change; the target's untouched rows go with it, and nothing else does."""
    make(lake)
    lake.mutate([sl.delete("node", "a")], branch="x")
    lake.mutate([edge_of("cb")])
    assert lake.merge("x").outcome == "merged"
    assert every(lake) == [["b", "c"], ["bc", "cb"], []]
    assert lake.merge("main", "x").outcome == "merged"
    assert every(lake, "x") == every(lake)


def test_f98_what_a_side_keeps_is_judged_again(lake: Lake) -> None:
    """`ours` keeps the row that the other's delete took with it: it is kept with what it refers to, or not at all."""
    make(lake)
    lake.mutate([sl.delete("node", "a")], branch="x")
    lake.mutate([sl.patch("edge", "ab", {"n": 1})])
    assert conflicts(lake, "x", "main") == [("delete_vs_update", "edge", "ab")]
    assert conflicts(lake, "x", "main", resolve="ours") == [("orphan_edge", "edge", "ab")]
    doc = resolution_file(lake.merge("x", dry_run=True))
    doc["conflicts"][0]["take"] = "ours"
    assert conflicts(lake, "x", "main", resolve=doc) == [("orphan_edge", "edge", "ab")]
    kept = {"table": "node", "key": {"id": "a"}, "take": "ours"}
    assert lake.merge("x", resolve={**doc, "conflicts": [*doc["conflicts"], kept]}).outcome == "merged"
    assert every(lake) == [["a", "b", "c"], ["ab", "bc"], []]
    assert lake.merge("main", "x").outcome == "merged"
    assert every(lake, "x") == every(lake)


@pytest.mark.parametrize("size", ["small", "large"])
def test_f98_a_person_may_let_an_orphan_go(lake: Lake, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolution file names it; what refers to that is an orphan in its turn, and named too."""
    if size == "large":
        monkeypatch.setattr(merge, "MOST_ROWS", 0)
    make(lake)
    lake.mutate([sl.delete("node", "a")], branch="x")
    lake.mutate([edge_of("ca", 7), note("2", "ca")])
    preview = lake.merge("x", dry_run=True)
    assert [(one.kind, one.ours, one.theirs) for one in preview.conflicts] == [
        ("orphan_edge", {"id": "ca", "src": "c", "dst": "a", "n": 7}, None)
    ]
    doc = resolution_file(preview)
    doc["conflicts"][0]["take"] = "ours"
    assert conflicts(lake, "x", "main", resolve=doc) == [("orphan_edge", "edge", "ca")]
    doc["conflicts"][0]["take"] = "theirs"
    assert conflicts(lake, "x", "main", resolve=doc) == [("orphan_edge", "note", "2")]
    second = {"table": "note", "key": {"id": "2"}, "take": {"row": None}}
    with pytest.raises(BadRequest, match="not in conflict"):
        lake.merge("x", resolve={**doc, "conflicts": [{**second, "key": {"id": "1"}}, second, doc["conflicts"][0]]})
    done = lake.merge("x", resolve={**doc, "conflicts": [second, doc["conflicts"][0]]})
    assert done.commit is not None
    assert dict(done.tables) == dict(lake.commit(done.commit).tables) == {"edge": 2, "node": 1, "note": 2}
    assert every(lake) == [["b", "c"], ["bc"], []]
    assert lake.merge("main", "x").outcome == "merged"
    assert every(lake, "x") == every(lake)


def test_f98_a_table_that_comes_with_a_merge_is_judged_without_cascades(lake: Lake) -> None:
    """Rows of a table that only the source has, and that refer to a row which the target deleted, are orphans."""
    lake.create_table("node", {"id": "string"}, key=["id"])
    lake.mutate([sl.put("node", {"id": "a"})])
    lake.branch("x")
    rule = ["reference(of -> node, cascade)"]
    lake.create_table("tip", {"id": "string", "of": "string"}, key=["id"], constraints=rule, branch="x")
    lake.mutate([sl.put("tip", {"id": "t", "of": "a"})], branch="x")
    lake.mutate([sl.delete("node", "a")])
    assert conflicts(lake, "x", "main") == [("orphan_edge", "tip", "t")]


def test_f98_columns_that_a_merge_renames_are_judged_under_their_new_names(lake: Lake) -> None:
    """The source has renamed what refers and what is unique; the target's rows are looked through all the same."""
    lake.create_table("node", {"id": "string"}, key=["id"])
    rules = ["reference(src -> node, cascade)", "unique(n)"]
    lake.create_table("link", {"id": "string", "src": "string?", "n": "long?"}, key=["id"], constraints=rules)
    lake.mutate([sl.put("node", {"id": one}) for one in "abc"])
    lake.branch("x")
    renamed = {"start": {"type": "string?", "rename_from": "src"}, "number": {"type": "long?", "rename_from": "n"}}
    lake.schema_apply({"tables": {"link": {"columns": {"id": "string", **renamed}}}}, branch="x")
    lake.mutate([sl.put("link", {"id": "1", "start": "b", "number": 1}), sl.delete("node", "c")], branch="x")
    lake.mutate([sl.put("link", {"id": "2", "src": "c", "n": 1})])
    told = [("orphan_edge", "link", "2"), ("unique_violation", "link", "1")]
    assert conflicts(lake, "x", "main") == told
    lake.mutate([sl.put("link", {"id": "2", "src": "a", "n": 2})])
    assert lake.merge("x").outcome == "merged"
    assert lake.view().sql("select id, start, number from link order by 1").rows() == [("1", "b", 1), ("2", "a", 2)]


# -- mutations ---------------------------------------------------------------------------------------------------------


@pytest.mark.both_ledgers
def test_f99_a_row_that_is_deleted_and_put_again_has_lost_what_referred_to_it(lake: Lake) -> None:
    """The rows that referred to the old one have gone with it, and what refers to those."""
    make(lake)
    commit = lake.mutate([sl.delete("node", "a"), node("a", 5)])
    assert commit.tables == {"node": 1, "edge": 1, "note": 1}
    assert every(lake) == [["a", "b", "c"], ["bc"], []]
    assert lake.view().sql("select n from node where id = 'a'").rows() == [(5,)]


def test_f99_a_cascade_takes_what_is_there_at_its_statement(lake: Lake) -> None:
    """A row that came or was changed by a statement before it counts as it is then; one that comes after it stays."""
    make(lake)
    lake.mutate([sl.patch("edge", "ab", {"src": "c"}), edge_of("ca"), sl.delete("node", "a"), node("a"), edge_of("ac")])
    assert every(lake) == [["a", "b", "c"], ["ab", "ac", "bc"], ["1"]]
    lake.mutate([node("d"), edge_of("da"), note("2", "da"), sl.delete("node", "d")])
    assert every(lake) == [["a", "b", "c"], ["ab", "ac", "bc"], ["1"]]
    lake.mutate([sl.patch("edge", "bc", {"dst": "b"}), note("3", "bc"), sl.delete("node", "b"), edge_of("ca")])
    assert every(lake) == [["a", "c"], ["ac", "ca"], []]


def test_f99_rules_are_judged_at_the_end(lake: Lake) -> None:
    """A row that is put again after the cascade refers to nothing: refused; a patch of one that is gone finds none."""
    make(lake)
    for back in (edge_of("ab"), edge_of("ca")):
        with pytest.raises(Conflict, match=r"deleted row|names no row") as told:
            lake.mutate([sl.delete("node", "a"), back])
        assert told.value.detail["kind"] == "constraint"
    with pytest.raises(NotFound, match="is not there"):
        lake.mutate([sl.delete("node", "a"), sl.patch("edge", "ab", {"n": 1}), node("a")])
    lake.mutate([sl.delete("node", "a"), sl.insert("edge", {"id": "ab", "src": "a", "dst": "b", "n": 9}), node("a")])
    assert every(lake) == [["a", "b", "c"], ["ab", "bc"], []]


def test_f99_a_circle_of_rows_goes_at_its_statement(lake: Lake) -> None:
    """A table may refer to itself; what is put behind the delete stays."""
    rule = ["reference(up -> tree, cascade)"]
    lake.create_table("tree", {"id": "long", "up": "long?"}, key=["id"], constraints=rule)
    lake.mutate([sl.put("tree", {"id": n, "up": n % 3}) for n in range(3)])
    lake.mutate([sl.delete("tree", 1), sl.put("tree", {"id": 2, "up": 2})])
    assert lake.view().sql("select id, up from tree order by 1").rows() == [(0, 0), (2, 2)]


# -- loads -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("on_delete", "rows"), [("cascade", "few"), ("restrict", "few"), ("cascade", "many")])
def test_f99_an_overwrite_removes_as_by_restrict(
    lake: Lake, tmp_path: Path, on_delete: str, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What refers to a row that is not in the input keeps the load out; with all of it in one load it goes."""
    if rows == "many":
        monkeypatch.setattr(load_request, "SMALL_BYTES", -1)
    make(lake, on_delete)
    nodes = [{"id": "b"}, {"id": "c"}]
    with pytest.raises(Conflict, match="still refers to a deleted row") as told:
        lake.load("node", [written(tmp_path, nodes)], mode="overwrite")
    assert [(one["table"], one["key"]) for one in told.value.detail["violations"]] == [("edge", "'ab'")]
    assert every(lake) == [["a", "b", "c"], ["ab", "bc"], ["1"]]
    both = [*({"_table": "node", **one} for one in nodes), {"_table": "edge", "id": "bc", "src": "b", "dst": "c"}]
    with pytest.raises(Conflict, match="still refers to a deleted row"):
        lake.load("-", [written(tmp_path, both, "both.jsonl")], mode="overwrite")
    lake.mutate([sl.delete("note", "1")])
    done = lake.load("-", [written(tmp_path, both, "both.jsonl")], mode="overwrite")
    assert (done.rows, done.deleted) == (3, 2)
    assert every(lake) == [["b", "c"], ["bc"], []]
