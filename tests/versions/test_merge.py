"""Merge: rows and fields of two branches, without losing a change of either."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline import create, failpoints
from strandline.errors import BadRequest, Conflict, MergeConflict, NotFound
from strandline.lake import Lake
from strandline.model.history.merge import Merged, resolution_file
from tests.kit import crash, make_table, message, reopened, strand, strand_json
from tests.versions import truth
from tests.versions.kit import make_people

SHAPE = {"id": "string", "name": "string?", "age": "long?", "city": "string?"}


def on(lake: Lake, branch: str = "main", columns: str = "id, age", table: str = "person") -> list[tuple[Any, ...]]:
    """The rows of a branch, by key."""
    found: list[tuple[Any, ...]] = lake.view(branch).sql(f"select {columns} from {table} order by 1").rows()
    return found


def kinds(merged: Merged | MergeConflict) -> list[tuple[str, str, str]]:
    """The conflicts, by table and key."""
    return sorted((one.kind, one.table, str(next(iter(one.key.values()), ""))) for one in merged.conflicts)


def changed(lake: Lake, branch: str, **ages: int | None) -> str:
    """Set ages of people, or delete them; the commit."""
    steps = [
        sl.delete("person", key) if age is None else sl.put("person", {"id": key, "age": age})
        for key, age in ages.items()
    ]
    return lake.mutate(steps, branch=branch).commit_id


def forked(lake: Lake, **ages: int) -> None:
    """A table with these people, and a branch x of main."""
    make_people(lake)
    changed(lake, "main", **(ages or {"a": 1, "b": 1}))
    lake.branch("x")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Merged, dict[str, tuple[Any, ...]]]]:
    """All cases of the truth table as rows of one table: the preview of their merge, and the rows after it."""
    with create.create(tmp_path_factory.mktemp("truth") / "lake") as lake:
        lake.create_table(truth.TABLE, SHAPE, key=["id"])
        began = [sl.put(truth.TABLE, {"id": case.key, **case.base}) for case in truth.cases() if case.base]
        lake.mutate(began)
        lake.branch("theirs")
        for side, branch in (("ours", "main"), ("theirs", "theirs")):
            done = [truth.statements(case, side) for case in truth.cases()]
            for place in range(max(map(len, done))):
                lake.mutate([steps[place] for steps in done if len(steps) > place], branch=branch)
        preview = lake.merge("theirs", dry_run=True)
        lake.merge("theirs", resolve="ours")
        rows = {row[0]: row[1:] for row in on(lake, columns="id, name, age, city")}
        yield preview, rows


@pytest.mark.parametrize("case", truth.cases(), ids=lambda case: case.key)
def test_the_truth_table(case: truth.Case, table: tuple[Merged, dict[str, tuple[Any, ...]]]) -> None:
    """What a merge makes of every pair of changes is what dictionaries say."""
    preview, rows = table
    kind, row = truth.verdict(case)
    found = [one.kind for one in preview.conflicts if one.key == {"id": case.key}]
    assert found == ([] if kind == "merged" else [kind])
    if kind == "merged":
        assert rows.get(case.key) == (tuple(row.values()) if row is not None else None)


def test_the_document_shows_the_truth_table() -> None:
    """It is made of the same cases; `truth.document()` is what belongs there."""
    assert truth.document() in (Path(__file__).parents[2] / "docs" / "merge.md").read_text()


def test_a_merge_is_one_commit_with_two_parents_and_merging_again_is_up_to_date(lake: Lake) -> None:
    forked(lake)
    ours = changed(lake, "main", a=2)
    theirs = changed(lake, "x", b=None, c=3)
    done = lake.merge("x", actor="me", message="why")
    assert (done.outcome, done.tables, done.conflicts) == ("merged", {"person": 2}, ())
    commit = lake.log(limit=1)[0]
    assert (commit.commit_id, commit.parents) == (done.commit, (ours, theirs))
    assert (commit.kind, commit.actor, commit.message) == ("merge", "me", "why")
    assert on(lake) == [("a", 2), ("c", 3)]
    again = lake.merge("x")
    assert (again.outcome, again.commit) == ("up_to_date", done.commit) and lake.log(limit=1)[0] == commit
    assert lake.merge("main", into="x").outcome == "merged" and on(lake, "x") == on(lake)


def test_a_branch_that_is_ahead_is_taken_by_pointer(lake: Lake) -> None:
    """Flushed or not, several times, and back; no row is written again, and nobody has to be told anew."""
    forked(lake)
    for flush in (False, True, False):
        commit = changed(lake, "x", c=1 + flush, d=4)
        if flush:
            lake.flush("person", branch="x")
        versions = lake.view("x").sql('select _seq, _commit from "person$log" order by 1').rows()
        done = lake.merge("x")
        assert (done.outcome, done.commit) == ("fast_forward", commit)
        assert lake.view().sql('select _seq, _commit from "person$log" order by 1').rows() == versions
        assert lake.log(limit=1)[0].commit_id == commit
        changed(lake, "main", e=5)
        assert lake.merge("main", into="x").outcome == "fast_forward"
        assert on(lake) == on(lake, "x")
    lake.flush("person")
    assert on(lake) == on(lake, "x") == [("a", 1), ("b", 1), ("c", 1), ("d", 4), ("e", 5)]


def test_a_row_that_was_taken_by_pointer_is_found_by_the_next_change(lake: Lake) -> None:
    """Its newest version is the one that came with the branch."""
    forked(lake)
    lake.mutate([sl.patch("person", "a", {"name": "from x"})], branch="x")
    assert lake.merge("x").outcome == "fast_forward"
    lake.mutate([sl.patch("person", "a", {"age": 9})])
    assert on(lake, columns="id, name, age") == [("a", "from x", 9), ("b", None, 1)]
    with pytest.raises(Conflict, match="there already"):
        lake.mutate([sl.insert("person", {"id": "a"})])


def test_conflicts_are_all_listed_and_nothing_is_written(lake: Lake) -> None:
    forked(lake, a=1, b=1, c=1)
    lake.mutate(
        [sl.patch("person", "a", {"age": 2}), sl.delete("person", "b"), sl.put("person", {"id": "n", "age": 1})]
    )
    lake.mutate(
        [
            *(sl.patch("person", key, {"age": 3}) for key in ("a", "b")),
            *(sl.put("person", {"id": key}) for key in ("n", "fine")),
        ],
        branch="x",
    )
    before = on(lake), lake.log()
    with pytest.raises(MergeConflict) as error:
        lake.merge("x")
    expected = [("delete_vs_update", "person", "b"), ("divergent_insert", "person", "n"),
                ("divergent_update", "person", "a")]  # fmt: skip
    assert kinds(error.value) == expected and error.value.detail["kind"] == "merge_conflicts"
    assert (on(lake), lake.log()) == before
    preview = lake.merge("x", dry_run=True)
    assert preview.outcome == "conflicts" and kinds(preview) == expected and (on(lake), lake.log()) == before
    (one,) = (one for one in preview.conflicts if one.key == {"id": "a"})
    assert one.fields == ("age",)
    assert [image and image["age"] for image in (one.base, one.ours, one.theirs)] == [1, 2, 3]
    (gone,) = (one for one in preview.conflicts if one.key == {"id": "b"})
    assert gone.ours is None and gone.theirs is not None and gone.base is not None


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_side_decides_the_fields_in_conflict_and_the_others_merge(lake: Lake, side: Any) -> None:
    forked(lake, a=1, b=1, c=1)
    lake.mutate([sl.patch("person", "a", {"age": 2, "name": "m"}), sl.delete("person", "b")])
    lake.mutate([sl.patch("person", "a", {"age": 3, "tags": ["x"]}), sl.patch("person", "b", {"age": 3})], branch="x")
    lake.mutate([sl.delete("person", "c")], branch="x")
    lake.merge("x", resolve=side)
    rows = on(lake, columns="id, age, name, tags")
    assert rows == [("a", 2, "m", ["x"])] if side == "ours" else [("a", 3, "m", ["x"]), ("b", 3, None, None)]
    assert lake.merge("x").outcome == "up_to_date"


def test_a_file_decides_each_row_or_says_what_it_is(lake: Lake, tmp_path: Path) -> None:
    forked(lake, a=1, b=1, c=1, d=1)
    changed(lake, "main", a=2, b=2, c=2, d=2)
    changed(lake, "x", a=3, b=3, c=3, d=3)
    file = tmp_path / "decide.json"
    told = strand(lake, "merge", "x", "--dry-run", "--write", str(file))
    assert told.code == 4 and "4 in person" in told.out, told.err
    document = json.loads(file.read_text())
    rows = {conflict["key"]["id"]: conflict["ours"] for conflict in document["conflicts"]}
    decisions = {
        "a": {**rows["a"], "age": 8},
        "b": "theirs",
        "c": {"row": {"age": 9, "name": "both"}},
        "d": {"row": None},
    }
    for conflict in document["conflicts"]:
        conflict["take"] = decisions[conflict["key"]["id"]]
    file.write_text(json.dumps(document))
    answer = strand_json(lake, "merge", "x", "--resolve", str(file))
    assert answer["outcome"] == "merged" and answer["tables"] == {"person": 4}
    assert on(lake, columns="id, age, name") == [("a", 8, None), ("b", 3, None), ("c", 9, "both")]


def test_a_file_that_is_stale_or_decides_on_something_else_is_refused(lake: Lake) -> None:
    forked(lake)
    changed(lake, "main", a=2)
    changed(lake, "x", a=3)
    document = resolution_file(lake.merge("x", dry_run=True))
    document["conflicts"][0]["take"] = "theirs"
    unknown = json.loads(json.dumps(document))
    unknown["conflicts"][0]["key"] = {"id": "b"}
    with pytest.raises(BadRequest, match="not in conflict"):
        lake.merge("x", resolve=unknown)
    with pytest.raises(BadRequest, match="not a resolution file"):
        lake.merge("x", resolve={"conflicts": []})
    nobody = json.loads(json.dumps(document))
    nobody["conflicts"][0]["take"] = "their"
    with pytest.raises(BadRequest, match="a decision is `ours`, `theirs` or a row, and not 'their'"):
        lake.merge("x", resolve=nobody)
    bad = json.loads(json.dumps(document))
    bad["conflicts"][0]["take"] = {"row": {"age": "old"}}
    with pytest.raises(sl.InvalidRows, match="age"):
        lake.merge("x", resolve=bad)
    changed(lake, "main", b=7)
    with pytest.raises(Conflict, match="made for other commits"):
        lake.merge("x", resolve=document)
    assert on(lake) == [("a", 2), ("b", 7)]


def test_f60_a_second_merge_takes_the_right_base(lake: Lake) -> None:
    """Changes are found by their commits and not by seqs: what was merged before is not lost, and not taken twice."""
    forked(lake, a=1, b=1)
    changed(lake, "main", a=2)
    changed(lake, "x", b=2)
    assert lake.merge("x").outcome == "merged" and on(lake) == [("a", 2), ("b", 2)]
    changed(lake, "x", a=3)
    with pytest.raises(MergeConflict) as error:
        lake.merge("x")
    assert kinds(error.value) == [("divergent_update", "person", "a")]
    assert lake.merge("x", resolve="theirs").outcome == "merged" and on(lake) == [("a", 3), ("b", 2)]
    changed(lake, "x", a=4, b=5)
    assert lake.merge("x").outcome == "merged" and on(lake) == [("a", 4), ("b", 5)]


def test_what_a_merge_had_no_need_to_write_is_merged_on(lake: Lake) -> None:
    """A delete and a change back that another branch made meet nothing on x: they are x's own, and not in its log."""
    forked(lake, a=1, b=1)
    lake.branch("made")
    changed(lake, "made", a=2, c=3)
    lake.branch("other", "made")
    changed(lake, "made", a=1, c=None)
    assert (lake.merge("made", "x").outcome, on(lake, "x")) == ("merged", [("a", 1), ("b", 1)])
    assert (lake.merge("x", "other").outcome, on(lake, "other")) == ("merged", [("a", 1), ("b", 1)])
    lake.branch("later", "other")
    changed(lake, "later", a=7)
    changed(lake, "x", b=5)
    assert lake.merge("later", "x").outcome == "merged" and on(lake, "x") == [("a", 7), ("b", 5)]


