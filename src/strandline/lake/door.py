"""The front door: everything a Python user does with a lake starts here.

A `Lake` may be shared by threads. A `View` that it gives is immutable. Every call that writes names its actor. PySpark
is imported, and a JVM started, by the first call that needs it, so capture and queries work where there is no Java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from strandline.lake.backups import Backups
from strandline.lake.branches import Branches
from strandline.lake.jobs import Jobs
from strandline.lake.maintenance import Maintenance
from strandline.lake.quarantine import Quarantine
from strandline.lake.queries import Queries
from strandline.lake.recovery import Recovery
from strandline.lake.reports import Reports
from strandline.lake.rows import LakeRows, load_needs_spark
from strandline.lake.schema_memory import SchemaMemory
from strandline.lake.schemas import Schemas
from strandline.lake.sinks import Adding, Sinks, Ticking
from strandline.lake.spark_engine import SparkEngine
from strandline.lake.tables import Tables
from strandline.lake.tokens import Tokens
from strandline.ledger.ledger import MAIN
from strandline.ledger.publish import owner as owners
from strandline.model.tables import Ack, Dedupe, Table
from strandline.operations.core.placing import open_at_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.engines.spark.iceberg import Iceberg
    from strandline.lake.export import Export, ExportFormat
    from strandline.ledger.history.branches import Branch, Tag
    from strandline.ledger.rows.encode import Rows
    from strandline.model.delivery.chunk_rows import ChunkRows
    from strandline.model.delivery.inbound import Chunk, Received
    from strandline.model.delivery.sinks import Sink
    from strandline.model.history.changes import Changes, RowDiff
    from strandline.model.history.commits import Commit
    from strandline.model.history.merge import Merged, ResolutionFile, Side
    from strandline.model.history.mutations import Expectation, HeadIs, Statement
    from strandline.model.maintenance import (
        Bounds,
        Compacting,
        Expiring,
        Maintained,
        Need,
        Retaining,
        SettingChanges,
        Sweeping,
    )
    from strandline.model.operations import Flushed, Loaded, Recovered
    from strandline.model.schema.document import SchemaDocument
    from strandline.model.schema.migration import Applied, MigrationPlan
    from strandline.model.schema.schema import Schema
    from strandline.operations.core.context import Context, Report
    from strandline.operations.load.load_request import Mode
    from strandline.sinks.instances import Surroundings
    from strandline.sinks.tick import Ticked
    from strandline.views.view import View


class Lake:
    """One lake: a ledger, a warehouse and a config. Use `strandline.open` to get one."""

    def __init__(self, root: Path, *, read_only: bool = False, report: Report | None = None) -> None:
        self.root = root
        self.read_only = read_only
        self.config, self.ledger, self.displaced = open_at_home(root, read_only=read_only)
        self._owner = owners.register()
        self.memory = SchemaMemory(self.ledger, lambda: self.context)
        self._report = report
        self._context: Context | None = None
        self._spark = SparkEngine(self.config, self.ledger, report)
        self.recovered: list[Recovered] = [] if read_only else self.refresh()

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the lake; what it still held is free. Spark goes on for the process's other lakes."""
        owners.unregister(self._owner)
        self.ledger.close()
        self._spark.close()

    # -- subjects: namespaces, made anew each time because `reporting` copies the lake --------------------------------

    @property
    def tables(self) -> Tables:
        """Making tables, looking at them, and how they are kept."""
        return Tables(self)

    @property
    def rows(self) -> LakeRows:
        """Writing rows."""
        return LakeRows(self)

    @property
    def branches(self) -> Branches:
        """Branches, commits, tags and merges; called, it lists every branch by name."""
        return Branches(self)

    @property
    def queries(self) -> Queries:
        """Pinned views, and SQL over them."""
        return Queries(self)

    @property
    def schemas(self) -> Schemas:
        """Schemas, and changing them."""
        return Schemas(self)

    @property
    def maintenance(self) -> Maintenance:
        """What keeps reads fast and disks small."""
        return Maintenance(self)

    @property
    def tokens(self) -> Tokens:
        """The tokens that a server of this lake accepts."""
        return Tokens(self)

    @property
    def jobs(self) -> Jobs:
        """The worker's jobs."""
        return Jobs(self)

    @property
    def reports(self) -> Reports:
        """How this lake is."""
        return Reports(self)

    @property
    def quarantine(self) -> Quarantine:
        """Batches whose bytes were damaged."""
        return Quarantine(self)

    @property
    def backups(self) -> Backups:
        """Copies of this lake that can be put in its place."""
        return Backups(self)

    @property
    def recovery(self) -> Recovery:
        """What dead processes left."""
        return Recovery(self)

    @property
    def sinks(self) -> Sinks:
        """What delivers rows elsewhere; `lake.sinks()` lists them."""
        return Sinks(self)

    # -- tables ------------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str] | Schema,
        *,
        row_key: Sequence[str] = (),
        key: Sequence[str] = (),
        constraints: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        dedupe: Dedupe = "table",
        unknown_fields: Literal["error", "json"] = "error",
        branch: str = MAIN,
        actor: str = "",
    ) -> Table:
        """Make a log table, or with a `key` a keyed one: a row for each key, changed by `mutate`.

        A keyed table is made on a branch, and comes to others by merges; a log table is on all of them.
        `columns` maps names to types ("string", "timestamp?", "list<long>"), or is a Schema. `constraints` are what
        the rows of a keyed table keep ("unique(email)", "reference(team_id -> team, restrict)").
        """
        return self.tables.create(
            name,
            columns,
            row_key=row_key,
            key=key,
            constraints=constraints,
            partition_by=partition_by,
            dedupe=dedupe,
            unknown_fields=unknown_fields,
            branch=branch,
            actor=actor,
        )

    def set_table(self, name: str, **changes: Unpack[SettingChanges]) -> Table:
        """Change how a table is kept: see `TableSettings`. What is not given stays as it is."""
        return self.tables.set(name, **changes)

    def schema(self, branch: str = MAIN, *, at: str | None = None) -> SchemaDocument:
        """The schemas of a branch's tables, as a document that can be changed and applied."""
        return self.schemas.show(branch, at=at)

    def schema_plan(self, doc: object, *, branch: str = MAIN, hard: bool = False) -> MigrationPlan:
        """The steps from the schemas of a branch to those of a document, each with a verdict; nothing is changed.

        Where no step is refused the rows are looked at, and a conflict lists those that forbid it.
        """
        return self.schemas.plan(doc, branch=branch, hard=hard)

    def schema_apply(
        self,
        doc: object,
        *,
        branch: str = MAIN,
        actor: str = "",
        message: str = "",
        expect: HeadIs | None = None,
        hard: bool = False,
    ) -> Applied:
        """Make schemas what a document says, as one commit; `hard`: no file keeps values of columns that are gone."""
        return self.schemas.apply(doc, branch=branch, actor=actor, message=message, expect=expect, hard=hard)

    # -- writing -----------------------------------------------------------------------------------------------------

    def append(
        self,
        table: str,
        rows: Rows,
        *,
        actor: str = "",
        idempotency_key: str | None = None,
        branch: str = MAIN,
        keep_old: bool = False,
    ) -> Ack:
        """Store rows durably: when this returns, they survive any crash. All of them are stored, or none.

        Those that are past the table's retention already are left out, and counted in the answer; unless `keep_old`,
        for rows that were acked before.
        """
        return self.rows.append(
            table, rows, actor=actor, idempotency_key=idempotency_key, branch=branch, keep_old=keep_old
        )

    def append_json_lines(
        self,
        table: str,
        lines: Iterable[bytes],
        *,
        actor: str = "",
        idempotency_key: str | None = None,
        branch: str = MAIN,
        keep_old: bool = False,
    ) -> Ack:
        """The same for lines of one JSON object each; a bad one is named by its line, counted from 0."""
        return self.rows.append_json_lines(
            table, lines, actor=actor, idempotency_key=idempotency_key, branch=branch, keep_old=keep_old
        )

    def mutate(
        self,
        statements: Sequence[Statement],
        *,
        branch: str = MAIN,
        actor: str = "",
        message: str = "",
        expect: Expectation | Sequence[Expectation] | None = None,
    ) -> Commit:
        """Change rows of keyed tables: all statements, in their order, as one commit; or none of them."""
        return self.rows.mutate(statements, branch=branch, actor=actor, message=message, expect=expect)

    def receive(self, table: str, chunk: Chunk, rows: ChunkRows, *, gateway: str, branch: str = MAIN) -> Received:
        """Store a chunk that another lake forwards: each of its rows once, however often it is sent."""
        return self.rows.receive(table, chunk, rows, gateway=gateway, branch=branch)

    def flush(self, table: str | None = None, *, actor: str = "", branch: str = MAIN) -> list[Flushed]:
        """Move tails into Iceberg now: one table's, or every table's."""
        return self.rows.flush(table, actor=actor, branch=branch)

    def load(
        self,
        table: str,
        files: Sequence[str],
        *,
        actor: str = "",
        branch: str = MAIN,
        key: str | None = None,
        again: bool = False,
        mode: Mode = "append",
    ) -> Loaded:
        """Load files (JSON lines, CSV, Parquet, Arrow; folders, globs, URIs), once however often it is called.

        What remembers the load is `key`, or where there is none the files' names, sizes and times. `again` loads
        anyway. A keyed table's `mode` may also be "merge" (rows with the same keys are replaced) or "overwrite" (no
        other rows are left), which run every time unless they have a key. The table "-" are the keyed tables that the
        lines name.
        """
        return self.rows.load(table, files, actor=actor, branch=branch, key=key, again=again, mode=mode)

    @staticmethod
    def load_needs_spark(files: Sequence[str]) -> bool:
        """Whether a load of these files is too large for the ledger alone."""
        return load_needs_spark(files)

    def adopt(
        self,
        name: str,
        source: str,
        *,
        actor: str = "",
        row_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        dedupe: Dedupe = "table",
        branch: str = MAIN,
    ) -> Loaded:
        """Take an existing Iceberg table or a folder of Parquet files in as a new table; the source is only read."""
        return self.rows.adopt(
            name, source, actor=actor, row_key=row_key, partition_by=partition_by, dedupe=dedupe, branch=branch
        )

    def foreach_batch(self, table: str, *, actor: str = "", branch: str = MAIN) -> Callable[[DataFrame, int], None]:
        """A function for Structured Streaming's `foreachBatch`: each micro-batch is stored once, also when replayed."""
        return self.rows.foreach_batch(table, actor=actor, branch=branch)

    # -- branches and history ----------------------------------------------------------------------------------------

    def log(self, branch: str = MAIN, *, limit: int = 50, before: str | None = None) -> list[Commit]:
        """A branch's commits, the newest first; `before` goes on behind the last one of an earlier answer."""
        return self.branches.log(branch, limit=limit, before=before)

    def commit(self, name: str, *, branch: str = MAIN) -> Commit:
        """One commit: by its id or the beginning of it, by a tag, as a branch's newest one or as that of a time."""
        return self.branches.commit(name, branch=branch)

    def branch(self, name: str, from_: str = MAIN, *, actor: str = "") -> Branch:
        """Make a branch at a branch's newest commit, a tag or any commit.

        From a newest commit or a tag of one it costs a few rows of the ledger, whatever the lake's size. From an older
        one, files that have later rows too are written again without them, by Spark.
        """
        return self.branches.create(name, from_, actor=actor)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        *,
        actor: str = "",
        message: str = "",
        dry_run: bool = False,
        resolve: Side | ResolutionFile | None = None,
    ) -> Merged:
        """Bring what a branch changed into another one, as one commit; MergeConflict where both changed the same.

        `resolve` decides those: a side ("ours" is the target's), or the document of a resolution file. A dry run only
        tells what would come of it.
        """
        return self.branches.merge(source, into, actor=actor, message=message, dry_run=dry_run, resolve=resolve)

    def diff(self, before: str, after: str, *, table: str | None = None, branch: str = MAIN) -> Iterator[RowDiff]:
        """The rows of keyed tables that differ between two points: branches, tags, commits or times of a branch."""
        return self.branches.diff(before, after, table=table, branch=branch)

    def changes(self, table: str, since: int = 0, *, branch: str = MAIN, limit: int = 1000) -> Changes:
        """What commits changed in a keyed table behind a seq: each row before and after, in order, page by page."""
        return self.branches.changes(table, since, branch=branch, limit=limit)

    def delete_branch(self, name: str, *, force: bool = False, actor: str = "") -> None:
        """Remove a branch; with `force` also one whose commits are on no other, which is audited."""
        self.branches.delete(name, force=force, actor=actor)

    def protect_branch(self, name: str, *, protected: bool = True) -> None:
        """Let a branch change by merges alone, and be neither deleted nor renamed; or lift that."""
        self.branches.protect(name, protected=protected)

    def tag(self, name: str, at: str = MAIN, *, branch: str = MAIN) -> Tag:
        """Give a commit a name: a branch's newest, or the one that `at` names. What it needs is kept for good."""
        return self.branches.tag(name, at, branch=branch)

    def tags(self) -> list[Tag]:
        """Every tag, by name."""
        return self.branches.tags()

    def delete_tag(self, name: str) -> None:
        """Remove a tag."""
        self.branches.delete_tag(name)

    def rename_branch(self, name: str, to: str) -> None:
        """Give a branch another name."""
        self.branches.rename(name, to)

    # -- sinks -------------------------------------------------------------------------------------------------------

    @property
    def surroundings(self) -> Surroundings:
        """What sinks need to know of this lake."""
        from strandline.sinks.instances import Surroundings

        return Surroundings(self.ledger, self.root, self.config.warehouse, self.ledger.lake_id(), self.iceberg)

    def add_sink(self, name: str, type: str, settings: Mapping[str, object], **how: Unpack[Adding]) -> Sink:
        """Let a destination follow this lake's tables; `check` asks it first whether it can be reached."""
        return self.sinks.add(name, type, settings, **how).sink

    def tick(self, *names: str, **how: Unpack[Ticking]) -> list[Ticked]:
        """Deliver what is due, now: of these sinks, or of all. One that has to wait keeps no other waiting."""
        return self.sinks.tick(*names, **how)

    # -- maintenance -------------------------------------------------------------------------------------------------

    def compact(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Compacting]) -> list[Maintained]:
        """Merge the small files of these tables, or of all; the neediest first, as far as the limits go."""
        return self.maintenance.compact(*tables, actor=actor, branch=branch, **how)

    def fold(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Bounds]) -> list[Maintained]:
        """Bring the states of these keyed tables, or of all, up to date: a read then looks through less of the log."""
        return self.maintenance.fold(*tables, actor=actor, branch=branch, **how)

    def refilter(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Bounds]) -> list[Maintained]:
        """Let lookups by value skip files of these keyed tables, or of all, that are older than a rule."""
        return self.maintenance.refilter(*tables, actor=actor, branch=branch, **how)

    def retain(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Retaining]) -> list[Maintained]:
        """Remove the rows of these tables, or of all, that are past their retention and delivered by every sink."""
        return self.maintenance.retain(*tables, actor=actor, branch=branch, **how)

    def expire(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Expiring]) -> list[Maintained]:
        """Remove the snapshots of these tables, or of all, that no reader needs and whose grace is over."""
        return self.maintenance.expire(*tables, actor=actor, branch=branch, **how)

    def sweep(self, *tables: str, branch: str = MAIN, **how: Unpack[Sweeping]) -> list[Maintained]:
        """Remove what nothing refers to any more: of these tables, or of all and of the lake itself."""
        return self.maintenance.sweep(*tables, branch=branch, **how)

    def purge(
        self,
        table: str,
        where: str,
        *,
        actor: str = "",
        branch: str = MAIN,
        and_history: bool = False,
        dry_run: bool = False,
    ) -> Maintained:
        """Remove the rows that a condition names for good: from the log, the tail, dead letters and quarantine.

        Of a keyed table a row goes with all its versions, on every branch; the condition is read by the schema of one.
        """
        how = {"and_history": and_history, "dry_run": dry_run}
        return self.maintenance.purge(table, where, actor=actor, branch=branch, **how)

    def needs(self, *, branch: str = MAIN) -> list[Need]:
        """What maintenance is due, by what the ledger knows alone; the neediest table first."""
        return self.maintenance.needs(branch=branch)

    # -- reading -----------------------------------------------------------------------------------------------------

    def view(self, branch: str = MAIN, at: str | None = None) -> View:
        """Everything as it is now, or as it was at a commit, tag or time; pinned: reads of one view never disagree."""
        return self.queries.view(branch, at)

    def export(
        self,
        tables: Sequence[str] = (),
        *,
        format: ExportFormat = "jsonl",
        branch: str = MAIN,
        at: str | None = None,
    ) -> Export:
        """The rows of these tables, or of all, as JSON lines or Arrow: piece by piece, or written to a file."""
        from strandline.lake.export import Export

        return Export(self.view(branch, at), tables, format)

    # -- recovery ----------------------------------------------------------------------------------------------------

    def refresh(self) -> list[Recovered]:
        """Finish or undo what dead processes left, as far as that needs no Spark."""
        from strandline.operations.core.recovery import recover

        return recover(self.context, with_iceberg=False)

    def recover(self, *, dry_run: bool = False) -> list[Recovered]:
        """The same, with the Iceberg half; Spark is started only if there is something to settle."""
        from strandline.operations.core.recovery import preview, recover_both_halves

        return preview(self.context) if dry_run else recover_both_halves(self.context)

    # -- the engines -------------------------------------------------------------------------------------------------

    def reporting(self, report: Report) -> Lake:
        """The same open lake, with another place for progress: a worker's jobs have one each."""
        import copy
        from dataclasses import replace

        other = copy.copy(self)
        other._report = report
        other._context = replace(self.context, report=report, iceberg=other.iceberg)
        return other

    @property
    def context(self) -> Context:
        """What operations on this lake run in."""
        if self._context is None:
            from strandline.operations.core.context import Context, silent
            from strandline.operations.core.fence import Fence
            from strandline.operations.core.staging import Staging
            from strandline.operations.core.watch import Watch

            self._context = Context(
                ledger=self.ledger,
                owner=self._owner,
                staging=Staging(self.config.warehouse),
                fence=Fence.of(self.ledger, self.config),
                iceberg=self.iceberg,
                watch=Watch(self.config.lease.ttl_s, one_host=self.ledger.has_one_host),
                ttl_s=self.config.lease.ttl_s,
                wait_s=self.config.lease.wait_s,
                grace_s=self.config.maintenance.grace_s,
                report=self._report or silent,
            )
        return self._context

    def iceberg(self) -> Iceberg:
        """The lake's Iceberg tables; starts Spark when it is not running."""
        return self._spark.iceberg(self.context.fence, self._report)

    @property
    def spark_is_up(self) -> bool:
        """Whether this lake has a Spark, and its JVM lives."""
        return self._spark.is_up

    def drop_dead_spark(self) -> bool:
        """Forget a Spark whose JVM has died, so that the next call starts another; True if there was one."""
        return self._spark.drop_dead()

    @property
    def spark(self) -> SparkSession:
        """The lake's Spark session, with the catalog `strand`."""
        return self.iceberg().session
