"""What a purge does in the ledger itself: emptied dead letters, shortened quarantine, and its tombstone.

A dead letter that is purged keeps its place, without its bytes:
the unit it belongs to must go on leaving its row out.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, select, update

from strandline.errors import StrandError, TableMoved
from strandline.ledger.changes.purged_keys import count_as_seen
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import MAIN, Txn
from strandline.ledger.publish.publishing import Effect, Intent, Publishing
from strandline.ledger.rows.appends import Append, store
from strandline.ledger.rows.encode import checksum, encode_batch
from strandline.ledger.sinks.dead_letters import DISCARDED
from strandline.ledger.tables.tables import list_tables, read_branch_tables, read_head
from strandline.model.schema.migration import PURGES, keeps_purges
from strandline.model.tables import BranchTable
from strandline.model.values.rows import from_dicts

CHUNK = 500


def find_tombstones(conn: Connection) -> BranchTable | None:
    """The table in which purges are recorded, if there is one: a user's own may have the name that it would have."""
    ours = filter(keeps_purges, read_branch_tables(conn, MAIN, tails=False))
    return min(ours, key=lambda branch_table: (len(branch_table.table.name), branch_table.table.name), default=None)


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


@dataclass(frozen=True)
class Shortened:
    """What is left of a quarantined batch: its rows, and its bytes in base 64."""

    batch_id: str
    rows: int
    payload: str


@dataclass(frozen=True)
class Tombstone:
    """What is told of a purge for good."""

    table_name: str
    table_id: str
    predicate: str
    rows: int
    upto_seq: int


@dataclass(frozen=True)
class RecordPurge(Effect):
    """What a purge does in the ledger itself, besides the rows of a log; `letters` are dead letters that go.

    Of several operations that are one purge, the first records it. Its tombstone is a row of a table, and takes a seq.
    """

    branch_id: str
    table_id: str
    actor: str
    letters: tuple[str, ...]
    quarantined: tuple[Shortened, ...]
    tombstone: Tombstone

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Let its keys count as seen, empty letters, shorten quarantine, and append the tombstone."""
        op_id = publishing.intent.op_id
        count_as_seen(txn, op_id)
        for chunk in _chunks(self.letters, CHUNK):
            txn.conn.execute(
                update(db.dead_letters)
                .where(db.dead_letters.c.letter_id.in_(list(chunk)))
                .values(payload=b"", answer='{"purged":true}', state=DISCARDED)
            )
        for batch in self.quarantined:
            _shrink(txn, self.branch_id, self.table_id, batch)
        branch_table = find_tombstones(txn.conn)
        assert branch_table is not None, "the table of purges is made before the first of them begins"
        row = {"purge_id": op_id, **asdict(self.tombstone)}
        batches = encode_batch(from_dicts([row], branch_table.schema), branch_table.table)
        (answer,) = store(txn, [Append.of(branch_table, self.actor, batches)])
        if isinstance(answer, StrandError):
            raise answer


@dataclass(frozen=True)
class StayUnreferred(Effect):
    """Rows of a keyed table go only if no row may have come to refer to them since they were looked for.

    That was at the commit of this `number`, of a branch whose tables had this `shape`. `claims` are the references to
    them, as hashes in hex, by the table that may make them; `barriers` are those of these tables.
    """

    branch_id: str
    number: int
    shape: int
    claims: Mapping[str, tuple[str, ...]]
    barriers: Mapping[str, int]

    def check(self, conn: Connection, intent: Intent) -> None:
        """Neither tables nor rows came that could refer to them."""
        if self._is_reshaped(conn) or any(self._is_claimed(conn, table_id) for table_id in self.claims):
            raise TableMoved(
                "rows were made to refer to some that are being purged, or may have been",
                hint="Nothing was removed. It is looked at again.",
            )

    def _is_reshaped(self, conn: Connection) -> bool:
        branch = db.branches.c
        shape = conn.execute(select(branch.shape).where(branch.branch_id == self.branch_id)).scalar_one()
        return shape != self.shape or any(
            read_head(conn, self.branch_id, table_id).barrier != barrier for table_id, barrier in self.barriers.items()
        )

    def _is_claimed(self, conn: Connection, table_id: str) -> bool:
        claim = db.claims.c
        later = (claim.table_id == table_id, claim.branch_id == self.branch_id, claim.number > self.number)
        hashes = [bytes.fromhex(text) for text in self.claims[table_id]]
        return any(
            conn.execute(select(claim.hash).where(*later, claim.hash.in_(list(chunk))).limit(1)).first() is not None
            for chunk in _chunks(hashes, CHUNK)
        )


def _shrink(txn: Txn, branch_id: str, table_id: str, batch: Shortened) -> None:
    """Put a quarantined batch's other rows in its place; one without other rows goes."""
    quarantined, head = db.quarantine.c, db.heads.c
    where = quarantined.batch_id == batch.batch_id
    before = txn.conn.execute(select(quarantined.rows).where(where)).scalar()
    if before is None:
        return
    payload = base64.b64decode(batch.payload)
    if batch.rows:
        change = update(db.quarantine).where(where)
        txn.conn.execute(change.values(payload=payload, checksum=checksum(payload), rows=batch.rows))
    else:
        txn.conn.execute(delete(db.quarantine).where(where))
    gone = before - batch.rows
    txn.conn.execute(
        update(db.heads)
        .where(head.branch_id == branch_id, head.table_id == table_id)
        .values(rows_quarantined=head.rows_quarantined - gone, rows_pruned=head.rows_pruned + gone)
    )


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
