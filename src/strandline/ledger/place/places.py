"""Where a lake is at home, and the number that its warehouse has too: columns of the counter row.

A raise of the fence touches two places, the ledger and the warehouse's marker, and may die between them. So the ledger
first notes which operation raises it (`raising`); the marker takes the number and the operation; then the ledger takes
the number. A process that finds the marker one ahead, by the operation that the ledger notes, knows that it is its own
lake's raise. All processes of a lake that raise at once share one operation.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.ids import new_id


@dataclass(frozen=True)
class Home:
    """What the counter says about the lake's place. `place` is '' on Postgres and until an older lake is placed."""

    lake_id: str
    generation: str
    warehouse: str
    place: str
    fence: int
    raising: str | None
    has_rows: bool
    """Whether any table has rows in the warehouse."""


def read_home(conn: Connection) -> Home:
    """The lake's home as the ledger has it."""
    counter = db.counter.c
    columns = (
        counter.lake_id,
        counter.generation,
        counter.warehouse,
        counter.place,
        counter.fence,
        counter.raising,
    )
    pinned = select(db.heads.c.table_id).where(db.heads.c.log_snapshot.is_not(None)).limit(1)
    return Home(*conn.execute(select(*columns)).one(), has_rows=conn.execute(pinned).scalar() is not None)


def set_place(txn: Txn, place: str, warehouse: str) -> None:
    """Make the lake at home where it is now."""
    txn.conn.execute(update(db.counter).values(place=place, warehouse=warehouse))


def begin_raise(txn: Txn) -> Home:
    """Note that the fence is being raised, unless it is noted already."""
    home = read_home(txn.conn)
    if home.raising is None:
        txn.conn.execute(update(db.counter).values(raising=new_id()))
        home = read_home(txn.conn)
    return home


def confirm_raise(txn: Txn, begun: Home) -> None:
    """The marker has the next number: so has the ledger, unless another process was faster."""
    counter = db.counter.c
    txn.conn.execute(
        update(db.counter)
        .where(counter.fence == begun.fence, counter.raising == begun.raising)
        .values(fence=begun.fence + 1, raising=None)
    )


def set_fence(txn: Txn, fence: int) -> None:
    """Take a number that a person's word has put into the marker."""
    txn.conn.execute(update(db.counter).values(fence=fence, raising=None))
