"""The schemas of tables in a merge: what each becomes, and what the two sides disagree on.

A schema that one side alone has changed is taken; of two that were changed in different columns both changes are. A
table that one side dropped is gone if the other has left it alone. Everything else is a conflict that somebody decides
for one side: its schema is the table's then, and all rows are merged under that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.ledger.history import Graph
from strandline.ledger.mutations import Brought
from strandline.model.commits import Commit
from strandline.model.constraints import Reference
from strandline.model.merge import Resolution, RowConflict, Side, key_text
from strandline.model.schema import Schema
from strandline.model.schema_merge import merge_schemas
from strandline.model.tables import TableState
from strandline.views.past import version_at
from strandline.views.view import View

KIND = "divergent_schema"


@dataclass
class Schemas:
    """What comes of the tables' schemas.

    `wanted` are those that rows are merged under, and `brought` what the target does not have yet; both by table id.
    The rows of tables in `settled` are not merged: there is none, or one side's are taken as they are. `disputed` are
    those that a resolution may decide on.
    """

    wanted: dict[str, Schema] = field(default_factory=dict)
    brought: dict[str, Brought] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    disputed: set[str] = field(default_factory=set)
    conflicts: list[RowConflict] = field(default_factory=list)

    def take_over(self, source: View, names: Collection[str]) -> None:
        """Of tables that are taken over whole, the rows are the source's, and the schema with them."""
        for state in map(source.state, names):
            if state.table.table_id in self.brought:
                taken = Brought(state.table.name, state.schema, state.head.schema_version)
                self.brought[state.table.table_id] = taken


@dataclass(frozen=True)
class Line:
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
        return any(one.seq == number for one in self.kept)

    def is_touched(self, table: str) -> bool:
        """Whether the target has changed a table since, in whatever way."""
        return any(table in one.tables for one in self.kept)

    def base(self, state: TableState) -> Schema | None:
        """What both began with; None where that is not one thing."""
        found = {version_at(self.graph, state, one) for one in self.bases}
        number = found.pop() if len(found) == 1 else None
        return state.schemas[number] if number is not None else None


def merged_schemas(line: Line, source: View, target: View, names: Collection[str], resolution: Resolution) -> Schemas:
    """What becomes of these tables, which the source has changed; views with dropped tables too."""
    found = Schemas()
    for name in names:
        if name in target.tables:
            _merge(found, line, source.state(name), target.state(name), resolution)
        elif source.state(name).is_dropped:
            found.settled.add(name)
    _keep_targets(found, source, target, names, resolution)
    return found


def _merge(found: Schemas, line: Line, theirs: TableState, ours: TableState, resolution: Resolution) -> None:
    name, table_id = ours.table.name, ours.table.table_id
    found.wanted[table_id] = ours.schema
    if ours.is_dropped or theirs.is_dropped or ours.schema.began != theirs.schema.began:
        found.settled.add(name)
        if not (ours.is_dropped and theirs.is_dropped):
            _drop(found, line, theirs, ours, resolution)
        return
    if line.has(theirs.head.schema_version):
        return
    if theirs.schema.says_the_same(ours.schema):
        # Who looks back at the merge takes the newest version that it reaches: that must be one of the target's own.
        if theirs.schema != ours.schema and theirs.head.schema_version > ours.head.schema_version:
            _bring(found, ours, ours.schema)
        return
    if not line.is_ours(ours.head.schema_version):
        _bring(found, ours, theirs.schema, theirs.head.schema_version)
        return
    base = line.base(theirs)
    both = merge_schemas(base, ours.schema, theirs.schema) if base is not None else None
    side = _decided(found, name, resolution) if both is None else None
    if both is not None or side is not None:
        _bring(found, ours, both or (ours if side == "ours" else theirs).schema)
    else:
        found.conflicts.append(_conflict(ours, theirs))


