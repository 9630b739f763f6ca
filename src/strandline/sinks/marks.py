"""Where a stream begins that has no mark, or only one that a restore brought back from a backup.

Its destination is asked, because it knows what it has. A ledger that was restored is behind its destinations: they may
have rows that were appended after the backup, under seqs that this ledger has never given out, so a mark above the
backup's end says no more than that everything up to there has arrived. A new epoch begins, so that nothing of the lost
time counts for or against what comes now.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.errors import StrandError
from strandline.failpoints import fail
from strandline.ledger import deliveries
from strandline.ledger.leases import Hold
from strandline.ledger.ledger import Txn
from strandline.ledger.restores import JUMP, last_restore
from strandline.ledger.sinks import sink_by_id
from strandline.ledger.tables import find_table
from strandline.model.ids import lease_of_stream
from strandline.model.sinks import Mark, Sink, Stream, StreamState
from strandline.operations.beats import holding
from strandline.operations.context import Context
from strandline.sinks.destination import Destination, Later, Park


def restored_mark(own: Mark | None, found: Mark | None, *, start: int, backup_seq: int, exact: bool) -> Mark:
    """Where a stream goes on after a restore: `own` is the backup's mark, `found` the destination's.

    A destination that is `exact` moves its mark with every unit. When that is behind ours in the same epoch, it has
    lost rows, and gets them again; one that writes nothing for a unit without rows may just seem to be behind.
    """
    if found is None:
        keeps = own is not None and not exact
        return Mark(own.epoch + 1 if own else 1, own.seq if own and keeps else start)
    seq = min(found.seq, backup_seq)
    epoch = found.epoch
    if own is not None:
        lost = exact and found.epoch == own.epoch and found.seq < own.seq
        seq = found.seq if lost else max(own.seq, seq)
        epoch = max(epoch, own.epoch)
    return Mark(epoch + 1, max(seq, start))


def first_mark(ctx: Context, hold: Hold, sink: Sink, destination: Destination, stream: Stream, name: str) -> Mark:
    """Ask the destination where it is, and write down where we begin; at the sink's start when it has nothing.

    A sink is without its mark when it is new, or when its ledger was restored or repaired.
    """
    with ctx.ledger.read() as conn:
        table = find_table(conn, name)
        own = deliveries.noted_mark(conn, sink.sink_id, stream)
        restored = last_restore(conn)
    found = destination.find_mark(stream, table.name, table.partition_by)
    turned = own is not None and own.epoch < deliveries.UNKNOWN
    never = own is None and restored is not None and sink.created_at_us <= restored.at_us

    def work(txn: Txn) -> Mark:
        if restored is not None and (turned or never):
            known = Mark(-own.epoch, own.seq) if own is not None else None
            mark = restored_mark(
                known, found, start=sink.start_seq, backup_seq=restored.backup_seq, exact=destination.exact
            )
            if found is not None:
                txn.raise_to(found.seq + JUMP)
        else:
            mark = _trusted(txn, found, sink.start_seq)
        deliveries.set_mark(txn, hold, sink.sink_id, stream, mark)
        fail("mark.before_commit")
        return mark

    mark = ctx.ledger.run(work)
    fail("mark.after_commit")
    return mark


def _trusted(txn: Txn, found: Mark | None, start: int) -> Mark:
    """The destination's mark as it is; one that this lake never came to is a sign that something is wrong."""
    if found is not None and found.seq > txn.last_seq:
        raise Park(
            f"the destination has seqs up to {found.seq}, and this lake has only come to {txn.last_seq}: "
            "it was put back from an older copy, and its next rows would be taken for old ones. "
            "`strand backup` and `strand restore` see to that"
        )
    return Mark(1, start) if found is None else Mark(found.epoch, max(found.seq, start))


@dataclass(frozen=True)
class Asked:
    """What asking a destination about one stream gave: a mark, or why it can't be asked now."""

    sink: str
    table: str
    partition: str
    mark: Mark | None
    error: str | None = None


def ask(ctx: Context, sink: Sink, destination: Destination) -> list[Asked]:
    """Ask about every stream whose mark a restore has turned round; who can't be asked now is asked by a tick."""
    with ctx.ledger.read() as conn:
        states = deliveries.read_streams(conn, sink)
        noted = {state.stream: deliveries.noted_mark(conn, sink.sink_id, state.stream) for state in states}
    turned = [state for state in states if (mark := noted[state.stream]) and mark.epoch < deliveries.UNKNOWN]
    return [_ask_one(ctx, sink, destination, state) for state in turned]


def _ask_one(ctx: Context, sink: Sink, destination: Destination, state: StreamState) -> Asked:
    stream = state.stream
    try:
        with holding(ctx, lease_of_stream(sink.sink_id, stream.text())) as hold:
            mark = first_mark(ctx, hold, sink, destination, stream, state.table)
    except (Later, Park, StrandError) as error:
        with ctx.ledger.write() as txn:
            if sink_by_id(txn.conn, sink.sink_id) is not None:
                deliveries.note_error(txn, sink, stream, str(error))
        return Asked(sink.name, state.table, stream.partition, None, str(error))
    return Asked(sink.name, state.table, stream.partition, mark)