def test_a_row_that_a_side_deleted_by_a_merge_is_in_conflict_with_a_change_of_it(lake: Lake) -> None:
    forked(lake, a=1)
    lake.branch("made")
    changed(lake, "made", c=3)
    lake.branch("other", "made")
    changed(lake, "made", c=None)
    changed(lake, "other", c=4)
    lake.merge("made", "x")
    for source, into in (("other", "x"), ("x", "other")):
        assert kinds(lake.merge(source, into, dry_run=True)) == [("delete_vs_update", "person", "c")]


def test_criss_cross_merges(lake: Lake) -> None:
    """Each side merged the other's earlier commit: two bases, and a row on which they differ is a conflict."""
    forked(lake, a=1, b=1, c=1)
    changed(lake, "main", a=2)
    changed(lake, "x", b=2)
    lake.branch("main-then", "main")
    lake.branch("x-then", "x")
    assert lake.merge("x-then").outcome == "merged"
    assert lake.merge("main-then", into="x").outcome == "merged"
    assert on(lake) == on(lake, "x") == [("a", 2), ("b", 2), ("c", 1)]
    changed(lake, "x", c=7)
    assert lake.merge("x").outcome == "merged" and on(lake) == [("a", 2), ("b", 2), ("c", 7)]
    changed(lake, "main", a=8)
    changed(lake, "x", a=9)
    with pytest.raises(MergeConflict):
        lake.merge("x")


