"""Where a stream is, and where it begins: what both sides know, and what is written down of it.

The destination is asked before anything is sent, because it knows what it has. A ledger that was restored is behind its
destinations: they may have rows that were appended after the backup, under seqs that this ledger has never given out,
so a mark above the backup's end says no more than that everything up to there has arrived. What follows from both
sides' word is decided in `resuming`; here it is gathered and written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strandline import logs
from strandline.engines.duck.ranges import read_range
from strandline.errors import BadRequest, HistoryGone, StrandError
from strandline.failpoints import fail
from strandline.ledger.ledger import Connection, Txn
from strandline.ledger.place.restores import JUMP, last_restore
from strandline.ledger.publish.leases import Hold
from strandline.ledger.sinks import deliveries
from strandline.ledger.sinks.dead_letters import (
    agree_on_replayed,
    buried_seqs,
    close_letters,
    dead_seqs,
    reopen_replayed,
    replayed_seqs,
)
from strandline.ledger.sinks.sinks import pin_receiver, sink_by_id
from strandline.ledger.tables.tables import branch_name, find_table, read_branch_tables
from strandline.model.delivery.sinks import (
    Delivery,
    FollowedStream,
    Mark,
    Noted,
    Replayed,
    Sink,
    SinkSettings,
    Standing,
    Stream,
)
from strandline.model.ids import lease_of_stream
from strandline.operations.core.beats import holding
from strandline.operations.core.context import Context
from strandline.sinks.destination import CountsReplayed, Destination, Later, Park, Unit
from strandline.sinks.reading import INBOUND, UNASKED, UnitPlan, check_routing, read_unit
from strandline.sinks.registry import known_type
from strandline.sinks.resuming import Begin, Decision, Own, Recompute, Stuck, decide
from strandline.sinks.settings import resolved

log = logs.Logger("strandline.sinks")


@dataclass(frozen=True)
class Whereabouts:
    """A stream as both sides see it now, and what follows."""

    own: Own
    standing: Standing
    decision: Decision
    noted: Noted | None


def look_at(
    ctx: Context, sink: Sink, destination: Destination, stream: Stream, name: str, delivery: Delivery | None
) -> Whereabouts:
    """Ask the destination where it is, and decide; nothing is written."""
    generation = ctx.ledger.generation()
    with ctx.ledger.read() as conn:
        table = find_table(conn, name)
        noted = deliveries.read_noted(conn, sink.sink_id, stream)
        own = _own(conn, ctx, sink_by_id(conn, sink.sink_id) or sink, stream, noted, delivery)
        own = replace(own, generation=generation)
    standing = destination.standing(stream, table.name, table.partition_by)
    return Whereabouts(own, standing, decide(own, standing, _recompute(ctx, sink, stream, name, delivery)), noted)


def _own(
    conn: Connection, ctx: Context, sink: Sink, stream: Stream, noted: Noted | None, delivery: Delivery | None
) -> Own:
    restored = last_restore(conn)
    turned = _is_turned(noted)
    never = noted is None and restored is not None and sink.created_at_us <= restored.at_us
    counts = noted is not None and noted.mark.epoch != deliveries.UNKNOWN
    return Own(
        start_seq=sink.start_seq,
        last_seq=ctx.ledger.last_seq(conn),
        mark=Mark(abs(noted.mark.epoch), noted.mark.seq) if noted is not None and counts else None,
        end=None if delivery is None else (delivery.since if delivery.settings.get(UNASKED) else delivery.until),
        acked_epoch=noted.acked_epoch if noted is not None else 0,
        rewound_epoch=noted.rewound_epoch if noted is not None else 0,
        chunk=noted.chunk if noted is not None else None,
        removed_upto=deliveries.removed_upto(conn, stream),
        hole_upto=noted.hole_upto if noted is not None else 0,
        lacking_upto=noted.lacking_upto if noted is not None else 0,
        backup_seq=restored.backup_seq if restored is not None and (turned or never) else None,
        receiver=sink.receiver,
        sink=sink.name,
    )


def _recompute(ctx: Context, sink: Sink, stream: Stream, name: str, delivery: Delivery | None) -> Recompute:
    """Our rows in a range: those of the delivery's pinned snapshot, or, where none is open, of the log as it is."""

    def digests(since: int, until: int) -> Iterator[str]:
        try:
            with ctx.ledger.read() as conn:
                if delivery is not None and since >= delivery.since:
                    rows, branch_table = read_unit(conn, delivery)
                    units = [
                        Unit(
                            delivery,
                            rows,
                            branch_table.schema,
                            branch_table.table.partition_by,
                            dead_seqs(conn, delivery),
                        )
                    ]
                else:
                    units = _as_they_were(conn, sink, stream, name, since, until)
            for unit in units:
                yield unit.digest_in(since, until)
        except HistoryGone:
            return

    return digests


