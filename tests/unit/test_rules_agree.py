"""Both evaluators of constraints come to the same, on random tables, rules, rows and changes.

Let B and A be the breaches that the evaluator of sets finds in all tables before a change and after it, and R those
that the evaluator of rows reports of the change. A breach is about its rule and

- for what a row keeps by itself, and for a reference: the row;
- for unique: the value that rows share. Of those rows that have come to it, R leaves out one at most, and only where
  no unchanged row has it: alone it would be right;
- for cardinality: the row that is referred to. Of too many, R names the referring row that came last.

Compared by that, these hold:

1. where all rows are changed rows, R = A;
2. where B is empty, R = A, whatever part of the rows has changed;
3. where B has no dangling reference, A - B <= R <= A: what a change has broken is reported, and nothing else than what
   is broken. (A reference to a row that is not there is not allowed, so a row that comes is counted as referred to by
   none, and too many dangling references to it would be found by sets alone.)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from math import inf, nan
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.engines.duck import sandbox
from strandline.errors import BadRequest, StrandError
from strandline.model.schema.constraints import Cardinality, Constraint, Reference, Unique, parse_constraint
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.keys import key_hash
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import Column, parse_type, type_text
from strandline.model.tables import Books, BranchTable, Head, Table
from strandline.model.values.arrow import batch_arrow
from strandline.model.values.row_versions import Keys, Row, ValueHolder, Version
from strandline.operations.change.planning import apply_statements
from strandline.operations.change.statements import KeyChange, MutationRequest
from strandline.rules.changes import Changes, Claims, JudgedRow, Values, key_row, key_values, values_of
from strandline.rules.kind import Breach, Target
from strandline.rules.kinds import check_constraints
from strandline.rules.rows import examine
from strandline.rules.sets import breaches
from strandline.views.result import Result

EXACT: dict[str, Sequence[Any]] = {
    "string": ["", "a", "A", "\u00e9", "e\u0301", "a "],
    "long": [0, 1, 2**53, 2**53 + 1, -(2**63)],
    "int": [0, 1, -1],
    "boolean": [True, False],
    "date": [dt.date(1, 1, 1), dt.date(2026, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC)],
    "binary": [b"", b"\0", b"a", b"\xff"],
    "decimal(10,2)": [Decimal("0.00"), Decimal("-0.00"), Decimal("1.10"), Decimal("1.00")],
    "decimal(38,0)": [Decimal(10**37), Decimal(10**37 + 1)],
}
POOLS = EXACT | {
    "double": [0.0, -0.0, nan, inf, -inf, 2.0**53, 0.1],
    "float": [0.0, -0.0, nan, inf, 0.1, 2.0**24],
    "list<long>": [[], [1], [1, 1]],
}
ENDS = {
    "long": ["0", str(2**53), str(2**53 + 1)],
    "int": ["0", "1"],
    "double": ["0", "-0.0", "0.1", str(2**53 + 1), "inf"],
    "float": ["0", "0.1"],
    "date": ["0001-01-01", "2026-01-01"],
    "timestamp": ["2026-01-01T00:00:00Z", "0001-01-01T00:00:00.000001Z"],
    "decimal(10,2)": ["0", "1", "1.10"],
    "decimal(38,0)": [str(10**37)],
}
CHOICES = {
    "string": ['""', '"\u00e9"', "a"], "long": ["0", str(2**53 + 1)], "int": ["0", "-1"], "boolean": ["true"],
    "date": ["2026-01-01"], "decimal(10,2)": ["0", "1.1"], "decimal(38,0)": [str(10**37)],
}  # fmt: skip
PATTERNS = ["a", "^$", "\u00e9", "(?i)^A$", "^.$"]
EXAMPLES = 100
NAMES = ("team", "member", "edge")


@dataclass(frozen=True, repr=False)
class Case:
    """Tables with rows by their keys, and statements that change some of them."""

    states: Sequence[BranchTable]
    rows: Mapping[str, Mapping[bytes, Row]]
    statements: Sequence[KeyChange]

    def __repr__(self) -> str:
        """As a person reads it when a test fails."""

        def plain(row: Row | None) -> list[Any] | None:
            return None if row is None else [value[0].as_py() for value in row.values()]

        lines = []
        for state in self.states:
            rules = [rule.text() for rule in state.schema.constraints]
            lines += [f"{state.table.name}({state.schema.text()}) key {state.table.key}: {rules}"]
            lines += [f"  {plain(row)}" for row in self.rows.get(state.table.table_id, {}).values()]
        lines += [f"{change.kind} {change.name}: {plain(change.fields)}" for change in self.statements]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """The same for Hypothesis."""
        printer.text(f"\n{self!r}\n")

    @property
    def declared(self) -> Declarations:
        return Declarations.of("main", 1, self.states)

    def under(self, rules: Mapping[str, Sequence[Constraint]]) -> Case:
        """The same with other rules, by table."""
        states = {state.table.name: with_rules(state, rules[state.table.name]) for state in self.states}
        statements = [
            replace(change, branch_table=states[change.branch_table.table.name]) for change in self.statements
        ]
        return replace(self, states=list(states.values()), statements=statements)

    def changed(self) -> Changes:
        """What the statements change, with the rows that deletes take with them."""
        request = MutationRequest("main", "somebody", "", "mutate", list(self.statements))
        return apply_statements(request, Rows(self.rows), self.declared, Claims())  # type: ignore[arg-type]

    def after(self, changes: Changes) -> Case:
        """The rows that changes lead to."""
        rows = {table_id: dict(held) for table_id, held in self.rows.items()}
        for (table_id, hash_), change in changes.items():
            if change.after is None:
                rows[table_id].pop(hash_, None)
            else:
                rows[table_id][hash_] = change.after
        return replace(self, rows=rows)


def with_rules(state: BranchTable, rules: Sequence[Constraint]) -> BranchTable:
    schema = Schema(state.schema.columns, tuple(rules))
    return replace(state, schema=schema, schemas={0: schema})


# -- random cases ------------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = NAMES[: draw(st.integers(1, 3))]
    keys = {name: draw(st.lists(st.sampled_from(sorted(EXACT)), min_size=1, max_size=2)) for name in names}
    states = [draw(tables(name, keys)) for name in names]
    case = Case(states, {}, [])
    rules = {
        state.table.name: [rule for rule in state.schema.constraints if fits(rule, state, states)] for state in states
    }
    case = case.under(rules)
    pools = {type_: draw(st.lists(st.sampled_from(POOLS[type_]), min_size=1, max_size=3)) for type_ in types_of(states)}
    rows = {state.table.table_id: draw(row_sets(state, pools)) for state in case.states}
    statement = st.sampled_from(case.states).flatmap(lambda state: statement_of(state, pools, rows))
    statements = draw(st.lists(statement, min_size=1, max_size=6))
    return replace(case, rows=rows, statements=[replace(change, place=at) for at, change in enumerate(statements)])


@st.composite
def tables(draw: st.DrawFn, name: str, keys: Mapping[str, Sequence[str]]) -> BranchTable:
    """A table with columns and texts of rules: not all of them need fit."""
    types = {f"{name}_k{at}": type_ for at, type_ in enumerate(keys[name])}
    key, rules = tuple(types), []
    for at in range(draw(st.integers(0, 2))):
        target = draw(st.sampled_from(sorted(keys)))
        referring = [f"{name}_r{at}_{place}" for place in range(len(keys[target]))]
        types |= dict(zip(referring, keys[target], strict=True))
        by = ", ".join(referring)
        rules.append(f"reference({by} -> {draw(st.sampled_from([target, target.upper()]))}, restrict)")
        other = draw(st.sampled_from([*sorted(keys), ""]))
        if other:
            rules.append(f"reference({by} -> {other}, {draw(st.sampled_from(['restrict', 'cascade']))})")
        low = draw(st.integers(0, 2))
        rules.append(f"cardinality({by}: {low}..{draw(st.sampled_from(['', str(max(low, 1)), '2']))})")
    for at in range(draw(st.integers(0, 3))):
        types[f"{name}_v{at}"] = draw(st.sampled_from(sorted(POOLS)))
    column = st.sampled_from(sorted(types))
    together = st.lists(column, min_size=1, max_size=2, unique=True)
    rules += draw(st.lists(together.map(lambda some: f"unique({', '.join(some)})"), max_size=2))
    rules += draw(st.lists(column.flatmap(lambda of: row_rule(of, types[of])), max_size=3))
    columns = tuple(Column(column, parse_type(type_), column not in key) for column, type_ in types.items())
    schema = Schema(columns, tuple(dict.fromkeys(rule for rule in map(parsed, rules) if rule is not None)))
    table = Table(name, name, "keyed", f"log.{name}", (), (), "table", False, 0, key)
    return BranchTable(
        table, Head("main", name, 0, None, 0, 0, None, Books(0, 0, 0, 0, 0)), schema, (), None, {0: schema}
    )


def row_rule(column: str, type_: str) -> st.SearchStrategy[str]:
    ends, choices = ENDS.get(type_, ["0"]), CHOICES.get(type_, ["a"])
    return st.one_of(
        st.sampled_from(ends).map(lambda low: f"range({column}: {low}..)"),
        st.sampled_from(ends).map(lambda high: f"range({column}: ..{high})"),
        st.lists(st.sampled_from(choices), min_size=1, max_size=2).map(lambda of: f"one_of({column}: {', '.join(of)})"),
        st.sampled_from(PATTERNS).map(lambda pattern: f"check({column}: /{pattern}/)"),
    )


def parsed(text: str) -> Constraint | None:
    try:
        return parse_constraint(text)
    except BadRequest:  # no number is in it
        return None


def fits(rule: Constraint, state: BranchTable, states: Sequence[BranchTable]) -> bool:
    by_name = {other.table.name: other for other in states}

    def target(name: str) -> Target:
        other = by_name[name.lower()]
        return Target(other.table.name, other.table.key, other.schema)

    rules = [rule]
    if isinstance(rule, Cardinality):
        rules += [other for other in state.schema.constraints if isinstance(other, Reference)]
        rules = [other for other in rules if isinstance(other, Cardinality) or fits(other, state, states)]
    try:
        check_constraints(Schema(state.schema.columns, tuple(rules)), state.table.key, target)
    except BadRequest:
        return False
    return True


def types_of(states: Sequence[BranchTable]) -> list[str]:
    return sorted({type_text(column.type) for state in states for column in state.schema.columns})


Pools = Mapping[str, Sequence[Any]]


def rows_for(state: BranchTable, pools: Pools) -> st.SearchStrategy[Row]:
    """Rows whose values are few enough to meet again."""
    shape = batch_arrow(state.schema, state.table)
    values: dict[str, st.SearchStrategy[Any]] = {
        column.name: st.sampled_from([*pools[type_text(column.type)], *([None] if column.nullable else [])])
        for column in state.schema.columns
    }
    return st.fixed_dictionaries(values).map(
        lambda row: {name: pa.array([value], shape.field(name).type) for name, value in row.items()}
    )


def hash_of(row: Row, state: BranchTable) -> bytes:
    (key,) = values_of([row], state, state.table.key)
    assert key is not None
    return key_hash(key)


def row_sets(state: BranchTable, pools: Pools) -> st.SearchStrategy[dict[bytes, Row]]:
    rows = st.lists(rows_for(state, pools), max_size=4)
    return rows.map(lambda some: {hash_of(row, state): row for row in some})


@st.composite
def statement_of(
    draw: st.DrawFn, state: BranchTable, pools: Pools, rows: Mapping[str, Mapping[bytes, Row]]
) -> KeyChange:
    held = list(rows[state.table.table_id].values())
    kind = draw(st.sampled_from(["put", "put", "patch", "delete"] if held else ["put"]))
    row = draw(rows_for(state, pools))
    if kind != "put":
        row = {
            **row,
            **{name: values for name, values in draw(st.sampled_from(held)).items() if name in state.table.key},
        }
    key = {name: row[name] for name in state.table.key}
    others = [name for name in state.schema.names if name not in key]
    patched = draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    fields = row if kind == "put" else {name: row[name] for name in patched} if kind == "patch" else None
    return KeyChange(0, state, hash_of(row, state), key, fields, kind)


# -- both evaluators ---------------------------------------------------------------------------------------------------


class Rows:
    """Rows of all tables, for whoever looks some up."""

    def __init__(self, rows: Mapping[str, Mapping[bytes, Row]]) -> None:
        self._rows = rows

    def ask(self, state: BranchTable, keys: Keys) -> None:
        """All are at hand."""

    def get(self, table_id: str, key: bytes) -> Version | None:
        row = self._rows[table_id].get(key)
        return None if row is None else Version(1, row)

    def having(self, state: BranchTable, columns: Sequence[str], values: Sequence[Values] | None) -> list[ValueHolder]:
        held = self._rows[state.table.table_id]
        found = zip(held, values_of(list(held.values()), state, columns), strict=True)
        return [
            ValueHolder(value, hash_, {name: held[hash_][name] for name in state.table.key})
            for hash_, value in found
            if value is not None and (values is None or value in values)
        ]


class Tables:
    """The same rows as relations of a DuckDB."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, case: Case) -> None:
        self._connection = connection
        self._states = {state.table.name: state for state in case.states}
        for state in case.states:
            rows = list(case.rows[state.table.table_id].values())
            shape = batch_arrow(state.schema, state.table)
            columns = [
                pa.concat_arrays([row[name] for row in rows]) if rows else pa.nulls(0, shape.field(name).type)
                for name in state.schema.names
            ]
            arrays = [*columns, pa.array(range(len(rows)), pa.int64())]
            connection.register(state.table.name, pa.Table.from_arrays(arrays, [*state.schema.names, "_seq"]))

    @property
    def tables(self) -> list[str]:
        return list(self._states)

    def ask(self, query: str) -> Result:
        return Result(self._connection, query, None)

    def branch_table(self, name: str) -> BranchTable:
        return self._states[name.lower()]


