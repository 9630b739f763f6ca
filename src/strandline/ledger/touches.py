"""What commits wrote, by hash: how a mutation finds the newest version of a key, and whether others wrote it since.

Besides keys these are claims: values that are unique, and pairs of a reference and the key that it names. A claim tells
only when it was last written; rows that hold a value are found by the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, update

from strandline.ledger import schema as db
from strandline.ledger.ledger import Ledger
from strandline.ledger.prepared import Prepared, Step, together

CHUNK = 500


class Touch(NamedTuple):
    """The version of a key that a commit wrote: where it is."""

    number: int
    seq: int
    batch_id: str


_touch = db.touches.c
_NEWEST = Prepared(
    select(_touch.number, _touch.seq, _touch.batch_id)
    .where(
        _touch.table_id == bindparam("b_table"),
        _touch.branch_id == bindparam("b_branch"),
        _touch.hash == bindparam("b_hash"),
        _touch.number <= bindparam("b_upto"),
        _touch.seq > bindparam("b_since"),
    )
    .order_by(_touch.number.desc())
    .limit(1)
)
_INSERT = Prepared(insert(db.touches).values({column: bindparam(f"b_{column.name}") for column in db.touches.columns}))


_claim = db.claims.c
_FORGET_CLAIM = Prepared(
    delete(db.claims).where(
        _claim.table_id == bindparam("b_table_id"),
        _claim.branch_id == bindparam("b_branch_id"),
        _claim.hash == bindparam("b_hash"),
    )
)
_CLAIM = Prepared(insert(db.claims).values({column: bindparam(f"b_{column.name}") for column in db.claims.columns}))


def newest(
    conn: Connection, lineage: Sequence[tuple[str, int]], table_id: str, hashes: Iterable[bytes], since: int
) -> dict[bytes, Touch]:
    """The newest version of each of these keys: the branch's own, or else that of the nearest one it comes from.

    Only those above the seq `since`, up to which the branch's log is folded: of what is folded, some is forgotten here.
    """
    found: dict[bytes, Touch] = {}
    for branch_id, upto in lineage:
        place = {"b_table": table_id, "b_branch": branch_id, "b_upto": upto, "b_since": since}
        for some in _chunks([one for one in hashes if one not in found]):
            steps = [Step(_NEWEST, {**place, "b_hash": one}) for one in some]
            for one, rows in zip(some, together(conn, steps), strict=True):
                for row in rows:
                    found[one] = Touch(*row)
    return found


def writing(branch_id: str, table_id: str, number: int, versions: Sequence[tuple[bytes, int, str]]) -> list[Step]:
    """What notes that a commit wrote these keys: each with its seq and its batch."""
    return [
        Step(
            _INSERT,
            {
                "b_table_id": table_id,
                "b_branch_id": branch_id,
                "b_hash": key,
                "b_number": number,
                "b_seq": seq,
                "b_batch_id": batch_id,
            },
        )
        for key, seq, batch_id in versions
    ]


def claiming(branch_id: str, table_id: str, number: int, claims: Sequence[bytes]) -> list[Step]:
    """What notes that a commit wrote these claims; only the last one to do so is kept."""
    place = {"b_table_id": table_id, "b_branch_id": branch_id, "b_number": number}
    return [Step(statement, {**place, "b_hash": claim}) for claim in claims for statement in (_FORGET_CLAIM, _CLAIM)]


def written_since(conn: Connection, branch_id: str, table_id: str, number: int) -> set[bytes]:
    """The hashes of all keys and claims that commits after this number wrote in a table."""
    found: set[bytes] = set()
    for table in (db.touches, db.claims):
        here = (table.c.table_id == table_id, table.c.branch_id == branch_id, table.c.number > number)
        found.update(conn.execute(select(table.c.hash).where(*here)).scalars())
    return found


def count_claims(conn: Connection, *, now_us: int, grace_s: float) -> int:
    """How many claims can go."""
    return conn.execute(select(func.count()).select_from(_old_claims(now_us, grace_s).subquery())).scalar_one()


def sweep_claims(ledger: Ledger, *, grace_s: float, limit: int = 10_000) -> int:
    """Forget claims that are older than a grace period; returns how many, and is bounded.

    A change that was judged before one of them, and is still on its way, could not see it any more. So the barrier of
    the table is raised, and such a change starts over.
    """
    with ledger.write() as txn:
        found = txn.conn.execute(_old_claims(txn.at_us, grace_s).limit(limit)).all()
        steps = [
            Step(_FORGET_CLAIM, {"b_table_id": row.table_id, "b_branch_id": row.branch_id, "b_hash": row.hash})
            for row in found
        ]
        together(txn.conn, steps)
        head = db.heads.c
        for table_id, branch_id in {(row.table_id, row.branch_id) for row in found}:
            txn.conn.execute(
                update(db.heads)
                .where(head.branch_id == branch_id, head.table_id == table_id)
                .values(barrier=head.barrier + 1)
            )
        return len(found)


def _old_claims(now_us: int, grace_s: float) -> Select[tuple[str, str, bytes]]:
    commit = db.commits.c
    last = select(func.max(commit.seq)).where(commit.at_us <= now_us - int(grace_s * 1_000_000)).scalar_subquery()
    return select(_claim.table_id, _claim.branch_id, _claim.hash).where(_claim.number <= last)


def _chunks(hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(hashes), CHUNK):
        yield hashes[start : start + CHUNK]