def _as_they_were(conn: Connection, sink: Sink, stream: Stream, name: str, since: int, until: int) -> list[Unit]:
    """A range of the log as it may have been sent: under each schema since, and without the dead letters of an epoch.

    Under one that the sink's settings don't fit it was not sent with these.
    """
    (table,) = read_branch_tables(conn, branch_name(conn, stream.branch_id), [name])
    settings = resolved(sink.type, sink.settings)
    buried = buried_seqs(conn, sink.sink_id, stream, since, until)
    units: list[Unit] = []
    for version in sorted(table.schemas, reverse=True):
        try:
            check_routing(settings, [replace(table, schema=table.schemas[version])])
        except BadRequest:
            continue
        unit = _unit_of_log(conn, sink, stream, name, since, until, version)
        units += [unit, *(replace(unit, dead=dead) for dead in buried)]
    return units


def _unit_of_log(
    conn: Connection, sink: Sink, stream: Stream, name: str, since: int, until: int, version: int | None = None
) -> Unit:
    """What a delivery of a range would be that is opened now; under another schema, if one is named."""
    (table,) = read_branch_tables(conn, branch_name(conn, stream.branch_id), [name])
    head = table.head
    plan = UnitPlan(until, head.version, head.log_snapshot or 0, head.schema_version if version is None else version)
    settings = {**resolved(sink.type, sink.settings), INBOUND: table.table.inbound}
    opened = draft(sink, stream, name, Mark(1, since), plan, settings)
    rows, branch_table = read_unit(conn, opened)
    return Unit(opened, rows, branch_table.schema, branch_table.table.partition_by)


def count_rows(ctx: Context, sink: Sink, stream: Stream, name: str, since: int, until: int) -> int:
    """How many rows the log has in a range that the sink would send."""
    with ctx.ledger.read() as conn:
        unit = _unit_of_log(conn, sink, stream, name, since, until)
    return sum(piece.rows.num_rows for piece in read_range(unit.rows))


def is_unproven(sink: Sink, noted: Noted | None) -> bool:
    """Whether the mark of a stream's destination may come without the digest of its last rows.

    A receiver of an older version tells none, and one that got its last rows from a sender of an older version has
    none. There, only a unit that was sent before may be found at the destination: a mark inside one that is new is that
    of other rows, under the same seqs, from before this ledger was put back.
    """
    kind = known_type(sink.type)
    if kind is None or not kind.has_receiver:
        return False
    began = noted is not None and noted.chunk is None and noted.mark.seq > sink.start_seq
    return sink.receiver is None or began


def draft(sink: Sink, stream: Stream, table: str, mark: Mark, plan: UnitPlan, settings: SinkSettings) -> Delivery:
    """A delivery that is written down nowhere yet."""
    return Delivery(
        delivery_id="draft",
        sink_id=sink.sink_id,
        stream=stream,
        table=table,
        epoch=mark.epoch,
        since=mark.seq,
        until=plan.until,
        version=plan.version,
        snapshot=plan.snapshot,
        schema_version=plan.schema_version,
        settings=settings,
        opened_at_us=0,
        attempts=0,
        not_before_us=0,
        last_error=None,
        parked=None,
    )


# -- what is written ---------------------------------------------------------------------------------------------------


def begin(ctx: Context, hold: Hold, sink: Sink, stream: Stream, seen: Whereabouts, decision: Begin) -> None:
    """Write down where a stream begins. Dead letters above it are closed, however it came about: they are sent again.

    After a restore the counter jumps above what the destination has.
    """
    theirs = seen.standing.mark
    acked_epoch = max(seen.own.acked_epoch, 0 if theirs is None else theirs.epoch)

    def work(txn: Txn) -> None:
        if seen.own.backup_seq is not None and theirs is not None:
            txn.raise_to(theirs.seq + JUMP)
        deliveries.begin_at(txn, hold, sink.sink_id, stream, decision.mark, chunk=decision.chunk,
                            acked_epoch=acked_epoch, lacking_upto=decision.lacking_upto)  # fmt: skip
        close_letters(txn, sink.sink_id, stream, after=decision.mark.seq, lost=True)
        if _may_lack_letters(seen):
            reopen_replayed(txn, sink.sink_id, stream)
        fail("mark.before_commit")

    ctx.ledger.run(work)
    fail("mark.after_commit")
    tell = log.info if seen.own.mark is None else log.warning
    tell("begins", sink=sink.name, stream=stream.text(), epoch=decision.mark.epoch, mark=decision.mark.seq)
    if decision.note is not None:
        log.warning("a rewind was lost", sink=sink.name, stream=stream.text(), note=decision.note)