@contextmanager
def relations(case: Case) -> Iterator[Tables]:
    with sandbox.scratch() as connection:
        yield Tables(connection, case)


def found_in(case: Case) -> list[Breach]:
    """What the evaluator of sets finds in all tables."""
    with relations(case) as tables_:
        return [
            breach
            for state in case.states
            for rule in state.schema.constraints
            for breach in breaches(tables_, state, rule)
        ]


def reported_of(case: Case, changes: Changes) -> list[Breach]:
    """What the evaluator of rows reports of changes."""
    return examine(case.declared, changes, Rows(case.rows)).breaches


Subject = tuple[str, Values]


def about(breach: Breach) -> Subject:
    """The rule, whose text has columns that no other table has, and what of its rows breaks it."""
    by_value = isinstance(breach.rule, Unique | Cardinality)
    return breach.rule.text(), breach.value if by_value else breach.key


def subjects(found: Sequence[Breach]) -> set[Subject]:
    return {about(breach) for breach in found}


def rows_sharing(found: Sequence[Breach]) -> dict[Subject, set[Values]]:
    """The rows that are named for each value which is not unique."""
    sharing: dict[Subject, set[Values]] = {}
    for breach in found:
        if isinstance(breach.rule, Unique):
            sharing.setdefault(about(breach), set()).add(breach.key)
    return sharing


