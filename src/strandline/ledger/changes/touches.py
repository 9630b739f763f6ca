"""What commits wrote, by hash: how a mutation finds the newest version of a key, and whether others wrote it since.

Besides keys these are claims: values that are unique, and pairs of a reference and the key that it names. A claim tells
only when it was last written; rows that hold a value are found by the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    LargeBinary,
    ScalarSelect,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from strandline.ledger.clock import forgetting_us, grace_end_us
from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Bound, Prepared, together
from strandline.ledger.history.branches import lineage
from strandline.ledger.ledger import Ledger
from strandline.model.ids import state_id
from strandline.model.schema.keys import HASH_BYTES

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

# Hashes of a whole batch go to the database as one value, which takes them apart itself: all writers wait for the
# counter meanwhile, and a statement for each of 150,000 rows takes seconds.
_first = select(literal(0, Integer).label("n"))
_numbered = _first.cte("place", recursive=True)
_place = _numbered.union_all(select(_numbered.c.n + 1).where(_numbered.c.n + 1 < bindparam("b_rows", type_=Integer)))
_packed = cast(bindparam("b_packed"), LargeBinary)  # Postgres would take it for text
_unpacked = func.substr(_packed, _place.c.n * HASH_BYTES + 1, HASH_BYTES)
_NOTE_BATCH = Prepared(
    insert(db.touches).from_select(
        [column.name for column in db.touches.columns],
        select(
            bindparam("b_table", type_=Text),
            bindparam("b_branch", type_=Text),
            _unpacked.label("hash"),
            bindparam("b_number", type_=BigInteger),
            bindparam("b_first", type_=BigInteger) + _place.c.n,
            bindparam("b_batch", type_=Text),
        ).order_by("hash"),  # as the table is: a tree that is filled in any order is split all over
    )
)

_FORGET = Prepared(
    delete(db.touches).where(
        _touch.table_id == bindparam("b_table"),
        _touch.branch_id == bindparam("b_branch"),
        _touch.hash == bindparam("b_hash"),
        _touch.number == bindparam("b_number"),
    )
)

_claim = db.claims.c
_FORGET_PACKED = Prepared(
    delete(db.claims).where(
        _claim.table_id == bindparam("b_table"),
        _claim.branch_id == bindparam("b_branch"),
        _claim.hash.in_(select(_unpacked)),
    )
)
_CLAIM_PACKED = Prepared(
    insert(db.claims).from_select(
        [column.name for column in db.claims.columns],
        select(
            bindparam("b_table", type_=Text),
            bindparam("b_branch", type_=Text),
            _unpacked.label("hash"),
            bindparam("b_number", type_=BigInteger),
        )
        .distinct()
        .order_by("hash"),
    )
)
_FORGET_CLAIM = Prepared(
    delete(db.claims).where(
        _claim.table_id == bindparam("b_table_id"),
        _claim.branch_id == bindparam("b_branch_id"),
        _claim.hash == bindparam("b_hash"),
    )
)


def newest(
    conn: Connection, lineage: Sequence[tuple[str, int]], table_id: str, hashes: Iterable[bytes], since: int
) -> dict[bytes, Touch]:
    """The newest version of each of these keys: the branch's own, or else that of the nearest one it comes from.

    Only those above the seq `since`, up to which the branch's log is folded: of what is folded, some is forgotten here.
    """
    newest_touches: dict[bytes, Touch] = {}
    for branch_id, upto in lineage:
        place = {"b_table": table_id, "b_branch": branch_id, "b_upto": upto, "b_since": since}
        for chunk in _chunks([key_hash for key_hash in hashes if key_hash not in newest_touches]):
            steps = [Bound(_NEWEST, {**place, "b_hash": key_hash}) for key_hash in chunk]
            for key_hash, rows in zip(chunk, together(conn, steps), strict=True):
                for row in rows:
                    newest_touches[key_hash] = Touch(*row)
    return newest_touches


def writing(branch_id: str, table_id: str, number: int, versions: Sequence[tuple[bytes, int, str]]) -> list[Bound]:
    """What notes that a commit wrote these keys: each with its seq and its batch."""
    return [
        Bound(
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
        for key, seq, batch_id in sorted(versions)  # the table is in the order of hashes, and many come at once
    ]


@dataclass(frozen=True)
class Packed:
    """Hashes one behind the other, in the order of their rows."""

    rows: int
    hashes: bytes

    @classmethod
    def of(cls, hashes: Sequence[bytes]) -> Packed:
        """Pack these."""
        return cls(len(hashes), b"".join(hashes))


def noting(
    branch_id: str, table_id: str, number: int, first_seq: int, batches: Sequence[tuple[str, Packed]]
) -> list[Bound]:
    """What notes that a commit wrote these batches, each with its keys; their rows have seqs from the first on."""
    place = {"b_table": table_id, "b_branch": branch_id, "b_number": number}
    steps = []
    for batch_id, keys in batches:
        of_batch = {"b_first": first_seq, "b_batch": batch_id, "b_rows": keys.rows, "b_packed": keys.hashes}
        steps.append(Bound(_NOTE_BATCH, {**place, **of_batch}))
        first_seq += keys.rows
    return steps


def claiming(branch_id: str, table_id: str, number: int, claims: Packed) -> list[Bound]:
    """What notes that a commit wrote these claims; only the last one to do so is kept."""
    if not claims.rows:
        return []
    place = {"b_table": table_id, "b_branch": branch_id, "b_rows": claims.rows, "b_packed": claims.hashes}
    return [Bound(_FORGET_PACKED, place), Bound(_CLAIM_PACKED, {**place, "b_number": number})]


def written_since(conn: Connection, branch_id: str, table_id: str, number: int) -> set[bytes]:
    """The hashes of all keys and claims that commits after this number wrote in a table."""
    hashes: set[bytes] = set()
    for table in (db.touches, db.claims):
        where = (table.c.table_id == table_id, table.c.branch_id == branch_id, table.c.number > number)
        hashes.update(conn.execute(select(table.c.hash).where(*where)).scalars())
    return hashes


def count_claims(conn: Connection, *, grace_s: float) -> int:
    """How many claims can go."""
    return conn.execute(select(func.count()).select_from(_old_claims(conn, grace_s).subquery())).scalar_one()


def sweep_claims(ledger: Ledger, *, grace_s: float, limit: int = 10_000) -> int:
    """Forget claims that are older than a grace period; returns how many, and is bounded.

    A change that was judged before one of them, and is still on its way, could not see it any more. So the barrier of
    the table is raised, and such a change starts over.
    """
    with ledger.write() as txn:
        claims = txn.conn.execute(_old_claims(txn.conn, grace_s).limit(limit)).all()
        steps = [
            Bound(_FORGET_CLAIM, {"b_table_id": row.table_id, "b_branch_id": row.branch_id, "b_hash": row.hash})
            for row in claims
        ]
        together(txn.conn, steps)
        head = db.heads.c
        for table_id, branch_id in {(row.table_id, row.branch_id) for row in claims}:
            txn.conn.execute(
                update(db.heads)
                .where(head.branch_id == branch_id, head.table_id == table_id)
                .values(barrier=head.barrier + 1)
            )
        return len(claims)


@dataclass(frozen=True)
class _Sweepable:
    """The touches of a branch's table that can go, and how far the logs of the branches that see them are folded."""

    branch_id: str
    table_id: str
    query: Select[Any]
    folded: Mapping[str, int]


