"""A large load of keyed tables: one commit over all of them, in memory that does not grow with the input.

Its rows are in Parquet files already. The operation holds its tables, and those that refer to them or that they refer
to; it takes its seqs, and from then on mutations of all these tables wait. So what it judges the rows by is what will
be there when they are published: nothing has to be compared then but what the tables declare, and it is never begun
again because of others. A process that dies lets go of all of it by the way that every operation is recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.engines.files import Input, unchanged
from strandline.engines.spark import stage as spark_stage
from strandline.engines.spark.convert import CHUNK, LINE, ConvertedPart
from strandline.engines.spark.stage import NumberedFile
from strandline.errors import Conflict, KeyExists, SchemaMoved
from strandline.failpoints import fail
from strandline.ledger.changes.judged import KeepSchemas
from strandline.ledger.history.commits import WriteCommit
from strandline.ledger.history.starting_points import read_base
from strandline.ledger.ledger import Connection
from strandline.ledger.publish import leases, loads
from strandline.ledger.publish.loads import AdvanceLoad
from strandline.ledger.publish.publishing import Effect, Effects
from strandline.ledger.rows import reservations
from strandline.ledger.rows.appends import IdempotencyKey
from strandline.ledger.rows.idempotency import KeepAnswer
from strandline.ledger.tables.heads import MoveTable, PassOver
from strandline.ledger.tables.tables import is_protected, read_shown, refuse_protected
from strandline.model.ids import new_id
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.engine_types import column_ddl
from strandline.model.schema.keys import shown_key
from strandline.model.schema.types import SEQ
from strandline.model.tables import BranchTable, DataFile
from strandline.model.wording import counted
from strandline.operations.core.context import Context
from strandline.operations.core.steps import Coverage, RunningOperation
from strandline.operations.load.parts import numbered, parts_frame, require_stored
from strandline.operations.load.steps import LinePlace, by_line
from strandline.operations.maintain.flush import scope_of, table_effects
from strandline.operations.maintain.stage_tail import (
    MAX_FILE_ROWS,
    SeqFiles,
    StagedRows,
    append,
    prepare_branch,
    stage_tail,
)
from strandline.rules.rows import refusal
from strandline.views.after_load import Broken, Coming, Incoming, TakenKey
from strandline.views.view import View, log_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS_AT_ONCE = 64
"""So many files become one job of Spark: each is a task, and a part of its plan."""


@dataclass(frozen=True)
class TablesPlan:
    """What a load brings: the files of each table that it is about, by id, under the schemas of these versions.

    `chunks` are the pieces of the input that rows are told by: where each is, and how many lines are before it.
    Either no row may be there (`strict`), or no other row may be left (`whole`), or neither.
    """

    load_id: str
    parts: Mapping[str, Sequence[ConvertedPart]]
    versions: Mapping[str, int]
    chunks: Sequence[LinePlace]
    inputs: Sequence[Input]
    skipped: int
    strict: bool
    whole: bool
    find_load: Callable[[Connection], loads.Load | None]
    remember: IdempotencyKey | None

    def rows(self, table_id: str) -> int:
        """How many rows come to a table."""
        return sum(part.rows for part in self.parts.get(table_id, ()))


@dataclass(frozen=True)
class _Reserved:
    """The seqs of a table's rows, and of those that say which rows go: these come behind, and there are so many."""

    first_seq: int
    removed_from: int
    going: int


@dataclass
class StagedTable:
    """What was written for one table."""

    branch_table: BranchTable
    tail: StagedRows
    puts: int
    goes: int
    first_seq: int | None = None
    last_seq: int = 0
    snapshot: int | None = None
    files: tuple[DataFile, ...] = ()

    def add(self, snapshot: int, files: tuple[DataFile, ...]) -> None:
        """Some of its rows are on the private branch."""
        self.snapshot, self.files = snapshot, (*self.files, *files)
        self.first_seq = min(file.first_seq for file in self.files)
        self.last_seq = max(file.last_seq for file in self.files)


