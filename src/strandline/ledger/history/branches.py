"""Branches: lines of commits over all keyed tables. Log tables have one history, which every branch shows.

A branch at a tip is a copy of rows of the ledger: heads, references to tail batches, and what is known of files. No
data is copied, and from then on the two have nothing in common but what neither changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Row, Select, Table, and_, bindparam, delete, insert, literal, select, update

from strandline.errors import BadRequest, Conflict, NotFound, TableMoved, nearest
from strandline.failpoints import fail
from strandline.ledger.audit import audit_decision
from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Prepared
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.ledger import MAIN, Ledger, Txn
from strandline.ledger.rows import batches
from strandline.ledger.tables.tables import branch_id, refuse_protected
from strandline.model.history.commits import Commit
from strandline.model.history.names import Holder, check_ref_name
from strandline.model.ids import new_id

TAG, KEPT = "tag:", "~"
"""Before the name of a tag where branches have theirs, and before one that no caller gave: no name has these."""


@dataclass(frozen=True)
class Branch:
    """A branch: its newest commit, and where it was made from. One that is `protected` changes by merges alone."""

    branch_id: str
    name: str
    tip: str | None
    parent: str | None
    created_at_us: int
    protected: bool = False


@dataclass(frozen=True)
class Tag:
    """A name for a commit, which keeps what the commit needs to be read."""

    branch_id: str
    name: str
    commit: str
    covers: str
    created_at_us: int


def list_branches(conn: Connection) -> list[Branch]:
    """Every branch, by name."""
    parent = db.branches.alias("parent")
    branch = db.branches.c
    rows = conn.execute(
        select(branch.branch_id, branch.name, branch.tip, parent.c.name, branch.created_at_us, branch.protected)
        .outerjoin(parent, and_(parent.c.branch_id == branch.parent_id, parent.c.deleted_at_us.is_(None)))
        .where(branch.deleted_at_us.is_(None), branch.kind == "branch")
        .order_by(branch.name)
    )
    return [Branch(*row[:-1], protected=bool(row.protected)) for row in rows]


def list_tags(conn: Connection, *, kept: bool = False) -> list[Tag]:
    """Every tag, by name; with `kept` also what stands for deleted branches."""
    branch = db.branches.c
    rows = conn.execute(
        select(branch.branch_id, branch.name, branch.tip, branch.covers, branch.created_at_us)
        .where(branch.deleted_at_us.is_(None), branch.kind == "tag")
        .order_by(branch.name)
    )
    tags = [Tag(row.branch_id, row.name.removeprefix(TAG), *row[2:]) for row in rows]
    return tags if kept else [tag for tag in tags if not tag.name.startswith(KEPT)]


def deleted_branches(conn: Connection) -> list[str]:
    """The ids of branches that were deleted."""
    gone = select(db.branches.c.branch_id).where(db.branches.c.deleted_at_us.is_not(None))
    return [str(deleted_id) for deleted_id in conn.execute(gone).scalars()]


def living_branch(conn: Connection, of: str) -> str | None:
    """The name of a branch; None when it was deleted, also if its rows are kept for a while."""
    branch = db.branches.c
    living = branch.branch_id == of, branch.deleted_at_us.is_(None), branch.kind == "branch"
    name = conn.execute(select(branch.name).where(*living)).scalar()
    return None if name is None else str(name)


_PARENT = Prepared(
    select(db.branches.c.parent_id, db.branches.c.forked_at).where(db.branches.c.branch_id == bindparam("b_branch"))
)


def lineage(conn: Connection, of: str) -> list[tuple[str, int | None]]:
    """A branch and those it comes from, nearest first; each but itself up to the number at which it was left."""
    ancestry: list[tuple[str, int | None]] = []
    upto: int | None = None
    at: str | None = of
    while at is not None:
        ancestry.append((at, upto))
        at, forked_at = _PARENT.read_row(conn, {"b_branch": at})
        upto = forked_at if upto is None else min(upto, forked_at)
    return ancestry


def create_branch(ledger: Ledger, name: str, source: str) -> Branch:
    """Make a branch at another one's tip."""
    with ledger.read() as conn:
        parent = branch_id(conn, source)
    made = create_branch_of(ledger, name, parent, None)
    return Branch(made.branch_id, name, made.tip, source, made.created_at_us)


def create_branch_of(ledger: Ledger, name: str, parent: str, tip: str | None) -> Branch:
    """Make a branch of another one or of a tag, by its id; a conflict when it has moved from a `tip` that is given."""
    check_ref_name(name)
    with ledger.write() as txn:
        refuse_existing(txn.conn, name)
        row = txn.conn.execute(
            select(db.branches).where(db.branches.c.branch_id == parent, db.branches.c.deleted_at_us.is_(None))
        ).one_or_none()
        if row is None or (tip is not None and row.tip != tip):
            raise Conflict(
                "the branch has moved meanwhile", kind="head_moved", hint="Try again.", expected=tip, actual=None
            )
        made = Branch(fork(txn, parent, name, row.tip), name, row.tip, None, txn.at_us)
        fail("branch.before_commit")
    fail("branch.after_commit")
    return made


