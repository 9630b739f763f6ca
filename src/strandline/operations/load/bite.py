"""One bite of a bulk load: reserve seqs, flush what lies below them, append.

Seqs are reserved under the table's lease, shortly before the publish. Rows that are appended meanwhile get higher ones
and wait in the tail, so the log stays in seq order; readers that remember where they stopped stay below the range
until it is published, or has become a gap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.engines.duck import relations, sandbox
from strandline.engines.spark.stage import NumberedFile
from strandline.engines.storage import open_uri
from strandline.failpoints import fail
from strandline.ledger.changes.purged_keys import seen_hashes
from strandline.ledger.history.commits import WriteCommit
from strandline.ledger.ledger import Connection
from strandline.ledger.publish import leases
from strandline.ledger.publish.loads import AdvanceLoad, Part
from strandline.ledger.publish.publishing import Effect, Effects
from strandline.ledger.rows import reservations
from strandline.ledger.rows.idempotency import KeepAnswer
from strandline.ledger.rows.intake import Intake
from strandline.ledger.rows.query_marks import MoveQueryMark
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.heads import MoveTable
from strandline.ledger.tables.tables import read_shown
from strandline.model.operations import KeptAnswer
from strandline.model.tables import BranchTable
from strandline.model.wording import counted
from strandline.operations.core.context import Context
from strandline.operations.core.steps import Coverage, RunningOperation
from strandline.operations.load.parts import numbered, parts_frame, require_stored
from strandline.operations.maintain.flush import scope_of, table_effects
from strandline.operations.maintain.stage_tail import StagedRows, append, prepare_branch, stage_tail
from strandline.views.view import key_scope


@dataclass(frozen=True)
class LoadPlan:
    """Which parts of which load this bite takes, and what the load's answer is so far."""

    load_id: str
    parts: tuple[Part, ...]
    since: int
    last: bool
    answer: KeptAnswer
    scope: str
    key: str
    digest: str
    kind: str
    query_mark: tuple[str, int] | None

    @property
    def schema_version(self) -> int:
        """The schema that the rows of all parts were validated by."""
        (version,) = {part.schema_version for part in self.parts}
        return version

    @property
    def rows(self) -> int:
        """Rows in all parts of the bite."""
        return sum(part.rows for part in self.parts)


