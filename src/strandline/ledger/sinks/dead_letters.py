"""Dead letters: rows that a destination refused, kept with its answer until a person replays or discards them.

A row becomes a dead letter in the ledger first, and only then is its range sent without it; so it is never merely gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, delete, func, insert, select, update

from strandline.errors import NotFound
from strandline.json_types import JsonObject
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.leases import Hold
from strandline.model.delivery.sinks import DeadLetter, Delivery, Stream
from strandline.model.ids import new_id

OPEN, REPLAYED, DISCARDED, CLOSED = "open", "replayed", "discarded", "closed"
"""`closed` is one whose range was sent again: by a rewind, or because the destination went back."""


@dataclass(frozen=True)
class RefusedRow:
    """A row that was refused: its seq, its bytes (an Arrow stream of one row) and the answer it got."""

    seq: int
    payload: bytes
    answer: JsonObject


def bury(txn: Txn, hold: Hold, delivery: Delivery, rows: Sequence[RefusedRow]) -> None:
    """Write these rows down as dead letters of the delivery's stream."""
    hold.check(txn)
    stream = delivery.stream
    letter = db.dead_letters.c
    txn.conn.execute(  # one that was closed, because its row was to be sent again, and is refused again
        delete(db.dead_letters).where(
            *_of(delivery.sink_id, stream),
            letter.epoch == delivery.epoch,
            letter.seq.in_([row.seq for row in rows]),
            letter.state == CLOSED,
        )
    )
    txn.conn.execute(
        insert(db.dead_letters),
        [
            {
                "letter_id": new_id(),
                "sink_id": delivery.sink_id,
                "branch_id": stream.branch_id,
                "table_id": stream.table_id,
                "partition": stream.partition,
                "epoch": delivery.epoch,
                "seq": row.seq,
                "state": OPEN,
                "answer": orjson.dumps(dict(row.answer)).decode(),
                "at_us": txn.at_us,
                "payload": row.payload,
            }
            for row in rows
        ],
    )
    mark = db.watermarks.c
    txn.conn.execute(
        update(db.watermarks)
        .where(
            mark.sink_id == delivery.sink_id,
            mark.branch_id == stream.branch_id,
            mark.table_id == stream.table_id,
            mark.partition == stream.partition,
        )
        .values(dead=mark.dead + len(rows))
    )


def dead_seqs(conn: Connection, delivery: Delivery) -> frozenset[int]:
    """The seqs of a delivery's range that are dead letters already."""
    letter = db.dead_letters.c
    seqs = conn.execute(
        select(letter.seq).where(
            *_of(delivery.sink_id, delivery.stream),
            letter.epoch == delivery.epoch,
            letter.seq > delivery.since,
            letter.seq <= delivery.until,
            letter.state != CLOSED,
        )
    )
    return frozenset(int(seq) for seq in seqs.scalars())


def buried_seqs(conn: Connection, sink_id: str, stream: Stream, since: int, until: int) -> list[frozenset[int]]:
    """The seqs of a range that became dead letters, whatever has become of them since: of each epoch for itself."""
    letter = db.dead_letters.c
    rows = conn.execute(
        select(letter.epoch, letter.seq).where(*_of(sink_id, stream), letter.seq > since, letter.seq <= until)
    ).all()
    return [frozenset(row.seq for row in rows if row.epoch == epoch) for epoch in sorted({row.epoch for row in rows})]


def replayed_seqs(conn: Connection, sink_id: str, stream: Stream) -> frozenset[int]:
    """The dead letters of a stream that were replayed."""
    letter = db.dead_letters.c
    query = select(letter.seq).where(*_of(sink_id, stream), letter.state == REPLAYED)
    return frozenset(int(seq) for seq in conn.execute(query).scalars())


