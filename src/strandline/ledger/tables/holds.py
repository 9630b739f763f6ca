"""Pins and holds against expiry: which snapshots may still be needed, and which can't be any more.

A snapshot that was superseded is kept for a grace period, because a reader may have taken its view just before. Then an
expiry condemns it in one transaction, and Iceberg removes it after that. Whatever pins a snapshot (the opening of a
delivery, a hold) does so in a transaction that refuses condemned ones. Both update the table's pin row first, so that
on every database one of the two waits for the other, and they can't miss each other.

A hold is of a moment and not of a list: it keeps whatever was superseded or released after that moment, of every
table. It lapses by itself, so a reader that died holds nothing for long; by the clock that deletions go by, and not at
all while that can't be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, delete, false, func, insert, or_, select, update

from strandline.errors import HistoryGone, TableMoved
from strandline.ledger.clock import forgetting_us, grace_end_us
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Effect, Intent, Publishing

CHUNK = 500


@dataclass(frozen=True)
class Expirable:
    """A snapshot that a (branch, table) needs no more; `condemned` when an expiry said so and has not finished."""

    version: int
    snapshot_id: int
    condemned: bool


def raise_pins(txn: Txn, table_id: str | None = None) -> None:
    """Touch a table's pin row, or every table's, before anything is pinned or condemned."""
    change = update(db.tables).values(pins=db.tables.c.pins + 1)
    txn.conn.execute(change if table_id is None else change.where(db.tables.c.table_id == table_id))


def pin(txn: Txn, table_id: str, snapshot_id: int) -> None:
    """Make sure, inside the transaction that writes down what needs it, that a snapshot stays; else HistoryGone."""
    raise_pins(txn, table_id)
    snapshot = db.snapshots.c
    kept = txn.conn.execute(
        select(snapshot.version).where(
            snapshot.table_id == table_id, snapshot.snapshot_id == snapshot_id, snapshot.condemned_at_us.is_(None)
        )
    ).first()
    if kept is None:
        raise HistoryGone(
            f"snapshot {snapshot_id} of table {table_id} has expired", table=table_id, snapshot=snapshot_id
        )


def hold(txn: Txn, hold_id: str, *, since_us: int, keep_s: float, purpose: str) -> None:
    """Keep the lake as it was at `since_us` for so long, or renew that; HistoryGone when some of it is gone."""
    raise_pins(txn)
    until_us = txn.at_us + int(keep_s * 1_000_000)
    held = db.holds.c
    renewed = txn.conn.execute(
        update(db.holds).where(held.hold_id == hold_id, held.until_us > txn.at_us).values(until_us=until_us)
    )
    if renewed.rowcount:
        return
    _refuse_gone(txn.conn, since_us)
    txn.conn.execute(delete(db.holds).where(held.hold_id == hold_id))
    txn.conn.execute(insert(db.holds).values(hold_id=hold_id, since_us=since_us, until_us=until_us, purpose=purpose))


def _refuse_gone(conn: Connection, since_us: int) -> None:
    """HistoryGone when something that was current at this moment, or later, was condemned already."""
    if conn.execute(select(db.tables.c.table_id).where(db.tables.c.expired_upto_us >= since_us)).first() is not None:
        raise HistoryGone(
            "what this view names is older than the grace period, and a part of it has expired",
            hint="Take a new view. One that is needed for long is held with `with view.held():`.",
        )


def forget_lapsed(txn: Txn, now_us: int) -> None:
    """Drop the holds that are over by now. Taking one does not do it: its clock may be ahead, and asks no other."""
    txn.conn.execute(delete(db.holds).where(db.holds.c.until_us <= now_us))


def release(txn: Txn, hold_id: str) -> None:
    """No reader needs it any more."""
    txn.conn.execute(delete(db.holds).where(db.holds.c.hold_id == hold_id))


def held_since(conn: Connection, now_us: int | None) -> int | None:
    """The oldest moment that is held; without a time to go by, no hold has lapsed."""
    return conn.execute(select(func.min(db.holds.c.since_us)).where(db.holds.c.until_us > (now_us or 0))).scalar()


def find_expirable(
    conn: Connection, branch_id: str, table_id: str, *, now_us: int | None, grace_s: float, limit: int
) -> list[Expirable]:
    """The oldest snapshots that no head, delivery or hold needs and whose grace is over, and those still condemned."""
    snapshot = db.snapshots.c
    rows = conn.execute(
        select(snapshot.version, snapshot.snapshot_id, snapshot.condemned_at_us)
        .where(
            _of_branch(branch_id),
            snapshot.table_id == table_id,
            or_(snapshot.condemned_at_us.is_not(None), _over(conn, now_us, grace_s)),
        )
        .order_by(snapshot.version)
        .limit(limit)
    )
    return [Expirable(row.version, row.snapshot_id, row.condemned_at_us is not None) for row in rows]


def count_expirable(conn: Connection, branch_id: str, *, now_us: int | None, grace_s: float) -> dict[str, int]:
    """How many snapshots of each table could go; tables without any are left out."""
    snapshot = db.snapshots.c
    rows = conn.execute(
        select(snapshot.table_id, func.count())
        .where(
            _of_branch(branch_id),
            or_(snapshot.condemned_at_us.is_not(None), _over(conn, now_us, grace_s)),
        )
        .group_by(snapshot.table_id)
    )
    return {row[0]: int(row[1]) for row in rows}


def _of_branch(branch_id: str) -> ColumnElement[bool]:
    """The snapshots that are a branch's to expire; those of deleted ones are every branch's."""
    deleted = select(db.branches.c.branch_id).where(db.branches.c.deleted_at_us.is_not(None))
    return or_(db.snapshots.c.branch_id == branch_id, db.snapshots.c.branch_id.in_(deleted))


def _over(conn: Connection, now_us: int | None, grace_s: float) -> ColumnElement[bool]:
    """The condition for a snapshot that is not needed: superseded everywhere, its grace over, neither held nor sent."""
    snapshot, delivery = db.snapshots.c, db.deliveries.c
    end_us, held_us = grace_end_us(conn, now_us, grace_s), held_since(conn, now_us)
    if end_us is None:
        return false()
    sent = (
        select(delivery.delivery_id)
        .where(delivery.table_id == snapshot.table_id, delivery.snapshot_id == snapshot.snapshot_id)
        .exists()
    )
    # A snapshot may be that of several branches: it is needed as long as one of them needs it.
    each = db.snapshots.alias("each")
    fresh = [each.c.superseded_at_us.is_(None), each.c.superseded_at_us > end_us]
    if held_us is not None:
        fresh.append(each.c.superseded_at_us >= held_us)
    needed = (
        select(each.c.version)
        .where(each.c.table_id == snapshot.table_id, each.c.snapshot_id == snapshot.snapshot_id, or_(*fresh))
        .exists()
    )
    return and_(~sent, ~needed)


@dataclass(frozen=True)
class CondemnSnapshots(Effect):
    """Snapshots that may not be pinned from the publish on, and that settling removes."""

    table_id: str
    snapshots: tuple[int, ...]

    def check(self, conn: Connection, intent: Intent) -> None:
        """Nothing has come to need one of them since they were found to be free."""
        for chunk in _chunks(self.snapshots):
            _refuse_needed(conn, self.table_id, chunk, intent.created_at_us)

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Condemn them, and say since when the table's history may be gone.

        The pins are raised, and it is looked once more, because a transaction that pins one raises them too: on every
        database one of the two waits for the other.
        """
        raise_pins(txn, self.table_id)
        snapshot, table = db.snapshots.c, db.tables.c
        for chunk in _chunks(self.snapshots):
            _refuse_needed(txn.conn, self.table_id, chunk, publishing.intent.created_at_us)
            named = (snapshot.table_id == self.table_id, snapshot.snapshot_id.in_(chunk))
            newest_us = txn.conn.execute(select(func.max(snapshot.superseded_at_us)).where(*named)).scalar()
            txn.conn.execute(update(db.snapshots).where(*named, _FRESH).values(condemned_at_us=txn.at_us))
            txn.conn.execute(
                update(db.tables)
                .where(table.table_id == self.table_id, table.expired_upto_us < (newest_us or 0))
                .values(expired_upto_us=newest_us)
            )


