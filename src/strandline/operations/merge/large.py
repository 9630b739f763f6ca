"""A large merge: the same commit with two parents, by an operation.

It holds the tables that it writes and all that it is judged by, as a large load does: from then on their mutations
wait, and so do other merges into the branch. Then it is planned once more. So what it was judged by is there when it is
published. Its rows never pass through the ledger: Spark appends them, behind what was in the tables' tails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from strandline.engines.spark import stage as spark_stage
from strandline.errors import Conflict, Damaged, TableMoved
from strandline.failpoints import fail
from strandline.ledger.changes.mutations import Held, Mutation, TableChange, merging_into, touched
from strandline.ledger.history.commits import WriteCommit
from strandline.ledger.history.merges import TakeMerge
from strandline.ledger.ledger import Connection
from strandline.ledger.publish import leases
from strandline.ledger.publish.publishing import Effects
from strandline.ledger.rows import reservations
from strandline.ledger.tables.tables import branch_id, read_branch_tables_of
from strandline.model.history.commits import MERGE
from strandline.model.schema.declarations import Declarations
from strandline.model.tables import BatchRef, BranchTable, Payload
from strandline.operations.core.context import Context
from strandline.operations.core.steps import Coverage, RunningOperation
from strandline.operations.load.keyed_large import StagedTable, passed_over, staged_moves
from strandline.operations.maintain.flush import scope_of
from strandline.operations.maintain.stage_tail import (
    MAX_FILE_ROWS,
    SeqFiles,
    StagedRows,
    append,
    columns_ddl,
    prepare_branch,
    stage_tail,
)
from strandline.views.tail import stamped
from strandline.views.view import log_schema


@dataclass(frozen=True)
class Planned:
    """What a merge comes to, and the tables that it may write, by id and under the schemas that it brings."""

    mutation: Mutation
    branch_tables: Mapping[str, BranchTable]


@dataclass
class MergeTables:
    """The operation. `first` is what it came to when nothing was held; `plan` looks again."""

    branch: str
    actor: str
    first: Mutation
    plan: Callable[[], Planned | None]
    kind: str = MERGE

    def cover(self, conn: Connection) -> Coverage:
        """The tables that it depends on or writes, and all that these are joined to; Held while another one merges."""
        on_branch = branch_id(conn, self.branch)
        if merging_into(conn, on_branch):
            raise Held(self.branch)
        branch_tables = {
            branch_table.table.table_id: branch_table
            for branch_table in read_branch_tables_of(conn, on_branch)
            if branch_table.table.key
        }
        written = [change.append.table_id for change in self.first.changes]
        met = {*written, *(read.table_id for read in self.first.reads)}
        met |= Declarations.of(on_branch, 0, branch_tables.values()).joined(met).keys()
        return Coverage(
            on_branch, tuple(scope_of(branch_tables[table_id]) for table_id in sorted(met & branch_tables.keys()))
        )

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Hold the tables, plan, and append what is written to every table's log."""
        self._hold(ctx, running)
        ctx.report("planning the merge", 0, None)
        planned = self.plan()
        if planned is None or not planned.mutation.changes:
            raise _moved()
        mutation = planned.mutation
        met = {change.append.table_id for change in mutation.changes} | {read.table_id for read in mutation.reads}
        # A table that the second plan depends on and that is not held could change until the publish.
        if not met <= {scope.table_id for scope in running.intent.scopes}:
            raise _moved()
        first_seqs, at_us = self._number(ctx, running, mutation.changes)
        ctx.staging.create(running.op_id)
        # What the target had before has not seen the schemas that come; what the merge writes has.
        branch_tables = {
            table_id: branch_table.under(branch_table.schema.numbered(min(first_seqs)))
            for table_id, branch_table in planned.branch_tables.items()
        }
        staged = [
            self._write(ctx, change, branch_tables[change.append.table_id], seq, running.op_id, at_us)
            for change, seq in zip(mutation.changes, first_seqs, strict=True)
        ]
        return self._effects(mutation, staged, min(first_seqs))

    def _hold(self, ctx: Context, running: RunningOperation) -> None:
        """From here on mutations of these tables wait; which seqs it needs is not known yet."""
        with ctx.ledger.write() as txn:
            leases.check(txn.conn, running.op_id, running.fences)
            for scope in running.intent.scopes:
                reservations.reserve(txn, running.op_id, scope.branch_id, scope.table_id, 0)
            fail("reserve.before_commit")
        fail("reserve.after_commit")

    def _number(self, ctx: Context, running: RunningOperation, changes: Sequence[TableChange]) -> tuple[list[int], int]:
        """Take the seqs of all rows."""
        with ctx.ledger.write() as txn:
            leases.check(txn.conn, running.op_id, running.fences)
            first_seqs = [
                reservations.number(txn, running.op_id, change.append.table_id, change.append.rows)
                for change in changes
            ]
            fail("reserve.before_commit")
        fail("reserve.after_commit")
        return first_seqs, txn.at_us

    def _write(
        self, ctx: Context, change: TableChange, branch_table: BranchTable, first_seq: int, op_id: str, at_us: int
    ) -> StagedTable:
        rows = change.append.rows
        staged = StagedTable(branch_table, StagedRows(None), rows, 0)
        prepare_branch(ctx, branch_table, op_id)
        if branch_table.tail:
            staged.tail = stage_tail(ctx, branch_table, branch_table.tail, op_id)
        ctx.report(f"merging {branch_table.table.name}", 0, rows)
        fail("stage.before_files")
        with SeqFiles(
            ctx, op_id, log_schema(branch_table.stored), MAX_FILE_ROWS, f"merged-{branch_table.table.table_id}"
        ) as files:
            for batch in _numbered(change, branch_table, first_seq, at_us):
                files.write(batch)
        fail("stage.after_files")
        frame = spark_stage.read_stamped(ctx.iceberg().session, columns_ddl(branch_table.stored), files.paths)
        staged.add(*append(ctx, branch_table, frame, op_id))
        stored = sum(file.rows for file in staged.files)
        if stored != rows:
            raise Damaged(f"{rows} merged rows were staged, and Spark wrote {stored}", operation=op_id)
        return staged

    def _effects(self, mutation: Mutation, staged: Sequence[StagedTable], first_seq: int) -> Effects:
        assert mutation.source is not None, "a merge has a source"
        rows = {change.append.table: change.append.rows for change in mutation.changes}
        tables = {**touched(mutation.source), **rows}
        return (
            *staged_moves(staged),
            WriteCommit(self.kind, mutation.message, tables, mutation.commit_id, merged=mutation.source.tip),
            TakeMerge.of(mutation, first_seq),
            *passed_over(staged),
        )


def _moved() -> Conflict:
    return TableMoved("a branch was changed while it was merged", hint="Try again.")


def _numbered(change: TableChange, branch_table: BranchTable, first_seq: int, at_us: int) -> Iterator[pa.RecordBatch]:
    """The merged rows as the log holds them: they were encoded under the schema that the merge brings."""
    version = branch_table.head.schema_version
    log = replace(branch_table.stored, schemas={**branch_table.schemas, version: branch_table.schema})
    for batch in change.append.batches:
        last_seq = first_seq + batch.rows - 1
        ref = BatchRef(
            batch.batch_id,
            first_seq,
            last_seq,
            batch.rows,
            len(batch.payload),
            version,
            change.append.actor,
            at_us,
            change.append.commit_id,
        )
        yield stamped(Payload(ref, batch.payload, batch.checksum), log)
        first_seq = last_seq + 1
