"""Merges: what came of one, what two sides disagree on, and how a person decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from strandline.errors import BadRequest, nearest
from strandline.model.values.user_rows import UserRow, Value

Outcome = Literal["up_to_date", "fast_forward", "merged", "conflicts"]
Side = Literal["ours", "theirs"]
SIDES: tuple[Side, ...] = ("ours", "theirs")
KINDS = (
    "divergent_insert",
    "divergent_update",
    "delete_vs_update",
    "orphan_edge",
    "unique_violation",
    "cardinality_violation",
    "value_violation",
    "divergent_schema",
)


@dataclass(frozen=True)
class RowConflict:
    """A row on which the sides disagree: as it was, as the target has it (ours) and as the source has it (theirs).

    None where it is not there. `fields` are those that differ; a table's schema has no key.
    """

    kind: str
    table: str
    key: UserRow
    fields: tuple[str, ...]
    base: UserRow | None
    ours: UserRow | None
    theirs: UserRow | None


@dataclass(frozen=True)
class Merged:
    """What a merge did, or in a preview would do: rows written by table, and the commit that it made or moved to.

    `rows_read` are those it looked at: what the two sides changed, and the rows that these meet.
    """

    outcome: Outcome
    source: str
    into: str
    source_commit: str | None
    target_commit: str | None
    commit: str | None
    tables: Mapping[str, int] = field(default_factory=dict)
    conflicts: tuple[RowConflict, ...] = ()
    rows_read: int = 0


@dataclass(frozen=True)
class Resolution:
    """Which side decides where they disagree: one side for all, for a table, or for a row; or a row that was written.

    A file's decisions hold for the two commits that it was made for; `undecided` are the conflicts in it without one.
    """

    side: Side | None = None
    tables: Mapping[str, Side] = field(default_factory=dict)
    rows: Mapping[tuple[str, str], Side | UserRow] = field(default_factory=dict)
    commits: tuple[str, str] | None = None
    undecided: frozenset[tuple[str, str]] = frozenset()

    def side_of(self, table: str) -> Side | None:
        """Which side decides for a table's rows that nothing else is said of."""
        return self.tables.get(table, self.side)


class DecidedConflict(TypedDict):
    """A conflict in a resolution file, and what a person wrote to it; null as long as nothing is decided."""

    kind: str
    table: str
    key: UserRow
    fields: Sequence[str]
    base: UserRow | None
    ours: UserRow | None
    theirs: UserRow | None
    take: Side | UserRow | None


class ResolutionFile(TypedDict):
    """A resolution file: what a preview of a merge found, and what is decided of it, by table and by row."""

    source: str
    into: str
    source_commit: str | None
    target_commit: str | None
    take: Mapping[str, Side | None]
    conflicts: Sequence[DecidedConflict]


def resolution_file(merged: Merged) -> ResolutionFile:
    """A preview's conflicts, for a person to write a decision to each."""
    names = dict.fromkeys(conflict.table for conflict in merged.conflicts)
    return {
        "source": merged.source,
        "into": merged.into,
        "source_commit": merged.source_commit,
        "target_commit": merged.target_commit,
        "take": dict.fromkeys(names),
        "conflicts": [_undecided(conflict) for conflict in merged.conflicts],
    }


def _undecided(conflict: RowConflict) -> DecidedConflict:
    return {
        "kind": conflict.kind,
        "table": conflict.table,
        "key": conflict.key,
        "fields": conflict.fields,
        "base": conflict.base,
        "ours": conflict.ours,
        "theirs": conflict.theirs,
        "take": None,
    }


def read_resolution(document: ResolutionFile) -> Resolution:
    """The decisions of a file that `resolution_file` wrote and a person edited, who may have left anything in it."""
    try:
        commits = str(document["source_commit"]), str(document["target_commit"])
        tables = {str(name): _side(side) for name, side in document["take"].items() if side is not None}
        takes = {
            (str(conflict["table"]), key_text(conflict["key"])): conflict["take"] for conflict in document["conflicts"]
        }
        rows = {at: _decision(take) for at, take in takes.items() if take is not None}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(
            f"not a resolution file: {type(error).__name__} {error}",
            hint="`strand merge SOURCE --dry-run --write FILE` writes one to edit.",
        ) from None
    return Resolution(tables=tables, rows=rows, commits=commits, undecided=frozenset(takes.keys() - rows.keys()))


def key_text(key: UserRow) -> str:
    """A key as one text, for looking it up."""
    import orjson

    return orjson.dumps(dict(key), option=orjson.OPT_SORT_KEYS).decode()


def _side(text: object, what: str = "`ours` or `theirs`") -> Side:
    for side in SIDES:
        if text == side:
            return side
    raise BadRequest(f"a decision is {what}, and not {text!r}", hint=nearest(str(text), SIDES))


def _decision(take: Side | UserRow) -> Side | UserRow:
    """A side, a row as it is to be, or `{"row": …}` with that row or null: then the row goes."""
    if isinstance(take, Mapping):
        is_wrapped = set(take) == {"row"} and isinstance(take["row"], Mapping | None)
        return take if is_wrapped else {"row": take}
    return _side(take, "`ours`, `theirs` or a row")


def conflict_entry(conflict: RowConflict) -> dict[str, object]:
    """A conflict as an error lists it: where it is, and of each field in which the sides differ both values."""
    return {
        "kind": conflict.kind,
        "table": conflict.table,
        "key": dict(conflict.key),
        "fields": list(conflict.fields),
        "ours": _of_fields(conflict.ours, conflict.fields),
        "theirs": _of_fields(conflict.theirs, conflict.fields),
    }


def _of_fields(row: UserRow | None, fields: Sequence[str]) -> dict[str, Value] | None:
    return None if row is None else {name: row.get(name) for name in fields}


def tables_of(conflicts: Sequence[RowConflict]) -> str:
    """Where conflicts are, for a message."""
    counts: dict[str, int] = {}
    for conflict in conflicts:
        counts[conflict.table] = counts.get(conflict.table, 0) + 1
    return ", ".join(f"{count} in {table}" for table, count in counts.items())