def _sweepable(conn: Connection, grace_s: float) -> list[_Sweepable]:
    """What every branch that sees it has in a state, and is older than a grace period.

    It is seen by the branches and tags that come from its branch, each up to where it left.
    """
    branch, head = db.branches.c, db.heads.c
    living = conn.execute(select(branch.branch_id).where(branch.deleted_at_us.is_(None))).scalars().all()
    seen = [(viewer, of, upto) for viewer in living for of, upto in lineage(conn, viewer)]
    reached = {(row.branch_id, row.table_id): row.last_seq for row in conn.execute(select(db.heads))}
    keyed = select(db.tables.c.table_id).where(db.tables.c.kind == "keyed")
    old = _newest_before(conn, grace_s)
    sweepable: list[_Sweepable] = []
    for of, table_id in conn.execute(select(head.branch_id, head.table_id).where(head.table_id.in_(keyed))).all():
        folded = {viewer: reached.get((viewer, state_id(table_id)), 0) for viewer, parent, _ in seen if parent == of}
        allowed = [
            _touch.seq <= folded[viewer] if upto is None else or_(_touch.seq <= folded[viewer], _touch.number > upto)
            for viewer, parent, upto in seen
            if parent == of
        ]
        where = (_touch.table_id == table_id, _touch.branch_id == of, _touch.number <= old)
        query = select(_touch.hash, _touch.number, _touch.seq).where(*where, *allowed)
        sweepable.append(_Sweepable(of, table_id, query, folded))
    return sweepable


def count_touches(conn: Connection, *, grace_s: float) -> int:
    """How many touches can go."""
    counts = [select(func.count()).select_from(table.query.subquery()) for table in _sweepable(conn, grace_s)]
    return sum(conn.execute(count).scalar_one() for count in counts)


def sweep_touches(ledger: Ledger, *, grace_s: float, limit: int = 10_000) -> int:
    """Forget touches of what is folded wherever it is seen; returns how many, and is bounded.

    As for claims, the barrier is raised. Heads say how far hashes may be lacking.
    """
    left = limit
    with ledger.write() as txn:
        for table in _sweepable(txn.conn, grace_s):
            rows = txn.conn.execute(table.query.limit(left)).all() if left else []
            left -= len(rows)
            place = {"b_table": table.table_id, "b_branch": table.branch_id}
            together(txn.conn, [Bound(_FORGET, {**place, "b_hash": row.hash, "b_number": row.number}) for row in rows])
            if not rows:
                continue
            head, upto = db.heads.c, max(row.seq for row in rows)
            statement = update(db.heads).where(head.table_id == table.table_id)
            txn.conn.execute(statement.where(head.branch_id == table.branch_id).values(barrier=head.barrier + 1))
            for viewer, folded in table.folded.items():
                swept = min(upto, folded)
                where = (head.branch_id == viewer, head.swept_seq < swept)
                txn.conn.execute(statement.where(*where).values(swept_seq=swept))
    return limit - left


def _old_claims(conn: Connection, grace_s: float) -> Select[tuple[str, str, bytes]]:
    last = _newest_before(conn, grace_s)
    return select(_claim.table_id, _claim.branch_id, _claim.hash).where(_claim.number <= last)


def _newest_before(conn: Connection, grace_s: float) -> ScalarSelect[int]:
    """The number of the newest commit that is older than a grace period; none is while the clock can't be trusted."""
    commit, end_us = db.commits.c, grace_end_us(conn, forgetting_us(conn), grace_s)
    return select(func.max(commit.seq)).where(commit.at_us <= (end_us or 0)).scalar_subquery()


def _chunks(hashes: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(hashes), CHUNK):
        yield hashes[start : start + CHUNK]