def test_a_net_change_of_nothing_writes_nothing(lake: Lake) -> None:
    forked(lake)
    changed(lake, "main", z=1)
    changed(lake, "x", a=5, n=1)
    changed(lake, "x", a=1, n=None)
    done = lake.merge("x")
    assert (done.outcome, done.tables) == ("merged", {}) and on(lake) == [("a", 1), ("b", 1), ("z", 1)]
    assert lake.merge("x").outcome == "up_to_date"


def test_a_table_that_was_made_on_a_branch_comes_with_it(lake: Lake) -> None:
    forked(lake)
    make_people(lake, "pet", branch="x")
    lake.mutate([sl.put("pet", {"id": "rex"})], branch="x")
    changed(lake, "main", c=3)
    with pytest.raises(NotFound, match="no table"):
        lake.mutate([sl.put("pet", {"id": "tom"})])
    assert lake.merge("x").tables == {"pet": 1}
    assert on(lake, columns="id", table="pet") == [("rex",)] and on(lake) == [("a", 1), ("b", 1), ("c", 3)]
    lake.mutate([sl.patch("pet", "rex", {"age": 2})])
    assert on(lake, table="pet") == [("rex", 2)] and on(lake, "x", table="pet") == [("rex", None)]


def test_constraints_hold_after_a_merge(lake: Lake) -> None:
    """Each side is right by itself, and together they are not."""
    lake.create_table("team", {"id": "string"}, key=["id"])
    lake.create_table(
        "member",
        {"id": "string", "team": "string?", "email": "string?"},
        key=["id"],
        constraints=["reference(team -> team, restrict)", "unique(email)", "cardinality(team: 0..2)"],
    )
    lake.mutate([sl.put("team", {"id": name}) for name in ("t", "u")])
    lake.branch("x")
    lake.mutate(
        [sl.put("member", {"id": "m1", "team": "t", "email": "e"}), sl.put("member", {"id": "m2", "team": "u"})]
    )
    lake.mutate([sl.delete("team", "t"), sl.put("member", {"id": "x1", "email": "e"})], branch="x")
    lake.mutate([sl.put("member", {"id": f"x{n}", "team": "u"}) for n in (2, 3)], branch="x")
    preview = lake.merge("x", dry_run=True)
    assert {one.kind for one in preview.conflicts} == {"orphan_edge", "unique_violation", "cardinality_violation"}
    with pytest.raises(MergeConflict):
        lake.merge("x")
    lake.mutate([sl.put("team", {"id": "t"}), sl.delete("member", "x1"), sl.delete("member", "x3")], branch="x")
    assert lake.merge("x").outcome == "merged"
    assert on(lake, columns="id, team", table="member") == [("m1", "t"), ("m2", "u"), ("x2", "u")]


