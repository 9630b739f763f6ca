"""Whether what a commit changes keeps the constraints of all tables: one evaluator for mutations, loads and merges.

It is given the changed rows of all tables, as they were and as they will be, and a way to look others up. A commit is
judged as a whole, by what is there after it: two rows may swap a unique value. Nothing is added to it here: what a
mutation's deletes take with them is among its changes already (`cascades`), and merges and loads take nothing with
them. The cost follows the change: a row that does not change what a rule is about is not looked at for that rule.

What was found by value is protected like keys are. A claim is the hash of a unique value, or of a reference with the
key it names; who takes or gives up one writes it, and who relied on what others did not do has read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from strandline.errors import Conflict, InvalidRows
from strandline.model.arrow import batch_arrow
from strandline.model.constraints import Cardinality, Constraint, Unique
from strandline.model.declared import Declared, Link
from strandline.model.keys import claim_hash, key_hash, shown_key
from strandline.model.reporting import and_more, most_reported
from strandline.model.row_versions import Keys, Row, ValueHolder, Version
from strandline.model.tables import TableState
from strandline.model.values import shown
from strandline.model.violations import Violation
from strandline.model.wording import counted
from strandline.rules.row_rules import ROW_RULES, passing

Values: TypeAlias = tuple[Any, ...]


class LookUp(Protocol):
    """How rows that a commit does not change are found."""

    def ask(self, state: TableState, keys: Keys) -> None:
        """Look these keys up."""

    def get(self, table_id: str, key: bytes) -> Version | None:
        """What was found under one."""

    def having(self, state: TableState, columns: Sequence[str], values: Sequence[Values] | None) -> list[ValueHolder]:
        """The current rows with one of these values in these columns."""


@dataclass
class RowChange:
    """A row before and after a commit; None where it is not there. `place` is the statement's, -1 where it has none."""

    state: TableState
    hash: bytes
    key: Row
    before: Row | None
    after: Row | None
    place: int = -1

    @property
    def at(self) -> tuple[str, bytes]:
        """Table and key."""
        return self.state.table.table_id, self.hash


Changes: TypeAlias = dict[tuple[str, bytes], RowChange]


@dataclass
class Judged:
    """The claims that a commit depends on, and those that it writes: by the table that has the rule."""

    reads: dict[str, dict[bytes, None]] = field(default_factory=dict)
    writes: dict[str, dict[bytes, None]] = field(default_factory=dict)

    def read(self, state: TableState, rule: str, columns: Sequence[str], values: Sequence[Values]) -> None:
        """Note that these values were looked for."""
        noted = self.reads.setdefault(state.table.table_id, {})
        noted.update((claim_hash(rule, columns, value), None) for value in values)

    def write(self, state: TableState, rule: str, columns: Sequence[str], values: Sequence[Values]) -> None:
        """Note that these values are taken, or given up."""
        noted = self.writes.setdefault(state.table.table_id, {})
        noted.update((claim_hash(rule, columns, value), None) for value in values)


def judge(declared: Declared, changes: Changes, look: LookUp, judged: Judged | None = None) -> Judged:
    """Judge a commit as a whole: what it depends on, or an error that lists what it breaks.

    `judged` has what it depends on already.
    """
    judging = examine(declared, changes, look, judged)
    if judging.violations:
        raise refusal(judging.violations, only_rows=judging.only_rows)
    return judging.judged


def examine(declared: Declared, changes: Changes, look: LookUp, judged: Judged | None = None) -> Judging:
    """The same, with all that is broken listed."""
    judging = Judging(declared, changes, look, judged)
    by_table: dict[str, list[RowChange]] = {}
    for change in changes.values():
        by_table.setdefault(change.state.table.table_id, []).append(change)
    for table_id, rows in by_table.items():
        state = declared.states[table_id]
        judging.row_rules(state, rows)
        for unique in declared.uniques(table_id):
            judging.unique(state, unique, rows)
        for link in declared.links_from(table_id):
            judging.references(link, rows)
    judging.orphans()
    judging.counts()
    return judging


