"""Constraints of a keyed table, and the one text syntax they are written in.

    unique(email)                       no two rows have the same value, or values; a null is never the same
    one_of(status: open, done)          one of these values
    range(age: 0..150)                  not below and not above; either end may be left out
    check(email: /^[^@]+@[^@]+$/)       a regular expression is found in the text
    reference(team_id -> team, cascade) the key of a row of that table; its deletion is refused (restrict) or
                                        deletes the rows that refer to it (cascade)
    cardinality(team_id: 0..10)         how many rows may refer to one row of the referenced table, at least and at most

A constraint is a value, like a type: compared, stored as text and read back. It names columns and says nothing of their
types, so values stay text here; what they mean is decided by the schema that the constraint belongs to. A null passes
every one of them: whether a column may be null is the column's own affair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, cast

from strandline.errors import BadRequest, nearest

OnDelete = Literal["restrict", "cascade"]
Scope = Literal["row", "table", "tables"]
"""What a rule is judged by: a row alone, other rows of its table, or rows of other tables too."""

MAX_TEXT = 10_000
MAX_CONSTRAINTS = 200

_CALL = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_BARE = re.compile(r"[A-Za-z0-9_.+-]+")
_VALUE = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z0-9_.+-]+)\s*(,|$)', re.DOTALL)
_ENDS = re.compile(r"\s*([0-9A-Za-z:+-]*(?:\.[0-9A-Za-z:+-]+)*)\s*\.\.\s*([0-9A-Za-z:.+-]*)\s*")
_PATTERN = re.compile(r"\s*/(.*)/\s*", re.DOTALL)


@dataclass(frozen=True)
class Unique:
    """No two rows agree in all of these columns, unless one of them is null there."""

    columns: tuple[str, ...]
    rule: ClassVar[str] = "unique"
    scope: ClassVar[Scope] = "table"

    def text(self) -> str:
        """As `parse_constraint` reads it."""
        return f"unique({', '.join(self.columns)})"


@dataclass(frozen=True)
class OneOf:
    """The column's value is one of these."""

    columns: tuple[str]
    values: tuple[str, ...]
    rule: ClassVar[str] = "one_of"
    scope: ClassVar[Scope] = "row"

    def text(self) -> str:
        """As `parse_constraint` reads it."""
        return f"one_of({self.columns[0]}: {', '.join(map(_quoted, self.values))})"


@dataclass(frozen=True)
class Range:
    """The column's value is not below `low` and not above `high`; an empty one is no end."""

    columns: tuple[str]
    low: str
    high: str
    rule: ClassVar[str] = "range"
    scope: ClassVar[Scope] = "row"

    def text(self) -> str:
        """As `parse_constraint` reads it."""
        return f"range({self.columns[0]}: {self.low}..{self.high})"


@dataclass(frozen=True)
class Check:
    """The regular expression (RE2's, which takes linear time) is found in the column's text."""

    columns: tuple[str]
    pattern: str
    rule: ClassVar[str] = "check"
    scope: ClassVar[Scope] = "row"

    def text(self) -> str:
        """As `parse_constraint` reads it."""
        return f"check({self.columns[0]}: /{self.pattern}/)"


@dataclass(frozen=True)
class Reference:
    """The columns' values are the key of a row of another keyed table, or of the same one."""

    columns: tuple[str, ...]
    table: str
    on_delete: OnDelete = "restrict"
    rule: ClassVar[str] = "reference"
    scope: ClassVar[Scope] = "tables"

    def text(self) -> str:
        """As `parse_constraint` reads it."""
        return f"reference({', '.join(self.columns)} -> {self.table}, {self.on_delete})"


@dataclass(frozen=True)
class Cardinality:
    """How many rows may refer by these columns to one row of the referenced table; `high` None is no end."""

    columns: tuple[str, ...]
    low: int
    high: int | None
    rule: ClassVar[str] = "cardinality"
    scope: ClassVar[Scope] = "tables"

    def text(self) -> str:
        """As `parse_constraint` reads it."""
        return f"cardinality({', '.join(self.columns)}: {self.low}..{'' if self.high is None else self.high})"


Constraint: TypeAlias = Unique | OneOf | Range | Check | Reference | Cardinality