def test_f67_a_commit_shows_the_same_rows_before_and_after_merges(lake: Lake) -> None:
    """A branch's rows have lower seqs than main's later commits, and still were not there."""
    forked(lake)
    make_people(lake, "pet")
    lake.branch("y")
    on_y = lake.mutate([sl.put("pet", {"id": "rex"})], branch="y").commit_id
    on_x = changed(lake, "x", a=5)
    on_main = changed(lake, "main", b=7)
    points = {
        on_main: ([("a", 1), ("b", 7)], []),
        on_x: ([("a", 5), ("b", 1)], None),
        on_y: ([("a", 1), ("b", 1)], [("rex", None)]),
    }

    def check() -> None:
        for commit, (person, pet) in points.items():
            view = lake.view(at=commit)
            assert view.sql("select id, age from person order by 1").rows() == person
            assert ("pet" in view.tables) == (pet is not None)
            if pet is not None:
                assert view.sql("select id, age from pet order by 1").rows() == pet

    check()
    for branch in ("y", "x"):
        lake.merge(branch)
        check()
    points[lake.log(limit=1)[0].commit_id] = ([("a", 5), ("b", 7)], [("rex", None)])
    check()
    lake.flush()
    lake.compact("person")
    check()
    with reopened(lake) as again:
        assert again.view(at=on_main).sql("select * from pet").rows() == []