@dataclass
class LoadBite:
    """The operation."""

    table: str
    branch: str
    actor: str
    plan: LoadPlan

    @property
    def kind(self) -> str:
        """`load`, or what the load was asked for as."""
        return self.plan.kind

    def cover(self, conn: Connection) -> Coverage | None:
        """The table, always: even a load without rows settles its key."""
        branch_table = read_shown(conn, self.branch, [self.table])[0]
        return Coverage(branch_table.head.branch_id, (scope_of(branch_table),))

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Reserve, flush what is below, append."""
        branch_table, first_seq, at_us = self._reserve(ctx, running)
        tail = StagedRows(None)
        loaded = StagedRows(None)
        if self.plan.rows or branch_table.tail:
            prepare_branch(ctx, branch_table, running.op_id)
        if branch_table.tail:
            tail = stage_tail(ctx, branch_table, branch_table.tail, running.op_id)
        if self.plan.rows:
            loaded = self._append(ctx, branch_table, tail, running.op_id, first_seq, at_us)
        return self._effects(branch_table, tail, loaded, first_seq)

    def _reserve(self, ctx: Context, running: RunningOperation) -> tuple[BranchTable, int, int]:
        """Take the seqs; the tail of the branch table that comes back is exactly what lies below them."""
        with ctx.ledger.write() as txn:
            leases.check(txn.conn, running.op_id, running.fences)
            branch_table = read_shown(txn.conn, self.branch, [self.table])[0]
            head = branch_table.head
            first_seq = reservations.reserve(txn, running.op_id, head.branch_id, head.table_id, self.plan.rows)
            fail("reserve.before_commit")
        fail("reserve.after_commit")
        return branch_table, first_seq, txn.at_us

    def _append(
        self, ctx: Context, branch_table: BranchTable, tail: StagedRows, op_id: str, first_seq: int, at_us: int
    ) -> StagedRows:
        ctx.staging.create(op_id)
        files = numbered(self.plan.parts, first_seq)
        without, dropped, too_old = self._dropped(ctx, branch_table, tail, files, op_id)
        rows = self.plan.rows - dropped - too_old
        if rows == 0:
            return StagedRows(None, dropped=dropped, too_old=too_old)
        version = self.plan.schema_version
        frame = parts_frame(ctx, branch_table, version, files, at_us=at_us, actor=self.actor, without=without)
        snapshot, added = append(ctx, branch_table, frame, op_id)
        stored = sum(file.rows for file in added)
        require_stored(stored, rows, "rows should have been loaded")
        return StagedRows(snapshot, added, rows, dropped, too_old=too_old)

    def _dropped(
        self, ctx: Context, branch_table: BranchTable, tail: StagedRows, files: list[NumberedFile], op_id: str
    ) -> tuple[str | None, int, int]:
        """Rows of the bite whose key is in the log, in the tail below it, or earlier in the bite, and those that are
        past the table's retention: their seqs, as a file; how many are duplicates, and how many too old.
        """
        scope, settings = key_scope(branch_table), branch_table.table.settings
        cutoff_us = Intake(ctx.ledger, branch_table.table).cutoff_us()
        if not scope.row_key and cutoff_us is None:
            return None, 0, 0
        written = branch_table.schemas[self.plan.schema_version]
        times = [settings.time_column] if cutoff_us is not None and settings.time_column in written.names else []
        keys = list(dict.fromkeys([*scope.within, *scope.row_key]))
        names = list(dict.fromkeys([*keys, *times]))
        with ctx.ledger.read() as conn:
            log_files = read_files(
                conn, branch_table.head.branch_id, branch_table.table.table_id, branch_table.head.version
            )
            seen = seen_hashes(conn, branch_table.table.table_id)
        paths = [relations.local_path(file.path) for file in [*log_files, *tail.files]]
        with sandbox.scratch() as connection:
            parts = [relations.numbered(relations.local_path(file.path), names, file.first_seq) for file in files]
            relations.define(connection, "offered", relations.together(parts))
            too_old = relations.split_older(
                connection, "offered", times[0] if times else None, cutoff_us or 0, fresh="loaded", older="too_old"
            )
            duplicates = 0
            if scope.row_key:
                log = relations.parquet(paths, keys) if paths else None
                rows = relations.internal("loaded")
                duplicates = relations.find_duplicates(connection, rows, log, scope, into="duplicates", seen=seen)
            if duplicates + too_old.num_rows == 0:
                return None, 0, 0
            seqs = relations.read_seqs(connection, "duplicates") if scope.row_key else too_old.slice(0, 0)
            seqs = pa.concat_tables([seqs, too_old])
        uri = ctx.staging.uri(op_id, "duplicates.parquet")
        system, path = open_uri(uri)
        pq.write_table(seqs, path, filesystem=system)
        return uri, duplicates, too_old.num_rows

    def _effects(self, branch_table: BranchTable, tail: StagedRows, loaded: StagedRows, first_seq: int) -> Effects:
        plan = self.plan
        move = replace(
            MoveTable.of(branch_table.head),
            snapshot=loaded.snapshot or tail.snapshot,
            files=(*tail.files, *loaded.files),
            rows_added=tail.rows + loaded.rows,
            rows_acked=plan.rows - loaded.too_old,
            rows_dropped=tail.dropped + loaded.dropped,
            last_seq=first_seq + plan.rows - 1 if plan.rows else 0,
        )
        answer = self._answer(loaded, first_seq)
        message = f"{plan.kind} {counted(answer['rows'], 'row')}"
        commit = WriteCommit(plan.kind, message, {branch_table.table.name: answer["rows"]})
        parts_done = plan.since + len(plan.parts)
        return (
            *table_effects(move, {**tail.stream_heads(), **loaded.stream_heads()}, tail.batches),
            *((commit,) if plan.last else ()),
            AdvanceLoad(plan.load_id, plan.since, parts_done, finished=plan.last, answer=answer),
            *((self._once(branch_table, answer),) if plan.last else ()),
        )

    def _answer(self, loaded: StagedRows, first_seq: int) -> KeptAnswer:
        so_far = self.plan.answer
        has_rows = self.plan.rows > 0
        return {
            "rows": so_far["rows"] + loaded.rows,
            "duplicates_dropped": so_far["duplicates_dropped"] + loaded.dropped,
            "too_old": so_far.get("too_old", 0) + loaded.too_old,
            "first_seq": so_far["first_seq"] or (first_seq if has_rows else None),
            "last_seq": first_seq + self.plan.rows - 1 if has_rows else so_far["last_seq"],
            "skipped": so_far["skipped"],
        }

    def _once(self, branch_table: BranchTable, answer: KeptAnswer) -> Effect:
        """What tells that all of the load is there: its query's mark, or its answer under its key."""
        plan = self.plan
        if plan.query_mark is None:
            return KeepAnswer(plan.scope, plan.key, plan.digest, answer)
        query_id, batch = plan.query_mark
        return MoveQueryMark(query_id, branch_table.table.table_id, batch)
