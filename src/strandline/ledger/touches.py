"""What commits wrote, by hash: how a mutation finds the newest version of a key, and whether others wrote it since.

Besides keys these are claims: values that are unique, and pairs of a reference and the key that it names. A claim tells
only when it was last written; rows that hold a value are found by the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select

from strandline.ledger import schema as db
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
    conn: Connection, lineage: Sequence[tuple[str, int]], table_id: str, hashes: Sequence[bytes]
) -> dict[bytes, Touch]:
    """The newest version of each of these keys: the branch's own, or else that of the nearest one it comes from."""
    found: dict[bytes, Touch] = {}
    for branch_id, upto in lineage:
        place = {"b_table": table_id, "b_branch": branch_id, "b_upto": upto}
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


def _chunks(hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(hashes), CHUNK):
        yield hashes[start : start + CHUNK]
