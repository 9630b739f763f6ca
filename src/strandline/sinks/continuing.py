"""What a person says to a stream that is stuck: take this receiver, go on past what is gone, send what is lacking.

One side was put back from an older copy, or made anew, and going on in silence would lose or repeat rows. Each word
here opens an epoch of its own, so that nothing of the time before counts for or against what comes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.errors import BadRequest, Conflict
from strandline.failpoints import fail
from strandline.ledger.ledger import Txn
from strandline.ledger.place.restores import JUMP
from strandline.ledger.publish.leases import Hold
from strandline.ledger.sinks import deliveries
from strandline.ledger.sinks.dead_letters import close_letters
from strandline.ledger.sinks.sinks import pin_receiver
from strandline.model.delivery.sinks import FollowedStream, Mark, Sink, Stream
from strandline.model.ids import lease_of_stream
from strandline.model.wording import counted
from strandline.operations.core.beats import holding
from strandline.operations.core.context import Context
from strandline.sinks.decisions import decided
from strandline.sinks.destination import Destination
from strandline.sinks.marks import Whereabouts, count_rows, look_at
from strandline.sinks.registry import known_type
from strandline.sinks.repair import find_stream
from strandline.sinks.resuming import HOLE, RECEIVER, TABLE, Own, Stuck, continued, has_upto


def accept_receiver(ctx: Context, sink: Sink, *, actor: str = "") -> int:
    """Let a sink take the receiver that answers now for its own; how many streams will ask it where they are.

    One that it knows nothing of begins at the sink's start. A mark that a restore brought back is asked about anyway.
    """
    kind = known_type(sink.type)
    if kind is None or not kind.has_receiver:
        raise BadRequest(f"sink {sink.name!r} is of type {sink.type}", hint="Only forward sinks have a receiver.")
    with ctx.ledger.read() as conn:
        all_followed = deliveries.read_streams(conn, sink)
    for followed in all_followed:
        with holding(ctx, lease_of_stream(sink.sink_id, followed.stream.text())) as hold, ctx.ledger.write() as txn:
            noted = deliveries.read_noted(txn.conn, sink.sink_id, followed.stream)
            if noted is not None and noted.mark.epoch > deliveries.UNKNOWN:
                deliveries.forget_mark(txn, hold, sink, followed.stream)
    with ctx.ledger.write() as txn:  # last: until then the receiver's id still keeps every stream from going on
        pin_receiver(txn, sink.sink_id, None)
        reason = f"the lake that answers next is its receiver, in place of {sink.receiver or 'none'}"
        decided(txn, sink, "receiver_accepted", reason, actor)
    return len(all_followed)


@dataclass(frozen=True)
class Continued:
    """A stream that goes on by a person's word: why it was stuck, behind which seq it goes on, and what that means.

    Of the `rows` up to `upto`, which is the destination's mark, only those are sent that it lacks if they are
    `compared`; otherwise all of them, and some may arrive twice.
    """

    stream: str
    table: str
    partition: str
    outcome: str
    kind: str | None = None
    epoch: int | None = None
    since: int | None = None
    upto: int | None = None
    rows: int = 0
    compared: bool = False


def continue_streams(
    ctx: Context, sink: Sink, place: Destination, text: str | None, *, past_hole: bool, yes: bool, actor: str = ""
) -> list[Continued]:
    """Let streams that are stuck go on: the one that is named, or all that are parked or could not begin."""
    if text is not None:
        all_followed = [find_stream(ctx.ledger, sink, text)]
    else:
        with ctx.ledger.read() as conn:
            all_followed = [followed for followed in deliveries.read_streams(conn, sink) if _waits(followed)]
    return [
        _continue(ctx, sink, place, followed, past_hole=past_hole, yes=yes, actor=actor) for followed in all_followed
    ]


def _waits(followed: FollowedStream) -> bool:
    return followed.mark is None or (followed.delivery is not None and followed.delivery.parked is not None)


def _continue(
    ctx: Context, sink: Sink, place: Destination, followed: FollowedStream, *, past_hole: bool, yes: bool, actor: str
) -> Continued:
    stream = followed.stream
    done = Continued(stream.text(), followed.table, stream.partition, "retried")
    with holding(ctx, lease_of_stream(sink.sink_id, stream.text())) as hold:
        with ctx.ledger.read() as conn:
            now = deliveries.read_stream(conn, sink, stream)  # under the lease: a tick may have moved it meanwhile
        seen = look_at(ctx, sink, place, stream, followed.table, now.delivery if now is not None else None)
        stuck = seen.decision
        if not isinstance(stuck, Stuck):
            ctx.ledger.run(lambda txn: deliveries.unpark(txn, sink.sink_id, stream))
            return done
        if stuck.kind in (RECEIVER, TABLE):
            raise Conflict(
                stuck.reason, kind=stuck.kind, hint="", expected=seen.own.receiver, actual=seen.standing.lake
            )
        mark = continued(seen.own, seen.standing, stuck)
        theirs = mark.seq if seen.standing.mark is None else seen.standing.mark.seq
        compared = seen.standing.reads_back and stuck.kind != HOLE
        done = replace(done, outcome="continued", kind=stuck.kind, epoch=mark.epoch, since=mark.seq, upto=theirs)
        if stuck.kind == HOLE:
            _refuse_hole(seen.own, mark, past_hole)
        else:
            rows = count_rows(ctx, sink, stream, followed.table, mark.seq, theirs)
            done = replace(done, rows=rows, compared=compared)
            _refuse_repeats(done, yes, is_lake=seen.standing.is_lake)
        _open(ctx, hold, sink, stream, seen, mark, done, actor)
    return done


def _refuse_hole(own: Own, mark: Mark, past_hole: bool) -> None:
    if not past_hole:
        raise Conflict(
            f"retention has removed rows in ({mark.seq}, {own.removed_upto}] that the destination lacks",
            kind="hole",
            hint="Add --past-hole to go on without them; those that are left there are sent.",
            expected=mark.seq,
            actual=own.removed_upto,
        )


def _refuse_repeats(done: Continued, yes: bool, *, is_lake: bool) -> None:
    upgrade = "The receiver is of an older version: once it is upgraded, only those are sent that it lacks. "
    if done.rows and not done.compared and not yes:
        raise BadRequest(
            f"the destination can't say which rows it has: {counted(done.rows, 'row')} of "
            f"{done.table}/{done.partition} in ({done.since}, {done.upto}] will be sent, and may arrive twice",
            hint=f"{upgrade if is_lake else ''}Add --yes if that is what you want.",
            rows=done.rows,
        )


def _why(done: Continued, own: Own) -> str:
    where = f"{done.table}/{done.partition} goes on behind {done.since}, as epoch {done.epoch}"
    if done.kind == HOLE:
        return f"{where}, without rows up to {own.removed_upto} that retention has removed"
    repeats = "only what the destination lacks is sent" if done.compared else "rows may arrive twice"
    return f"{where}; up to {done.upto} {repeats}"


def _open(
    ctx: Context, hold: Hold, sink: Sink, stream: Stream, seen: Whereabouts, mark: Mark, done: Continued, actor: str
) -> None:
    """Begin a person's epoch. New rows get seqs above what the destination has, so none is taken for an old one."""
    is_hole, theirs = done.kind == HOLE, seen.standing.mark

    def work(txn: Txn) -> None:
        if theirs is not None:
            txn.raise_to(theirs.seq + (JUMP if seen.own.backup_seq is not None else 0))
        upto = has_upto(seen.own, seen.standing)
        hole = seen.own.removed_upto if is_hole else 0
        deliveries.open_epoch(txn, hold, sink.sink_id, stream, mark, lacking_upto=upto, hole_upto=hole)
        close_letters(txn, sink.sink_id, stream, after=mark.seq, lost=is_hole)
        decided(txn, sink, "continued", _why(done, seen.own), actor, [stream.table_id])
        fail("mark.before_commit")

    ctx.ledger.run(work)
    fail("mark.after_commit")