def list_letters(conn: Connection, sink_id: str, *, state: str | None = OPEN) -> list[DeadLetter]:
    """The dead letters of a sink, oldest first."""
    query = (
        select(db.dead_letters, db.tables.c.name.label("table"))
        .join(db.tables, db.tables.c.table_id == db.dead_letters.c.table_id)
        .where(db.dead_letters.c.sink_id == sink_id)
        .order_by(db.dead_letters.c.letter_id)
    )
    if state is not None:
        query = query.where(db.dead_letters.c.state == state)
    return [_letter(row._mapping) for row in conn.execute(query)]


def count_open(conn: Connection) -> dict[tuple[str, Stream], int]:
    """How many dead letters wait, by sink and stream."""
    letter = db.dead_letters.c
    key = (letter.sink_id, letter.branch_id, letter.table_id, letter.partition)
    rows = conn.execute(select(*key, func.count()).where(letter.state == OPEN).group_by(*key))
    return {(row[0], Stream(row[1], row[2], row[3])): int(row[4]) for row in rows}


def settle_letter(txn: Txn, letter_id: str, state: str) -> None:
    """A dead letter was replayed or discarded; it stays in the books."""
    changed = txn.conn.execute(
        update(db.dead_letters).where(db.dead_letters.c.letter_id == letter_id).values(state=state)
    )
    if changed.rowcount != 1:
        raise NotFound(f"there is no dead letter {letter_id}", hint="`strand sink dead NAME` lists those there are.")


def close_letters(txn: Txn, sink_id: str, stream: Stream, *, after: int, lost: bool = False) -> int:
    """Close the dead letters above a seq, because their rows are sent again with the rest of their range.

    Those that were replayed are closed too when the destination has `lost` what it had: a rewind leaves them, because
    the destination still counts them.
    """
    letter = db.dead_letters.c
    states = (OPEN, REPLAYED) if lost else (OPEN,)
    closed = txn.conn.execute(
        update(db.dead_letters)
        .where(*_of(sink_id, stream), letter.state.in_(states), letter.seq > after)
        .values(state=CLOSED)
    )
    return int(closed.rowcount)


def agree_on_replayed(txn: Txn, sink_id: str, stream: Stream, stored: Collection[int]) -> tuple[int, int]:
    """Let the letters say what the destination says: those that it has not stored are open again, those that it has

    are replayed. How many of each.
    """
    letter = db.dead_letters.c
    rows = txn.conn.execute(
        select(letter.letter_id, letter.seq, letter.state).where(
            *_of(sink_id, stream), letter.state.in_((OPEN, REPLAYED))
        )
    ).all()
    stored_seqs = set(stored)
    lost = [row.letter_id for row in rows if row.state == REPLAYED and row.seq not in stored_seqs]
    arrived = [row.letter_id for row in rows if row.state == OPEN and row.seq in stored_seqs]
    for ids, state in ((lost, OPEN), (arrived, REPLAYED)):
        for start in range(0, len(ids), 500):
            chunk = ids[start : start + 500]
            txn.conn.execute(update(db.dead_letters).where(letter.letter_id.in_(chunk)).values(state=state))
    return len(lost), len(arrived)


def reopen_replayed(txn: Txn, sink_id: str, stream: Stream) -> None:
    """Open the letters again that were replayed, because the destination may have lost them."""
    replayed = (*_of(sink_id, stream), db.dead_letters.c.state == REPLAYED)
    txn.conn.execute(update(db.dead_letters).where(*replayed).values(state=OPEN))


def _of(sink_id: str, stream: Stream) -> list[Any]:
    letter = db.dead_letters.c
    return [
        letter.sink_id == sink_id,
        letter.branch_id == stream.branch_id,
        letter.table_id == stream.table_id,
        letter.partition == stream.partition,
    ]


def _letter(row: Any) -> DeadLetter:
    return DeadLetter(
        letter_id=row["letter_id"],
        sink_id=row["sink_id"],
        stream=Stream(row["branch_id"], row["table_id"], row["partition"]),
        table=row["table"],
        epoch=row["epoch"],
        seq=row["seq"],
        state=row["state"],
        answer=orjson.loads(row["answer"]),
        at_us=row["at_us"],
        payload=row["payload"],
    )