class Judging:
    """One commit while it is judged; each violation with its table and its row's key."""

    def __init__(self, declared: Declared, changes: Changes, look: LookUp, judged: Judged | None = None) -> None:
        self.declared = declared
        self.changes = changes
        self.look = look
        self.judged = judged or Judged()
        self.violations: list[Violation] = []
        self.states: list[TableState] = []
        self.keys: list[Row] = []
        self.orphaned: list[tuple[TableState, ValueHolder]] = []
        self.only_rows = True

    def orphans(self) -> None:
        """Find the rows that refer to deleted ones, and forbid that, whatever their reference does at a delete."""
        gone = [change for change in self.changes.values() if _is_deleted(change)]
        for table_id in {change.state.table.table_id: None for change in gone}:
            keys = [key_values(change.key) for change in gone if change.state.table.table_id == table_id]
            for link in self.declared.links_to(table_id):
                for found in self._referring(link, keys):
                    reason = f"still refers to a deleted row of {link.target.table.name!r}"
                    change = self.changes.get((link.source.table.table_id, found.hash))
                    place = change.place if change is not None else -1
                    self.orphaned.append((link.source, found))
                    self._tell(link.source, found.key, link.reference, found.value, reason, place)

    def _referring(self, link: Link, keys: Sequence[Values]) -> Iterator[ValueHolder]:
        """The rows that refer to these keys, and still do after the commit."""
        columns = link.reference.columns
        self.judged.read(link.source, "reference", columns, keys)
        for found in self.look.having(link.source, columns, keys):
            change = self.changes.get((link.source.table.table_id, found.hash))
            if change is None or values_of([change.after], link.source, columns)[0] == found.value:
                yield found

    def row_rules(self, state: TableState, rows: Sequence[RowChange]) -> None:
        """What each row keeps or breaks by itself."""
        written = [change for change in rows if change.after is not None]
        for rule in state.schema.constraints if written else ():
            if isinstance(rule, ROW_RULES):
                array = _column([change.after for change in written], state, rule.columns[0])
                for change, kept, value in zip(written, passing(rule, array).to_pylist(), array, strict=True):
                    if not kept:
                        self._tell(state, change.key, rule, (value.as_py(),), f"breaks {rule.text()}", change.place)

    def unique(self, state: TableState, rule: Unique, rows: Sequence[RowChange]) -> None:
        """No value is taken twice: among the changed rows, and by others."""
        after = values_of([change.after for change in rows], state, rule.columns)
        before = values_of([change.before for change in rows], state, rule.columns)
        holders: dict[Values, list[RowChange]] = {}
        taken: dict[Values, RowChange] = {}
        for change, had, has in zip(rows, before, after, strict=True):
            if has is not None:
                holders.setdefault(has, []).append(change)
                if has != had:
                    taken[has] = change
        for value, some in holders.items():
            for change in some[1:]:
                self._tell(state, change.key, rule, value, f"is taken by {_shown(some[0].key)} too", change.place)
        if not taken:
            return
        self.judged.read(state, "unique", rule.columns, list(taken))
        self.judged.write(state, "unique", rule.columns, list(taken))
        for found in self.look.having(state, rule.columns, list(taken)):
            if (state.table.table_id, found.hash) not in self.changes:
                change = taken[found.value]
                self._tell(state, change.key, rule, found.value, f"is taken by {_shown(found.key)}", change.place)

    def references(self, link: Link, rows: Sequence[RowChange]) -> None:
        """Every reference that is made names a row that is there."""
        columns = link.reference.columns
        made: list[tuple[RowChange, Values, bytes]] = []
        moved: list[Values] = []
        after = values_of([change.after for change in rows], link.source, columns)
        before = values_of([change.before for change in rows], link.source, columns)
        for change, had, has in zip(rows, before, after, strict=True):
            if has != had:
                moved += [value for value in (had, has) if value is not None]
                if has is not None:
                    made.append((change, has, key_hash(has)))
        self.judged.write(link.source, "reference", columns, moved)
        target_id = link.target.table.table_id
        names = link.target.table.key
        asked = {key: value for _, value, key in made if (target_id, key) not in self.changes}
        self.look.ask(
            link.target,
            {key: dict(zip(names, _arrays(value, link.target), strict=True)) for key, value in asked.items()},
        )
        for change, value, key in made:
            if not self._is_there(target_id, key):
                reason = f"names no row of {link.target.table.name!r}"
                self._tell(link.source, change.key, link.reference, value, reason, change.place)

    def _is_there(self, table_id: str, key: bytes) -> bool:
        """Whether a row is there after the commit."""
        change = self.changes.get((table_id, key))
        if change is not None:
            return change.after is not None
        version = self.look.get(table_id, key)
        return version is not None and version.row is not None

    def counts(self) -> None:
        """As many rows refer to one as may, wherever that number changes."""
        for table_id in {table_id: None for table_id, _ in self.changes}:
            for link in self.declared.links_from(table_id):
                if link.counts:
                    self._count(link)
            for link in self.declared.links_to(table_id):
                if any(rule.low for rule in link.counts) and not self._changed(link.source):
                    self._count(link)

    def _changed(self, state: TableState) -> list[RowChange]:
        return [change for change in self.changes.values() if change.state.table.table_id == state.table.table_id]

    def _count(self, link: Link) -> None:
        columns, rows = link.reference.columns, self._changed(link.source)
        after = values_of([change.after for change in rows], link.source, columns)
        before = values_of([change.before for change in rows], link.source, columns)
        touched: dict[Values, RowChange | None] = {}
        for change, had, has in zip(rows, before, after, strict=True):
            if has != had:
                touched.update({had: None} if had is not None and had not in touched else {})
                touched.update({has: change} if has is not None else {})
        for change in self._changed(link.target):
            if change.before is None and change.after is not None and any(rule.low for rule in link.counts):
                touched.setdefault(key_values(change.key), None)
        if not touched:
            return
        self.judged.read(link.source, "reference", columns, list(touched))
        numbers = dict.fromkeys(touched, 0)
        for found in self.look.having(link.source, columns, list(touched)):
            numbers[found.value] += (link.source.table.table_id, found.hash) not in self.changes
        for has in after:
            if has in numbers:
                numbers[has] += 1
        for rule in link.counts:
            for value, number in numbers.items():
                self._judge_number(link, rule, value, number, touched[value])

    def _judge_number(self, link: Link, rule: Cardinality, value: Values, number: int, by: RowChange | None) -> None:
        target = self.changes.get((link.target.table.table_id, key_hash(value)))
        if target is not None and target.after is None:
            return
        said = f"is referred to by {counted(number, 'row')}, and {rule.text()}"
        if rule.high is not None and number > rule.high and by is not None:
            self._tell(link.source, by.key, rule, value, said, by.place)
        elif number < rule.low:
            key = dict(zip(link.target.table.key, _arrays(value, link.target), strict=True))
            self._tell(link.target, key, rule, value, said, -1)

    def _tell(self, state: TableState, key: Row, rule: Constraint, value: Values, reason: str, place: int) -> None:
        told = value[0] if len(value) == 1 else value
        at = None if place < 0 else place
        fields = ", ".join(rule.columns)
        self.violations.append(Violation(state.table.name, _shown(key), fields, rule.text(), shown(told), reason, at))
        self.states.append(state)
        self.keys.append(key)
        self.only_rows = self.only_rows and isinstance(rule, ROW_RULES)


