"""From the schemas that are to the ones that are wanted: the steps, and what each of them means for the data.

Nothing is written here, and nothing is read: what applies a plan looks at the rows that it depends on. No step rewrites
rows. A column that is added is null, or its default, in the rows that were there: whatever writes these again later
writes the default out. Rows that come later and lack the column get its default when they are validated. A column that
is renamed keeps its name in the files; one that is dropped stays in them, unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.errors import BadRequest, InvalidRows, NotFound, nearest
from strandline.model.history.commits import Commit
from strandline.model.schema.constraints import Constraint, OneOf, Reference
from strandline.model.schema.document import FIXED, UNSAID, WantedColumn, WantedTable
from strandline.model.schema.schema import Gone, Schema
from strandline.model.schema.steps import Step, Verdict
from strandline.model.schema.types import OPEN, Column, Decimal, Fill, Primitive, Type, type_text
from strandline.model.tables import BranchTable
from strandline.model.values.rows import from_dicts
from strandline.model.values.user_rows import Value
from strandline.model.values.values import shown

REMOVE = "remove table"
RESERVED = "strand_"
"""What the names of tables that we make for ourselves begin with."""

PURGES = "strand_purges"
PURGE_COLUMNS = {
    "purge_id": "string",
    "table_name": "string",
    "table_id": "string",
    "predicate": "string",
    "rows": "long",
    "upto_seq": "long",
}
PURGE_KEY = ("purge_id",)
"""The table that says what was purged; sinks deliver it."""

AGAIN = -1
"""Where a table that is added again begins, until its commit has a seq."""

WIDER = {("int", "long"), ("float", "double")}
FILLED = frozenset({"string", "long", "int", "double", "float", "boolean", "date", "timestamp", "json"})
"""The types that can have a default, besides decimals."""


@dataclass(frozen=True)
class Applied:
    """What was done: the steps, and the commit that made them; none where there was nothing to do."""

    steps: tuple[Step, ...]
    commit: Commit | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TablePlan:
    """What becomes of one table: a new schema, which says so where it is dropped; without a branch table it is made.

    `required` are columns that must have a value in every row, and `constraints` those that every row must keep, which
    no row was checked against before.
    """

    name: str
    branch_table: BranchTable | None
    schema: Schema
    target: WantedTable
    required: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @property
    def gone(self) -> set[str]:
        """The columns that it drops, by their names in data files."""
        return (
            set() if self.branch_table is None else self.branch_table.schema.stored.keys() - self.schema.stored.keys()
        )

    @property
    def is_validated(self) -> bool:
        """Whether it depends on what rows there are."""
        return bool(self.required or self.constraints)


@dataclass(frozen=True)
class MigrationPlan:
    """The steps from the schemas of a branch to the ones that are wanted, and what they come to."""

    branch: str
    steps: tuple[Step, ...] = ()
    tables: tuple[TablePlan, ...] = ()

    @property
    def refused(self) -> list[Step]:
        """The steps that can't be done."""
        return [step for step in self.steps if step.verdict == "refused"]

    @property
    def loses(self) -> list[Step]:
        """The steps after which values are shown no more."""
        return [step for step in self.steps if step.verdict == "loses data"]


def plan(
    branch: str, current: Mapping[str, BranchTable], targets: Sequence[WantedTable], *, on_main: bool
) -> MigrationPlan:
    """What has to be done; `current` are the branch's tables by folded name, those that were dropped there too.

    Steps that can't be done are among it.
    """
    steps: list[Step] = []
    tables: list[TablePlan] = []
    for table in targets:
        branch_table = current.get(table.name.lower())
        if branch_table is None or branch_table.is_dropped:
            table_steps, planned = _made(table, on_main, branch_table)
        else:
            table_steps, planned = _changed(branch_table, table, on_main)
        steps += table_steps
        tables += [planned] if table_steps and planned is not None else []
    steps = [_unless_referred_to(step, current, tables) for step in steps]
    return MigrationPlan(branch, tuple(steps), tuple(tables))