def _drop(found: Schemas, line: Line, theirs: TableState, ours: TableState, resolution: Resolution) -> None:
    """One side has dropped the table, or added it again; the source has changed it, by that or otherwise."""
    name = ours.table.name
    is_touched = line.is_touched(name)
    side = _later(ours, theirs) if is_touched else "theirs"
    side = side or _decided(found, name, resolution)
    if side is None or (side == "theirs" and _shows_both(ours, theirs)):
        found.conflicts.append(_conflict(ours, theirs))
    elif side == "ours":
        _bring(found, ours, ours.schema)
    else:
        _bring(found, ours, theirs.schema, None if is_touched else theirs.head.schema_version)
    if side == "theirs" and not theirs.is_dropped:
        found.settled.discard(name)  # it comes back, with what the source has made of it


def _shows_both(ours: TableState, theirs: TableState) -> bool:
    """Whether rows of the target would be shown among those of the source's table, which is another one by that name.

    Which rows are a table's is said by the seq at which it was added again.
    """
    if theirs.is_dropped or ours.schema.began == theirs.schema.began:
        return False
    return ours.schema.began > theirs.schema.began or ours.head.last_seq > theirs.schema.began


def _later(ours: TableState, theirs: TableState) -> Side | None:
    """The side that has added a table again which the other has dropped: it has dropped it too."""
    if ours.is_dropped and theirs.schema.began > ours.schema.began:
        return "theirs"
    return "ours" if theirs.is_dropped and ours.schema.began > theirs.schema.began else None


def _bring(found: Schemas, ours: TableState, schema: Schema, version: int | None = None) -> None:
    """Without a version it is a new one, the merge's: so who looks back at the merge finds what was decided there.

    So it is where the target's rows are others than the source's: which of them have a default is the target's affair.
    """
    brought = schema.along(ours.schema)
    version = version if brought == schema else None
    found.brought[ours.table.table_id] = Brought(ours.table.name, brought, version)
    found.wanted[ours.table.table_id] = schema


def _decided(found: Schemas, name: str, resolution: Resolution) -> Side | None:
    found.disputed.add(name)
    said = resolution.rows.get((name, key_text({})))
    return said if isinstance(said, str) else resolution.side_of(name)


def _conflict(ours: TableState, theirs: TableState) -> RowConflict:
    fields = {one.declared for one in ours.schema.columns} ^ {one.declared for one in theirs.schema.columns}
    return RowConflict(
        KIND,
        ours.table.name,
        {},
        tuple(sorted({column.name for column in fields})),
        None,
        None if ours.is_dropped else ours.schema.to_json(),
        None if theirs.is_dropped else theirs.schema.to_json(),
    )


def _keep_targets(found: Schemas, source: View, target: View, names: Collection[str], resolution: Resolution) -> None:
    """Nothing may refer to a table that is not there after the merge: one side dropped it, the other refers to it.

    The target's side keeps the table that the merge would drop, or the rules that it would replace.
    """
    for name, rule in list(_dangling(dict(_after(found, source, target, names)))):
        known = {one.lower(): target.state(one) for one in target.tables}
        both = [known[one] for one in (rule.table.lower(), name) if one in known]
        changed = [one for one in both if one.table.table_id in found.brought]
        if {rule.table.lower(), name} & {one.table.lower() for one in found.conflicts}:
            continue
        if changed and _decided(found, changed[0].table.name, resolution) == "ours":
            _bring(found, changed[0], changed[0].schema)
        else:
            found.conflicts.append(RowConflict(KIND, name, {}, rule.columns, None, None, {"rule": rule.text()}))


def _dangling(after: Mapping[str, Schema]) -> Iterator[tuple[str, Reference]]:
    for name, schema in after.items():
        for one in schema.constraints:
            if isinstance(one, Reference) and one.table.lower() not in after:
                yield name, one


def _after(found: Schemas, source: View, target: View, names: Collection[str]) -> Iterator[tuple[str, Schema]]:
    """The tables that are shown after the merge, by folded name, with their schemas."""
    for name in {*target.tables, *names}:
        state = target.state(name) if name in target.tables else source.state(name)
        brought = found.brought.get(state.table.table_id)
        schema = state.schema if brought is None else brought.schema
        if not schema.dropped:
            yield name.lower(), schema
