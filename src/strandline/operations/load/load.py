"""Load: files into a table, once, however often the command is run.

A load is written down first, with the folder it may use. A small one is then an append: ledger only, no Spark. A large
one takes two passes. The first, which holds nothing, turns the input into Parquet parts in the load's folder and
writes their list into the ledger. The second takes the parts bite by bite: each bite is an operation that reserves its
seqs, flushes the tail below them, appends, and moves the load on in the publish itself. After a crash the same command
finds its key, and goes on after the last published bite or answers `already_loaded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strandline.engines.files import Input, RowShape, Skipped, cut, read_chunk
from strandline.errors import Conflict, InvalidRows, KeyExists, LeaseLost, StrandError
from strandline.failpoints import fail
from strandline.ledger.history.commits import commit_of_operation, write_commit
from strandline.ledger.ledger import Txn
from strandline.ledger.publish import loads
from strandline.ledger.publish.loads import AdvanceLoad, Load, LoadName, Part
from strandline.ledger.publish.publishing import of_kind
from strandline.ledger.rows.appends import Append, NewBatch, store
from strandline.ledger.rows.encode import encode_batch
from strandline.ledger.rows.idempotency import forget, recall, remember
from strandline.ledger.rows.intake import Intake
from strandline.ledger.rows.query_marks import last_batch
from strandline.ledger.tables.tables import has_schema, read_shown
from strandline.model.operations import KeptAnswer, Loaded
from strandline.model.tables import BranchTable
from strandline.model.wording import counted
from strandline.operations.core.beats import holding
from strandline.operations.core.context import Context
from strandline.operations.core.failures import outages_typed
from strandline.operations.core.recovery import tidy_loads
from strandline.operations.core.steps import run
from strandline.operations.load import load_request
from strandline.operations.load.bite import LoadBite, LoadPlan
from strandline.operations.load.load_request import LoadRequest
from strandline.operations.load.steps import first_pass, given_up_on_failure, in_file, kept_answer, loaded
from strandline.operations.maintain.flush import flush

BITE_BYTES = 1 << 30
BITE_PARTS = 64
SCHEMA_RETRIES = 5


@outages_typed
def load(ctx: Context, request: LoadRequest) -> Loaded:
    """Load it, or say that it is loaded already; again by the new schema if that changed while files were read."""
    for attempts_left in reversed(range(SCHEMA_RETRIES)):
        with ctx.ledger.read() as conn:
            branch_table = read_shown(conn, request.branch, [request.table])[0]
        branch_table.table.require_log("files can't be loaded into it")
        # Two processes that run the same load would do each other's work, and undo it when one of them fails.
        with holding(ctx, name_of(branch_table, request).lease):
            if request.again:
                _forget(ctx, branch_table, request)
                request = replace(request, again=False)
            try:
                return _earlier(ctx, branch_table, request) or _load(ctx, branch_table, request)
            except (Conflict, InvalidRows):
                with ctx.ledger.read() as conn:
                    is_same = has_schema(conn, branch_table.head)
                if is_same or not attempts_left:
                    raise
    raise AssertionError("the last attempt of a load returns or raises")


def _load(ctx: Context, branch_table: BranchTable, request: LoadRequest) -> Loaded:
    pending = _begin(ctx, branch_table, request)
    if pending.parts is None:
        with given_up_on_failure(ctx, pending):
            inputs = request.inputs_in(ctx.staging.uri(pending.load_id, "source"))
            small = _small(ctx, branch_table, request, pending, inputs)
            pending = pending if small is not None else _convert(ctx, branch_table, pending, inputs)
        if small is not None:
            tidy_loads(ctx)
            return small
    done = _bites(ctx, branch_table, request, pending)
    tidy_loads(ctx)
    return done


def _begin(ctx: Context, branch_table: BranchTable, request: LoadRequest) -> Load:
    """The load under this key: the one that an earlier run left, or a new one."""
    with ctx.ledger.write() as txn:
        pending = loads.begin_load(txn, name_of(branch_table, request), request.digest, request.actor)
    if pending.digest != request.digest:
        raise KeyExists(
            f"a load of other files under the key {request.key!r} is not finished",
            hint="Run that one again to finish it, or use another key.",
            expected=pending.digest,
            actual=request.digest,
        )
    return pending


def name_of(branch_table: BranchTable, request: LoadRequest) -> LoadName:
    """What a load of a log table is known by."""
    assert request.key is not None, "a load of a log table has a key"
    return LoadName(branch_table.head.branch_id, branch_table.table.table_id, request.key)


def _forget(ctx: Context, branch_table: BranchTable, request: LoadRequest) -> None:
    name = name_of(branch_table, request)
    with ctx.ledger.write() as txn:
        forget(txn, name.scope, name.key)
        pending = loads.find_load(txn.conn, name)
        if pending is not None and pending.parts_done > 0:
            raise KeyExists(
                "an earlier run of this load stopped in the middle",
                hint="Run it without --again: it goes on where it stopped. Then --again loads all of it once more.",
                expected=0,
                actual=pending.parts_done,
            )
        if pending is not None:
            loads.finish_load(txn, pending.load_id)
    tidy_loads(ctx)


def _earlier(ctx: Context, branch_table: BranchTable, request: LoadRequest) -> Loaded | None:
    with ctx.ledger.write() as txn:
        if request.query_mark is not None:
            query_id, batch = request.query_mark
            mark = last_batch(txn.conn, query_id, branch_table.table.table_id)
            done = mark is not None and mark >= batch
            return Loaded(branch_table.table.name, 0, 0, None, None, None, already_loaded=True) if done else None
        name = name_of(branch_table, request)
        answer = recall(txn, name.scope, name.key, request.digest)
    return None if answer is None else loaded(branch_table.table.name, answer, already_loaded=True)


# -- a small load is an append -----------------------------------------------------------------------------------------


def _small(
    ctx: Context, branch_table: BranchTable, request: LoadRequest, pending: Load, inputs: Sequence[Input]
) -> Loaded | None:
    """Load through the ledger alone; None when it is too much for that."""
    if load_request.is_large(inputs):
        return None
    batches: list[NewBatch] = []
    intake = Intake(ctx.ledger, branch_table.table)
    size_bytes = 0
    skipped = Skipped()
    for chunks in cut(inputs):
        for chunk in chunks:
            for _, batch in read_chunk(
                chunk, RowShape.of(branch_table), table=branch_table.table.name, skipped=skipped
            ):
                if isinstance(batch, InvalidRows):
                    raise in_file(batch, chunk.input)
                batches.extend(encoded := encode_batch(intake.take(batch), branch_table.table))
                size_bytes += sum(len(stored.payload) for stored in encoded)
                if size_bytes > load_request.SMALL_BYTES:
                    return None
    with ctx.ledger.write() as txn:
        answer = _append_small(txn, branch_table, request, batches, skipped.rows, len(intake.too_old))
        loads.finish_load(txn, pending.load_id)
        fail("append.before_commit")
    fail("append.after_commit")
    return loaded(branch_table.table.name, answer)


def _append_small(
    txn: Txn, branch_table: BranchTable, request: LoadRequest, batches: list[NewBatch], skipped: int, too_old: int
) -> KeptAnswer:
    raced, name = None, name_of(branch_table, request)
    if request.query_mark is None:
        raced = recall(txn, name.scope, name.key, request.digest)
    if raced is not None:
        return raced
    append = Append.of(branch_table, request.actor, batches, query_mark=request.query_mark, too_old=too_old)
    (ack,) = store(txn, [append])
    if isinstance(ack, StrandError):
        raise ack
    commit = write_commit(
        txn,
        request.branch,
        kind=request.kind,
        actor=request.actor,
        message=f"{request.kind} {counted(ack.rows, 'row')}",
        tables={branch_table.table.name: ack.rows},
    )
    answer: KeptAnswer = {
        "rows": ack.rows,
        "duplicates_dropped": 0,
        "too_old": ack.too_old,
        "first_seq": ack.first_seq,
        "last_seq": ack.last_seq,
        "commit": commit.commit_id,
        "skipped": skipped,
    }
    if request.query_mark is None:
        remember(txn, name.scope, name.key, request.digest, answer, kept_s=None)
    return answer


# -- a large one: first pass -------------------------------------------------------------------------------------------


def _convert(ctx: Context, branch_table: BranchTable, pending: Load, inputs: Sequence[Input]) -> Load:
    from strandline.engines.spark.convert import Conversion

    only = branch_table.table.name.lower()
    conversion = Conversion({only: RowShape.of(branch_table)}, only, keeps_places=False)
    first = first_pass(ctx, pending.load_id, inputs, conversion)
    version = branch_table.head.schema_version
    parts = [Part(part.path, part.rows, part.size_bytes, version) for part in first.parts]
    with ctx.ledger.write() as txn:
        loads.set_parts(txn, pending.load_id, parts, skipped=first.skipped)
        converted = loads.find_load(txn.conn, pending.name)
    fail("load.after_parts")
    if converted is None:
        raise LeaseLost("another process took this load over and finished it while this one was away")
    return converted


# -- a large one: second pass ------------------------------------------------------------------------------------------


def _bites(ctx: Context, branch_table: BranchTable, request: LoadRequest, pending: Load) -> Loaded:
    assert pending.parts is not None, "the second pass of a load begins before the first one ended"
    flush(ctx, branch_table.table.name, request.branch, request.actor)
    answer = pending.answer or _nothing(pending)
    operations: list[str] = []
    warnings: list[str] = []
    at = pending.parts_done
    total = sum(part.rows for part in pending.parts)
    while at < len(pending.parts) or not pending.parts:
        parts = _bite(pending.parts[at:])
        plan = LoadPlan(
            load_id=pending.load_id,
            parts=parts,
            since=at,
            last=at + len(parts) >= len(pending.parts),
            answer=answer,
            scope=pending.name.scope,
            key=pending.key,
            digest=request.digest,
            kind=request.kind,
            query_mark=request.query_mark,
        )
        done = run(ctx, LoadBite(branch_table.table.name, request.branch, request.actor, plan))
        assert done is not None, "a bite of a load always has something to do"
        (progress,) = of_kind(done.effects, AdvanceLoad)
        answer = kept_answer(progress)
        operations.append(done.op_id)
        warnings.extend(done.warnings)
        at += len(parts)
        ctx.report(f"loading {branch_table.table.name}", answer["rows"] + answer["duplicates_dropped"], total)
        if plan.last:
            break
        fail("load.between_bites")
    with ctx.ledger.read() as conn:
        answer = {**answer, "commit": commit_of_operation(conn, operations[-1])}
    return loaded(branch_table.table.name, answer, operations=tuple(operations), warnings=tuple(warnings))


def _bite(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The first parts, as many as one operation takes; at least one."""
    taken: list[Part] = []
    size_bytes = 0
    for part in parts[:BITE_PARTS]:
        size_bytes += part.size_bytes
        if taken and size_bytes > BITE_BYTES:
            break
        taken.append(part)
    return tuple(taken)


def _nothing(pending: Load) -> KeptAnswer:
    return {"rows": 0, "duplicates_dropped": 0, "first_seq": None, "last_seq": None, "skipped": pending.skipped}