def test_f37_a_merge_reads_what_was_changed_and_not_the_table(lake: Lake) -> None:
    """As many rows of a large table as of a small one: those that either side changed, and those they meet."""
    read: list[int] = []
    for name, rows in (("small", 20), ("large", 2000)):
        make_people(lake, name)
        lake.mutate([sl.put(name, {"id": str(n), "age": n}) for n in range(rows)])
        lake.flush(name)
        lake.fold(name)
        lake.branch(name)
        for branch, some in ((name, range(4)), ("main", range(3, 8))):
            lake.mutate([sl.patch(name, str(n), {"note": branch} if branch == name else {"age": 0}) for n in some],
                        branch=branch)  # fmt: skip
        read.append(lake.merge(name).rows_read)
    assert read[0] == read[1] <= 4 * 2 + 5


def test_a_merged_branch_that_is_deleted_stays_readable_by_its_commits(lake: Lake) -> None:
    """And serves as the base of later merges; nobody can write to it, and its name is free."""
    forked(lake)
    for name in ("p", "q"):
        lake.branch(name)
    early = changed(lake, "x", a=5)
    theirs = changed(lake, "x", b=5)
    for name, key in (("main", "m"), ("p", "k"), ("q", "l")):
        changed(lake, name, **{key: 1})
        assert lake.merge("x", into=name).outcome == "merged"
    lake.flush("person", branch="x")
    lake.delete_branch("x")
    assert "x" not in [one.name for one in lake.branches()] and lake.tags() == []
    with pytest.raises(NotFound, match="no branch 'x'"):
        changed(lake, "x", c=1)
    lake.sweep()
    assert lake.view(at=early).sql("select id, age from person order by 1").rows() == [("a", 5), ("b", 1)]
    changed(lake, "p", b=6)
    changed(lake, "q", b=7)
    with pytest.raises(MergeConflict) as error:
        lake.merge("q", into="p")
    assert [(one.base or {})["age"] for one in error.value.conflicts] == [5]
    assert lake.branch("x", theirs).tip == theirs and on(lake, "x") == [("a", 5), ("b", 5)]


def test_f67_commits_show_their_rows_after_branches_have_merged_each_other(lake: Lake) -> None:
    """A branch has others' rows under its own merge commit: it never takes the place of the one that made them."""
    forked(lake)
    lake.branch("y")
    on_y = changed(lake, "y", a=5)
    for source, into in (("y", "x"), ("x", "y"), ("y", "x"), ("x", "y")):
        assert lake.merge(source, into).outcome == "merged"
        assert lake.view(at=on_y).sql("select id, age from person order by 1").rows() == [("a", 5), ("b", 1)]
    assert lake.merge("x", "y").outcome == "up_to_date"


def test_f40_sinks_on_the_target_get_each_merged_row_once(lake: Lake, tmp_path: Path) -> None:
    """In whatever order rows are written, delivered and merged, also back and forth."""
    forked(lake)
    lake.add_sink("out", "blob", {"uri": (tmp_path / "out").as_uri(), "format": "jsonl"})

    def delivered() -> list[tuple[str, int | None]]:
        lake.tick()
        lines = [
            line for path in sorted((tmp_path / "out").rglob("*.jsonl*")) for line in _lines(path) if "_removed" in line
        ]
        rows = sorted((row["_seq"], row["id"], row.get("age")) for row in map(json.loads, lines))
        assert len({seq for seq, _, _ in rows}) == len(rows), "a row was delivered twice"
        return [(key, age) for _, key, age in rows]

    expected: list[tuple[str, int | None]] = [("a", 1), ("b", 1)]
    assert delivered() == expected
    changed(lake, "x", a=2)
    changed(lake, "main", b=3)
    assert delivered() == [*expected, ("b", 3)]
    lake.merge("x")
    expected = [*expected, ("b", 3), ("a", 2)]
    assert delivered() == expected
    lake.merge("main", into="x")
    changed(lake, "x", c=4)
    lake.flush("person", branch="x")
    lake.merge("x")
    expected.append(("c", 4))
    assert delivered() == expected and delivered() == expected
    changed(lake, "x", d=1)
    changed(lake, "main", e=1)
    lake.merge("main", into="x")
    lake.merge("x")
    assert sorted(delivered()) == sorted([*expected, ("d", 1), ("e", 1)])


