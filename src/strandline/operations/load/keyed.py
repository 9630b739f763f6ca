"""Load files into keyed tables: one commit, of one table or of many.

All rows are read and validated first. Few of them are then a mutation like any other, by the ledger alone: judged by
the constraints of the tables, stored whole or not at all, retried where others were faster. Many are written to a
folder by Spark, and are an operation. What remembers the load is written with its commit, so run again after a crash it
answers `already_loaded`, or loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import pyarrow as pa

from strandline.engines.files import (
    FilePart,
    Input,
    RowShape,
    Skipped,
    UnknownTable,
    by_table,
    read_objects,
    read_own,
)
from strandline.errors import Conflict, InvalidRows, LeaseLost, SchemaMoved, StrandError, TooLarge
from strandline.ledger.changes.mutations import Remember
from strandline.ledger.history.commits import commit_of_operation
from strandline.ledger.publish import loads
from strandline.ledger.publish.loads import AdvanceLoad, LoadName
from strandline.ledger.publish.publishing import of_kind
from strandline.ledger.rows.appends import IdempotencyKey
from strandline.ledger.rows.idempotency import forget, recall
from strandline.ledger.tables.tables import branch_id, find_table
from strandline.model.ids import new_id
from strandline.model.operations import KeptAnswer, Loaded
from strandline.model.tables import BranchTable
from strandline.model.values import rows as rules
from strandline.model.wording import counted
from strandline.operations.change.mutate import Mutator
from strandline.operations.change.planning import MOST_ROWS
from strandline.operations.change.statements import KeyChange, MutationRequest, changes_of, require_keyed
from strandline.operations.core.beats import holding
from strandline.operations.core.context import Context
from strandline.operations.core.failures import outages_typed
from strandline.operations.core.recovery import tidy_loads
from strandline.operations.core.steps import run
from strandline.operations.load.keyed_large import LoadTables, TablesPlan
from strandline.operations.load.load_request import NAMED, LoadRequest, is_large
from strandline.operations.load.steps import (
    LoadRun,
    by_line,
    first_pass,
    given_up_on_failure,
    in_file,
    kept_answer,
    loaded,
)
from strandline.views.branch_rows import read_declared


@dataclass(frozen=True)
class KeyedLoad:
    """A request, and where it goes: in `name` is the key that remembers it, or where it has none one of its own.

    `table_of` finds a table of the branch.
    """

    request: LoadRequest
    name: LoadName
    table_of: Callable[[str], BranchTable]

    @property
    def is_remembered(self) -> bool:
        """Whether it is loaded once; else it is loaded every time."""
        return self.request.key is not None


@dataclass
class _Rows:
    """What the files hold, as changes, and where each row was found: file, and index of the line there."""

    changes: list[KeyChange] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)
    tables: dict[str, BranchTable] = field(default_factory=dict)
    skipped: int = 0

    def add(
        self, branch_table: BranchTable, rows: pa.RecordBatch, uri: str, lines: Sequence[int], *, strict: bool
    ) -> None:
        """Take a valid batch, whose rows are from these lines."""
        self.tables[branch_table.table.table_id] = branch_table
        first = len(self.places)
        self.places += [(uri, line) for line in lines]
        if len(self.places) > MOST_ROWS:
            raise TooLarge(f"there are more than {MOST_ROWS:,} rows")
        self.changes += changes_of(branch_table, rows, [(first + at, strict) for at in range(rows.num_rows)])


@outages_typed
def load_keyed(ctx: Context, mutator: Mutator, table_of: Callable[[str], BranchTable], request: LoadRequest) -> Loaded:
    """Load it as one commit, or say that it is loaded already."""
    load = KeyedLoad(request, _name_of(ctx, request), table_of)
    # Two processes that run the same load: the second waits, and finds the first one's answer.
    with holding(ctx, load.name.lease) if load.is_remembered else nullcontext():
        earlier = _earlier(ctx, load)
        if earlier is not None:
            return earlier
        if not is_large(request.inputs, most_rows=MOST_ROWS):
            try:
                return _load(mutator, load)
            except TooLarge:  # the ledger does not take so much at once
                ctx.report("more than the ledger takes at once", 0, None)
        return _load_large(ctx, load)


def _name_of(ctx: Context, request: LoadRequest) -> LoadName:
    with ctx.ledger.read() as conn:
        table_id = NAMED if request.only is None else find_table(conn, request.table).table_id
        return LoadName(branch_id(conn, request.branch), table_id, request.key or loads.once(new_id()))


def _earlier(ctx: Context, load: KeyedLoad) -> Loaded | None:
    """What an earlier run has answered, if there was one."""
    if not load.is_remembered:
        return None
    with ctx.ledger.write() as txn:
        if load.request.again:
            forget(txn, load.name.scope, load.name.key)
        answer = recall(txn, load.name.scope, load.name.key, load.request.digest)
    return None if answer is None else _loaded(load, answer, already_loaded=True)


def _load(mutator: Mutator, load: KeyedLoad) -> Loaded:
    rows = _read(load)
    put = {(change.branch_table.table.name, change.hash) for change in rows.changes}
    rows_by_table = {name: sum(table == name for table, _ in put) for name in sorted({table for table, _ in put})}
    answer: KeptAnswer = {
        "rows": len(put),
        "duplicates_dropped": len(rows.changes) - len(put),
        "skipped": rows.skipped,
        "tables": rows_by_table,
    }
    mutation = MutationRequest(
        branch=load.request.branch,
        actor=load.request.actor,
        message=f"load {counted(len(put), 'row')}",
        kind="load",
        changes=rows.changes,
        whole=list(rows.tables.values()) if load.request.mode == "overwrite" else [],
    )
    if load.is_remembered:
        key = IdempotencyKey(load.name.scope, load.name.key, load.request.digest, None)
        mutation.remember = Remember(key, answer)
    try:
        commit = mutator.store(mutation)
    except (InvalidRows, Conflict) as error:
        raise _located(error, rows, load.request.inputs) from None
    if commit is None:
        return _loaded(load, answer)
    written = sum(commit.tables.values())
    first, last = commit.seq - written, commit.seq - 1
    return _loaded(load, {**answer, "first_seq": first, "last_seq": last, "commit": commit.commit_id})


def _loaded(load: KeyedLoad, answer: KeptAnswer, **run: Unpack[LoadRun]) -> Loaded:
    first, last = answer.get("first_seq"), answer.get("last_seq")
    gone = last - first + 1 - answer["rows"] if first is not None and last is not None else 0
    return loaded(load.request.table, {"deleted": gone, **answer}, **run)


def _read(load: KeyedLoad) -> _Rows:
    """Everything that the files hold, validated."""
    rows = _Rows()
    strict = load.request.mode == "append"
    if load.request.only is not None:
        branch_table = load.table_of(load.request.table)
        rows.tables[branch_table.table.table_id] = branch_table
    for source in load.request.inputs:
        try:
            for branch_table, batch, lines in _batches(load, source, rows):
                rows.add(branch_table, batch, source.uri, lines, strict=strict)
        except InvalidRows as error:
            raise in_file(error, source) from None
    return rows


def _batches(
    load: KeyedLoad, source: Input, rows: _Rows
) -> Iterator[tuple[BranchTable, pa.RecordBatch, Sequence[int]]]:
    """The rows of a file, by table, and the lines they are from."""
    if source.format == "jsonl" or load.request.only is None:
        for name, (lines, objects) in _by_table(load, source, rows).items():
            branch_table = require_keyed(load.table_of(name))
            try:
                table = branch_table.table
                batch = rules.from_dicts(
                    objects, branch_table.schema, extra=table.extra, partition_by=table.partition_by
                )
                yield branch_table, batch, lines
            except InvalidRows as error:
                raise rules.renumbered(error, lines) from None
        return
    branch_table = load.table_of(load.request.table)
    for placed in read_own(FilePart(source), RowShape.of(branch_table), table=load.request.table, skipped=Skipped()):
        if isinstance(placed.rows, InvalidRows):
            raise placed.rows
        yield branch_table, placed.rows, placed.lines


def _by_table(load: KeyedLoad, source: Input, rows: _Rows) -> dict[str, tuple[list[int], list[dict[str, Any]]]]:
    """The objects of a file by the table that each is for, and their lines."""
    skipped = Skipped()
    objects_by_table = by_table(*read_objects(source), load.request.only, skipped)
    rows.skipped += skipped.rows
    return objects_by_table


def _located(error: InvalidRows | Conflict, rows: _Rows, inputs: Sequence[Input]) -> StrandError:
    """An error about rows by their places, told by file and line."""
    listed: dict[str, list[dict[str, Any]]] = {
        name: [_at(entry, rows) for entry in error.detail[name]]
        for name in ("violations", "rows")
        if name in error.detail
    }
    return by_line(error, listed, inputs)


def _at(entry: Mapping[str, Any], rows: _Rows) -> dict[str, Any]:
    if entry["index"] is None or not 0 <= entry["index"] < len(rows.places):
        return dict(entry)
    uri, line = rows.places[entry["index"]]
    return {"file": uri, **entry, "index": line}


# -- a large one -------------------------------------------------------------------------------------------------------


def _load_large(ctx: Context, load: KeyedLoad) -> Loaded:
    """Write the rows to the load's folder, and then all of them to their tables at once."""
    with nullcontext() if load.is_remembered else holding(ctx, load.name.lease):
        pending = _begin(ctx, load)
        with given_up_on_failure(ctx, pending):
            plan = _convert(ctx, load, pending)
            done = run(ctx, LoadTables(load.request.branch, load.request.actor, plan))
        tidy_loads(ctx)
    if done is None:  # a run that was thought dead had staged all of it, and it was published for it
        earlier = _earlier(ctx, replace(load, request=replace(load.request, again=False)))
        if earlier is None:
            raise LeaseLost("another process thought that this one was dead, and gave its load up")
        return earlier
    (progress,) = of_kind(done.effects, AdvanceLoad)
    with ctx.ledger.read() as conn:
        commit = commit_of_operation(conn, done.op_id)
    answer: KeptAnswer = {**kept_answer(progress), "commit": commit}
    return _loaded(load, answer, operations=(done.op_id,), warnings=done.warnings)