def _is_deleted(change: RowChange) -> bool:
    return change.before is not None and change.after is None


def key_values(key: Row) -> Values:
    """A key's values, in the order of its columns."""
    return tuple(one[0].as_py() for one in key.values())


def values_of(rows: Sequence[Row | None], state: TableState, columns: Sequence[str]) -> list[Values | None]:
    """What rows have in some columns; None where there is no row, or a null in one of them."""
    lists = [_column(rows, state, name).to_pylist() for name in columns]
    return [None if None in value else value for value in zip(*lists, strict=True)]


def column_of(rows: Sequence[Row | None], field: pa.Field) -> pa.Array:
    """A column of rows; null where there is no row, or where it lacks the column."""
    absent = pa.nulls(1, field.type)
    values = [absent if row is None else row.get(field.name, absent) for row in rows]
    return pa.concat_arrays(values or [absent.slice(1)])


def _column(rows: Sequence[Row | None], state: TableState, name: str) -> pa.Array:
    return column_of(rows, batch_arrow(state.schema, state.table).field(name))


def _arrays(value: Values, state: TableState) -> list[pa.Array]:
    shape = batch_arrow(state.schema, state.table)
    return [pa.array([one], shape.field(name).type) for one, name in zip(value, state.table.key, strict=True)]


def _shown(key: Row) -> str:
    return shown_key(key_values(key))


def refusal(violations: Sequence[Violation], *, only_rows: bool) -> InvalidRows | Conflict:
    """The error that lists what is broken; `only_rows` where every row is wrong by itself."""
    first = violations[0]
    more = and_more(len(violations))
    hint = "Nothing was changed."
    first_violations = violations[: most_reported()]
    listed = [asdict(violation) for violation in first_violations]
    if only_rows:
        bad = [
            {"index": row.index, "field": row.field, "value": row.value, "reason": row.reason}
            for row in first_violations
        ]
        return InvalidRows(first.text() + more, hint=hint, rows=bad, bad=len(violations), violations=listed)
    return Conflict(
        first.text() + more,
        kind="constraint",
        hint=hint,
        expected=first.rule,
        actual=first.value,
        violations=listed,
        count=len(violations),
    )
