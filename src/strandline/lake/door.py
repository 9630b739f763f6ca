"""The front door: everything a Python user does with a lake starts here.

A `Lake` may be shared by threads. A `View` that it gives is immutable. Every call that writes names its actor. PySpark
is imported, and a JVM started, by the first call that needs it, so capture and queries work where there is no Java.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from strandline import private
from strandline.actors import checked_actor, default_actor
from strandline.engines.storage import know
from strandline.lake.jobs import Jobs
from strandline.lake.maintenance import Maintenance
from strandline.lake.tokens import Tokens
from strandline.lake.versioned import StateOf, Versioned
from strandline.ledger import owner as owners
from strandline.ledger import tables
from strandline.ledger.group_commit import FEW_ROWS, Appender, Call, FewRows, are_few
from strandline.ledger.ledger import MAIN
from strandline.model.tables import Ack, Dedupe, Table, TableState
from strandline.operations.placing import open_at_home
from strandline.views.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.engines.spark.iceberg import Iceberg
    from strandline.ledger.encode import Rows
    from strandline.model.chunk_rows import ChunkRows
    from strandline.model.inbound import Chunk, Received
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
    from strandline.model.migration import Applied, Plan
    from strandline.model.mutations import HeadIs
    from strandline.model.operations import Flushed, Loaded, Recovered
    from strandline.model.sinks import Sink
    from strandline.operations.context import Context, Report
    from strandline.operations.load_request import Mode
    from strandline.sinks.instances import Surroundings
    from strandline.sinks.tick import Ticked


class Lake(Versioned):
    """One lake: a ledger, a warehouse and a config. Use `strandline.open` to get one."""

    def __init__(self, root: Path, *, read_only: bool = False, report: Report | None = None) -> None:
        self.root = root
        self.read_only = read_only
        self.config, self.ledger, self.displaced = open_at_home(root, read_only=read_only)
        self._owner = owners.register()
        self._appender = Appender(self.ledger)
        self._states: dict[tuple[str, str], TableState] = {}
        self._report = report
        self._context: Context | None = None
        self._iceberg: Iceberg | None = None
        self._spark_lock = threading.Lock()
        self._whole: Lake | None = None
        self.recovered: list[Recovered] = [] if read_only else self.refresh()

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the lake; what it still held is held by nobody. Spark goes on for the process's other lakes."""
        owners.unregister(self._owner)
        self.ledger.close()
        with self._spark_lock:
            iceberg, self._iceberg = self._iceberg, None
        if iceberg is not None:
            with suppress(Exception):  # Spark may be gone already, and with it what it held
                iceberg.close()

    # -- subjects: namespaces, made anew each time because `reporting` copies the lake --------------------------------

    @property
    def tokens(self) -> Tokens:
        """Who may speak to a server of this lake."""
        return Tokens(self)

    @property
    def jobs(self) -> Jobs:
        """The worker's jobs."""
        return Jobs(self)

    @property
    def maintenance(self) -> Maintenance:
        """What keeps reads fast and disks small."""
        return Maintenance(self)

    # -- tables ------------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str] | Any,
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
        from strandline.model.constraints import parse_constraints
        from strandline.model.schema import Schema, parse_mapping
        from strandline.operations.declare import check_new, look_before
        from strandline.rules.row_rules import Target

        def target(table: str) -> Target:
            state = self._state(table, branch)
            return Target(state.table.name, state.table.key, state.schema)

        schema = columns if isinstance(columns, Schema) else parse_mapping(columns)
        schema = Schema(schema.columns, parse_constraints([*schema.constraints, *constraints]))
        how = {"key": key, "row_key": row_key, "partition_by": partition_by}
        check_new(name, schema, **how, dedupe=dedupe, target_of=target)
        return tables.create_table(
            self.ledger,
            name,
            schema,
            branch=branch if key else MAIN,
            actor=actor or default_actor(),
            **how,
            dedupe=dedupe,
            extra=unknown_fields == "json",
            seen=look_before(lambda: self.view(branch), name, schema),
        )

    def schema(self, branch: str = MAIN, *, at: str | None = None) -> dict[str, Any]:
        """The schemas of a branch's tables, as a document that can be changed and applied."""
        from strandline.operations.schema_apply import describe

        return describe(self.view(branch, at=at))

    def schema_plan(self, doc: Any, *, branch: str = MAIN, hard: bool = False) -> Plan:
        """The steps from the schemas of a branch to those of a document, each with a verdict; nothing is changed.

        Where no step is refused the rows are looked at, and a conflict lists those that forbid it.
        """
        from strandline.operations.schema_apply import look_at, make_plan

        view = self.view(branch)
        planned = make_plan(view, doc, hard=self.ledger if hard else None)
        if not planned.refused:
            look_at(view, planned)
        return planned

    def schema_apply(
        self,
        doc: Any,
        *,
        branch: str = MAIN,
        actor: str = "",
        message: str = "",
        expect: HeadIs | None = None,
        hard: bool = False,
    ) -> Applied:
        """Make schemas what a document says, as one commit; `hard`: no file keeps values of columns that are gone."""
        from strandline.operations.schema_apply import Asked, apply_asked

        asked = Asked(doc, checked_actor(actor, None), message, expect.commit if expect is not None else None)
        return apply_asked(self.context, lambda: self.view(branch), asked, hard=hard)

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
        actor = checked_actor(actor, idempotency_key)
        if idempotency_key is None and are_few(rows) and not keep_old:
            few = rows.copy()  # the caller may be interrupted, and its list change, while another thread encodes
            return self._append(table, lambda state: FewRows(state, actor, few), branch)
        from strandline.ledger.encode import append_rows
        from strandline.ledger.rereading import kept_rows

        kept, how = kept_rows(rows), (self.ledger, actor, idempotency_key, keep_old)
        return self._append(table, lambda state: append_rows(kept, state, *how), branch, kept)

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
        actor = checked_actor(actor, idempotency_key)
        from strandline.ledger.encode import append_lines, few_objects

        alone = idempotency_key is not None or keep_old
        few = few_objects(lines, FEW_ROWS) if not alone and isinstance(lines, list) else None
        if few is not None:
            return self._append(table, lambda state: FewRows(state, actor, few), branch)

        from strandline.ledger.rereading import kept_lines

        kept, how = kept_lines(lines), (self.ledger, actor, idempotency_key, keep_old)
        return self._append(table, lambda state: append_lines(kept, state, *how), branch, kept)

    def _append(self, table: str, call_for: Callable[[TableState], Call], branch: str, rows: object = ()) -> Ack:
        """Validate by the schema as we know it, and again by the newer one if it has changed meanwhile."""

        def work(state_of: StateOf) -> Ack:
            state = state_of(table)
            state.table.require_log("takes no appends")
            return self._appender.append(call_for(state))

        return self._retried(work, branch, rows)

    def receive(self, table: str, chunk: Chunk, rows: ChunkRows, *, gateway: str, branch: str = MAIN) -> Received:
        """Store a chunk that another lake forwards: each of its rows once, however often it is sent."""
        from strandline.views.held import receive

        def work(state_of: StateOf) -> Received:
            state = state_of(table)
            state.table.require_log("takes no forwarded rows", "Rows and versions of rows are received in log tables.")
            return receive(self.ledger, self.view, state, chunk, rows, gateway)

        return self._retried(work, branch)

    def flush(self, table: str | None = None, *, actor: str = "", branch: str = MAIN) -> list[Flushed]:
        """Move tails into Iceberg now: one table's, or every table's."""
        from strandline.operations.flush import flush

        view = self.view(branch).whole()  # rows of a dropped table are still delivered, and looked back at
        names = [table] if table is not None else view.tables
        if any(view.state(name).tail for name in names):
            self.iceberg()  # where there is no Java, say so before anything is begun
        return [flush(self.context, name, branch, actor or default_actor()) for name in names]

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
        from strandline.operations.load import load
        from strandline.operations.load_keyed import load_keyed
        from strandline.operations.load_request import load_request

        for file in files:
            know(file, self.config.store)
        request = load_request(
            self.ledger, table, files, branch=branch, mode=mode, actor=actor or default_actor(), key=key, again=again
        )
        if not request.is_keyed:
            return load(self.context, request)
        return self._retried(lambda state_of: load_keyed(self.context, self._mutator, state_of, request), branch)

    @staticmethod
    def load_needs_spark(files: Sequence[str]) -> bool:
        """Whether a load of these files is too large for the ledger alone."""
        from strandline.engines.files import find_inputs
        from strandline.operations.load_request import is_large

        return is_large(find_inputs(files))

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
        from strandline.operations.adopt import adopt, find_source, refuse_other_rows

        found = find_source(self.context, source)
        if name.lower() in {table.lower() for table in self.view(branch).tables}:
            refuse_other_rows(self.context, name, branch, found)
        else:
            self.create_table(
                name, found.schema, row_key=row_key, partition_by=partition_by, dedupe=dedupe, actor=actor
            )
        return adopt(self.context, name, branch, found, actor or default_actor())

    def foreach_batch(self, table: str, *, actor: str = "", branch: str = MAIN) -> Callable[[DataFrame, int], None]:
        """A function for Structured Streaming's `foreachBatch`: each micro-batch is stored once, also when replayed."""
        from strandline.operations.stream import foreach_batch

        return foreach_batch(self.context, table, branch, actor or default_actor())

    # -- sinks -------------------------------------------------------------------------------------------------------

    @property
    def surroundings(self) -> Surroundings:
        """What sinks need to know of this lake."""
        from strandline.sinks.instances import Surroundings

        return Surroundings(self.ledger, self.root, self.config.warehouse, self.ledger.lake_id(), self.iceberg)

    def add_sink(
        self,
        name: str,
        type: str,
        settings: Mapping[str, Any],
        *,
        start: int | Literal["now"] = 0,
        check: bool = True,
        take_over: bool = False,
        actor: str = "",
    ) -> Sink:
        """Let a destination follow this lake's tables; `check` asks it first whether it can be reached."""
        from strandline.sinks import instances

        asked = instances.wanted(name, type, settings, where=f"sink {name!r}")
        return instances.add(self.surroundings, asked, start=start, check=check, take_over=take_over, actor=actor)

    def sinks(self) -> list[Sink]:
        """Every sink: those that were added, and those of `strand.toml` as it is now."""
        from strandline.ledger.sinks import list_sinks
        from strandline.sinks.following import follow_config

        if not self.read_only:
            follow_config(self.surroundings)
        with self.ledger.read() as conn:
            return list_sinks(conn)

    def tick(
        self,
        *names: str,
        actor: str = "",
        wait_s: float | None = None,
        patient: bool = True,
        stop: threading.Event | None = None,
        take_over: bool = False,
    ) -> list[Ticked]:
        """Deliver what is due, now: of these sinks, or of all. One that has to wait keeps no other waiting."""
        from strandline.ledger.sinks import find_sink
        from strandline.sinks.round import Round

        known = self.sinks()
        with self.ledger.read() as conn:
            chosen = [find_sink(conn, name) for name in names] or known
        return Round(
            self.context,
            self.surroundings,
            actor or default_actor(),
            wait_s=wait_s,
            patient=patient,
            take_over=take_over,
            stop=stop or threading.Event(),
        ).run(chosen)

    # -- maintenance -------------------------------------------------------------------------------------------------

    def set_table(self, name: str, **changes: Unpack[SettingChanges]) -> Table:
        """Change how a table is kept: see `TableSettings`. What is not given stays as it is."""
        from strandline.ledger.table_settings import change_settings

        return change_settings(self.ledger, name, changes)

    def compact(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Compacting]) -> list[Maintained]:
        """Merge the small files of these tables, or of all; the neediest first, as far as the limits go."""
        return self.maintenance.compact(*tables, actor=actor, branch=branch, **how)

    def fold(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Bounds]) -> list[Maintained]:
        """Bring the states of these keyed tables, or of all, up to date: a read then looks through less of the log."""
        return self.maintenance.fold(*tables, actor=actor, branch=branch, **how)

    def retain(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Retaining]) -> list[Maintained]:
        """Remove the rows of these tables, or of all, that are past their retention and delivered by every sink."""
        return self.maintenance.retain(*tables, actor=actor, branch=branch, **how)

    def expire(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Expiring]) -> list[Maintained]:
        """Remove the snapshots of these tables, or of all, that nobody needs and whose grace is over."""
        return self.maintenance.expire(*tables, actor=actor, branch=branch, **how)

    def sweep(self, *tables: str, branch: str = MAIN, **how: Unpack[Sweeping]) -> list[Maintained]:
        """Remove what is nobody's any more: of these tables, or of all and of the lake itself."""
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
        return View(self.ledger, branch, self.iceberg, at=at, grace_s=self.context.grace_s, limits=self.config.query)

    # -- recovery ----------------------------------------------------------------------------------------------------

    def refresh(self) -> list[Recovered]:
        """Finish or undo what dead processes left, as far as that needs no Spark."""
        from strandline.operations.recovery import recover

        return recover(self.context, with_iceberg=False)

    def recover(self, *, dry_run: bool = False) -> list[Recovered]:
        """The same, with the Iceberg half; Spark is started only if there is something to settle."""
        from strandline.operations.recovery import preview, recover_both_halves

        return preview(self.context) if dry_run else recover_both_halves(self.context)

    # -- the engines -------------------------------------------------------------------------------------------------

    def reporting(self, report: Report) -> Lake:
        """The same open lake, with another place for progress: a worker's jobs have one each."""
        import copy
        from dataclasses import replace

        other = copy.copy(self)
        other._whole, other._report = self._whole or self, report
        other._context = replace(self.context, report=report, iceberg=other.iceberg)
        return other

    @property
    def context(self) -> Context:
        """What operations on this lake run in."""
        if self._context is None:
            from strandline.operations.context import Context, silent
            from strandline.operations.fence import Fence
            from strandline.operations.staging import Staging
            from strandline.operations.watch import Watch

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
        if self._whole is not None:
            if self._report is not None and self._whole._iceberg is None:
                self._report("starting Spark", 0, None)
            return self._whole.iceberg()
        with self._spark_lock:
            if self._iceberg is None:
                from strandline.engines.spark.iceberg import Iceberg
                from strandline.engines.spark.session import catalog_properties, lake_session, start

                if self._report is not None:
                    self._report("starting Spark", 0, None)
                self.context.fence.raise_()
                if self.config.catalog_path is not None:
                    private.create_file(self.config.catalog_path)
                root = start(self.config.spark.master, self.config.spark.conf)
                login = self.ledger.database.login()
                catalog = catalog_properties(self.config.catalog_uri, self.config.warehouse, login, self.config.store)
                self._iceberg = Iceberg(lake_session(root, catalog, store=self.config.store), catalog)
            return self._iceberg

    @property
    def spark_is_up(self) -> bool:
        """Whether this lake has a Spark, and its JVM lives."""
        from strandline.engines.spark import session

        lake = self._whole or self
        return lake._iceberg is not None and session.lives()

    def drop_dead_spark(self) -> bool:
        """Forget a Spark whose JVM has died, so that the next call starts another; True if there was one."""
        from strandline.engines.spark import session

        lake = self._whole or self
        with lake._spark_lock:
            if lake._iceberg is None or session.lives():
                return False
            lake._iceberg = None
            session.forget_dead()
            return True

    @property
    def spark(self) -> SparkSession:
        """The lake's Spark session, with the catalog `strand`."""
        return self.iceberg().session