@dataclass
class LoadTables:
    """The operation."""

    branch: str
    actor: str
    plan: TablesPlan
    kind: str = "load"
    commit_id: str = field(default_factory=new_id)

    def cover(self, conn: Connection) -> Coverage | None:
        """The tables that it writes, and all that these are joined to.

        Nothing, if another process has done it meanwhile.
        """
        pending = self.plan.find_load(conn)
        if pending is None or pending.load_id != self.plan.load_id:
            return None
        declared = self._declared(conn)
        refuse_protected(self.branch, protected=is_protected(conn, declared.branch_id))
        scopes = [scope_of(declared.branch_tables[table_id]) for table_id in declared.joined(self.plan.parts)]
        return Coverage(declared.branch_id, tuple(scopes))

    def _declared(self, conn: Connection) -> Declarations:
        base = read_base(conn, self.branch, [])
        declared = Declarations.of(base.branch_id, base.shape, read_shown(conn, self.branch))
        for table_id, version in self.plan.versions.items():
            branch_table = declared.branch_tables.get(table_id)
            if branch_table is None or branch_table.head.schema_version != version:
                raise _moved()
        return declared

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Reserve, judge, and append what counts to every table's log."""
        declared, reserved, at_us = self._reserve(ctx, running)
        ctx.staging.create(running.op_id)
        view = View(ctx.ledger, self.branch, ctx.iceberg, grace_s=ctx.grace_s)
        with view.held(), Coming(view, declared, self._incoming(declared, reserved)) as coming:
            ctx.report("judging the rows", 0, None)
            coming.find()
            self._refuse_taken(declared, coming, reserved)
            self._refuse_broken(coming, reserved)
            staged = []
            for table_id in sorted(self.plan.parts):
                puts, goes = coming.puts(table_id), coming.goes(table_id)
                if puts or goes:
                    table = StagedTable(declared.branch_tables[table_id], StagedRows(None), puts, goes)
                    staged.append(self._write(ctx, coming, table, reserved[table_id], running.op_id, at_us))
        unchanged(self.plan.inputs)
        return self._effects(declared, staged)

    def _reserve(self, ctx: Context, running: RunningOperation) -> tuple[Declarations, dict[str, _Reserved], int]:
        """Take the seqs of all tables; the tails of those that come back are exactly what lies below.

        Of the rows that may go there are at most as many as there are versions.
        """
        reserved: dict[str, _Reserved] = {}
        with ctx.ledger.write() as txn:
            leases.check(txn.conn, running.op_id, running.fences)
            declared = self._declared(txn.conn)
            if {*declared.joined(self.plan.parts)} != {scope.table_id for scope in running.intent.scopes}:
                raise _moved()
            for scope in running.intent.scopes:
                branch_table, rows = declared.branch_tables[scope.table_id], self.plan.rows(scope.table_id)
                loses = self.plan.whole and scope.table_id in self.plan.parts
                going = branch_table.head.books.log + sum(ref.rows for ref in branch_table.tail) if loses else 0
                first = reservations.reserve(txn, running.op_id, scope.branch_id, scope.table_id, rows + going)
                reserved[scope.table_id] = _Reserved(first, first + rows, going)
            fail("reserve.before_commit")
        fail("reserve.after_commit")
        return declared, reserved, txn.at_us

    def _incoming(self, declared: Declarations, reserved: Mapping[str, _Reserved]) -> dict[str, Incoming]:
        return {
            table_id: Incoming(
                declared.branch_tables[table_id],
                [(file.path, file.first_seq) for file in numbered(parts, reserved[table_id].first_seq)],
                self.plan.rows(table_id),
                self.plan.whole,
            )
            for table_id, parts in self.plan.parts.items()
        }

    # -- what is refused -----------------------------------------------------------------------------------------------

    def _refuse_taken(self, declared: Declarations, coming: Coming, reserved: Mapping[str, _Reserved]) -> None:
        """Conflict where keys that are to be inserted are there."""
        if not self.plan.strict:
            return
        taken: list[tuple[str, TakenKey]] = []
        count = 0
        for table_id in self.plan.parts:
            listed, more = coming.taken(table_id)
            taken += [(table_id, insert) for insert in listed]
            count += more
        if not taken:
            return
        rows = [
            {
                **self._place(coming, reserved, table_id, insert.seq),
                "row": _named(declared.branch_tables[table_id], insert.key),
            }
            for table_id, insert in taken
        ]
        error = KeyExists(
            "keys are there already",
            expected=None,
            actual=taken[0][1].seq_before,
            rows=rows,
            count=count,
        )
        raise by_line(error, {"rows": rows}, self.plan.inputs)

    def _refuse_broken(self, coming: Coming, reserved: Mapping[str, _Reserved]) -> None:
        broken = coming.broken()
        if not broken.count:
            return
        only_rows = all(breach.only_row for breach in broken.first)
        error = refusal([breach.violation for breach in broken.first], broken.count, only_rows=only_rows)
        places = list(self._places(coming, reserved, broken.first))
        listed: dict[str, list[dict[str, Any]]] = {
            name: [{**entry, **place} for entry, place in zip(error.detail[name], places, strict=False)]
            for name in ("violations", "rows")
            if name in error.detail
        }
        raise by_line(error, listed, self.plan.inputs)

    def _places(
        self, coming: Coming, reserved: Mapping[str, _Reserved], broken: Sequence[Broken]
    ) -> Iterator[dict[str, Any]]:
        for breach in broken:
            yield {} if breach.at is None else self._place(coming, reserved, *breach.at)

    def _place(self, coming: Coming, reserved: Mapping[str, _Reserved], table_id: str, seq: int) -> dict[str, Any]:
        """The file and the line of a row that comes."""
        parts = self.plan.parts[table_id]
        for part, file in zip(parts, numbered(parts, reserved[table_id].first_seq), strict=True):
            if file.first_seq <= seq < file.first_seq + part.rows:
                chunk, line = part.chunk, seq - file.first_seq
                if chunk is None:
                    chunk, line = coming.place(table_id, seq, [CHUNK, LINE])
                return self.plan.chunks[chunk].of({"index": line})
        raise AssertionError(f"no part of the load has seq {seq}")

    # -- what is written -----------------------------------------------------------------------------------------------

    def _write(
        self, ctx: Context, coming: Coming, staged: StagedTable, reserved: _Reserved, op_id: str, at_us: int
    ) -> StagedTable:
        branch_table = staged.branch_table
        assert staged.goes <= reserved.going, f"{staged.goes} rows go, and {reserved.going} seqs were reserved for them"
        prepare_branch(ctx, branch_table, op_id)
        if branch_table.tail:
            staged.tail = stage_tail(ctx, branch_table, branch_table.tail, op_id)
        fail("stage.before_files")
        removed = self._removed(ctx, coming, branch_table, reserved, op_id) if staged.goes else []
        fail("stage.after_files")
        parts = self.plan.parts.get(branch_table.table.table_id, ())
        files = numbered(parts, reserved.first_seq)
        for start in range(0, len(parts) if staged.puts else 0, PARTS_AT_ONCE):
            ctx.report(f"loading {branch_table.table.name}", sum(file.rows for file in staged.files), staged.puts)
            span = slice(start, start + PARTS_AT_ONCE)
            offered = sum(part.rows for part in parts[span])
            left_out, count = self._left_out(ctx, coming, branch_table, files[start].first_seq, offered, op_id)
            if count < offered:
                staged.add(
                    *append(ctx, branch_table, self._put(ctx, branch_table, files[span], left_out, at_us), op_id)
                )
        if removed:
            staged.add(*append(ctx, branch_table, self._gone(ctx, branch_table, removed, at_us), op_id))
        stored = sum(file.rows for file in staged.files)
        require_stored(stored, staged.puts + staged.goes, "versions should have been written")
        return staged

    def _left_out(
        self, ctx: Context, coming: Coming, branch_table: BranchTable, first_seq: int, rows: int, op_id: str
    ) -> tuple[str | None, int]:
        """The seqs of those of so many rows that don't count, as one file of the operation's folder; and how many."""
        table_id, seqs = branch_table.table.table_id, pa.schema([pa.field(SEQ, pa.int64())])
        batches = coming.left_out(table_id, first_seq, first_seq + rows - 1)
        with SeqFiles(ctx, op_id, seqs, rows + 1, f"left-{table_id}-{first_seq}") as files:
            for batch in batches:
                files.write(batch.cast(seqs))
        return next(iter(files.paths), None), files.rows

    def _removed(
        self, ctx: Context, coming: Coming, branch_table: BranchTable, reserved: _Reserved, op_id: str
    ) -> list[str]:
        """The keys of the rows that go, as files of the operation's folder."""
        shape = log_schema(branch_table.stored)
        names = [*(branch_table.schema.column(name).stored for name in branch_table.table.key), SEQ]
        keys = pa.schema([shape.field(name) for name in names])
        with SeqFiles(ctx, op_id, keys, MAX_FILE_ROWS, f"gone-{branch_table.table.table_id}") as files:
            for batch in coming.removed(branch_table.table.table_id, reserved.removed_from):
                files.write(batch.cast(keys))
        return files.paths

    def _put(
        self, ctx: Context, branch_table: BranchTable, files: Sequence[NumberedFile], left_out: str | None, at_us: int
    ) -> DataFrame:
        version = branch_table.head.schema_version
        rows = parts_frame(ctx, branch_table, version, files, at_us=at_us, actor=self.actor, without=left_out)
        return spark_stage.as_versions(rows, self.commit_id, removed=False)

    def _gone(self, ctx: Context, branch_table: BranchTable, paths: Sequence[str], at_us: int) -> DataFrame:
        stored = branch_table.stored
        names = {*(branch_table.schema.column(name).stored for name in branch_table.table.key), SEQ}
        ddl = ", ".join(column_ddl(column) for column in stored.columns if column.name in names)
        rows = spark_stage.read_removed(ctx.iceberg().session, ddl, paths, at_us=at_us, actor=self.actor)
        return spark_stage.as_versions(rows, self.commit_id, removed=True)

    def _effects(self, declared: Declarations, staged: Sequence[StagedTable]) -> Effects:
        rows = sum(table.puts for table in staged)
        tables = {table.branch_table.table.name: table.puts + table.goes for table in staged}
        answer = {
            "rows": rows,
            "duplicates_dropped": sum(self.plan.rows(table_id) for table_id in self.plan.parts) - rows,
            "skipped": self.plan.skipped,
            "deleted": sum(table.goes for table in staged),
            "tables": {table.branch_table.table.name: table.puts for table in staged if table.puts},
            "first_seq": min((table.first_seq for table in staged if table.first_seq is not None), default=None),
            "last_seq": max((table.last_seq for table in staged), default=None),
        }
        written = sorted(self.plan.parts)
        commit = WriteCommit(self.kind, f"load {counted(rows, 'row')}", tables, self.commit_id)
        once = self.plan.remember
        keep = KeepAnswer(once.scope, once.key, once.digest, answer) if once is not None else None
        return (
            KeepSchemas(tuple(written), declared.joined(written)),
            *staged_moves(staged),
            *((commit, *passed_over(staged)) if staged else ()),
            AdvanceLoad(self.plan.load_id, since=0, parts_done=0, finished=True, answer=answer),
            *((keep,) if keep is not None else ()),
        )


def _moved() -> Conflict:
    return SchemaMoved("a table was changed while its rows were read", hint="Try again.")


def staged_moves(written: Iterable[StagedTable]) -> Iterator[Effect]:
    """What publishing them does to the tables, and to their tails, which lie below them."""
    for staged in written:
        tail, versions = staged.tail, staged.puts + staged.goes
        move = replace(
            MoveTable.of(staged.branch_table.head),
            snapshot=staged.snapshot,
            files=(*tail.files, *staged.files),
            rows_added=tail.rows + versions,
            rows_acked=versions,
            rows_dropped=tail.dropped,
            last_seq=staged.last_seq,
            barrier=True,
        )
        last_seqs = {**tail.stream_heads(), **StagedRows(None, staged.files).stream_heads()}
        yield from table_effects(move, last_seqs, tail.batches)


def passed_over(written: Iterable[StagedTable]) -> Iterator[PassOver]:
    """Their rows are known by no hash: behind the commit, this is noted."""
    for staged in written:
        yield PassOver(staged.branch_table.head.branch_id, staged.branch_table.head.table_id)


def _named(branch_table: BranchTable, key: Sequence[Any]) -> str:
    return f"{branch_table.table.name} {shown_key(key)}"