def create_tag(txn: Txn, name: str, commit: Commit, holder: str, covers: str) -> Tag:
    """Give a commit a name for good: the tag keeps all that a branch has, whose newest commit `covers` reaches it."""
    check_ref_name(name, "a tag")
    if txn.conn.execute(select(db.branches.c.branch_id).where(db.branches.c.name == TAG + name)).scalar() is not None:
        raise Conflict(
            f"there is a tag {name!r} already",
            kind="tag_exists",
            hint="Pick another name, or delete that one first.",
            expected=None,
            actual=name,
        )
    made = fork(txn, holder, TAG + name, commit.commit_id, kind="tag", covers=covers)
    return Tag(made, name, commit.commit_id, covers, txn.at_us)


def delete_tag(txn: Txn, name: str) -> None:
    """Remove a tag; what only it kept goes with the next sweep and expiry."""
    for tag in list_tags(txn.conn):
        if tag.name == name:
            remove(txn, tag.branch_id)
            return
    names = [tag.name for tag in list_tags(txn.conn)]
    raise NotFound(f"there is no tag {name!r}", hint=nearest(name, names), tag=name)


def fork(txn: Txn, parent: str, name: str, tip: object, *, kind: str = "branch", covers: str | None = None) -> str:
    """Copy all that a branch is at this moment, and return the new one's id."""
    made = new_id()
    txn.conn.execute(
        insert(db.branches).values(
            branch_id=made,
            name=name,
            kind=kind,
            protected=0,
            tip=tip,
            covers=covers,
            parent_id=parent,
            forked_at=txn.last_seq,
            created_at_us=txn.at_us,
        )
    )
    for table, where in _copied():
        _copy(txn, table, parent, made, where)
    return made


def _copied() -> Iterator[tuple[Table, object]]:
    """The tables whose rows a branch has of its own, with the rows that it begins with: what is current."""
    keyed = select(db.tables.c.table_id).where(db.tables.c.kind != "log")
    yield db.heads, db.heads.c.table_id.in_(keyed)
    yield db.tail, db.tail.c.table_id.in_(keyed)
    yield db.stream_heads, db.stream_heads.c.table_id.in_(keyed)
    yield db.files, and_(db.files.c.table_id.in_(keyed), db.files.c.removed_version.is_(None))
    yield db.snapshots, and_(db.snapshots.c.table_id.in_(keyed), db.snapshots.c.superseded_at_us.is_(None))


def _copy(txn: Txn, table: Table, source: str, target: str, where: object) -> None:
    rows: Select[tuple[object, ...]] = select(
        *(literal(target) if column.name == "branch_id" else column for column in table.columns)
    ).where(table.c.branch_id == source, where)  # type: ignore[arg-type]
    txn.conn.execute(insert(table).from_select([column.name for column in table.columns], rows))


def delete_branch(ledger: Ledger, name: str, *, actor: str, force: bool = False) -> None:
    """Remove a branch; a conflict if commits of it are on no other, unless `force`.

    Views that were taken of it go on reading for the grace period, as after any change.
    """
    if name == MAIN:
        raise BadRequest("main can't be deleted", hint="Delete the others, and merge into it what is worth keeping.")
    with ledger.write() as txn:
        _delete(txn, name, force=force, actor=actor)
        fail("branch.before_commit")
    fail("branch.after_commit")


def _delete(txn: Txn, name: str, *, force: bool, actor: str) -> None:
    branch = _living(txn.conn, name)
    refuse_protected(branch.name, protected=bool(branch.protected))
    if branch.tip is None:
        remove(txn, branch.branch_id)
        return
    graph = Graph(txn.conn)
    tip = graph.commit(str(branch.tip))
    others = [other for other in _tips(txn.conn, branch.branch_id) if graph.reaches(other, tip)]
    if not others:
        if not force:
            _refuse_unmerged(name, tip)
        reason = f"branch {name} deleted with commits that are on no other; its newest was {branch.tip}"
        audit_decision(txn, about=branch.branch_id, kind="branch", outcome="discarded", reason=reason, actor=actor)
    if others and not any(graph.has_on_line(other, tip) for other in others):
        _keep(txn, branch.branch_id)
    else:
        remove(txn, branch.branch_id)


def _keep(txn: Txn, merged: str) -> None:
    """Keep what a merged branch has, under no name: its commits are part of others' history, and their rows are here.

    A sweep removes it when the time for which history is kept is over.
    """
    branch = db.branches.c
    txn.conn.execute(
        update(db.branches)
        .where(branch.branch_id == merged)
        .values(name=f"{TAG}{KEPT}{merged}", kind="tag", covers=branch.tip, created_at_us=txn.at_us)
    )


def kept_branches(conn: Connection, before_us: int | None = None) -> list[str]:
    """Merged branches that were deleted and whose rows are kept; those alone that were deleted before a time."""
    branch = db.branches.c
    query = select(branch.branch_id).where(branch.deleted_at_us.is_(None), branch.name.startswith(TAG + KEPT))
    if before_us is not None:
        query = query.where(branch.created_at_us < before_us)
    return [str(kept_id) for kept_id in conn.execute(query).scalars()]


