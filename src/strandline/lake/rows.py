"""Writing rows: appends, mutations, what a gateway forwards, micro-batches, and moving tails into Iceberg.

An append is the hottest call of the house: about a tenth of a millisecond, most of it the database's. So what it needs
is imported at the top, and a list of a few dicts goes straight to the queue, where its leader encodes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from strandline.actors import checked_actor, default_actor
from strandline.ledger.ledger import MAIN
from strandline.ledger.rows.group_commit import FEW_ROWS, Call, FewRows, are_few

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.lake.door import Lake
    from strandline.lake.schema_memory import TableOf
    from strandline.ledger.rows.encode import Rows
    from strandline.model.delivery.chunk_rows import ChunkRows
    from strandline.model.delivery.inbound import Chunk, Received
    from strandline.model.history.commits import Commit
    from strandline.model.history.mutations import Expectation, Statement
    from strandline.model.operations import Flushed, Loaded
    from strandline.model.tables import Ack, BranchTable, Dedupe
    from strandline.operations.load.load_request import Mode


class LakeRows:
    """`lake.rows`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

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
        """Store rows durably, all of them or none: see `Lake.append`."""
        actor = checked_actor(actor, idempotency_key)
        if idempotency_key is None and are_few(rows) and not keep_old:
            few = rows.copy()  # the caller may be interrupted, and its list change, while another thread encodes
            return self._append(table, lambda branch_table: FewRows(branch_table, actor, few), branch)
        from strandline.ledger.rows.encode import append_rows
        from strandline.ledger.rows.rereading import kept_rows

        kept, how = kept_rows(rows), (self._lake.ledger, actor, idempotency_key, keep_old)
        return self._append(table, lambda branch_table: append_rows(kept, branch_table, *how), branch, kept)

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
        from strandline.ledger.rows.encode import append_lines, few_objects

        alone = idempotency_key is not None or keep_old
        few = few_objects(lines, FEW_ROWS) if not alone and isinstance(lines, list) else None
        if few is not None:
            return self._append(table, lambda branch_table: FewRows(branch_table, actor, few), branch)

        from strandline.ledger.rows.rereading import kept_lines

        kept, how = kept_lines(lines), (self._lake.ledger, actor, idempotency_key, keep_old)
        return self._append(table, lambda branch_table: append_lines(kept, branch_table, *how), branch, kept)

    def _append(self, table: str, call_for: Callable[[BranchTable], Call], branch: str, rows: object = ()) -> Ack:
        """Validate by the schema as we know it, and again by the newer one if it has changed meanwhile."""
        memory = self._lake.memory

        def work(table_of: TableOf) -> Ack:
            branch_table = table_of(table)
            branch_table.table.require_log("takes no appends")
            return memory.appender.append(call_for(branch_table))

        return memory.retried(work, branch, rows)

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
        from strandline.model.history.mutations import listed_statements
        from strandline.operations.change.statements import prepare

        actor = checked_actor(actor, None)
        statements = listed_statements(statements)
        memory = self._lake.memory

        def work(table_of: TableOf) -> Commit:
            request = prepare(statements, expect, table_of, branch=branch, actor=actor, message=message)
            return memory.mutator.mutate(request)

        return memory.retried(work, branch)

    def receive(self, table: str, chunk: Chunk, rows: ChunkRows, *, gateway: str, branch: str = MAIN) -> Received:
        """Store a chunk that another lake forwards: each of its rows once, however often it is sent."""
        from strandline.views.held import receive

        def work(table_of: TableOf) -> Received:
            branch_table = table_of(table)
            branch_table.table.require_log(
                "takes no forwarded rows", "Rows and versions of rows are received in log tables."
            )
            return receive(self._lake.ledger, self._lake.view, branch_table, chunk, rows, gateway)

        return self._lake.memory.retried(work, branch)

    def flush(self, table: str | None = None, *, actor: str = "", branch: str = MAIN) -> list[Flushed]:
        """Move tails into Iceberg now: one table's, or every table's."""
        from strandline.operations.maintain.flush import flush

        view = self._lake.view(branch).whole()  # rows of a dropped table are still delivered, and looked back at
        names = [table] if table is not None else view.tables
        if any(view.branch_table(name).tail for name in names):
            self._lake.iceberg()  # where there is no Java, say so before anything is begun
        return [flush(self._lake.context, name, branch, actor or default_actor()) for name in names]

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
        """Load files, once however often it is called: see `Lake.load`."""
        from strandline.engines.storage import know
        from strandline.operations.load.keyed import load_keyed
        from strandline.operations.load.load import load
        from strandline.operations.load.load_request import load_request

        lake, memory = self._lake, self._lake.memory
        for file in files:
            know(file, lake.config.store)
        request = load_request(
            lake.ledger, table, files, branch=branch, mode=mode, actor=actor or default_actor(), key=key, again=again
        )
        if not request.is_keyed:
            return load(lake.context, request)
        return memory.retried(lambda table_of: load_keyed(lake.context, memory.mutator, table_of, request), branch)

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
        from strandline.operations.load.adopt import adopt, find_source, refuse_other_rows

        lake = self._lake
        source_table = find_source(lake.context, source)
        if name.lower() in {table.lower() for table in lake.view(branch).tables}:
            refuse_other_rows(lake.context, name, branch, source_table)
        else:
            lake.tables.create(
                name, source_table.schema, row_key=row_key, partition_by=partition_by, dedupe=dedupe, actor=actor
            )
        return adopt(lake.context, name, branch, source_table, actor or default_actor())

    def foreach_batch(self, table: str, *, actor: str = "", branch: str = MAIN) -> Callable[[DataFrame, int], None]:
        """A function for Structured Streaming's `foreachBatch`: each micro-batch is stored once, also when replayed."""
        from strandline.operations.load.stream import foreach_batch

        return foreach_batch(self._lake.context, table, branch, actor or default_actor())


def load_needs_spark(files: Sequence[str]) -> bool:
    """Whether a load of these files is too large for the ledger alone."""
    from strandline.engines.files import find_inputs
    from strandline.operations.load.load_request import is_large

    return is_large(find_inputs(files))