def numbered(schema: Schema, number: int) -> Schema:
    """The schema with its new defaults, for rows below this seq; a table that is added again begins there."""
    return replace(schema.numbered(number), began=number if schema.began == AGAIN else schema.began)


def _made(table: WantedTable, on_main: bool, dropped: BranchTable | None) -> tuple[list[Step], TablePlan | None]:
    if table.drop and dropped is None:
        raise NotFound(f"there is no table {table.name!r} to drop", table=table.name)
    if table.drop:
        return [], None  # a document that was applied already still says what it dropped
    schema = Schema(tuple(_with_default(column, table) for column in table.columns), table.constraints or ())
    what, why = "add table", ""
    if not table.key and not on_main:
        why = "a log table has one history, the same on every branch: make it on main"
    if dropped is not None:
        return _added_again(table, dropped)
    verdict: Verdict = "refused" if why else "safe"
    return [Step(what, table.name, None, verdict, why)], TablePlan(table.name, None, schema, table)


def _added_again(table: WantedTable, dropped: BranchTable) -> tuple[list[Step], TablePlan]:
    """A keyed table of the same key, without the rows of the one that was dropped: a name stays with its table."""
    change, why = _Change(dropped, table), ""
    if not dropped.table.key:
        why = "a log table of this name was dropped, and its past keeps the name: pick another one"
    before = {column.name: column for column in dropped.schema.columns if column.name in dropped.table.key}
    for want in table.columns:
        key_column = before.get(want.column.name)
        if key_column is None:
            change.added.append(replace(_with_default(want, table), stored=change._unused(want.column.name)))
        elif (key_column.type, key_column.nullable) == (want.column.type, want.column.nullable):
            change.added.append(key_column)
    same = all((getattr(table, name) or ()) == getattr(dropped.table, name) for name in FIXED)
    if not why and not (same and len(change.added) == len(table.columns)):
        kept = ", ".join(column.text() for column in before.values())
        why = f"a table of this name was dropped here, and its past keeps the name: give it the same key ({kept})"
    schema = Schema(tuple(change.added) or dropped.schema.columns, table.constraints or (), began=AGAIN)
    step = Step("add table", dropped.table.name, None, "refused" if why else "safe", why or "it begins without rows")
    return [step], TablePlan(dropped.table.name, dropped, schema, table)


def _changed(branch_table: BranchTable, target: WantedTable, on_main: bool) -> tuple[list[Step], TablePlan | None]:
    name = branch_table.table.name
    if target.drop:
        why = "it is shown no more here; other branches, tags and what was before still show it"
        step = Step(REMOVE, name, None, "loses data", why)
        if keeps_purges(branch_table):
            step = replace(step, verdict="refused", why="it tells sinks what was purged")
        gone = replace(branch_table.schema, constraints=(), dropped=True)
        return _on_main(branch_table, [step], on_main), TablePlan(name, branch_table, gone, target)
    change = _Change(branch_table, target)
    change.fixed()
    change.match()
    change.constrain()
    planned = TablePlan(name, branch_table, change.schema(), target, tuple(change.required), change.judged())
    return _on_main(branch_table, change.steps, on_main), planned


def keeps_purges(branch_table: BranchTable) -> bool:
    """Whether a table is the one in which purges are recorded. One of that name may be a user's, and ours have another.

    A person may have given ours more columns; a row can be recorded if those may be null, or have a default.
    """
    table, schema = branch_table.table, branch_table.schema
    if table.key or schema.dropped or table.row_key != PURGE_KEY or not table.name.lower().startswith(PURGES):
        return False
    texts = {column.name: type_text(column.type) for column in schema.columns if column.name in PURGE_COLUMNS}
    required = {column.name for column in schema.columns if not column.nullable and column.default is None}
    return texts == PURGE_COLUMNS and required <= PURGE_COLUMNS.keys()


