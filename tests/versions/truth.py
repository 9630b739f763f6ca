"""The truth table of merge: what comes of every pair of changes of one row, worked out on plain dictionaries.

`docs/merge.md` shows it, and a test holds the two together.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, TypeAlias

import strandline as sl

TABLE = "person"
FIELDS = ("name", "age", "city")
Row: TypeAlias = dict[str, Any]
Step: TypeAlias = Any
ACTIONS = (
    "nothing",
    "insert",
    "same insert",
    "update",
    "same update",
    "disjoint update",
    "delete",
    "re-insert",
)
BASE: Row = {"name": "before", "age": 1, "city": "before"}


@dataclass(frozen=True)
class Case:
    """One row, and what each side does to it: `there` says whether both began with it."""

    there: bool
    ours: str
    theirs: str

    @property
    def key(self) -> str:
        """The row's key: it is the only one of its case."""
        began = "row" if self.there else "none"
        return f"{began}/{self.ours}/{self.theirs}"

    @property
    def base(self) -> Row | None:
        """What both began with."""
        return dict(BASE) if self.there else None


def cases() -> list[Case]:
    """Every pair. An insert needs that there is no row, an update one; a side that has none makes it first."""
    pairs = itertools.product((True, False), ACTIONS, ACTIONS)
    return [Case(*one) for one in pairs if not (one[0] and {"insert", "same insert"} & {one[1], one[2]})]


def statements(case: Case, side: str) -> list[Step]:
    """What a side does, one mutation each."""
    action = case.ours if side == "ours" else case.theirs
    key, made = case.key, {"id": case.key, **BASE}
    own = {"name": side, "age": 1, "city": "before"}
    anew = {"name": side, "age": 7, "city": "anew"}
    field = "age" if side == "ours" else "city"
    value: Any = 50 if side == "ours" else "elsewhere"
    begin = [] if case.there else [sl.insert(TABLE, made)]
    steps: dict[str, list[Step]] = {
        "nothing": [],
        "insert": [sl.insert(TABLE, {"id": key, **own})],
        "same insert": [sl.insert(TABLE, made)],
        "update": [*begin, sl.patch(TABLE, key, {"name": side})],
        "same update": [*begin, sl.patch(TABLE, key, {"name": "agreed"})],
        "disjoint update": [*begin, sl.patch(TABLE, key, {field: value})],
        "delete": [*begin, sl.delete(TABLE, key)],
        "re-insert": [*begin, sl.delete(TABLE, key), sl.insert(TABLE, {"id": key, **anew})],
    }
    return steps[action]


def after(case: Case, side: str) -> Row | None:
    """The row on one side, by doing what it does to a dictionary."""
    row = case.base
    for step in statements(case, side):
        match type(step).__name__:
            case "Put":
                row = {name: step.row[name] for name in FIELDS}
            case "Patch":
                assert row is not None
                row = {**row, **step.fields}
            case _:
                row = None
    return row


def verdict(case: Case) -> tuple[str, Row | None]:
    """What a merge makes of it: `merged` with the row, or the kind of the conflict with the target's."""
    base, ours, theirs = case.base, after(case, "ours"), after(case, "theirs")
    if theirs in (base, ours):
        return "merged", ours
    if ours == base:
        return "merged", theirs
    if base is None:
        return "divergent_insert", ours
    if ours is None or theirs is None:
        return "delete_vs_update", ours
    row: Row = {}
    for name in FIELDS:
        if theirs[name] not in (base[name], ours[name]) and ours[name] != base[name]:
            return "divergent_update", ours
        row[name] = ours[name] if theirs[name] == base[name] else theirs[name]
    return "merged", row


def said(case: Case) -> str:
    """The verdict in words, for the table of the document."""
    kind, row = verdict(case)
    if kind != "merged":
        return kind
    base, ours, theirs = case.base, after(case, "ours"), after(case, "theirs")
    if row is None:
        return "no row"
    if row == ours == theirs:
        return "unchanged" if row == base else "the same on both"
    if row == ours:
        return "ours"
    return "theirs" if row == theirs else "both fields"


def document() -> str:
    """Two tables: what the target did down, what the source did across."""
    parts: list[str] = []
    for there, title in ((True, "Both began with the row"), (False, "Both began without it")):
        some = [case for case in cases() if case.there is there]
        across = [name for name in ACTIONS if any(case.theirs == name for case in some)]
        parts += [f"### {title}", "", f"| ours \\ theirs | {' | '.join(across)} |", "|---" * (len(across) + 1) + "|"]
        for down in across:
            cells = [said(case) for case in some if case.ours == down]
            parts.append(f"| **{down}** | {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"
