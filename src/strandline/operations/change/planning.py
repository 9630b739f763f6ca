"""What a mutation comes to on the rows that are there: their new versions, and what that depends on.

Nothing is written here. The plan holds only while nothing that it depends on is written by others; the transaction that
stores it looks once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from strandline.errors import (
    Conflict,
    KeyExists,
    NotFound,
    SchemaMoved,
    TooLarge,
)
from strandline.ledger.changes.mutations import (
    Mutation,
    TableChange,
    TableRead,
    other_seq,
    other_tip,
)
from strandline.ledger.rows.appends import Append
from strandline.ledger.rows.encode import encode_batch
from strandline.model.ids import new_id
from strandline.model.reporting import and_more, most_reported
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.types import REMOVED
from strandline.model.tables import BranchTable
from strandline.model.values.arrow import batch_arrow
from strandline.model.values.row_versions import Row, Version
from strandline.operations.change.statements import KeyChange, MutationRequest
from strandline.rules.cascades import Cascades
from strandline.rules.changes import Changes, Claims, JudgedRow, column_of
from strandline.rules.rows import judge
from strandline.views.branch_rows import Looking

MOST_ROWS = 500_000
"""How many rows one commit of the ledger alone may change: they are in memory, one by one."""


def plan(request: MutationRequest, look: Looking, declared: Declarations) -> Mutation:
    """What a request comes to on what is there: the new version of each row, and what that depends on."""
    base = look.base
    for branch_table, _ in request.tables(declared):
        if branch_table.head.branch_id != base.branch_id or branch_table.table.table_id not in declared.branch_tables:
            raise SchemaMoved(f"branch {request.branch!r} was made anew")
    # First: a caller that was overtaken is told so, and not what its statements would break on newer rows.
    _check_expectations(request, look, declared)
    relied = Claims()
    changes = apply_statements(request, look, declared, relied)
    for branch_table in request.whole:
        _delete_others(branch_table, changes, look, declared)
    claims = judge(declared, changes, look, relied)
    commit_id = new_id()
    written: dict[str, list[JudgedRow]] = {}
    for change in changes.values():
        if change.after is not None or change.before is not None:  # else it is as if nothing had been asked
            written.setdefault(change.branch_table.table.table_id, []).append(change)
    return Mutation(
        commit_id=commit_id,
        branch=request.branch,
        branch_id=base.branch_id,
        base=base.number,
        kind=request.kind,
        actor=request.actor,
        message=request.message,
        changes=tuple(
            table_change(rows, request.actor, commit_id, list(claims.writes.get(table_id, ())))
            for table_id, rows in written.items()
        ),
        reads=tuple(_reads(request, look, declared, claims)),
        shape=declared.shape,
        remember=request.remember,
        tip=request.tip,
        last_seqs=request.last_seqs,
    )


def apply_statements(request: MutationRequest, look: Looking, declared: Declarations, relied: Claims) -> Changes:
    """Every row that the statements change, as it was and is after the last; a delete takes what refers to it along."""
    changes: Changes = {}
    taken: list[tuple[KeyChange, Version | None]] = []
    cascades = Cascades(declared, changes, look, relied)
    deletes = [change for change in request.changes if change.kind == "delete"]
    deletes = [change for change in deletes if declared.cascades(change.branch_table.table.table_id)]
    # Looked up for all deletes at once: `follow` alone would read the referring tables once for each.
    cascades.expect(JudgedRow(change.branch_table, change.hash, change.key, None, None) for change in deletes)
    for change in request.changes:
        at = change.branch_table.table.table_id, change.hash
        version = look.get(*at)
        row_change = changes.get(at)
        if row_change is None:
            before = _row(version)
            row_change = changes[at] = JudgedRow(change.branch_table, change.hash, change.key, before, before)
        if change.kind == "insert" and row_change.after is not None:
            taken.append((change, version))
        else:
            was_there = row_change.after is not None
            row_change.place, row_change.after = change.place, _applied(change, row_change.after)
            if deletes:
                cascades.note(row_change)
            # What refers to a row that is not there was put by this mutation, for a row that is yet to come.
            if change.kind == "delete" and was_there:
                cascades.follow(row_change)
    if taken:
        raise _key_exists(taken)
    return changes


def _applied(change: KeyChange, before: Row | None) -> Row | None:
    """A row after a statement; None where it is not there."""
    if change.kind == "delete":
        return None
    assert change.fields is not None
    if change.kind != "patch":
        return change.fields
    if before is None:
        raise NotFound(
            f"statement {change.place} changes {change.name}, which is not there",
            hint="Put the row, or look at what there is.",
            table=change.branch_table.table.name,
        )
    return {**before, **change.fields}


def _key_exists(taken: Sequence[tuple[KeyChange, Version | None]]) -> Conflict:
    """The error of inserts whose keys are there, before them or by them."""
    first, version = taken[0]
    return KeyExists(
        f"{first.name} can't be inserted: it is there already{and_more(len(taken))}",
        hint="Use put to replace a row, or patch to change some of its fields.",
        expected=None,
        actual=version.seq if version is not None else None,
        rows=[{"index": change.place, "row": change.name} for change, _ in taken[: most_reported()]],
        count=len(taken),
    )


def _delete_others(branch_table: BranchTable, changes: Changes, look: Looking, declared: Declarations) -> None:
    """Delete every row of a table that is not put."""
    table_id = branch_table.table.table_id
    # A row that comes in after this look is under no hash of ours; `_reads` has the table's newest seq stand for it.
    others = [
        row for row in look.having(branch_table, branch_table.table.key, None) if (table_id, row.hash) not in changes
    ]
    if len(others) > MOST_ROWS:
        message = f"{len(others)} rows of {branch_table.table.name!r} would be deleted at once"
        raise TooLarge(message, hint=f"At most {MOST_ROWS} are.")
    if declared.depends(table_id):
        look.ask(branch_table, {row.hash: row.key for row in others})
    for row in others:
        # Where no rule goes by its values, a delete needs the key alone.
        before = _row(look.get(table_id, row.hash)) if declared.depends(table_id) else row.key
        changes[table_id, row.hash] = JudgedRow(branch_table, row.hash, row.key, before, None)


def _reads(request: MutationRequest, look: Looking, declared: Declarations, relied: Claims) -> Iterator[TableRead]:
    """What was asked for on the way: keys and claims, or all of a table."""
    whole = {branch_table.table.table_id for branch_table in request.whole}
    for table_id in {**look.asked, **relied.reads}:
        head = look.heads[table_id]
        name, claims = declared.branch_tables[table_id].table.name, list(relied.reads.get(table_id, ()))
        if table_id in whole:
            yield TableRead(name, table_id, head.barrier, (), claims, whole=head.last_seq)
        else:
            keys = list(look.asked.get(table_id, ()))
            yield TableRead(name, table_id, head.barrier, keys, claims, last_seq=head.last_seq)


def _row(version: Version | None) -> Row | None:
    return version.row if version is not None else None


def table_change(rows: Sequence[JudgedRow], actor: str, commit_id: str, claims: Sequence[bytes]) -> TableChange:
    """The new versions of a table's rows, as a batch; a row that is gone leaves its key alone."""
    branch_table = rows[0].branch_table
    shape = batch_arrow(branch_table.schema, branch_table.table)
    written = [change.key if change.after is None else change.after for change in rows]
    deleted = pa.array([change.after is None for change in rows])
    arrays = [deleted if column.name == REMOVED else column_of(written, column) for column in shape]
    batches = encode_batch(pa.RecordBatch.from_arrays(arrays, schema=shape), branch_table.table)
    append = Append.of(branch_table, actor, batches, commit_id=commit_id)
    return TableChange(append, [change.hash for change in rows], claims)


def _check_expectations(request: MutationRequest, look: Looking, declared: Declarations) -> None:
    """Raise Conflict where something is not as the caller expects it. The transaction looks once more."""
    base = look.base
    error = other_tip(request.branch, request.tip, base.tip)
    for branch_table, _ in request.tables(declared):
        table_id = branch_table.table.table_id
        error = error or other_seq(
            branch_table.table.name, request.last_seqs.get(table_id), base.heads[table_id].last_seq
        )
    if error is not None:
        raise error
    for change, seq in request.rows:
        _expect_row(change, seq, look)


def _expect_row(change: KeyChange, seq: int | None, look: Looking) -> None:
    version = look.get(change.branch_table.table.table_id, change.hash)
    actual = version.seq if version is not None and version.row is not None else None
    if actual != seq:
        raise Conflict(
            f"{change.name} " + ("is not there" if actual is None else f"has seq {actual}") + f", expected {seq}",
            kind="row_moved",
            hint="Read the row again, and decide again.",
            expected=seq,
            actual=actual,
        )