def _may_lack_letters(seen: Whereabouts) -> bool:
    """Whether a receiver went back that does not say which replayed letters it has: one of an older version.

    All of them are open again. It keeps those that it has stored, and stores none a second time.
    """
    own, theirs = seen.own, seen.standing.mark
    if not seen.standing.is_lake or seen.standing.replayed is not None or own.mark is None:
        return False
    return theirs is None or theirs.seq < own.mark.seq or theirs.epoch < own.acked_epoch


def settle(
    ctx: Context, hold: Hold, sink: Sink, destination: Destination, stream: Stream, table: str, seen: Whereabouts
) -> None:
    """What the first contact leaves in the ledger, and replayed letters that the two sides don't agree on."""
    lake = seen.standing.lake
    if lake is not None and seen.own.receiver is None:
        ctx.ledger.run(lambda txn: pin_receiver(txn, sink.sink_id, lake))
    replayed = seen.standing.replayed
    if replayed is None or (seen.noted is not None and seen.noted.replayed == replayed.text()):
        return
    with ctx.ledger.read() as conn:
        if Replayed.of(replayed_seqs(conn, sink.sink_id, stream)) == replayed:
            return
    assert isinstance(destination, CountsReplayed), "a destination counts replayed letters and can't list them"
    stored = destination.replayed(stream, table) if replayed.count else frozenset()

    def work(txn: Txn) -> tuple[int, int]:
        deliveries.note_replayed(txn, hold, sink.sink_id, stream, replayed.text())
        return agree_on_replayed(txn, sink.sink_id, stream, stored)

    reopened, settled = ctx.ledger.run(work)
    if reopened or settled:
        log.warning("letters", sink=sink.name, stream=stream.text(), reopened=reopened, replayed=settled)


def first_mark(ctx: Context, hold: Hold, sink: Sink, destination: Destination, stream: Stream, name: str) -> Mark:
    """Ask the destination where it is, and write down where we begin; at the sink's start when it has nothing.

    A sink is without its mark when it is new, or when its ledger was restored or repaired.
    """
    seen = look_at(ctx, sink, destination, stream, name, None)
    decision = seen.decision
    if isinstance(decision, Stuck):
        raise Park(decision.reason)
    assert isinstance(decision, Begin), "a stream without a mark has nothing to go on with"
    begin(ctx, hold, sink, stream, seen, decision)
    settle(ctx, hold, sink, destination, stream, name, seen)
    return decision.mark


# -- after a restore ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamAnswer:
    """What asking a destination about one stream gave: a mark, or why it can't be asked now."""

    sink: str
    table: str
    partition: str
    mark: Mark | None
    error: str | None = None


def ask(ctx: Context, sink: Sink, destination: Destination) -> list[StreamAnswer]:
    """Ask about every stream whose mark a restore has turned round; where that fails now, a tick asks."""
    with ctx.ledger.read() as conn:
        all_followed = deliveries.read_streams(conn, sink)
        noted = {
            followed.stream: deliveries.read_noted(conn, sink.sink_id, followed.stream) for followed in all_followed
        }
    turned = [followed for followed in all_followed if _is_turned(noted[followed.stream])]
    return [_ask_one(ctx, sink, destination, followed) for followed in turned]


def _is_turned(noted: Noted | None) -> bool:
    return noted is not None and noted.mark.epoch < deliveries.UNKNOWN


def _ask_one(ctx: Context, sink: Sink, destination: Destination, followed: FollowedStream) -> StreamAnswer:
    stream = followed.stream
    try:
        with holding(ctx, lease_of_stream(sink.sink_id, stream.text())) as hold:
            mark = first_mark(ctx, hold, sink, destination, stream, followed.table)
    except (Later, Park, StrandError) as error:
        with ctx.ledger.write() as txn:
            if sink_by_id(txn.conn, sink.sink_id) is not None:
                deliveries.note_error(txn, sink, stream, str(error))
        return StreamAnswer(sink.name, followed.table, stream.partition, None, str(error))
    return StreamAnswer(sink.name, followed.table, stream.partition, mark)