def _tips(conn: Connection, but: str) -> list[str]:
    """Where all other branches and tags are."""
    branch = db.branches.c
    query = select(branch.tip).where(branch.branch_id != but, branch.deleted_at_us.is_(None), branch.tip.is_not(None))
    return [str(tip) for tip in conn.execute(query).scalars()]


def remove(txn: Txn, gone: str) -> None:
    """Let go of all that a branch or tag has; its id and its commits stay for those that come from it."""
    tables = txn.conn.execute(select(db.heads.c.table_id).where(db.heads.c.branch_id == gone)).scalars().all()
    for table_id in tables:
        held = txn.conn.execute(
            select(db.tail.c.batch_id).where(db.tail.c.branch_id == gone, db.tail.c.table_id == table_id)
        )
        batches.release(txn, gone, table_id, held.scalars().all())
    snapshot = db.snapshots.c
    txn.conn.execute(
        update(db.snapshots)
        .where(snapshot.branch_id == gone, snapshot.superseded_at_us.is_(None))
        .values(superseded_at_us=txn.at_us)
    )
    # As if a next version had removed its files: then they are forgotten with its snapshots.
    head = db.heads.c
    after = (
        select(head.version + 1)
        .where(head.branch_id == db.files.c.branch_id, head.table_id == db.files.c.table_id)
        .scalar_subquery()
    )
    txn.conn.execute(
        update(db.files)
        .where(db.files.c.branch_id == gone, db.files.c.removed_version.is_(None))
        .values(removed_version=after)
    )
    txn.conn.execute(delete(db.stream_heads).where(db.stream_heads.c.branch_id == gone))
    # Its name is free, and its new one can't be asked for; its id and its commits stay for those that come from it.
    txn.conn.execute(
        update(db.branches).where(db.branches.c.branch_id == gone).values(name=f"~{gone}", deleted_at_us=txn.at_us)
    )


def holders(conn: Connection, table_id: str) -> list[tuple[Holder, str]]:
    """All that have a keyed table, and of which kind each is: branches, also one that is being made, and tags.

    Among the tags are those that stand for deleted branches.
    """
    branch, head = db.branches.c, db.heads.c
    rows = conn.execute(
        select(branch.name, branch.kind)
        .join_from(db.branches, db.heads, head.branch_id == branch.branch_id)
        .where(head.table_id == table_id, branch.deleted_at_us.is_(None))
        .order_by(branch.kind, branch.name)
    )
    return [(Holder(row.name), str(row.kind)) for row in rows]


def refuse_deleted(conn: Connection, of: str) -> None:
    """Conflict when a branch was deleted: nothing may be published on it any more."""
    branch = db.branches.c
    gone = select(branch.branch_id).where(branch.branch_id == of, branch.deleted_at_us.is_not(None))
    if conn.execute(gone).scalar() is not None:
        raise TableMoved(
            "the branch was deleted meanwhile",
            hint="Nothing was changed.",
            expected=of,
            actual=None,
        )


def rename_branch(ledger: Ledger, name: str, to: str) -> None:
    """Give a branch another name; everything else about it stays."""
    if name == MAIN:
        raise BadRequest("main can't be renamed", hint="Make a branch from it.")
    check_ref_name(to)
    with ledger.write() as txn:
        branch = _living(txn.conn, name)
        refuse_protected(name, protected=bool(branch.protected))
        refuse_existing(txn.conn, to)
        txn.conn.execute(update(db.branches).where(db.branches.c.branch_id == branch.branch_id).values(name=to))


def protect_branch(ledger: Ledger, name: str, *, protected: bool) -> None:
    """Let a branch change by merges alone, and stay; or lift that."""
    with ledger.write() as txn:
        branch = _living(txn.conn, name)
        where = db.branches.c.branch_id == branch.branch_id
        txn.conn.execute(update(db.branches).where(where).values(protected=int(protected)))


def _living(conn: Connection, name: str) -> Row[tuple[object, ...]]:
    living_id = branch_id(conn, name)
    return conn.execute(select(db.branches).where(db.branches.c.branch_id == living_id)).one()


def refuse_existing(conn: Connection, name: str) -> None:
    """Conflict when there is a branch of this name."""
    if conn.execute(select(db.branches.c.branch_id).where(db.branches.c.name == name)).scalar() is not None:
        raise Conflict(
            f"there is a branch {name!r} already",
            kind="branch_exists",
            hint="Pick another name, or delete that one first.",
            expected=None,
            actual=name,
        )


def _refuse_unmerged(name: str, tip: Commit) -> None:
    raise Conflict(
        f"branch {name!r} has commits that are on no other branch, the newest of them {tip.commit_id}",
        kind="branch_unmerged",
        hint="If nobody needs them, delete it with --force.",
        expected=None,
        actual=tip.commit_id,
    )
