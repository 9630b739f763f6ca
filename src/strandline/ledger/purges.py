"""What a purge does in the ledger itself: emptied dead letters, shortened quarantine, and its tombstone.

A dead letter that is purged keeps its place, without its bytes:
the unit it belongs to must go on leaving its row out.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, select, update

from strandline.errors import StrandError, TableMoved
from strandline.ledger import schema as db
from strandline.ledger.appends import Append, store
from strandline.ledger.dead_letters import DISCARDED
from strandline.ledger.encode import checksum, encode_batch
from strandline.ledger.ledger import MAIN, Txn
from strandline.ledger.purged_keys import count_as_seen
from strandline.ledger.tables import list_tables, read_head, read_states
from strandline.model.migration import PURGES, keeps_purges
from strandline.model.rows import from_dicts
from strandline.model.tables import TableState

CHUNK = 500


def find_tombstones(conn: Connection) -> TableState | None:
    """The table in which purges are recorded, if there is one: a user's own may have the name that it would have."""
    ours = filter(keeps_purges, read_states(conn, MAIN, tails=False))
    return min(ours, key=lambda state: (len(state.table.name), state.table.name), default=None)


def free_name(conn: Connection) -> str:
    """A name for the table of purges that no table has, also none that was dropped."""
    taken = {table.name.lower() for table in list_tables(conn)}
    names = (PURGES if number == 1 else f"{PURGES}_{number}" for number in itertools.count(1))
    return next(name for name in names if name not in taken)


def read_letters(conn: Connection, table_id: str) -> list[tuple[str, int, bytes]]:
    """Every dead letter of a table that still has its bytes: its id, its row's seq, the bytes."""
    letter = db.dead_letters.c
    rows = conn.execute(
        select(letter.letter_id, letter.seq, letter.payload).where(letter.table_id == table_id, letter.payload != b"")
    )
    return [(row.letter_id, row.seq, bytes(row.payload)) for row in rows]


def read_quarantined(conn: Connection, table_id: str) -> list[tuple[str, int, bytes]]:
    """Every quarantined batch of a table: its id, its rows, its bytes."""
    batch = db.quarantine.c
    rows = conn.execute(select(batch.batch_id, batch.rows, batch.payload).where(batch.table_id == table_id))
    return [(row.batch_id, row.rows, bytes(row.payload)) for row in rows]


def record(txn: Txn, op_id: str, purge: Mapping[str, Any]) -> None:
    """The ledger's part of a purge's publish. Of several operations that are one purge, the first records it."""
    if "tombstone" not in purge:
        return
    count_as_seen(txn, op_id)
    for some in _chunks(purge["letters"], CHUNK):
        txn.conn.execute(
            update(db.dead_letters)
            .where(db.dead_letters.c.letter_id.in_(list(some)))
            .values(payload=b"", answer='{"purged":true}', state=DISCARDED)
        )
    for batch in purge["quarantined"]:
        _shrink(txn, purge["branch_id"], purge["table_id"], batch)
    state = find_tombstones(txn.conn)
    assert state is not None, "the table of purges is made before the first of them begins"
    tombstone = {"purge_id": op_id, **purge["tombstone"]}
    batches = encode_batch(from_dicts([tombstone], state.schema), state.table)
    (answer,) = store(txn, [Append.of(state, purge["actor"], batches)])
    if isinstance(answer, StrandError):
        raise answer


def check(conn: Connection, purge: Mapping[str, Any]) -> None:
    """Conflict when somebody may have come to refer to a row that goes, since it was looked for."""
    relied = purge.get("relied")
    if not relied:
        return
    of, claim = relied["branch_id"], db.claims.c
    shape = conn.execute(select(db.branches.c.shape).where(db.branches.c.branch_id == of)).scalar_one()
    moved = shape != relied["shape"]
    for table_id, barrier in relied["barriers"].items():
        moved = moved or read_head(conn, of, table_id).barrier != barrier
    for table_id, hashes in relied["claims"].items():
        for some in _chunks([bytes.fromhex(one) for one in hashes], CHUNK):
            here = (claim.table_id == table_id, claim.branch_id == of, claim.number > relied["number"])
            found = select(claim.hash).where(*here, claim.hash.in_(list(some))).limit(1)
            moved = moved or conn.execute(found).first() is not None
    if moved:
        raise TableMoved(
            "rows were made to refer to some that are being purged, or may have been",
            hint="Nothing was removed. It is looked at again.",
        )


def _shrink(txn: Txn, branch_id: str, table_id: str, batch: Mapping[str, Any]) -> None:
    """Put a quarantined batch's other rows in its place; one without other rows goes."""
    quarantined, head = db.quarantine.c, db.heads.c
    where = quarantined.batch_id == batch["batch_id"]
    before = txn.conn.execute(select(quarantined.rows).where(where)).scalar()
    if before is None:
        return
    payload = base64.b64decode(batch["payload"])
    if batch["rows"]:
        change = update(db.quarantine).where(where)
        txn.conn.execute(change.values(payload=payload, checksum=checksum(payload), rows=batch["rows"]))
    else:
        txn.conn.execute(delete(db.quarantine).where(where))
    gone = before - batch["rows"]
    txn.conn.execute(
        update(db.heads)
        .where(head.branch_id == branch_id, head.table_id == table_id)
        .values(rows_quarantined=head.rows_quarantined - gone, rows_pruned=head.rows_pruned + gone)
    )


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
