"""Leases: which process may publish.

An operation may run for minutes in a process that may be paused, partitioned or dead. Time alone can't tell these
apart, so a lease has a fence: a number that grows every time the lease changes hands. The publish transaction compares
it, and a writer that lost its lease without noticing changes nothing. A row is never deleted while its name may come
back, so that its fence never starts again.

All leases of an operation are taken in the transaction that writes its intent, so there is never a held lease
without a record of what its holder was about to do. Names are taken in sorted order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from strandline.errors import LeaseLost
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Ledger, Txn
from strandline.model.ids import lease_of_operation


@dataclass(frozen=True)
class Lease:
    """A lease as the ledger shows it."""

    name: str
    fence: int
    owner: str | None
    op_id: str | None
    beat: int
    waiting: int


@dataclass(frozen=True)
class Hold:
    """A lease that is held for work that is no operation: whatever is written under it shows it."""

    holder: str
    fences: Mapping[str, int]

    def check(self, txn: Txn) -> None:
        """LeaseLost unless it is still held, inside the transaction that writes."""
        check(txn.conn, self.holder, self.fences)


class LeaseHeld(Exception):
    """One of the leases is held by another; the caller decides whether to wait, to take over or to give up."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"{lease.name} is held by {lease.owner}")
        self.lease = lease


def take(txn: Txn, names: Sequence[str], owner: str, op_id: str) -> dict[str, int]:
    """Take all of these, or raise LeaseHeld; returns the fence of each."""
    fences: dict[str, int] = {}
    for name in sorted(set(names)):
        lease = find(txn.conn, name)
        if lease is None:
            txn.conn.execute(insert(db.leases).values(name=name, fence=1, owner=owner, op_id=op_id, beat=0, waiting=0))
            fences[name] = 1
            continue
        if lease.owner is not None:
            raise LeaseHeld(lease)
        fences[name] = lease.fence + 1
        _hand_over(txn, name, lease.fence + 1, owner, op_id)
    return fences


def take_over(txn: Txn, op_id: str, owner: str) -> dict[str, int]:
    """Take every lease of an operation away from its owner; whatever it does from now on is refused."""
    fences: dict[str, int] = {}
    for lease in of_operation(txn.conn, op_id):
        fences[lease.name] = lease.fence + 1
        _hand_over(txn, lease.name, lease.fence + 1, owner, op_id)
    return fences


def _hand_over(txn: Txn, name: str, fence: int, owner: str, op_id: str) -> None:
    txn.conn.execute(
        update(db.leases).where(db.leases.c.name == name).values(fence=fence, owner=owner, op_id=op_id, beat=0)
    )


def check(conn: Connection, op_id: str, fences: Mapping[str, int]) -> None:
    """Raise LeaseLost unless every one of these leases is still the operation's, at the same fence."""
    held = {lease.name: lease.fence for lease in of_operation(conn, op_id)}
    for name, fence in fences.items():
        if held.get(name) != fence:
            raise LeaseLost(
                f"operation {op_id} lost its lease {name}: another process took over while this one was away",
                operation=op_id,
                lease=name,
            )


def beat(ledger: Ledger, op_id: str, fences: Mapping[str, int]) -> bool:
    """Show that the operation lives; False when a lease of it has changed hands."""
    with ledger.write() as txn:
        for name, fence in fences.items():
            moved = txn.conn.execute(
                update(db.leases)
                .where(db.leases.c.name == name, db.leases.c.op_id == op_id, db.leases.c.fence == fence)
                .values(beat=db.leases.c.beat + 1)
            )
            if moved.rowcount == 0:
                return False
    return True


def release_tables(txn: Txn, op_id: str) -> None:
    """Let the next operation have the tables; the operation's own lease stays until it is settled."""
    txn.conn.execute(
        update(db.leases)
        .where(db.leases.c.op_id == op_id, db.leases.c.name != lease_of_operation(op_id))
        .values(owner=None, op_id=None, waiting=0)
    )


def release_operation(txn: Txn, op_id: str) -> None:
    """The operation is over: free what it holds and forget its own lease, whose name never comes back."""
    release_tables(txn, op_id)
    txn.conn.execute(delete(db.leases).where(db.leases.c.name == lease_of_operation(op_id)))


def free(txn: Txn, seen: Lease) -> None:
    """Take a lease of no operation from a dead holder, unless it has shown since then that it lives."""
    txn.conn.execute(
        delete(db.leases).where(
            db.leases.c.name == seen.name, db.leases.c.op_id == seen.op_id, db.leases.c.beat == seen.beat
        )
    )


def release_named(txn: Txn, name: str, op_id: str) -> None:
    """Give a lease of no operation back, if it is still ours. Its next holder has another id, so no fence is needed."""
    txn.conn.execute(delete(db.leases).where(db.leases.c.name == name, db.leases.c.op_id == op_id))


def note_waiting(ledger: Ledger, name: str) -> None:
    """Tell the holder that another waits; maintenance yields to it."""
    with ledger.write() as txn:
        txn.conn.execute(update(db.leases).where(db.leases.c.name == name).values(waiting=db.leases.c.waiting + 1))


def find(conn: Connection, name: str) -> Lease | None:
    """One lease by its name."""
    row = conn.execute(select(db.leases).where(db.leases.c.name == name)).one_or_none()
    return None if row is None else Lease(*row)


def of_operation(conn: Connection, op_id: str) -> list[Lease]:
    """Every lease that an operation holds."""
    rows = conn.execute(select(db.leases).where(db.leases.c.op_id == op_id).order_by(db.leases.c.name))
    return [Lease(*row) for row in rows]
