"""Keys that a purge removed, as hashes that say nothing about the rows.

They are written while the purge is staged and count as seen from its publish on, so that a backfill does not bring the
rows back.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Ledger, Txn

CHUNK = 10_000


def note_hashes(ledger: Ledger, table_id: str, op_id: str, hashes: Sequence[bytes]) -> None:
    """Write down the hashes of keys that a purge is about to remove."""
    for start in range(0, len(hashes), CHUNK):
        chunk = hashes[start : start + CHUNK]
        with ledger.write() as txn:
            txn.conn.execute(
                insert(db.purged_keys),
                [{"table_id": table_id, "hash": key_hash, "op_id": op_id, "seen": 0} for key_hash in chunk],
            )


def seen_hashes(conn: Connection, table_id: str) -> list[bytes]:
    """The hashes of keys that were purged from a table."""
    key = db.purged_keys.c
    rows = conn.execute(select(key.hash).where(key.table_id == table_id, key.seen == 1).distinct())
    return [bytes(key_hash) for key_hash in rows.scalars()]


def read_unfinished(conn: Connection, table_id: str) -> dict[str, list[bytes]]:
    """The hashes of keys of a keyed table that are being purged, by the operation that wrote them down.

    They are there until no branch has such a row: those of a keyed table are not counted as seen.
    """
    key = db.purged_keys.c
    hashes_by_op: dict[str, list[bytes]] = {}
    for row in conn.execute(select(key.op_id, key.hash).where(key.table_id == table_id, key.seen == 1)):
        hashes_by_op.setdefault(str(row.op_id), []).append(bytes(row.hash))
    return hashes_by_op


def forget_done(txn: Txn, operations: Sequence[str]) -> None:
    """No branch has rows any more whose hashes these operations wrote down."""
    txn.conn.execute(delete(db.purged_keys).where(db.purged_keys.c.op_id.in_(list(operations))))


def forget_hashes(txn: Txn, op_id: str) -> None:
    """A purge was given up: its keys have not been purged."""
    txn.conn.execute(delete(db.purged_keys).where(db.purged_keys.c.op_id == op_id, db.purged_keys.c.seen == 0))


def count_as_seen(txn: Txn, op_id: str) -> None:
    """A purge is published: from now on its keys were seen."""
    txn.conn.execute(update(db.purged_keys).where(db.purged_keys.c.op_id == op_id).values(seen=1))
