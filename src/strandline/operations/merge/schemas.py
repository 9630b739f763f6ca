"""The schemas of tables in a merge: what each becomes, and what the two sides disagree on.

A schema that one side alone has changed is taken; of two that were changed in different columns both changes are. A
table that one side dropped is gone if the other has left it alone. Everything else is a conflict that a person decides
for one side: its schema is the table's then, and all rows are merged under that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.ledger.changes.mutations import Brought
from strandline.ledger.history.ancestry import Graph
from strandline.model.history.commits import Commit
from strandline.model.history.merge import Resolution, RowConflict, Side, key_text
from strandline.model.schema.constraints import Reference
from strandline.model.schema.merging import merge_schemas
from strandline.model.schema.schema import Schema
from strandline.model.tables import BranchTable
from strandline.views.time_travel import version_at
from strandline.views.view import View

KIND = "divergent_schema"


@dataclass
class MergedSchemas:
    """What comes of the tables' schemas.

    `merged` are those that rows are merged under, and `brought` what the target does not have yet; both by table id.
    The rows of tables in `settled` are not merged: there is none, or one side's are taken as they are. `disputed` are
    those that a resolution may decide on.
    """

    merged: dict[str, Schema] = field(default_factory=dict)
    brought: dict[str, Brought] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    disputed: set[str] = field(default_factory=set)
    conflicts: list[RowConflict] = field(default_factory=list)

    def take_over(self, source: View, names: Collection[str]) -> None:
        """Of tables that are taken over whole, the rows are the source's, and the schema with them."""
        for branch_table in map(source.branch_table, names):
            if branch_table.table.table_id in self.brought:
                taken = Brought(branch_table.table.name, branch_table.schema, branch_table.head.schema_version)
                self.brought[branch_table.table.table_id] = taken


@dataclass(frozen=True)
class SchemaHistory:
    """Both sides' commits since the commits that both have: how a table's schema came to be what it is."""

    graph: Graph
    tip: str | None
    bases: Sequence[Commit]
    kept: Sequence[Commit]

    def has(self, number: int) -> bool:
        """Whether the target has a version of a schema, or had it once."""
        return self.graph.reaches(self.tip, self.graph.at(number))

    def is_ours(self, number: int) -> bool:
        """Whether the target has made it, or merged it, since."""
        return any(commit.seq == number for commit in self.kept)

    def is_touched(self, table: str) -> bool:
        """Whether the target has changed a table since, in whatever way."""
        return any(table in commit.tables for commit in self.kept)

    def base(self, branch_table: BranchTable) -> Schema | None:
        """What both began with; None where that is not one thing."""
        numbers = {version_at(self.graph, branch_table, commit) for commit in self.bases}
        number = numbers.pop() if len(numbers) == 1 else None
        return branch_table.schemas[number] if number is not None else None


def merged_schemas(
    line: SchemaHistory, source: View, target: View, names: Collection[str], resolution: Resolution
) -> MergedSchemas:
    """What becomes of these tables, which the source has changed; views with dropped tables too."""
    schemas = MergedSchemas()
    for name in names:
        if name in target.tables:
            _merge(schemas, line, source.branch_table(name), target.branch_table(name), resolution)
        elif source.branch_table(name).is_dropped:
            schemas.settled.add(name)
    _keep_targets(schemas, source, target, names, resolution)
    return schemas


def _merge(
    schemas: MergedSchemas, line: SchemaHistory, theirs: BranchTable, ours: BranchTable, resolution: Resolution
) -> None:
    name, table_id = ours.table.name, ours.table.table_id
    schemas.merged[table_id] = ours.schema
    if ours.is_dropped or theirs.is_dropped or ours.schema.began != theirs.schema.began:
        schemas.settled.add(name)
        if not (ours.is_dropped and theirs.is_dropped):
            _drop(schemas, line, theirs, ours, resolution)
        return
    # The target has had the source's, and has kept it or gone on from it.
    if line.has(theirs.head.schema_version):
        return
    if theirs.schema.says_the_same(ours.schema):
        # A reader that looks back at it takes the newest version that it reaches: that must be one of the target's own.
        if theirs.schema != ours.schema and theirs.head.schema_version > ours.head.schema_version:
            _bring(schemas, ours, ours.schema)
        return
    # The source alone has changed it.
    if not line.is_ours(ours.head.schema_version):
        _bring(schemas, ours, theirs.schema, theirs.head.schema_version)
        return
    base = line.base(theirs)
    both = merge_schemas(base, ours.schema, theirs.schema) if base is not None else None
    side = _decided(schemas, name, resolution) if both is None else None
    if both is not None or side is not None:
        _bring(schemas, ours, both or (ours if side == "ours" else theirs).schema)
    else:
        schemas.conflicts.append(_conflict(ours, theirs))


