"""Adoption: a branch takes a table as another branch has it, by pointing at the same batches and files.

It is right where the other's log is this one's log and more: it came from here, and nothing was committed here since.
Then the rows that are gained have seqs above all that are here, and a sink on this branch gets each of them once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from strandline.ledger.changes import touches
from strandline.ledger.database import schema as db
from strandline.ledger.history.branches import lineage
from strandline.ledger.ledger import Txn
from strandline.ledger.publish import intent_rows
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.rows import batches
from strandline.ledger.tables import files
from strandline.ledger.tables.heads import note_rewrite
from strandline.ledger.tables.tables import read_head
from strandline.model.history.commits import MERGE
from strandline.model.ids import new_id, state_id
from strandline.model.operations import TableScope


@dataclass(frozen=True)
class Adoption:
    """A table that a branch takes over, with so many rows that are new to it; `last_seq` is None where it has none."""

    table_id: str
    table: str
    rows: int
    last_seq: int | None


def can_adopt(conn: Connection, source_id: str, target_id: str, table_id: str, last_seq: int) -> bool:
    """Whether a branch has all that another one's table has, up to the last of its rows.

    It has if it came from there since that row, or if the other came from here and has written none of its own. Not
    where a file would come back that was replaced: a version has a file from one moment to another, and no more. Nor
    where the target's would be another one without another snapshot. Nor where retention has taken more out of the
    source's log: a time-travel read of the target still needs it.
    """
    pruned = read_head(conn, source_id, table_id).kept_from
    if pruned and pruned != read_head(conn, target_id, table_id).kept_from:
        return False
    line = [(target_id, lineage(conn, source_id)), (source_id, lineage(conn, target_id))]
    came = any(
        ancestor == other and upto is not None and upto >= last_seq
        for other, ancestry in line
        for ancestor, upto in ancestry
    )
    parts = (table_id, state_id(table_id))
    return (
        came
        and not any(_returning(conn, source_id, target_id, part) for part in parts)
        and not _goes_unseen(conn, source_id, target_id, table_id)
    )


def _returning(conn: Connection, source_id: str, target_id: str, table_id: str) -> bool:
    ours, theirs = db.files.alias("ours"), db.files.alias("theirs")
    query = (
        select(func.count())
        .select_from(ours.join(theirs, and_(ours.c.table_id == theirs.c.table_id, ours.c.path == theirs.c.path)))
        .where(
            ours.c.table_id == table_id,
            ours.c.branch_id == target_id,
            ours.c.removed_version.is_not(None),
            theirs.c.branch_id == source_id,
            theirs.c.removed_version.is_(None),
        )
    )
    return bool(conn.execute(query).scalar_one())


def _goes_unseen(conn: Connection, source_id: str, target_id: str, table_id: str) -> bool:
    """Whether the log or the state would become another one without another snapshot.

    Files would stay that the source lacks, and a fold that is under way would not see that it comes too late.
    """
    (log, state), (our_log, our_state) = (
        [read_head(conn, branch_id, part) for part in (table_id, state_id(table_id))]
        for branch_id in (source_id, target_id)
    )
    lost = log.log_snapshot is None and our_log.log_snapshot is not None
    further = state.last_seq > our_state.last_seq
    return lost or (further and state.log_snapshot in (None, our_state.log_snapshot))


def adopt(txn: Txn, source_id: str, target_id: str, adoption: Adoption, number: int) -> list[TableScope]:
    """Let the target's table be the source's. `number` tells when: changes that began before start over.

    The answer is what has another snapshot now: the log, its state, or neither.
    """
    table_id = adoption.table_id
    before = [_snapshot(txn.conn, target_id, part) for part in (table_id, state_id(table_id))]
    gained = _gained(txn.conn, source_id, table_id, adoption.last_seq or 0)
    if adoption.last_seq is None:
        _copy_all(txn, source_id, target_id, table_id)
    else:
        _move_head(txn, source_id, target_id, table_id)
        _replace_tail(txn, source_id, target_id, table_id)
        streams = db.stream_heads.c
        txn.conn.execute(delete(db.stream_heads).where(streams.branch_id == target_id, streams.table_id == table_id))
        _copy(txn, db.stream_heads, source_id, target_id, table_id)
    _adopt_state(txn, source_id, target_id, state_id(table_id))
    txn.write_last(touches.writing(target_id, table_id, number, gained))
    after = [_snapshot(txn.conn, target_id, part) for part in (table_id, state_id(table_id))]
    return [new for old, new in zip(before, after, strict=True) if new is not None and new != old]


def _snapshot(conn: Connection, branch_id: str, table_id: str) -> TableScope | None:
    """Where a branch has a table in Iceberg; None where it has nothing there."""
    head = db.heads.c
    row = conn.execute(
        select(db.tables.c.iceberg_name, head.version, head.log_snapshot)
        .join(db.tables, db.tables.c.table_id == head.table_id)
        .where(head.branch_id == branch_id, head.table_id == table_id, head.log_snapshot.is_not(None))
    ).one_or_none()
    return None if row is None else TableScope(branch_id, table_id, *row)


def leave_refs(txn: Txn, branch_id: str, moved: list[TableScope], actor: str) -> None:
    """Leave it to the next process with Spark to let the Iceberg refs of a branch follow what it has taken over.

    There is one such record for a branch at most. It is always a new one: a process that settles an older one may have
    read the pins before they moved.
    """
    if not moved:
        return
    scopes = {scope.table_id: scope for scope in [*intent_rows.take_refs_left(txn, branch_id), *moved]}
    left = tuple(scopes.values())
    intent_rows.write_intent(txn, Intent(new_id(), MERGE, "published", branch_id, actor, "", txn.at_us, left))


def _adopt_state(txn: Txn, source_id: str, target_id: str, state: str) -> None:
    """Take over the source's state, unless the target's reaches further: each is one of the log that is adopted.

    Versions that a state holds may be known by it alone.
    """
    theirs, ours = _folded_seq(txn.conn, source_id, state), _folded_seq(txn.conn, target_id, state)
    if theirs is not None and ours is None:
        _copy_all(txn, source_id, target_id, state)
    elif theirs is not None and ours is not None and theirs > ours:
        _move_head(txn, source_id, target_id, state)


def _folded_seq(conn: Connection, branch_id: str, state: str) -> int | None:
    head = db.heads.c
    return conn.execute(select(head.last_seq).where(head.branch_id == branch_id, head.table_id == state)).scalar()


def are_one(conn: Connection, source_id: str, target_id: str) -> bool:
    """Whether a branch has all rows of all tables of another one: a fast-forward then leaves nothing between them."""
    keyed = select(db.tables.c.table_id).where(db.tables.c.kind == "keyed")
    head = db.heads.c
    rows = conn.execute(
        select(head.table_id, head.last_seq).where(head.branch_id == target_id, head.table_id.in_(keyed))
    )
    return all(can_adopt(conn, source_id, target_id, row.table_id, row.last_seq) for row in rows.all())


def refork(txn: Txn, source_id: str, target_id: str) -> None:
    """Let a branch and the one it came from be one again, as if it had just been made."""
    branch = db.branches.c
    for child_id, parent_id in ((source_id, target_id), (target_id, source_id)):
        child = and_(branch.branch_id == child_id, branch.parent_id == parent_id)
        txn.conn.execute(update(db.branches).where(child).values(forked_at=txn.last_seq))


def _copy_all(txn: Txn, source_id: str, target_id: str, table_id: str) -> None:
    _copy(txn, db.heads, source_id, target_id, table_id)
    _copy(txn, db.tail, source_id, target_id, table_id)
    _copy(txn, db.stream_heads, source_id, target_id, table_id)
    _copy(txn, db.files, source_id, target_id, table_id, db.files.c.removed_version.is_(None))
    _copy(txn, db.snapshots, source_id, target_id, table_id, db.snapshots.c.superseded_at_us.is_(None))


def _copy(txn: Txn, table: Any, source_id: str, target_id: str, table_id: str, *where: Any) -> None:
    rows = txn.conn.execute(select(table).where(table.c.branch_id == source_id, table.c.table_id == table_id, *where))
    copies = [{**row._mapping, "branch_id": target_id} for row in rows]
    if copies:
        txn.conn.execute(insert(table), copies)


def _gained(conn: Connection, source_id: str, table_id: str, above: int) -> list[tuple[bytes, int, str]]:
    """The newest version of each key that the source wrote above a seq, as far as it is known by hash."""
    touch = db.touches.c
    newest_by_hash: dict[bytes, tuple[int, str]] = {}
    for branch_id, upto in lineage(conn, source_id):
        rows = conn.execute(
            select(touch.hash, touch.seq, touch.batch_id).where(
                touch.table_id == table_id,
                touch.branch_id == branch_id,
                touch.seq > above,
                *(() if upto is None else (touch.number <= upto,)),
            )
        )
        for row in rows:
            if row.hash not in newest_by_hash or row.seq > newest_by_hash[row.hash][0]:
                newest_by_hash[row.hash] = row.seq, row.batch_id
    return [(key, seq, batch_id) for key, (seq, batch_id) in newest_by_hash.items()]


def _move_head(txn: Txn, source_id: str, target_id: str, table_id: str) -> None:
    """The target's head, files and snapshot become the source's, as its next version."""
    theirs = read_head(txn.conn, source_id, table_id)
    ours = read_head(txn.conn, target_id, table_id)
    head = db.heads.c
    own = ("branch_id", "table_id", "version", "barrier", "rewrites")
    columns = [column for column in db.heads.columns if column.name not in own]
    row = txn.conn.execute(select(*columns).where(head.branch_id == source_id, head.table_id == table_id)).one()
    version = ours.version
    if theirs.log_snapshot != ours.log_snapshot and theirs.log_snapshot is not None:
        version += 1
        _replace_files(txn, source_id, target_id, table_id, version)
        taken = txn.conn.execute(
            select(db.snapshots.c.op_id, db.snapshots.c.kind, db.snapshots.c.rows).where(
                db.snapshots.c.branch_id == source_id,
                db.snapshots.c.table_id == table_id,
                db.snapshots.c.version == theirs.version,
            )
        ).one()
        files.add_snapshot(
            txn,
            target_id,
            table_id,
            version,
            snapshot_id=theirs.log_snapshot,
            op_id=taken.op_id,
            kind=taken.kind,
            rows=taken.rows,
        )
    values = {**row._mapping, "version": version, "barrier": head.barrier + 1}
    txn.conn.execute(update(db.heads).where(head.branch_id == target_id, head.table_id == table_id).values(**values))
    _carry_rewrites(txn, source_id, target_id, table_id)


def _carry_rewrites(txn: Txn, source_id: str, target_id: str, table_id: str) -> None:
    """A target that lacks what was rewritten in the source's log has other rows from now on, and another token.

    A purge goes from branch to branch: the source may have lost rows that the target still had. It gets the source's
    token where that is later, so that the next adoption finds them equal, and one of its own where it is not.
    """
    head = db.heads.c
    query = select(head.rewrites).where(head.table_id == table_id)
    theirs, ours = (
        int(txn.conn.execute(query.where(head.branch_id == branch_id)).scalar_one())
        for branch_id in (source_id, target_id)
    )
    if theirs > ours:
        statement = update(db.heads).where(head.branch_id == target_id, head.table_id == table_id)
        txn.conn.execute(statement.values(rewrites=theirs))
    elif theirs < ours:
        note_rewrite(txn, target_id, table_id)


def _replace_files(txn: Txn, source_id: str, target_id: str, table_id: str, version: int) -> None:
    file = db.files.c

    def current(branch_id: str) -> set[str]:
        where = and_(file.branch_id == branch_id, file.table_id == table_id, file.removed_version.is_(None))
        return set(txn.conn.execute(select(file.path).where(where)).scalars())

    theirs, ours = current(source_id), current(target_id)
    files.remove_files(txn, target_id, table_id, version, sorted(ours - theirs))
    for chunk in _chunks(sorted(theirs - ours)):
        rows = txn.conn.execute(
            select(db.files).where(file.branch_id == source_id, file.table_id == table_id, file.path.in_(chunk))
        )
        copies = [{**row._mapping, "branch_id": target_id, "added_version": version} for row in rows]
        txn.conn.execute(insert(db.files), copies)


def _chunks(paths: list[str]) -> list[list[str]]:
    return [paths[start : start + files.CHUNK] for start in range(0, len(paths), files.CHUNK)]


def _replace_tail(txn: Txn, source_id: str, target_id: str, table_id: str) -> None:
    """Refer to what the source refers to, before letting go of what it does not."""
    tail = db.tail.c

    def held(branch_id: str) -> dict[str, int]:
        where = and_(tail.branch_id == branch_id, tail.table_id == table_id)
        return {
            row.batch_id: row.first_seq for row in txn.conn.execute(select(tail.batch_id, tail.first_seq).where(where))
        }

    theirs, ours = held(source_id), held(target_id)
    new = [
        {"branch_id": target_id, "table_id": table_id, "first_seq": first_seq, "batch_id": batch_id}
        for batch_id, first_seq in theirs.items()
        if batch_id not in ours
    ]
    if new:
        txn.conn.execute(insert(db.tail), new)
    batches.release(txn, target_id, table_id, [batch_id for batch_id in ours if batch_id not in theirs])


def is_merged_since(conn: Connection, branch_id: str, number: int) -> bool:
    """Whether another merge came into a branch after a number was given."""
    commit = db.commits.c
    query = select(func.count()).where(commit.branch_id == branch_id, commit.seq > number, commit.kind == "merge")
    return bool(conn.execute(query).scalar_one())