def _unless_referred_to(step: Step, current: Mapping[str, BranchTable], planned: Sequence[TablePlan]) -> Step:
    """The same step, refused where it drops a table that another one will go on to refer to."""
    if step.what != REMOVE or step.verdict == "refused":
        return step
    after = {name: branch_table.schema for name, branch_table in current.items()}
    after |= {table.name.lower(): table.schema for table in planned}
    refer = [name for name, schema in after.items() if not schema.dropped and step.table.lower() in refers(schema)]
    why = f"{', '.join(sorted(refer))} refers to it: drop that reference too, or that table"
    return replace(step, verdict="refused", why=why) if refer else step


def _on_main(branch_table: BranchTable, steps: list[Step], on_main: bool) -> list[Step]:
    if branch_table.table.key or on_main:
        return steps
    why = "a log table has one schema, the same on every branch: change it on main"
    return [replace(step, verdict="refused", why=why) for step in steps]


@dataclass
class _Change:
    """The change of one table while it is planned."""

    branch_table: BranchTable
    target: WantedTable
    steps: list[Step] = field(default_factory=list)
    columns: dict[str, Column] = field(default_factory=dict)
    """The columns as they will be, by stored name, in the order they have now."""
    added: list[Column] = field(default_factory=list)
    required: list[str] = field(default_factory=list)
    constraints: tuple[Constraint, ...] = ()
    new: list[Constraint] = field(default_factory=list)

    def say(self, what: str, column: str | None, verdict: Verdict, why: str = "") -> None:
        """Add a step."""
        self.steps.append(Step(what, self.branch_table.table.name, column, verdict, why))

    def fixed(self) -> None:
        """What a table was made with and keeps."""
        for what in FIXED:
            declared, has = getattr(self.target, what), getattr(self.branch_table.table, what)
            if declared is not None and declared != has:
                why = f"it is ({', '.join(has)}) for good: make another table" if has else "it has none, and gets none"
                self.say(f"change {what}", None, "refused", why)

    def match(self) -> None:
        """Find what each wanted column is now; what the document lacks is dropped."""
        now = {column.name: column for column in self.branch_table.schema.columns}
        matched: dict[str, WantedColumn] = {}
        new: list[WantedColumn] = []
        for want in self.target.columns:
            current = self._current(want, now)
            if current is None:
                new.append(want)
            elif current.stored in matched:
                raise BadRequest(f"two columns of {self.branch_table.table.name!r} are wanted from {current.name!r}")
            else:
                matched[current.stored] = want
        for column in self.branch_table.schema.columns:
            if column.stored in matched:
                self.columns[column.stored] = self._kept(column, matched[column.stored])
            else:
                self._drop(column)
        for want in new:
            self._add(want)

    def _current(self, want: WantedColumn, now: Mapping[str, Column]) -> Column | None:
        name, before = want.column.name, want.rename_from
        if name in now or before is None:
            return now.get(name)  # a document that was applied already still says what it renamed
        if before not in now:
            raise BadRequest(
                f"column {name!r} of {self.branch_table.table.name!r} is renamed from {before!r}, which is not there",
                hint=nearest(before, now),
            )
        return now[before]

    def _kept(self, column: Column, want: WantedColumn) -> Column:
        target, after = want.column, column
        if target.name != column.name:
            why = self._fixed(column)
            self.say(f"rename {column.name} to", target.name, "refused" if why else "safe", why)
            after = replace(after, name=target.name)
        if target.type != column.type:
            why = self._fixed(column, times=False) or _narrows(column.type, target.type)
            self.say(f"widen {type_text(column.type)} to {type_text(target.type)}", target.name,
                     "refused" if why else "safe", why)  # fmt: skip
            after = replace(after, type=target.type)
        if target.nullable and not column.nullable:
            why = "a key is never null" if column.name in self.branch_table.table.key else ""
            self.say("make nullable", target.name, "refused" if why else "safe", why)
            after = replace(after, nullable=True)
        if column.nullable and not target.nullable:
            after = self._require(after, want)
        return self._redefault(after, want)

    def _require(self, column: Column, want: WantedColumn) -> Column:
        if not self.branch_table.table.key:
            self.say("make required", column.name, "refused", "rows of a log table are not looked at again")
            return column
        default = self._default(column, want)
        if default is None:
            self.required.append(column.name)
            self.say("make required", column.name, "needs validation", "every row must have a value; or give a default")
            return replace(column, nullable=False)
        why = f"rows without one get {default}: those that are there, and those that come and lack it"
        self.say("make required", column.name, self._filling(column.name), why)
        return replace(column, nullable=False, fills=(*column.fills, Fill(OPEN, default)), default=default)

    def _redefault(self, column: Column, want: WantedColumn) -> Column:
        """What rows get from now on that lack a column which was there; the rows that are there stay as they are."""
        if want.default is UNSAID:
            return column
        default = self._default(column, want)
        if default == column.default:
            return column
        lack = "are null" if column.nullable else "are refused"
        why = f"rows that come and lack it {lack if default is None else f'get {default}'}; no other changes"
        self.say("drop default" if default is None else "set default", column.name, "safe", why)
        return replace(column, default=default)

    def _add(self, want: WantedColumn) -> None:
        default = self._default(want.column, want)
        fills = () if default is None else (Fill(OPEN, default, adds=True),)
        column = replace(want.column, stored=self._unused(want.column.name), fills=fills, default=default)
        verdict: Verdict = "safe"
        why = "it is null in the rows that are there"
        if default is not None:
            why = f"rows without it get {default}: those that are there, and those that come and lack it"
            verdict = self._filling(column.name)
        elif not column.nullable:
            self.required.append(column.name)
            verdict, why = "needs validation", "it is required and has no default, so there can be no rows yet"
        self.say("add column", column.name, verdict, why)
        self.added.append(column)

    def _default(self, column: Column, want: WantedColumn) -> str | None:
        """The default that a document gives a column, as text."""
        table = self.branch_table.table
        if want.default is not UNSAID and want.default is not None and column.name == table.settings.time_column:
            raise BadRequest(f"column {column.name!r} says how old rows are, and can't have a default")
        return _default_of(column, want, (*table.key, *table.row_key))

    def _filling(self, name: str) -> Verdict:
        """Whether older rows may have a default here: not without a look where something is declared of the column."""
        declared = self.branch_table.schema.constraints if self.target.constraints is None else self.target.constraints
        return "needs validation" if any(name in rule.columns for rule in declared) else "safe"

    def _drop(self, column: Column) -> None:
        why = self._fixed(column)
        kept = "its values are shown no more; they stay in the files, and in what was before"
        self.say("drop column", column.name, "refused" if why else "loses data", why or kept)
        if why:
            self.columns[column.stored] = column

    def _fixed(self, column: Column, *, times: bool = True) -> str:
        """Why a column can be neither dropped nor renamed; empty where it can."""
        table = self.branch_table.table
        for what, names in (("key", table.key), ("row key", table.row_key), ("partition", table.partition_by)):
            if column.name in names:
                return f"it is part of the table's {what}"
        if times and column.name == table.settings.time_column:
            return "it says how old rows are: set another time_column first"
        return ""

    def _unused(self, name: str) -> str:
        """A name in data files that no column of the table has had, on whatever branch."""
        versions = self.branch_table.schemas.values()
        taken = {column.stored.lower() for schema in versions for column in schema.columns}
        taken |= {column.stored.lower() for column in self.added}
        at, unused = 1, name
        while unused.lower() in taken:
            at, unused = at + 1, f"{name}_{at + 1}"
        return unused

    def constrain(self) -> None:
        """What is declared of the rows: what goes, what comes."""
        renamed = {column.name: self.columns[column.stored].name for column in self.branch_table.schema.columns
                   if column.stored in self.columns}  # fmt: skip
        has = [_renamed(rule, renamed) for rule in self.branch_table.schema.constraints]
        self.constraints = tuple(has) if self.target.constraints is None else self.target.constraints
        names = {column.name for column in [*self.columns.values(), *self.added]}
        for constraint in self.constraints:
            for name in constraint.columns:
                if name not in names:
                    raise BadRequest(f"{constraint.text()} names {name!r}, which is no column any more",
                                     hint="It stays unless `constraints` is given without it.")  # fmt: skip
        for rule in [rule for rule in has if rule not in self.constraints and not _enum_of(rule, self.constraints)]:
            self.say(f"drop {rule.text()}", None, "safe")
        for rule in [rule for rule in self.constraints if rule not in has]:
            self._constrain(rule, _enum_of(rule, has))

    def _constrain(self, constraint: Constraint, before: OneOf | None) -> None:
        column = constraint.columns[0] if len(constraint.columns) == 1 else None
        if before is not None and isinstance(constraint, OneOf):
            if set(before.values) <= set(constraint.values):
                self.say(f"extend to {constraint.text()}", column, "safe")
                return
            self.say(f"narrow to {constraint.text()}", column, "needs validation", "every row must have one of them")
        else:
            self.say(f"add {constraint.text()}", column, "needs validation", "every row must keep it")
        self.new.append(constraint)

    def judged(self) -> tuple[Constraint, ...]:
        """What rows may break after this: new constraints, and those about columns that rows get a default in."""
        filled = {column.name for column in [*self.columns.values(), *self.added] if _is_filled(column)}
        return tuple(rule for rule in self.constraints if rule in self.new or filled & set(rule.columns))

    def schema(self) -> Schema:
        """The table's schema after this."""
        schema = self.branch_table.schema
        columns = (*self.columns.values(), *self.added)
        dropped = tuple(Gone(column, OPEN) for column in schema.columns if column.stored not in self.columns)
        return replace(schema, columns=columns, constraints=self.constraints, gone=(*schema.gone, *dropped))