def takers(case: Case, changes: Changes, subject: Subject) -> set[Values]:
    """The changed rows that have come to a value which is to be unique."""
    text, value = subject
    keys: set[Values] = set()
    for state in case.states:
        for rule in state.schema.constraints:
            rows = (
                [change for change in changes.values() if change.branch_table is state] if rule.text() == text else []
            )
            before = values_of([change.before for change in rows], state, rule.columns)
            after = values_of([change.after for change in rows], state, rule.columns)
            for change, had, has in zip(rows, before, after, strict=True):
                keys |= {key_values(change.key)} if has == value != had else set()
    return keys


# -- that they agree ---------------------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(cases())
def test_rows_that_all_come_at_once_break_what_their_tables_break(case: Case) -> None:
    """1: R = A; and of the rows that share a value all but one are told."""
    changes: Changes = {}
    for state in case.states:
        for hash_, row in case.rows[state.table.table_id].items():
            key = key_row(values_of([row], state, state.table.key)[0] or (), state)
            changes[state.table.table_id, hash_] = JudgedRow(state, hash_, key, None, row)
    empty = replace(case, rows={state.table.table_id: {} for state in case.states})
    reported, after = reported_of(empty, changes), found_in(case)
    assert subjects(reported) == subjects(after)
    sharing = rows_sharing(reported)
    for value, rows in rows_sharing(after).items():
        assert sharing[value] < rows
        assert len(rows - sharing[value]) == 1