def test_f56_a_branch_that_is_made_again_has_no_marks_of_the_old_one(lake: Lake, tmp_path: Path) -> None:
    """A sink follows the branch that it was made for: of one of that name that came later, another one gets all."""
    forked(lake)

    def follow(name: str) -> None:
        lake.add_sink(name, "blob", {"uri": (tmp_path / name).as_uri(), "format": "jsonl", "branch": "x"})

    def keys(name: str) -> list[str]:
        lines = [line for path in sorted((tmp_path / name).rglob("*.jsonl*")) for line in _lines(path)]
        return sorted(json.loads(line)["id"] for line in lines if "_removed" in line)

    follow("old")
    changed(lake, "x", c=3)
    changed(lake, "main", m=1)
    assert [one.outcome for one in lake.tick()] == ["delivered"] and keys("old") == ["a", "b", "c"]
    lake.delete_branch("x", force=True)
    lake.branch("x")
    changed(lake, "x", n=5)
    (told,) = lake.tick()
    assert told.outcome == "failed" and "was deleted" in str(told.error) and keys("old") == ["a", "b", "c"]
    follow("new")
    assert sorted((one.sink, one.outcome) for one in lake.tick()) == [("new", "delivered"), ("old", "failed")]
    assert keys("new") == ["a", "b", "m", "n"]


def _lines(path: Path) -> list[str]:
    import zstandard

    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    return data.decode().splitlines()


def test_bad_requests_change_nothing(lake: Lake) -> None:
    forked(lake)
    make_table(lake)
    lake.append("messages", [message(1)])
    with pytest.raises(BadRequest, match="into itself"):
        lake.merge("x", into="x")
    with pytest.raises(NotFound, match="no branch 'nope'"):
        lake.merge("nope")
    assert lake.merge("x").outcome == "up_to_date"
    answer = strand(lake, "merge", "main", "--into", "main")
    assert answer.code == 3 and "can't be merged into itself" in answer.err


def test_a_protected_branch_takes_merges(lake: Lake) -> None:
    forked(lake)
    lake.protect_branch("main")
    changed(lake, "x", c=1)
    assert lake.merge("x").outcome == "fast_forward"
    lake.branch("y")
    changed(lake, "x", d=1)
    changed(lake, "y", e=1)
    lake.merge("x")
    assert lake.merge("y").outcome == "merged" and [key for key, _ in on(lake)] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("point", ["merge.before_store", "mutate.before_commit", "mutate.after_commit",
                                   "merge.before_commit", "merge.after_commit"])  # fmt: skip
def test_f33_a_merge_that_dies_is_there_with_both_parents_or_not_at_all(lake: Lake, point: str) -> None:
    """Of one that was stored, the next merge knows: it is up to date, and what comes later has the right base."""
    forked(lake)
    ahead = point == "merge.before_commit"
    ours = lake.log(limit=1)[0].commit_id if ahead else changed(lake, "main", a=2)
    theirs = changed(lake, "x", b=5)
    failpoints.arm(f"{point}=raise")
    with crash(lake):
        lake.merge("x")
    with reopened(lake) as again:
        stored = point.endswith("after_commit")
        tip = again.log(limit=1)[0]
        assert tip.parents == (ours, theirs) if stored else tip.commit_id == ours
        assert dict(on(again))["b"] == (5 if stored else 1)
        done = again.merge("x")
        assert done.outcome == ("up_to_date" if stored else "fast_forward" if ahead else "merged")
        changed(again, "x", b=6, c=1)
        assert again.merge("x").outcome == ("fast_forward" if ahead else "merged")
        assert dict(on(again)) == {"a": 1 if ahead else 2, "b": 6, "c": 1}
        assert [one.parents for one in again.log() if one.kind == "merge" and one.commit_id == tip.commit_id] in (
            [], [(ours, theirs)]
        )  # fmt: skip