def _begin(ctx: Context, load: KeyedLoad) -> loads.Load:
    """Write it down before its folder is made; one that an earlier run left is gone on with, from its beginning."""
    with ctx.ledger.write() as txn:
        return loads.begin_load(txn, load.name, load.request.digest, load.request.actor)


def _convert(ctx: Context, load: KeyedLoad, pending: loads.Load) -> TablesPlan:
    """The first pass: all rows are validated, and written by table to the load's folder. It holds nothing."""
    from strandline.engines.spark.convert import Conversion

    request, name = load.request, load.name
    branch_tables = _branch_tables(ctx, load)
    shapes = {table: RowShape.of(branch_table) for table, branch_table in branch_tables.items()}
    try:
        first = first_pass(ctx, pending.load_id, request.inputs, Conversion(shapes, request.only, keeps_places=True))
    except UnknownTable as error:
        raise _no_such(load, str(error.args[0])) from None
    # A table that is loaded alone is written also where no row comes: an overwrite may leave it empty.
    written = dict.fromkeys([part.table for part in first.parts] if request.only is None else [request.only])
    parts = {table: [part for part in first.parts if part.table == table] for table in written}
    remember = IdempotencyKey(name.scope, name.key, request.digest, None) if load.is_remembered else None
    return TablesPlan(
        load_id=pending.load_id,
        parts={branch_tables[table].table.table_id: own for table, own in parts.items()},
        versions={branch_tables[table].table.table_id: branch_tables[table].head.schema_version for table in parts},
        chunks=first.chunks,
        inputs=request.inputs,
        skipped=first.skipped,
        strict=request.mode == "append",
        whole=request.mode == "overwrite",
        find_load=lambda conn: loads.find_load(conn, name),
        remember=remember,
    )


def _branch_tables(ctx: Context, load: KeyedLoad) -> dict[str, BranchTable]:
    """The tables that rows may be for."""
    if load.request.only is not None:
        return {load.request.only: load.table_of(load.request.only)}
    declared = read_declared(ctx.ledger, load.request.branch)
    return {branch_table.table.name.lower(): branch_table for branch_table in declared.branch_tables.values()}


def _no_such(load: KeyedLoad, name: str) -> StrandError:
    """What is wrong with a table that a line names."""
    try:
        require_keyed(load.table_of(name))
    except StrandError as error:
        return error
    return SchemaMoved(f"table {name!r} was made meanwhile", hint="Try again.")