def parse_constraint(text: str) -> Constraint:
    """A constraint from its text; BadRequest with the nearest rule, or with how the rule is written."""
    call = _CALL.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_TEXT else None
    if call is None:
        raise BadRequest(f"{_shown(text)} is not a constraint", hint=f"For example: {', '.join(EXAMPLES.values())}.")
    rule, body = call[1], call[2]
    parse = _PARSERS.get(rule)
    if parse is None:
        raise BadRequest(f"there is no constraint {rule!r}", hint=nearest(rule, EXAMPLES))
    parsed = parse(body)
    if parsed is None:
        raise BadRequest(f"{_shown(text)} is not how {rule} is written", hint=f"For example: {EXAMPLES[rule]}.")
    return parsed


def parse_constraints(texts: Iterable[str | Constraint]) -> tuple[Constraint, ...]:
    """Constraints from their texts, in this order; the same one twice is refused."""
    parsed = [parse_constraint(text) if isinstance(text, str) else text for text in texts]
    for place, constraint in enumerate(parsed):
        if constraint in parsed[:place]:
            raise BadRequest(f"{constraint.text()} is declared twice")
    if len(parsed) > MAX_CONSTRAINTS:
        raise BadRequest(f"a table has {len(parsed)} constraints", hint=f"At most {MAX_CONSTRAINTS}.")
    return tuple(parsed)


def _unique(body: str) -> Unique | None:
    columns = _columns(body)
    return Unique(columns) if columns else None


def _one_of(body: str) -> OneOf | None:
    columns, listed = _column_and(body)
    values: list[str] = []
    at, more = 0, True
    while more:
        match = _VALUE.match(listed, at)
        if match is None:
            return None
        try:
            values.append(json.loads(match[1]) if match[1].startswith('"') else match[1])
        except ValueError:
            return None
        at, more = match.end(), match[2] == ","
    return OneOf(columns, tuple(values)) if columns else None


def _range(body: str) -> Range | None:
    columns, bounds = _column_and(body)
    ends = _ENDS.fullmatch(bounds)
    if not columns or ends is None or not (ends[1] or ends[2]):
        return None
    return Range(columns, ends[1], ends[2])


def _check(body: str) -> Check | None:
    columns, slashed = _column_and(body)
    pattern = _PATTERN.fullmatch(slashed)
    return Check(columns, pattern[1]) if columns and pattern and pattern[1] else None


def _reference(body: str) -> Reference | None:
    referring, arrow, target = body.partition("->")
    columns, (table, _, on_delete) = _columns(referring), (part.strip() for part in target.partition(","))
    if not (arrow and columns and _NAME.fullmatch(table) and on_delete in ("", "restrict", "cascade")):
        return None
    return Reference(columns, table, cast("OnDelete", on_delete or "restrict"))


def _cardinality(body: str) -> Cardinality | None:
    names, _, bounds = body.partition(":")
    columns, ends = _columns(names), re.fullmatch(r"\s*([0-9]{1,9})\s*\.\.\s*([0-9]{0,9})\s*", bounds)
    if not columns or ends is None:
        return None
    low, high = int(ends[1]), int(ends[2]) if ends[2] else None
    if high is not None and high < max(low, 1):
        raise BadRequest(f"no number is in {low}..{high}", hint="The first is the least, the second the most.")
    return Cardinality(columns, low, high)


_PARSERS: dict[str, Callable[[str], Constraint | None]] = {
    "unique": _unique, "one_of": _one_of, "range": _range,
    "check": _check, "reference": _reference, "cardinality": _cardinality,
}  # fmt: skip
EXAMPLES = {
    "unique": "unique(email)",
    "one_of": "one_of(status: open, done)",
    "range": "range(age: 0..150)",
    "check": "check(email: /@/)",
    "reference": "reference(team_id -> team, restrict)",
    "cardinality": "cardinality(team_id: 0..10)",
}
"""How each rule is written."""


def _columns(text: str) -> tuple[str, ...]:
    """The columns that a list names; none at all where it is not such a list."""
    names = [name.strip() for name in text.split(",")]
    fits = all(map(_NAME.fullmatch, names)) and len(set(names)) == len(names)
    return tuple(names) if fits else ()


def _column_and(body: str) -> tuple[tuple[str], str]:
    """The one column before the colon, and what follows it."""
    name, _, rest = body.partition(":")
    columns = _columns(name)
    return cast("tuple[str]", columns if len(columns) == 1 else ()), rest


def _quoted(value: str) -> str:
    return value if _BARE.fullmatch(value) else json.dumps(value)


def _shown(text: object) -> str:
    literal = repr(text)
    return literal if len(literal) <= 120 else literal[:119] + "…"