@settings(max_examples=EXAMPLES)
@given(cases())
def test_a_change_of_rows_that_kept_the_rules_breaks_what_its_tables_break(case: Case) -> None:
    """2: R = A, where nothing was broken before."""
    case = keeping(case, subjects(found_in(case)))
    try:
        changes = case.changed()
    except StrandError:  # a patch of a row that is not there
        return
    reported, after = reported_of(case, changes), found_in(case.after(changes))
    assert subjects(reported) == subjects(after)
    sharing, named = rows_sharing(after), rows_sharing(reported)
    for value, rows in sharing.items():
        left_out = takers(case, changes, value) - named[value]
        has_other = bool(rows - {key_values(change.key) for change in changes.values()})
        assert named[value] <= rows
        assert len(left_out) <= (0 if has_other else 1)


@settings(max_examples=EXAMPLES)
@given(cases())
def test_a_change_is_told_what_it_has_broken_and_nothing_that_is_not_so(case: Case) -> None:
    """3: A - B <= R <= A, where something else than a reference was broken before."""
    dangling = {about(breach) for breach in found_in(case) if isinstance(breach.rule, Reference)}
    case = keeping(case, dangling)
    try:
        changes = case.changed()
    except StrandError:
        return
    before, after = subjects(found_in(case)), subjects(found_in(case.after(changes)))
    reported = subjects(reported_of(case, changes))
    assert after - before <= reported <= after


def keeping(case: Case, broken: set[Subject]) -> Case:
    """The same without the rules that are broken, and without what counts references that are not declared then."""
    texts = {text for text, _ in broken}
    rules = {
        state.table.name: [rule for rule in state.schema.constraints if rule.text() not in texts]
        for state in case.states
    }
    for declared in rules.values():
        declared[:] = [rule for rule in declared if rule.text() not in texts]
        references = {rule.columns for rule in declared if isinstance(rule, Reference)}
        declared[:] = [rule for rule in declared if not isinstance(rule, Cardinality) or rule.columns in references]
    return case.under(rules)
