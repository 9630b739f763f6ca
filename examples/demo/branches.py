"""The demonstration's last act: a keyed table of sessions is changed on a branch and on main, compared and merged.

What it should come to is worked out beforehand on dictionaries, and what is found is compared with that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import strandline as sl
from examples.demo.messages import TABLE

SESSIONS, BRANCH, BEFORE = "sessions", "review", "before-review"
MOST = 200
COLUMNS = {"id": "string", "messages": "long", "tokens": "long", "state": "string", "note": "string?"}
RULES = ["one_of(state: open, reviewed, closed)", "range(messages: 1..)"]


@dataclass(frozen=True)
class Merging:
    """What the branch and its merge came to: rows by what happened to them, and what is not as it should be."""

    sessions: int
    on_branch: int
    on_main: int
    different: int
    outcome: str
    merged_rows: int
    wrong: list[str] = field(default_factory=list)


def merge_a_branch(root: Path) -> Merging:
    """Make the table out of the messages, change it on both sides, compare, merge and look back."""
    with sl.open(root) as lake:
        began = _fill(lake)
        lake.tag(BEFORE)
        lake.branch(BRANCH)
        theirs, ours = _change_both(lake, sorted(began))
        different = list(lake.diff("main", BRANCH, table=SESSIONS))
        done = lake.merge(BRANCH, actor="demo", message="what the review found")
        expected = _after(began, theirs, ours)
        wrong = [f"the merge of {BRANCH} was {done.outcome}"] if done.outcome != "merged" else []
        if _rows(lake.view()) != expected:
            wrong.append("after the merge the sessions are not what both sides made of them")
        if _rows(lake.view(at=BEFORE)) != began:
            wrong.append(f"at the tag {BEFORE} the sessions are not what they were")
        if len(different) != len(theirs) + len(ours):
            wrong.append(f"{len(different)} sessions differed, and {len(theirs) + len(ours)} were changed")
        written = sum(done.tables.values())
        return Merging(len(began), len(theirs), len(ours), len(different), done.outcome, written, wrong)


Rows = dict[str, dict[str, Any]]


def _fill(lake: sl.Lake) -> Rows:
    """One row for each of the longest sessions."""
    lake.create_table(SESSIONS, COLUMNS, key=["id"], constraints=RULES, actor="demo")
    sessions = lake.view().sql(
        f"SELECT session_id, count(*)::BIGINT, coalesce(sum(tokens), 0)::BIGINT FROM {TABLE} "
        f"GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MOST}"
    )
    rows = {
        key: {"messages": count, "tokens": tokens, "state": "open", "note": None}
        for key, count, tokens in sessions.rows()
    }
    lake.mutate([sl.put(SESSIONS, {"id": key, **row}) for key, row in rows.items()], actor="demo")
    return rows


def _change_both(lake: sl.Lake, keys: list[str]) -> tuple[Rows, Rows]:
    """The branch reviews every second session and deletes the last one; main closes some of the others."""
    theirs: Rows = {key: {"state": "reviewed", "note": "looked at"} for key in keys[:-1:2]}
    ours: Rows = {key: {"state": "closed"} for key in keys[1:-1:4]}
    lake.mutate([sl.patch(SESSIONS, key, fields) for key, fields in theirs.items()], branch=BRANCH, actor="demo")
    lake.mutate([sl.delete(SESSIONS, keys[-1])], branch=BRANCH, actor="demo")
    lake.mutate([sl.patch(SESSIONS, key, fields) for key, fields in ours.items()], actor="demo")
    return {**theirs, keys[-1]: {}}, ours


def _after(began: Rows, theirs: Rows, ours: Rows) -> Rows:
    merged = {key: {**row, **theirs.get(key, {}), **ours.get(key, {})} for key, row in began.items()}
    return {key: row for key, row in merged.items() if theirs.get(key) != {}}


def _rows(view: sl.View) -> Rows:
    names = [name for name in COLUMNS if name != "id"]
    rows = view.sql(f"SELECT id, {', '.join(names)} FROM {SESSIONS}").rows()
    return {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}
