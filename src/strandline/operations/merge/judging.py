"""Whether merged rows keep the rules of their tables; what breaks one is a conflict.

Nothing cascades in a merge. What a side's delete took with it is among that side's changes; a row of the other side
that refers to the deleted one is a person's to delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from strandline.ledger.history.starting_points import Base
from strandline.ledger.tables.adoption import Adoption
from strandline.model.history.merge import Resolution, RowConflict, key_text
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.keys import key_hash
from strandline.model.schema.types import REMOVED
from strandline.model.tables import BranchTable
from strandline.model.values.row_versions import ValueHolder
from strandline.model.values.wire import to_json_lines
from strandline.operations.merge.rows import TableMerge
from strandline.operations.merge.schemas import MergedSchemas
from strandline.rules.changes import Changes, Claims, JudgedRow, key_row
from strandline.rules.kinds import conflict_kind
from strandline.rules.rows import examine
from strandline.views.branch_rows import Looking
from strandline.views.versions import row_at


@dataclass
class MergePlan:
    """What a merge comes to, on two branches as they were looked at.

    `coming` are tables that the target does not have yet and that refer to others or are referred to, with their rows;
    `seen` are those of the target all of whose rows were looked at. `given_up` are rows of the target that a person has
    decided to delete, because what they refer to goes.
    """

    base: Base
    source_id: str
    source_tip: str
    declared: Declarations
    is_ahead: bool = False
    tables: list[TableMerge] = field(default_factory=list)
    adopted: list[Adoption] = field(default_factory=list)
    schemas: MergedSchemas = field(default_factory=MergedSchemas)
    coming: list[tuple[BranchTable, pa.Table]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    given_up: set[tuple[str, str]] = field(default_factory=set)
    conflicts: list[RowConflict] = field(default_factory=list)
    barriers: dict[str, int] = field(default_factory=dict)


def examined(plan: MergePlan, look: Looking, resolution: Resolution) -> tuple[Claims, Changes | None]:
    """Judge the merged rows, if any of the tables declares anything; what breaks a rule is added to the conflicts."""
    declared = plan.declared
    if plan.schemas.brought or plan.coming:
        others = [*(table.branch_table for table in plan.tables), *(branch_table for branch_table, _ in plan.coming)]
        gone = [table_id for table_id, brought in plan.schemas.brought.items() if brought.schema.dropped]
        branch_tables = dict(declared.branch_tables) | {
            branch_table.table.table_id: branch_table for branch_table in others
        }
        branch_tables = {
            table_id: branch_table for table_id, branch_table in branch_tables.items() if table_id not in gone
        }
        declared = Declarations(declared.branch_id, declared.shape, branch_tables)
    ids = [table.branch_table.table.table_id for table in plan.tables if table.written.num_rows]
    ids += [branch_table.table.table_id for branch_table, _ in plan.coming]
    if not any(declared.depends(table_id) or declared.branch_tables[table_id].schema.constraints for table_id in ids):
        return Claims(), None
    changes: Changes = {}
    for table in plan.tables:
        for change in _row_changes(table):
            changes[change.at] = change
    for branch_table, rows in plan.coming:
        for change in _row_changes(TableMerge(branch_table, rows, rows.slice(0, 0), 0)):
            changes[change.at] = change
    judging = examine(declared, changes, look)
    while _give_up(plan, judging.orphaned, changes, look, resolution):
        judging = examine(declared, changes, look)  # what refers to such a row is an orphan now
    undecided = {(conflict.table, key_text(conflict.key)) for conflict in plan.conflicts}
    for breach in judging.breaches:
        violation, branch_table, key = breach.violation, breach.branch_table, key_row(breach.key, breach.branch_table)
        named = _image(key, branch_table) or {}
        at = branch_table.table.table_id, key_hash(breach.key)
        met = changes.get(at)
        if met is None:  # a row of the target that the merge does not write
            if (violation.table, key_text(named)) in undecided:
                continue  # whether it stays is not decided yet
            look.ask(branch_table, {at[1]: key})
            version = look.get(*at)
            current = version.row if version is not None else None
        plan.conflicts.append(
            RowConflict(
                conflict_kind(violation.rule),
                violation.table,
                named,
                tuple(violation.field.split(", ")),
                None,
                _image(met.before if met is not None else current, branch_table),
                _image(met.after if met is not None else None, branch_table),
            )
        )
    return judging.claims, changes


def _give_up(
    plan: MergePlan,
    orphaned: Sequence[tuple[BranchTable, ValueHolder]],
    changes: Changes,
    look: Looking,
    resolution: Resolution,
) -> bool:
    """Delete the target's rows that refer to deleted ones and that a person has decided to let go; whether any was."""
    before = len(plan.given_up)
    for branch_table, row in orphaned:
        at = branch_table.table.table_id, row.hash
        named = branch_table.table.name, key_text(_image(row.key, branch_table) or {})
        decision = resolution.rows.get(named)
        is_gone = decision == "theirs" or (isinstance(decision, Mapping) and decision["row"] is None)
        if not is_gone or at in changes:
            continue
        look.ask(branch_table, {row.hash: row.key})
        version = look.get(*at)
        if version is not None and version.row is not None:
            changes[at] = JudgedRow(branch_table, row.hash, row.key, version.row, None)
            plan.given_up.add(named)
    return len(plan.given_up) > before


def _image(row: Mapping[str, Any] | None, branch_table: BranchTable) -> dict[str, Any] | None:
    if row is None:
        return None
    table = pa.Table.from_arrays(list(row.values()), names=list(row))
    document: dict[str, Any] = orjson.loads(next(iter(to_json_lines(table, branch_table.schema))))
    return document


def _row_changes(table: TableMerge) -> Iterator[JudgedRow]:
    key = list(table.branch_table.table.key)
    columns = [name for name in table.written.schema.names if name != REMOVED]
    before: dict[bytes, Mapping[str, Any]] = {}
    for batch in table.present.to_batches():
        for place, values in enumerate(batch.select(key).to_pylist()):
            before[key_hash(list(values.values()))] = row_at(batch, place, columns)
    for batch in table.written.to_batches():
        for place, values in enumerate(batch.select(key).to_pylist()):
            digest = key_hash(list(values.values()))
            gone = batch.column(REMOVED)[place].as_py()
            after = None if gone else row_at(batch, place, columns)
            yield JudgedRow(table.branch_table, digest, row_at(batch, place, key), before.get(digest), after)