def _is_filled(column: Column) -> bool:
    return any(fill.below == OPEN for fill in column.fills)


def _renamed(constraint: Constraint, names: Mapping[str, str]) -> Constraint:
    columns: Any = tuple(names.get(name, name) for name in constraint.columns)
    return replace(constraint, columns=columns)


def _enum_of(constraint: Constraint, others: Sequence[Constraint]) -> OneOf | None:
    """The other list of values for the same column, if both are one."""
    if not isinstance(constraint, OneOf):
        return None
    return next((other for other in others if isinstance(other, OneOf) and other.columns == constraint.columns), None)


def _narrows(before: Type, after: Type) -> str:
    """Why a column can't have another type; empty where every value that it has fits."""
    match before, after:
        case Primitive(name=old), Primitive(name=new) if (old, new) in WIDER:
            return ""
        case Decimal(), Decimal() if before.scale == after.scale and before.precision < after.precision:
            return ""
    return "only int to long, float to double and a decimal's precision can grow: add another column, and fill that"


def _with_default(want: WantedColumn, table: WantedTable) -> Column:
    """A column of a table that is made."""
    default = _default_of(want.column, want, (*(table.key or ()), *(table.row_key or ())))
    return replace(want.column, default=default)


def _default_of(column: Column, want: WantedColumn, keys: Sequence[str]) -> str | None:
    if want.default is UNSAID or want.default is None:
        return None
    if column.name in keys:
        raise BadRequest(
            f"column {column.name!r} is part of the key, and can't have a default",
            hint="Rows that lack it would all be the same row.",
        )
    return default_text(column, want.default)


def default_text(column: Column, value: Value) -> str:
    """A default as it is kept: text, in one way for each value. BadRequest where it does not fit the column."""
    fits = isinstance(column.type, Decimal) or (isinstance(column.type, Primitive) and column.type.name in FILLED)
    if not fits:
        raise BadRequest(
            f"column {column.text()!r} can't have a default", hint=f"One of {', '.join(sorted(FILLED))}, decimal can."
        )
    try:
        array = from_dicts([{column.name: value}], Schema((Column(column.name, column.type),))).column(0)
    except InvalidRows as error:
        message = f"the default of {column.name!r}, {shown(value)}, is no {type_text(column.type)}"
        raise BadRequest(message, hint="Write a value of the column's type.") from error
    return str(array.cast("string")[0].as_py())


def refers(schema: Schema) -> set[str]:
    """The tables that a schema's constraints are about besides its own, by folded name."""
    return {rule.table.lower() for rule in schema.constraints if isinstance(rule, Reference)}