def _drop(
    schemas: MergedSchemas, line: SchemaHistory, theirs: BranchTable, ours: BranchTable, resolution: Resolution
) -> None:
    """One side has dropped the table, or added it again; the source has changed it, by that or otherwise."""
    name = ours.table.name
    is_touched = line.is_touched(name)
    side = _later(ours, theirs) if is_touched else "theirs"
    side = side or _decided(schemas, name, resolution)
    if side is None or (side == "theirs" and _shows_both(ours, theirs)):
        schemas.conflicts.append(_conflict(ours, theirs))
    elif side == "ours":
        _bring(schemas, ours, ours.schema)
    else:
        _bring(schemas, ours, theirs.schema, None if is_touched else theirs.head.schema_version)
    if side == "theirs" and not theirs.is_dropped:
        schemas.settled.discard(name)  # it comes back, with what the source has made of it


def _shows_both(ours: BranchTable, theirs: BranchTable) -> bool:
    """Whether rows of the target would be shown among those of the source's table, which is another one by that name.

    Which rows are a table's is said by the seq at which it was added again.
    """
    if theirs.is_dropped or ours.schema.began == theirs.schema.began:
        return False
    return ours.schema.began > theirs.schema.began or ours.head.last_seq > theirs.schema.began


def _later(ours: BranchTable, theirs: BranchTable) -> Side | None:
    """The side that has added a table again which the other has dropped: it has dropped it too."""
    if ours.is_dropped and theirs.schema.began > ours.schema.began:
        return "theirs"
    return "ours" if theirs.is_dropped and ours.schema.began > theirs.schema.began else None


def _bring(schemas: MergedSchemas, ours: BranchTable, schema: Schema, version: int | None = None) -> None:
    """Without a version it is a new one, the merge's: so a reader of that commit finds what was decided there.

    So it is where the target's rows are others than the source's: which of them have a default is the target's affair.
    """
    brought = schema.along(ours.schema)
    version = version if brought == schema else None
    schemas.brought[ours.table.table_id] = Brought(ours.table.name, brought, version)
    schemas.merged[ours.table.table_id] = schema


def _decided(schemas: MergedSchemas, name: str, resolution: Resolution) -> Side | None:
    schemas.disputed.add(name)
    decision = resolution.rows.get((name, key_text({})))
    return decision if isinstance(decision, str) else resolution.side_of(name)


def _conflict(ours: BranchTable, theirs: BranchTable) -> RowConflict:
    fields = {column.declared for column in ours.schema.columns} ^ {column.declared for column in theirs.schema.columns}
    return RowConflict(
        KIND,
        ours.table.name,
        {},
        tuple(sorted({column.name for column in fields})),
        None,
        None if ours.is_dropped else ours.schema.to_json(),
        None if theirs.is_dropped else theirs.schema.to_json(),
    )


def _keep_targets(
    schemas: MergedSchemas, source: View, target: View, names: Collection[str], resolution: Resolution
) -> None:
    """Nothing may refer to a table that is not there after the merge: one side dropped it, the other refers to it.

    The target's side keeps the table that the merge would drop, or the rules that it would replace.
    """
    for name, rule in list(_dangling(dict(_after(schemas, source, target, names)))):
        shown = {table.lower(): target.branch_table(table) for table in target.tables}
        both = [shown[folded] for folded in (rule.table.lower(), name) if folded in shown]
        changed = [branch_table for branch_table in both if branch_table.table.table_id in schemas.brought]
        if {rule.table.lower(), name} & {conflict.table.lower() for conflict in schemas.conflicts}:
            continue
        if changed and _decided(schemas, changed[0].table.name, resolution) == "ours":
            _bring(schemas, changed[0], changed[0].schema)
        else:
            schemas.conflicts.append(RowConflict(KIND, name, {}, rule.columns, None, None, {"rule": rule.text()}))


def _dangling(after: Mapping[str, Schema]) -> Iterator[tuple[str, Reference]]:
    for name, schema in after.items():
        for constraint in schema.constraints:
            if isinstance(constraint, Reference) and constraint.table.lower() not in after:
                yield name, constraint


def _after(schemas: MergedSchemas, source: View, target: View, names: Collection[str]) -> Iterator[tuple[str, Schema]]:
    """The tables that are shown after the merge, by folded name, with their schemas."""
    for name in {*target.tables, *names}:
        branch_table = target.branch_table(name) if name in target.tables else source.branch_table(name)
        brought = schemas.brought.get(branch_table.table.table_id)
        schema = branch_table.schema if brought is None else brought.schema
        if not schema.dropped:
            yield name.lower(), schema
