"""Branches, commits and merges on plain dictionaries: what the lake is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Row: TypeAlias = dict[str, object]
Rows: TypeAlias = dict[tuple[str, str], Row]
"""The rows of all tables, by table and key."""

Decided: TypeAlias = str | Mapping[tuple[str, str], str] | None
"""Whose side decides a merge: one for all rows, or for each that is named here."""

UNIQUE = ("pet", "chip")


@dataclass(frozen=True)
class Column:
    """What a column is called, and what rows have that were written without it."""

    name: str
    default: object = None


Columns: TypeAlias = dict[tuple[str, str], Column]
"""The columns of all tables, by table and by what they were called first: a name may be another one's later."""


@dataclass(frozen=True)
class Point:
    """A commit: the ones it follows, its own branch's first, and all rows and columns after it."""

    parents: tuple[str, ...]
    rows: Rows
    columns: Columns


@dataclass
class Verdict:
    """What a merge must come to. `open` are keys whose bases differ: a conflict is right there, or either side.

    Of tables that are `disputed` both sides have changed the columns, and nobody has decided.
    """

    rows: Rows
    columns: Columns
    conflicts: dict[tuple[str, str], str] = field(default_factory=dict)
    open: set[tuple[str, str]] = field(default_factory=set)
    disputed: set[str] = field(default_factory=set)


class History:
    """All commits, and the names that some of them have; `old` are those that a retention has found to be."""

    def __init__(self) -> None:
        self.points: dict[str, Point] = {}
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.covers: dict[str, str] = {}
        self.old: set[str] = set()

    def rows(self, branch: str) -> Rows:
        """The rows of a branch, to be changed at will."""
        return {at: dict(row) for at, row in self.points[self.branches[branch]].rows.items()}

    def columns(self, branch: str) -> Columns:
        """The columns of a branch, to be changed at will."""
        return dict(self.points[self.branches[branch]].columns)

    def commit(self, branch: str, commit: str, rows: Rows, *others: str, columns: Columns | None = None) -> None:
        """A new commit on a branch; without others, its columns stay."""
        now = self.columns(branch) if columns is None else columns
        self.points[commit] = Point((self.branches[branch], *others), rows, now)
        self.branches[branch] = commit

    def reach(self, commit: str) -> set[str]:
        """A commit and all its ancestors."""
        found: set[str] = set()
        waiting = [commit]
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += self.points[one].parents
        return found

    def kept(self) -> set[str]:
        """The commits that can be looked at: those on the line of a branch or tag."""
        return {one for tip in (*self.branches.values(), *self.covers.values()) for one in self.line(tip)}

    def whole(self) -> set[str]:
        """Those of which a retention leaves all: what the window of a branch shows, and what has a name."""
        found = {*self.tags.values(), *self.branches.values()}
        for tip in self.branches.values():
            line = list(self.line(tip))
            young = [one in self.old for one in line].index(True) if {*line} & self.old else len(line)
            found.update(line[: young + 1])
        return found

    def purge(self, table: str, key: str) -> None:
        """A row was never there."""
        for point in self.points.values():
            point.rows.pop((table, key), None)

    def line(self, at: str) -> Iterator[str]:
        """A commit and those before it on its own line: by first parents."""
        while True:
            yield at
            if not self.points[at].parents:
                return
            at = self.points[at].parents[0]

    def bases(self, one: str, other: str) -> list[str]:
        """The common ancestors that no other common ancestor reaches."""
        common = self.reach(one) & self.reach(other)
        below = {old for one in common for old in self.reach(one) - {one}}
        return sorted(common - below)

    def merge(self, source: str, into: str, side: Decided) -> Verdict:
        """The rows that a merge must leave, and the conflicts that it must tell, as somebody decides them."""
        tips = self.branches[source], self.branches[into]
        past = [self.points[one] for one in self.bases(*tips)]
        columns, disputed = merged_columns([one.columns for one in past], *(self.points[one].columns for one in tips))
        if isinstance(side, str):
            decided_by = self.points[tips[side == "ours"]].columns
            for table in disputed:
                columns = {at: one for at, one in columns.items() if at[0] != table}
                columns |= {at: one for at, one in decided_by.items() if at[0] == table}
            disputed = set()
        theirs, ours = (under(self.points[tip].rows, columns) for tip in tips)
        bases = [under(one.rows, columns) for one in past]
        found = Verdict({}, columns, disputed=disputed)
        for at in {*theirs, *ours}:
            if at[0] in disputed:
                continue
            first = bases[0].get(at)
            if any(one.get(at) != first for one in bases):
                found.open.add(at)
                continue
            decided = side.get(at) if isinstance(side, Mapping) else side
            kind, row = three_way(first, ours.get(at), theirs.get(at), decided)
            if isinstance(side, Mapping) and decided == "ours" and not clashing(first, ours.get(at), theirs.get(at)):
                row = ours.get(at)  # it would have merged, and is left as it is
            if kind is not None:
                found.conflicts[at] = kind
            if row is not None:
                found.rows[at] = row
        return found


