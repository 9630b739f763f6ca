"""What a person does about a sink: look at what it would send, send again, give rows up or bring them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.engines.duck.ranges import read_range
from strandline.errors import BadRequest, Conflict, NotFound, nearest
from strandline.ledger.ledger import Connection, Ledger, Txn
from strandline.ledger.sinks import dead_letters, deliveries
from strandline.ledger.tables.tables import branch_name, find_table, read_branch_tables
from strandline.model.delivery.sinks import DeadLetter, FollowedStream, Mark, Sink
from strandline.model.ids import lease_of_stream
from strandline.model.values.user_rows import UserRow
from strandline.model.values.wire import jsonable
from strandline.model.wording import counted
from strandline.operations.core.beats import holding
from strandline.operations.core.context import Context
from strandline.sinks.decisions import decided
from strandline.sinks.destination import Destination, Later, Marked, Park, Replays
from strandline.sinks.marks import draft
from strandline.sinks.reading import INBOUND, plan_unit, read_unit
from strandline.sinks.settings import resolved

SAMPLES = 5


@dataclass(frozen=True)
class Rewound:
    """What a rewind did: from where to where, in which epoch, and how many dead letters it closed."""

    sink: str
    stream: str
    was: int
    to: int
    epoch: int
    dead_letters_closed: int


@dataclass(frozen=True)
class SettledLetter:
    """What became of a dead letter: `replayed`, `discarded`, or `refused` again with an error."""

    id: str
    seq: int
    outcome: str
    error: str | None


@dataclass(frozen=True)
class PreviewedStream:
    """What the next unit of a stream would be: its range, its rows, its size, and the first rows of it."""

    table: str
    partition: str
    since: int
    until: int
    rows: int
    withheld: int
    bytes: int
    samples: tuple[UserRow, ...]


def find_stream(ledger: Ledger, sink: Sink, text: str) -> FollowedStream:
    """A stream by its text, its table, or its table and partition with a slash between."""
    with ledger.read() as conn:
        all_followed = deliveries.read_streams(conn, sink)
    names = {f"{followed.table}/{followed.stream.partition}": followed for followed in all_followed}
    exact = {followed.stream.text(): followed for followed in all_followed}
    by_table = [followed for followed in all_followed if followed.table == text]
    if text in names or text in exact:
        return names.get(text) or exact[text]
    if len(by_table) == 1:
        return by_table[0]
    raise NotFound(f"sink {sink.name!r} has no stream {text!r}", hint=nearest(text, names), stream=text)


def rewind(ctx: Context, sink: Sink, text: str, to: int, *, actor: str = "") -> Rewound:
    """Go back: a new epoch begins behind `to`, and everything after it is sent again."""
    stream = find_stream(ctx.ledger, sink, text).stream
    with holding(ctx, lease_of_stream(sink.sink_id, stream.text())) as hold, ctx.ledger.write() as txn:
        followed = deliveries.read_stream(txn.conn, sink, stream)  # under the lease: a tick may have moved it meanwhile
        if followed is None or followed.mark is None:
            raise BadRequest(f"nothing of {text!r} was delivered yet", hint="There is nothing to send again.")
        mark = followed.mark
        if not sink.start_seq <= to <= mark.seq:
            raise BadRequest(
                f"can't rewind to {to}",
                hint=f"The sink began at {sink.start_seq}, and the stream's watermark is {mark.seq}.",
            )
        noted = deliveries.read_noted(txn.conn, sink.sink_id, stream)
        epoch = max(mark.epoch, noted.acked_epoch if noted is not None else 0) + 1
        deliveries.open_epoch(txn, hold, sink.sink_id, followed.stream, Mark(epoch, to))
        closed = dead_letters.close_letters(txn, sink.sink_id, followed.stream, after=to)
        reason = f"({to}, {mark.seq}] of {followed.table}/{stream.partition} is sent again, as epoch {epoch}"
        decided(txn, sink, "rewound", reason, actor, [stream.table_id])
    return Rewound(sink.name, followed.stream.text(), mark.seq, to, epoch, closed)


def begin_anew(ctx: Context, sink: Sink, place: Destination, *, actor: str = "") -> int:
    """Let the streams begin anew that a sink's place has lost, as if it were new; how many there are.

    `place` may take over: where the marker is another sink's, it is ours from now on, and the streams go on.
    """
    if not isinstance(place, Marked):
        raise BadRequest(
            f"sink {sink.name!r} is of type {sink.type}, and its destination has no marker",
            hint="Taking over is for blob and iceberg sinks.",
        )
    with ctx.ledger.read() as conn:
        all_followed = deliveries.read_streams(conn, sink)
        partition_by = {followed.table: find_table(conn, followed.table).partition_by for followed in all_followed}
    lost = [
        followed
        for followed in all_followed
        if place.has_lost(followed.stream, followed.table, partition_by[followed.table])
    ]
    above = {table: place.highest_epoch(table) for table in {followed.table for followed in lost}}
    place.probe()
    for followed in lost:
        with holding(ctx, lease_of_stream(sink.sink_id, followed.stream.text())) as hold, ctx.ledger.write() as txn:
            deliveries.begin_anew(txn, hold, sink, followed.stream, above=above[followed.table])
            reason = f"{followed.table}/{followed.stream.partition} begins anew, with every row"
            decided(txn, sink, "taken_over", reason, actor, [followed.stream.table_id])
    if not lost:
        with ctx.ledger.write() as txn:
            decided(txn, sink, "taken_over", "its place is its own from here on; every stream goes on", actor)
    return len(lost)


def replay(ledger: Ledger, sink: Sink, place: Destination, ids: Sequence[str] | None = None) -> list[SettledLetter]:
    """Send dead letters again, those named or all of them; one that is refused again stays."""
    if not isinstance(place, Replays):
        raise BadRequest(f"sink {sink.name!r} is of type {sink.type}", hint="Only forward sinks have dead letters.")
    settings = resolved(sink.type, sink.settings)
    with ledger.read() as conn:
        letters = chosen(conn, sink, ids)
    settled = []
    for letter in letters:
        try:
            place.replay(letter, settings)
        except (Park, Later) as error:
            settled.append(SettledLetter(letter.letter_id, letter.seq, "refused", str(error)))
            continue
        with ledger.write() as txn:
            dead_letters.settle_letter(txn, letter.letter_id, dead_letters.REPLAYED)
            deliveries.forget_replayed(txn, sink.sink_id, letter.stream)
        settled.append(SettledLetter(letter.letter_id, letter.seq, "replayed", None))
    return settled


def discard(txn: Txn, sink: Sink, ids: Sequence[str] | None = None, *, actor: str = "") -> list[SettledLetter]:
    """Give dead letters up for good; they stay in the books as discarded."""
    letters = chosen(txn.conn, sink, ids)
    for letter in letters:
        dead_letters.settle_letter(txn, letter.letter_id, dead_letters.DISCARDED)
    if letters:
        seqs = ", ".join(str(letter.seq) for letter in letters)
        reason = f"{counted(len(letters), 'dead letter')} given up by hand: seqs {seqs}"
        decided(txn, sink, "discarded", reason, actor, sorted({letter.stream.table_id for letter in letters}))
    return [SettledLetter(letter.letter_id, letter.seq, "discarded", None) for letter in letters]


def chosen(conn: Connection, sink: Sink, ids: Sequence[str] | None) -> list[DeadLetter]:
    """The open dead letters of these ids, or all there are."""
    waiting = {letter.letter_id: letter for letter in dead_letters.list_letters(conn, sink.sink_id)}
    if ids is None:
        return list(waiting.values())
    for letter_id in ids:
        if letter_id not in waiting:
            raise NotFound(f"there is no open dead letter {letter_id!r}", hint=nearest(letter_id, waiting))
    return [waiting[letter_id] for letter_id in ids]


def remove(txn: Txn, sink: Sink, *, force: bool, actor: str = "") -> None:
    """Forget a sink with its marks; refused while it has dead letters, because they would be gone with it."""
    from strandline.ledger.sinks.sinks import remove_sink

    letters = len(dead_letters.list_letters(txn.conn, sink.sink_id))
    if letters and not force:
        raise Conflict(
            f"sink {sink.name!r} has {counted(letters, 'dead letter')}",
            kind="dead_letters",
            hint=f"Replay or discard them first (`strand sink dead {sink.name}`), or remove it with --force.",
            expected=0,
            actual=letters,
        )
    remove_sink(txn, sink.sink_id)
    decided(txn, sink, "removed", f"forgotten with its marks and {counted(letters, 'dead letter')}", actor)


def preview(ctx: Context, sink: Sink) -> list[PreviewedStream]:
    """What the next unit of every due stream would be: its rows, its size, and the first of them. Nothing is sent."""
    with ctx.ledger.read() as conn:
        due = deliveries.read_streams(conn, sink, due=True)
    return [unit for followed in due if (unit := _preview(ctx.ledger, sink, followed)) is not None]


def _preview(ledger: Ledger, sink: Sink, followed: FollowedStream) -> PreviewedStream | None:
    settings = resolved(sink.type, sink.settings)
    stream = followed.stream
    with ledger.read() as conn:
        delivery = followed.delivery
        if delivery is None:
            (table,) = read_branch_tables(conn, branch_name(conn, stream.branch_id), [followed.table])
            mark = followed.mark or Mark(1, sink.start_seq)
            plan = plan_unit(conn, table, followed, mark, settings)
            if plan is None:
                return None
            delivery = draft(sink, stream, followed.table, mark, plan, {**settings, INBOUND: table.table.inbound})
        unit, _ = read_unit(conn, delivery)
    rows = withheld = size_bytes = 0
    samples: list[UserRow] = []
    for piece in read_range(unit):
        rows += piece.rows.num_rows
        withheld += piece.withheld
        size_bytes += piece.rows.nbytes
        missing = SAMPLES - len(samples)
        if missing > 0:
            samples.extend(_rows(piece.rows.slice(0, missing)))
    return PreviewedStream(
        table=followed.table,
        partition=stream.partition,
        since=delivery.since,
        until=delivery.until,
        rows=rows,
        withheld=withheld,
        bytes=size_bytes,
        samples=tuple(samples),
    )


def _rows(batch: Any) -> list[UserRow]:
    columns = {name: jsonable(batch.column(name)) for name in batch.schema.names}
    return [{name: values[place] for name, values in columns.items()} for place in range(batch.num_rows)]