def _refuse_needed(conn: Connection, table_id: str, snapshot_ids: list[int], found_at_us: int) -> None:
    """Conflict when one of these snapshots was pinned, or left, since they were found to be free."""
    snapshot, delivery = db.snapshots.c, db.deliveries.c
    named = (snapshot.table_id == table_id, snapshot.snapshot_id.in_(snapshot_ids))
    sent = conn.execute(
        select(delivery.snapshot_id).where(delivery.table_id == table_id, delivery.snapshot_id.in_(snapshot_ids))
    ).first()
    current = conn.execute(select(snapshot.snapshot_id).where(*named, snapshot.superseded_at_us.is_(None))).first()
    held_us = held_since(conn, forgetting_us(conn))
    fresh = conn.execute(select(func.max(snapshot.superseded_at_us)).where(*named, _FRESH)).scalar()
    held = held_us is not None and fresh is not None and fresh >= held_us
    left = fresh is not None and fresh > found_at_us  # by a branch whose views may read for their grace yet
    if sent is not None or current is not None or held or left:
        raise TableMoved(
            f"a snapshot of table {table_id} that was about to expire is needed again",
            hint="Nothing was removed. The next expiry looks again.",
            expected=list(snapshot_ids),
            actual=None,
        )


_FRESH = db.snapshots.c.condemned_at_us.is_(None)


def forget_snapshots(txn: Txn, table_id: str, snapshot_ids: Sequence[int]) -> None:
    """Iceberg has forgotten these: their rows go, and with them the files that no other version has."""
    snapshot, file = db.snapshots.c, db.files.c
    for chunk in _chunks(snapshot_ids):
        txn.conn.execute(
            delete(db.snapshots).where(
                snapshot.table_id == table_id,
                snapshot.snapshot_id.in_(chunk),
                snapshot.condemned_at_us.is_not(None),
            )
        )
    named = (
        select(snapshot.version)
        .where(
            snapshot.branch_id == file.branch_id,
            snapshot.table_id == file.table_id,
            snapshot.version >= file.added_version,
            snapshot.version < file.removed_version,
        )
        .exists()
    )
    txn.conn.execute(delete(db.files).where(file.table_id == table_id, file.removed_version.is_not(None), ~named))


def _chunks(snapshot_ids: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(snapshot_ids), CHUNK):
        yield list(snapshot_ids[start : start + CHUNK])