def under(rows: Rows, columns: Columns) -> Rows:
    """Rows with the columns of some schemas: those that were written without one have its default."""
    return {
        at: {name: row.get(name, column.default) for (table, name), column in columns.items() if table == at[0]}
        for at, row in rows.items()
    }


def merged_columns(bases: list[Columns], theirs: Columns, ours: Columns) -> tuple[Columns, set[str]]:
    """The columns that a merge must leave, and the tables whose columns both sides have changed, each in its own way.

    Of a disputed table they are the target's.
    """
    found: Columns = dict(ours)
    disputed: set[str] = set()
    for table in {at[0] for at in ours}:
        t, o, *b = ({at: one for at, one in some.items() if at[0] == table} for some in (theirs, ours, *bases))
        touched = [{at for at in {*b[0], *side} if b[0].get(at) != side.get(at)} for side in (o, t)]
        both = {at: (o if t.get(at) == b[0].get(at) else t).get(at) for at in {**b[0], **o, **t}}
        kept = {at: one for at, one in both.items() if one is not None}
        names = [one.name for one in kept.values()]
        if t == o or not touched[1]:
            continue
        if touched[0] and (touched[0] & touched[1] or len(set(names)) < len(names) or any(x != b[0] for x in b)):
            disputed.add(table)
            continue
        found = {at: one for at, one in found.items() if at[0] != table} | kept
    return found, disputed


def three_way(
    base: Row | None, ours: Row | None, theirs: Row | None, side: str | None
) -> tuple[str | None, Row | None]:
    """The kind of conflict, if nobody decides it, and the row."""
    if theirs in (base, ours):
        return None, ours
    if ours == base:
        return None, theirs
    if base is None or ours is None or theirs is None:
        kind = "divergent_insert" if base is None else "delete_vs_update"
        return (kind, ours) if side is None else (None, ours if side == "ours" else theirs)
    kind = None
    row: Row = {}
    for name, before in base.items():
        changed = [one[name] for one in (ours, theirs) if one[name] != before]
        if len(changed) == 2 and changed[0] != changed[1]:
            kind = "divergent_update" if side is None else None
            row[name] = theirs[name] if side == "theirs" else ours[name]
        else:
            row[name] = changed[0] if changed else before
    return kind, row


def clashing(base: Row | None, ours: Row | None, theirs: Row | None) -> bool:
    """Whether both sides changed a row, and not to the same."""
    return three_way(base, ours, theirs, None)[0] is not None


def differences(before: Rows, after: Rows) -> dict[tuple[str, str], tuple[Row | None, Row | None]]:
    """The rows that are not the same, as they were and as they are."""
    found = {at: (before.get(at), after.get(at)) for at in {*before, *after}}
    return {at: pair for at, pair in found.items() if pair[0] != pair[1]}


def repeated(rows: Rows) -> bool:
    """Whether two rows have the same unique value."""
    table, name = UNIQUE
    values = [row[name] for (one, _), row in rows.items() if one == table and row[name] is not None]
    return len(set(values)) < len(values)
