"""reference: columns that are not null name the key of a row that is there.

A reference breaks from two ends: a changed row names a row that is not there, or a row that is deleted was named by
others. What a reference does at a delete (`cascades`) is done before anything is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from strandline.errors import BadRequest
from strandline.model.schema.constraints import Reference
from strandline.model.schema.declarations import Link
from strandline.model.schema.keys import key_hash
from strandline.model.schema.types import SEQ, type_text
from strandline.model.schema.violations import Violation
from strandline.model.tables import BranchTable
from strandline.model.values.row_versions import ValueHolder
from strandline.rules.changes import JudgedRow, Values, key_row, key_values, values_of
from strandline.rules.kind import (
    Breach,
    Declaration,
    Judging,
    Relations,
    RuleKind,
    all_there,
    is_there,
    joined,
    key_of,
    names,
    own_rows,
    table,
)


def _fit(rule: Reference, declaration: Declaration) -> None:
    target = declaration.target_of(rule.table)
    types = [target.schema.column(name).type for name in target.key]
    if not types:
        raise BadRequest(f"{rule.text()} names a log table", hint="Only a keyed table's rows can be referred to.")
    if [column.type for column in declaration.columns(rule)] != types:
        raise BadRequest(
            f"{rule.text()}: the key of {target.table!r} is "
            f"({', '.join(f'{name}:{type_text(type_)}' for name, type_ in zip(target.key, types, strict=True))})",
            hint="Name as many columns, of the same types and in the same order.",
        )


def _judge_rows(judging: Judging, branch_table: BranchTable, rule: Reference, rows: Sequence[JudgedRow]) -> None:
    """Every reference that is made names a row that is there."""
    links = judging.declared.links_from(branch_table.table.table_id)
    link = next(link for link in links if link.reference == rule)
    made: list[tuple[JudgedRow, Values]] = []
    moved: list[Values] = []
    after = values_of([change.after for change in rows], branch_table, rule.columns)
    before = values_of([change.before for change in rows], branch_table, rule.columns)
    for change, had, has in zip(rows, before, after, strict=True):
        if has != had:
            moved += [value for value in (had, has) if value is not None]
            if has is not None:
                made.append((change, has))
    judging.claims.write(branch_table, "reference", rule.columns, moved)
    present = targets_present(judging, link.target, [value for _, value in made])
    for change, value in made:
        if value not in present:
            reason = f"names no row of {link.target.table.name!r}"
            judging.tell(branch_table, key_values(change.key), rule, value, reason, change.place)


def targets_present(judging: Judging, target: BranchTable, keys: Sequence[Values]) -> set[Values]:
    """Those of these keys under which a row is there after the commit."""
    table_id = target.table.table_id
    hashes = {value: key_hash(value) for value in keys}
    others = {hashes[value]: value for value in hashes if (table_id, hashes[value]) not in judging.changes}
    judging.look.ask(target, {hash_: key_row(value, target) for hash_, value in others.items()})
    return {value for value, hash_ in hashes.items() if _is_present(judging, table_id, hash_)}


def _is_present(judging: Judging, table_id: str, key: bytes) -> bool:
    change = judging.changes.get((table_id, key))
    if change is not None:
        return change.after is not None
    version = judging.look.get(table_id, key)
    return version is not None and version.row is not None


def _judge_orphans(judging: Judging) -> None:
    """Find the rows that refer to deleted ones, and forbid that, whatever their reference does at a delete."""
    gone = [change for change in judging.changes.values() if change.is_deleted]
    for table_id in {change.branch_table.table.table_id: None for change in gone}:
        keys = [key_values(change.key) for change in gone if change.branch_table.table.table_id == table_id]
        for link in judging.declared.links_to(table_id):
            for holder in _referring(judging, link, keys):
                change = judging.changes.get((link.source.table.table_id, holder.hash))
                place = change.place if change is not None else -1
                key = key_values(holder.key)
                judging.orphaned.append((link.source, holder))
                judging.tell(
                    link.source, key, link.reference, holder.value, _left_behind(link.target.table.name), place
                )


def _referring(judging: Judging, link: Link, keys: Sequence[Values]) -> Iterator[ValueHolder]:
    """The rows that refer to these keys, and still do after the commit."""
    columns = link.reference.columns
    judging.claims.read(link.source, "reference", columns, keys)
    for holder in judging.look.having(link.source, columns, keys):
        change = judging.changes.get((link.source.table.table_id, holder.hash))
        if change is None or values_of([change.after], link.source, columns)[0] == holder.value:
            yield holder


def _left_behind(target: str) -> str:
    return f"still refers to a deleted row of {target!r}"


def left_behind(violation: Violation, rule: Reference) -> Violation:
    """The same of a row that was there already: it is the row that it names which has gone."""
    return replace(violation, reason=_left_behind(rule.table))


def _search(relations: Relations, branch_table: BranchTable, rule: Reference) -> Iterator[Breach]:
    others = ""
    if is_there(relations, rule.table):
        target = relations.branch_table(rule.table)
        others = f"ANTI JOIN {table(target)} x ON {joined(rule.columns, target)} "
    query = (
        f"SELECT {names([*key_of(branch_table), *rule.columns], 't.')}, t.{SEQ} FROM {table(branch_table)} t "
        f"{others}WHERE {all_there(rule.columns, 't.')}"
    )
    return own_rows(relations, branch_table, rule, query, f"names no row of {rule.table!r}")


KIND = RuleKind(fit=_fit, search=_search, judge_rows=_judge_rows, judge_commit=_judge_orphans, conflict="orphan_edge")
