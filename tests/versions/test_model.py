"""A model test of versions: change, declare, branch, tag, merge, look back and reopen, in any order, against
dictionaries.

Hypothesis makes up the story and, when it finds a wrong one, tells the shortest. These are long and start no Spark;
`test_model_maintained.py` tells short ones, with maintenance between the steps.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import strandline as sl
from strandline import create
from strandline.errors import Conflict, HistoryGone, MergeConflict
from strandline.lake import Lake
from strandline.ledger.rows import batches
from strandline.model.history.merge import Merged, RowConflict, resolution_file
from strandline.model.history.mutations import Statement
from strandline.reports.doctor import examine
from tests.kit import intents_of
from tests.versions.history_model import Column, Columns, History, Point, Row, Rows, differences, repeated, under

FIELDS = {"person": ("name", "age"), "pet": ("name", "chip")}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "patch", "patch", "delete"]),
        st.sampled_from(sorted(FIELDS)),
        st.sampled_from("abc"),
        st.integers(0, 1),
        st.sampled_from([None, 1, 2, 3]),
    ),
    min_size=1,
    max_size=3,
)
NAMES = st.sampled_from(["main", "x", "y", "x/z"])
SIDES = st.sampled_from([None, None, "ours", "theirs"])
NEW_NAMES = st.sampled_from(["c", "d"])
DEFAULTS = st.sampled_from([None, 7, 8])
RULES = ["unique(chip)", "unique(id, name)"]
"""Those of the table of pets. No two rows break the second: it has the key. Files that are older lack its filters."""


class VersionsMachine(RuleBasedStateMachine):
    """A lake beside its model."""

    def __init__(self, places: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._places = places

    @initialize()
    def begin(self) -> None:
        """Three branches have the same rows."""
        self._create()
        self._branch_off()

    def _create(self) -> None:
        """Two tables, one of them with a unique value, and a first commit."""
        self.folder = Path(tempfile.mkdtemp())
        self.lake = create.create(self.folder / "lake", **self._places())
        self.lake.create_table("person", {"id": "string", "name": "long?", "age": "long?"}, key=["id"])
        self.lake.create_table(
            "pet", {"id": "string", "name": "long?", "chip": "long?"}, key=["id"], constraints=["unique(chip)"]
        )
        self.model = History()
        first = self.lake.log(limit=1)[0].commit_id
        self.model.points[first] = Point(
            (), {}, {(table, name): Column(name) for table, names in FIELDS.items() for name in names}
        )
        self.made = itertools.count()
        self.model.branches["main"] = first
        self.shaken = False
        self.known: dict[str, str] = {}
        self.mutate([("put", table, key, 0, 1) for table in FIELDS for key in "ab"], "main")

    def _branch_off(self) -> None:
        for name in ("x", "y"):
            self.branch(name, "main")

    @rule(steps=STEPS, branch=NAMES)
    def mutate(self, steps: list[Any], branch: str) -> None:
        """One commit of some changes; or none, where two rows would share what is unique."""
        branch = self._living(branch)
        rows = self.model.rows(branch)
        columns = self.model.columns(branch)
        statements = [self._applied(rows, columns, *step) for step in steps]
        try:
            commit = self.lake.mutate(statements, branch=branch)
        except Conflict as error:
            assert repeated(rows) and error.detail["kind"] == "constraint"
            return
        assert not repeated(rows)
        if commit.commit_id == self.model.branches[branch]:  # there was nothing to change
            assert rows == self.model.rows(branch)
        else:
            self.model.commit(branch, commit.commit_id, rows)

    def _applied(
        self, rows: Rows, columns: Columns, verb: str, table: str, key: str, place: int, value: int | None
    ) -> Statement:
        of_table = [(at, one.name) for (of, at), one in columns.items() if of == table]
        at, name = of_table[-1 - place] if table == "person" else of_table[place]
        row: Row | None = rows.get((table, key))
        if verb == "delete":
            rows.pop((table, key), None)
            return sl.delete(table, key)
        if verb == "patch" and row is not None:
            rows[table, key] = {**row, at: value}
            return sl.patch(table, key, {name: value})
        rows[table, key] = {**dict.fromkeys(one for one, _ in of_table), at: value}
        nulls = {columns[table, at].name: None for at, _ in of_table if columns[table, at].default is not None}
        return sl.put(table, {"id": key, **nulls, name: value})  # a row that lacks such a column would have its default

    @rule(branch=NAMES, name=NEW_NAMES, default=DEFAULTS)
    def add_column(self, branch: str, name: str, default: int | None) -> None:
        """A column comes to a table on one branch; the rows that are there have its default."""
        branch = self._living(branch)
        columns = self.model.columns(branch)
        if name in {one.name for one in columns.values()}:
            return
        columns["person", f"{name}{next(self.made)}"] = Column(name, default)
        self._apply(branch, columns, {name: {"type": "long?", "default": default}} if default else {})

    @rule(branch=NAMES, place=st.integers(0, 2), to=st.sampled_from(["e", "f"]))
    def rename_column(self, branch: str, place: int, to: str) -> None:
        """One is called otherwise there; its values stay."""
        branch = self._living(branch)
        columns = self.model.columns(branch)
        ours = [at for at in columns if at[0] == "person"]
        at = ours[place % len(ours)]
        if to not in {one.name for one in columns.values()}:
            before = columns[at].name
            columns[at] = Column(to, columns[at].default)
            self._apply(branch, columns, {to: {"type": "long?", "rename_from": before}})

    @rule(branch=NAMES, place=st.integers(0, 2))
    def drop_column(self, branch: str, place: int) -> None:
        """One is gone there; two are left at least."""
        branch = self._living(branch)
        columns = self.model.columns(branch)
        ours = [at for at in columns if at[0] == "person"]
        if len(ours) > 2:
            del columns[ours[place % len(ours)]]
            self._apply(branch, columns, {})

    def _apply(self, branch: str, columns: Columns, how: dict[str, Any]) -> None:
        names = [one.name for at, one in columns.items() if at[0] == "person"]
        wanted = {"id": "string", **{name: how.get(name, "long?") for name in names}}
        commit = self.lake.schema_apply({"tables": {"person": {"columns": wanted}}}, branch=branch).commit
        assert commit is not None
        self.model.commit(branch, commit.commit_id, under(self.model.rows(branch), columns), columns=columns)

    @rule(name=NAMES, source=NAMES)
    def branch(self, name: str, source: str) -> None:
        """A branch of any other."""
        if name in self.model.branches:
            return
        source = self._living(source)
        self.lake.branch(name, source)
        self.model.branches[name] = self.model.branches[source]

    @rule(name=NAMES, chance=st.randoms(use_true_random=False))
    def branch_at(self, name: str, chance: Any) -> None:
        """A branch at any commit that can be looked at."""
        if name not in self.model.branches:
            commit = chance.choice(sorted(self.model.kept()))
            with self._if_there(commit):
                self.lake.branch(name, commit)
                self.model.branches[name] = commit

    @rule(name=NAMES)
    def delete_branch(self, name: str) -> None:
        """Refused where commits would be on no other."""
        if name == "main" or name not in self.model.branches:
            return
        tip = self.model.branches[name]
        others = [one for at, one in self.model.branches.items() if at != name] + list(self.model.tags.values())
        if not any(tip in self.model.reach(one) for one in others):
            with pytest.raises(Conflict, match="on no other branch"):
                self.lake.delete_branch(name)
        self.lake.delete_branch(name, force=True)
        del self.model.branches[name]

    @rule(branch=NAMES, chance=st.randoms(use_true_random=False))
    def tag(self, branch: str, chance: Any) -> None:
        """A name for any commit that can be looked at, at most three."""
        commit = chance.choice(sorted(self.model.kept()))
        if len(self.model.tags) == 3:
            gone = sorted(self.model.tags)[0]
            self.lake.delete_tag(gone)
            del self.model.tags[gone], self.model.covers[gone]
        name = f"t{len(self.model.points)}"
        if name not in self.model.tags:
            with self._if_there(commit):
                made = self.lake.tag(name, commit, branch=self._living(branch))
                assert made.commit == commit
                self.model.tags[name], self.model.covers[name] = commit, made.covers

    @rule(source=NAMES, into=NAMES, side=SIDES)
    def merge(self, source: str, into: str, side: Any) -> None:
        """Any branch into any other; what comes of it is what dictionaries say."""
        source, into = self._living(source), self._living(into)
        if source == into:
            return
        theirs, ours = self.model.branches[source], self.model.branches[into]
        if side is not None and self.model.merge(source, into, None).disputed:
            side = None  # what a column that one side dropped has then is another test's
        try:
            done = self.lake.merge(source, into, resolve=side)
        except MergeConflict as error:
            self._check_conflicts(source, into, side, error.conflicts)
            return
        except HistoryGone:
            assert not self._is_there(*self.model.bases(theirs, ours))
            return
        assert (done.outcome == "up_to_date") == (theirs in self.model.reach(ours))
        if done.outcome == "up_to_date":
            return
        rows = self._merged(done, source, into, side)
        assert done.commit is not None
        if done.outcome == "fast_forward":
            assert done.commit == theirs and ours in self.model.line(theirs)
            self.model.branches[into] = theirs
        else:
            columns = self.model.merge(source, into, side).columns
            self.model.commit(into, done.commit, rows, theirs, columns=columns)

    @rule(source=NAMES, into=NAMES, chance=st.randoms(use_true_random=False))
    def merge_decided(self, source: str, into: str, chance: Any) -> None:
        """What is in conflict is decided row by row, as a resolution file does; the rest merges."""
        source, into = self._living(source), self._living(into)
        if source == into:
            return
        with self._if_there(*self.model.bases(self.model.branches[source], self.model.branches[into])):
            preview = self.lake.merge(source, into, dry_run=True)
            if preview.outcome == "conflicts" and not self.model.merge(source, into, None).disputed:
                self._decide(preview, source, into, chance)

    def _decide(self, preview: Merged, source: str, into: str, chance: Any) -> None:
        doc = resolution_file(preview)
        sides: dict[tuple[str, str], str] = {}
        for one in doc["conflicts"]:
            one["take"] = "ours" if one["kind"] == "unique_violation" else chance.choice(["ours", "theirs"])
            sides[one["table"], one["key"]["id"]] = one["take"]
        theirs = self.model.branches[source]
        try:
            done = self.lake.merge(source, into, resolve=doc)
        except MergeConflict as error:
            assert {one.kind for one in error.conflicts} == {"unique_violation"}
            return
        rows = self._merged(done, source, into, sides)
        assert done.commit is not None and done.outcome == "merged"
        columns = self.model.merge(source, into, sides).columns
        self.model.commit(into, done.commit, rows, theirs, columns=columns)

    @rule(name=NAMES, to=NAMES)
    def rename_branch(self, name: str, to: str) -> None:
        """A branch under another name is the same one."""
        if name == "main" or name not in self.model.branches or to in self.model.branches:
            return
        self.lake.rename_branch(name, to)
        self.model.branches[to] = self.model.branches.pop(name)

    def _check_conflicts(self, source: str, into: str, side: Any, told: Any) -> None:
        """Rows that the sides disagree on, all of them; else a unique value that two of the merged rows have."""
        verdict = self.model.merge(source, into, side)
        conflicts: list[RowConflict] = [one for one in told if one.kind != "divergent_schema"]
        assert {one.table for one in told if one.kind == "divergent_schema"} == verdict.disputed
        found = {(one.table, str(one.key["id"])): one.kind for one in conflicts if one.kind != "unique_violation"}
        exact = {at: kind for at, kind in found.items() if at not in verdict.open}
        assert exact == verdict.conflicts
        assert found or verdict.open or verdict.disputed or repeated(verdict.rows)

    def _merged(self, done: Merged, source: str, into: str, side: Any) -> Rows:
        """The rows after a merge: those of the model, and of keys whose bases differ what one of the sides has."""
        verdict = self.model.merge(source, into, side)
        assert verdict.conflicts == {}
        rows = self._seen(into, columns=verdict.columns)
        theirs, ours = (under(self.model.rows(one), verdict.columns) for one in (source, into))
        for at in verdict.open:
            sides = [ours.get(at), theirs.get(at)]
            row = rows.pop(at, None)
            assert row in sides or (None not in sides and self._mixed(row, *sides)), (at, row, sides)
            if row is not None:
                verdict.rows[at] = row
                rows[at] = row
        assert rows == verdict.rows, done
        assert not repeated(rows)
        return rows

    @staticmethod
    def _mixed(row: Row | None, ours: Row | None, theirs: Row | None) -> bool:
        assert ours is not None and theirs is not None
        return row is not None and all(row[name] in (ours[name], theirs[name]) for name in row)

    @rule(branch=NAMES)
    def declare(self, branch: str) -> None:
        """A rule comes on one branch, unless it is there."""
        branch = self._living(branch)
        columns = {"id": "string", **dict.fromkeys(FIELDS["pet"], "long?")}
        done = self.lake.schema_apply({"tables": {"pet": {"columns": columns, "constraints": RULES}}}, branch=branch)
        if done.commit is not None:
            self.model.commit(branch, done.commit.commit_id, self.model.rows(branch))

    def _is_there(self, *commits: str) -> bool:
        """Whether no retention can have taken these."""
        return set(commits) <= self.model.whole()

    def _if_there(self, *commits: str) -> AbstractContextManager[None]:
        """What needs these commits, and may be told that they are gone where a retention can have taken them."""
        return nullcontext() if self._is_there(*commits) else suppress(HistoryGone)

    @rule()
    def reopen(self) -> None:
        """Closed and opened, and what nobody refers to is gone."""
        self.lake.close()
        self.lake = Lake(self.folder / "lake")
        batches.sweep(self.lake.ledger, grace_s=0)
        self.shaken = True

    def _living(self, name: str) -> str:
        """This branch if there is one, else main."""
        return name if name in self.model.branches else "main"

    def _seen(self, branch: str, at: str | None = None, *, columns: Columns) -> Rows:
        """What a reader sees, with these columns."""
        found: Rows = {}
        view = self.lake.view(branch, at=at)
        for table in FIELDS:
            names = {one.name: first for (of, first), one in columns.items() if of == table}
            for row in view.table(table).to_pylist():
                key = row.pop("id")
                assert (table, key) not in found, "a key is there twice"
                assert {*row} == {*names}, (branch, at)
                found[table, key] = {names[name]: value for name, value in row.items()}
        return found

    def _is_as_modelled(self, branch: str, commit: str, at: str | None = None) -> bool:
        point = self.model.points[commit]
        return self._seen(branch, at, columns=point.columns) == point.rows

    @invariant()
    def every_branch_is_as_its_model_says(self) -> None:
        """Those that moved; when files have moved, all of them and every commit that can be looked at."""
        if not hasattr(self, "lake"):
            return
        for branch, tip in self.model.branches.items():
            if self.shaken or self.known.get(branch) != tip:
                assert self._is_as_modelled(branch, tip), branch
        self.known = dict(self.model.branches)
        assert {one.name: one.tip for one in self.lake.branches()} == self.model.branches
        if self.shaken:
            self._look_back()
            self.shaken = False

    def _look_back(self) -> None:
        for commit in self.model.kept():
            with self._if_there(commit):
                assert self._is_as_modelled("main", commit, commit), commit
        for name, commit in self.model.tags.items():
            assert self._is_as_modelled("main", commit, name), name
        for commit in self.model.points.keys() - self.model.kept():
            with suppress(HistoryGone):  # its branch was deleted: it is gone, or as it was
                assert self._is_as_modelled("main", commit, commit), commit

    def _replay(self, branch: str, tip: str) -> None:
        """The changes of a branch one after another, in pages, make its rows; each begins where the last one ended.

        Where retention has taken the first ones, the others tell all that came after those.
        """
        expected, columns = self.model.points[tip].rows, self.model.points[tip].columns
        for table in FIELDS:
            names = {first: one.name for (of, first), one in columns.items() if of == table}
            since = self._first(table, branch)
            rows: dict[str, Row | None] = {}
            page = self.lake.changes(table, since, branch=branch, limit=3)
            while page.rows:
                for one in page:
                    key = str(one.key["id"])
                    assert one.before == rows.get(key, one.before if since else None), (branch, one)
                    rows[key] = one.after
                page = self.lake.changes(table, page.continuation, branch=branch, limit=3)
            for key in {*rows} if since else {*rows, *(at for of, at in expected if of == table)}:
                row = expected.get((table, key))
                shown = None if row is None else {"id": key, **{names[at]: value for at, value in row.items()}}
                assert rows.get(key) == shown, (branch, key)

    def _first(self, table: str, branch: str) -> int:
        """The seq behind which all changes are kept."""
        try:
            self.lake.changes(table, branch=branch)
        except HistoryGone as gone:
            assert self.model.old
            return int(gone.detail["first"])
        return 0

    def _compare_points(self) -> None:
        """What differs between any two commits is what dictionaries say, however they came about."""
        commits = sorted(self.model.kept())
        points = self.model.points
        for before, after in itertools.islice(itertools.permutations(commits, 2), 12):
            with self._if_there(before, after):
                columns = points[after].columns
                found = {
                    (one.table, str(one.key["id"])): tuple(
                        row and {first: row[of.name] for (table, first), of in columns.items() if table == one.table}
                        for row in (one.before, one.after)
                    )
                    for one in self.lake.diff(before, after)
                }
                told = differences(under(points[before].rows, columns), points[after].rows)
                assert found == told, (before, after)

    def teardown(self) -> None:
        """In the end all commits are as they were, every branch tells its own, and doctor finds nothing."""
        if not hasattr(self, "lake"):
            return
        try:
            self._look_back()
            for branch, tip in self.model.branches.items():
                assert self._is_as_modelled(branch, tip), branch
                assert {one.commit_id for one in self.lake.log(branch, limit=500)} >= self.model.reach(tip)
                self._replay(branch, tip)
            self._compare_points()
            assert intents_of(self.lake) == []
            assert examine(self.lake, deep=True) == []
        finally:
            self.lake.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def tell(machine: Callable[[], VersionsMachine], *, stories: int, steps: int, number: int | None = None) -> None:
    """So many stories, the same ones for each number; $STRAND_TEST_STORIES makes up so many others."""
    asked_for = os.environ.get("STRAND_TEST_STORIES")
    if number is not None and not asked_for:
        seed(number)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(asked_for) if asked_for else stories,
            stateful_step_count=steps,
            deadline=None,
            derandomize=not asked_for,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_whatever_happens_versions_are_as_their_model_says(places: Callable[[], dict[str, Any]]) -> None:
    """The same stories each time."""
    tell(lambda: VersionsMachine(places), stories=3, steps=16)
