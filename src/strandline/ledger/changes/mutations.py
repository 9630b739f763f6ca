"""Mutations of keyed tables: validated against a view, stored in one transaction if that still holds.

What a mutation read and what it writes is compared by hash with what was committed on its branch since its view; then
it conflicts with those alone that it depends on, and disjoint ones never wait for each other. Several may share a
transaction, and each sees what those before it wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from strandline.errors import Conflict, NotFound, SchemaMoved, StrandError, TableMoved
from strandline.ledger.changes import touches
from strandline.ledger.changes.touches import Packed
from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Bound, Prepared
from strandline.ledger.history import commits
from strandline.ledger.ledger import Txn
from strandline.ledger.rows.appends import Append, IdempotencyKey, refusal, writing
from strandline.ledger.rows.idempotency import recall, remember
from strandline.ledger.tables.adoption import Adoption, adopt, are_one, can_adopt, is_merged_since, leave_refs, refork
from strandline.ledger.tables.tables import insert_schema, raise_shape, read_head, refuse_protected, set_schema
from strandline.model.history.commits import MERGE, Commit
from strandline.model.operations import KeptAnswer
from strandline.model.schema.schema import Schema

MANY = 1000


@dataclass(frozen=True)
class TableChange:
    """The versions that a mutation appends to one table, with the hash of each one's key, in the rows' order.

    `claims` are the unique values and references that it takes or gives up there.
    """

    append: Append
    hashes: Sequence[bytes]
    claims: Sequence[bytes] = ()

    @cached_property
    def packed(self) -> tuple[Sequence[tuple[str, Packed]], Packed]:
        """The keys of each batch, and the claims, as they are written."""
        hashes = iter(self.hashes)
        keys = [(batch.batch_id, Packed.of(list(islice(hashes, batch.rows)))) for batch in self.append.batches]
        return keys, Packed.of(self.claims)


@dataclass(frozen=True)
class TableRead:
    """What a mutation depends on in one table: that no other rows came in than by commits, and none of these keys.

    And none of these `claims`. `whole` is the seq of its newest version where all of its rows were read; `last_seq` is
    that too, where it is known and they were not.
    """

    table: str
    table_id: str
    barrier: int
    hashes: Sequence[bytes] = ()
    claims: Sequence[bytes] = ()
    whole: int | None = None
    last_seq: int | None = None

    @property
    def many(self) -> bool:
        """Whether it is quicker to ask what was written since than for each of these."""
        return self.last_seq is not None and len(self.hashes) + len(self.claims) > MANY


@dataclass(frozen=True)
class Remember:
    """The key under which a mutation is stored once, and what is kept there besides its commit and its seqs."""

    key: IdempotencyKey
    answer: KeptAnswer


@dataclass(frozen=True)
class Brought:
    """A schema that a merge brings to a table: the source's, with its version, or one that no branch has."""

    table: str
    schema: Schema
    version: int | None = None


@dataclass(frozen=True)
class MergeSource:
    """The branch that a merge takes changes from, at the commit that it was read at, and the tables it takes whole.

    `schemas` are what it makes of tables' schemas, by table id. `barriers` are those of the tables whose rows were
    read: rows that were purged since must not come back.
    """

    branch_id: str
    tip: str
    adopted: tuple[Adoption, ...] = ()
    schemas: Mapping[str, Brought] = field(default_factory=dict)
    barriers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Mutation:
    """A commit that is ready: what it writes, and on what it was judged.

    `base` is the number of the last commit that its view showed, and `shape` that of the branch's tables, if it
    matters. `tip` and `last_seqs` are what the caller expects.
    """

    commit_id: str
    branch: str
    branch_id: str
    base: int
    kind: str
    actor: str
    message: str
    changes: tuple[TableChange, ...]
    reads: tuple[TableRead, ...]
    shape: int | None = None
    remember: Remember | None = None
    tip: str | None = None
    last_seqs: Mapping[str, int] = field(default_factory=dict)
    source: MergeSource | None = None

    @property
    def rows(self) -> int:
        """Versions in all tables."""
        return sum(change.append.rows for change in self.changes)


class Moved(Exception):
    """Another commit wrote what a mutation depends on since its view: it has to be made again from a fresh one."""


class Held(Moved):
    """A large load or merge is changing a table that a mutation depends on: it has to be made again behind that."""


_head, _reserved = db.heads.c, db.reservations.c
_held = (
    select(func.count())
    .where(_reserved.branch_id == _head.branch_id, _reserved.table_id == _head.table_id)
    .correlate(db.heads)
    .scalar_subquery()
)
_SELECT_HEAD = Prepared(
    select(_head.schema_version, _head.refuses, _head.barrier, _head.last_seq, _held).where(
        _head.branch_id == bindparam("b_branch"), _head.table_id == bindparam("b_table")
    )
)
_SELECT_TIP = Prepared(
    select(db.branches.c.tip, db.branches.c.protected, db.branches.c.shape).where(
        db.branches.c.branch_id == bindparam("b_branch"),
        db.branches.c.deleted_at_us.is_(None),
        db.branches.c.kind == "branch",
    )
)
_touch = db.touches.c
_SELECT_NEWEST = Prepared(
    select(func.coalesce(func.max(_touch.number), 0)).where(
        _touch.table_id == bindparam("b_table"),
        _touch.branch_id == bindparam("b_branch"),
        _touch.hash == bindparam("b_hash"),
    )
)
_claim = db.claims.c
_SELECT_CLAIM = Prepared(
    select(func.coalesce(func.max(_claim.number), 0)).where(
        _claim.table_id == bindparam("b_table"),
        _claim.branch_id == bindparam("b_branch"),
        _claim.hash == bindparam("b_hash"),
    )
)


def asks_of(mutations: Sequence[Mutation]) -> list[Bound]:
    """What `store_mutations` will ask of the ledger: it can be asked for together with the lock."""
    return [step for mutation in mutations for step in _asks(mutation)]


def _asks(mutation: Mutation) -> list[Bound]:
    branch = mutation.branch_id
    asks = [Bound(_SELECT_TIP, {"b_branch": branch})]
    for read in mutation.reads:
        asks.append(Bound(_SELECT_HEAD, {"b_branch": branch, "b_table": read.table_id}))
        if read.many:
            continue
        for statement, hashes in ((_SELECT_NEWEST, read.hashes), (_SELECT_CLAIM, read.claims)):
            asks += [
                Bound(statement, {"b_branch": branch, "b_table": read.table_id, "b_hash": key_hash})
                for key_hash in hashes
            ]
    return asks


@dataclass
class _Written:
    """What the mutations of this transaction have written so far; the ledger was asked before the first of them."""

    tips: dict[str, str] = field(default_factory=dict)
    last_seqs: dict[tuple[str, str], int] = field(default_factory=dict)
    hashes: dict[tuple[str, str], set[bytes]] = field(default_factory=dict)

    def note(self, branch_id: str, change: TableChange) -> None:
        """A mutation before this one has written these keys and claims."""
        written = self.hashes.setdefault((branch_id, change.append.table_id), set())
        written.update(change.hashes)
        written.update(change.claims)

    def has(self, branch_id: str, read: TableRead) -> bool:
        """Whether something was written that a mutation read."""
        written = self.hashes.get((branch_id, read.table_id))
        return written is not None and not written.isdisjoint((*read.hashes, *read.claims))


def store_mutations(txn: Txn, mutations: Sequence[Mutation]) -> list[Commit | Exception]:
    """Store those of these whose view still holds; the answers are in their order."""
    replies = iter(txn.ask(asks_of(mutations)))
    written = _Written()
    answers: list[Commit | Exception] = []
    for mutation in mutations:
        rows = [next(replies) for _ in _asks(mutation)]
        tip = written.tips.get(mutation.branch_id) or (rows[0][0][0] if rows[0] else None)
        error = (
            _gone(mutation, rows[0])
            or _other_shape(mutation, rows[0])
            or other_tip(mutation.branch, mutation.tip, tip)
            or _moved(txn, mutation, iter(rows[1:]), written)
            or (_other_source(txn, mutation, mutation.source) if mutation.source is not None else None)
        )
        earlier = error or _earlier(txn, mutation)
        answers.append(earlier if earlier is not None else _store(txn, mutation, tip, written))
    return answers


def find_mutation(txn: Txn, mutation: Mutation) -> Commit | None:
    """The commit of a mutation that is stored already; None when it is not."""
    return commits.find_commit(txn.conn, mutation.commit_id)


def _earlier(txn: Txn, mutation: Mutation) -> Commit | StrandError | None:
    """The commit that is stored under the same key, if there is one."""
    if mutation.remember is None:
        return None
    key = mutation.remember.key
    try:
        answer = recall(txn, key.scope, key.key, key.digest)
    except StrandError as error:
        return error
    commit_id = None if answer is None else answer["commit"]
    return None if commit_id is None else commits.find_commit(txn.conn, commit_id)


def _gone(mutation: Mutation, branch: Sequence[Any]) -> StrandError | None:
    if not branch:
        return NotFound(f"branch {mutation.branch!r} was deleted meanwhile", branch=mutation.branch)
    try:
        refuse_protected(mutation.branch, protected=bool(branch[0][1]) and mutation.kind != MERGE)
    except Conflict as error:
        return error
    return None


def _other_shape(mutation: Mutation, branch: Sequence[Any]) -> Conflict | None:
    ((_, _, shape),) = branch
    if mutation.shape is None or mutation.shape == shape:
        return None
    return SchemaMoved(
        f"tables of branch {mutation.branch!r} were changed meanwhile",
        hint="Try again.",
        expected=mutation.shape,
        actual=shape,
    )


def other_tip(branch: str, expected: str | None, actual: str | None) -> Conflict | None:
    """What is wrong when a branch is expected at a commit and is at another; None when nothing is."""
    if expected is None or expected == actual:
        return None
    return Conflict(
        f"branch {branch!r} is at commit {actual}, and not at {expected}",
        kind="head_moved",
        hint="Look at what changed (`strand log`), and decide again.",
        expected=expected,
        actual=actual,
    )


def other_seq(table: str, expected: int | None, actual: int) -> Conflict | None:
    """The same for the newest version of a table."""
    if expected is None or expected == actual:
        return None
    return TableMoved(
        f"the newest version in {table!r} has seq {actual}, and not {expected}",
        hint="Read the table again, and decide again.",
        expected=expected,
        actual=actual,
    )


def _moved(txn: Txn, mutation: Mutation, rows: Iterator[Sequence[Any]], written: _Written) -> Exception | None:
    branch = mutation.branch_id
    versions = {change.append.table_id: change.append for change in mutation.changes}
    for read in mutation.reads:
        ((schema_version, refuses, barrier, last_seq, held),) = next(rows)
        numbers = [] if read.many else [next(rows)[0][0] for _ in (*read.hashes, *read.claims)]
        append = versions.get(read.table_id)
        refused = refusal(append, schema_version, refuses) if append is not None else None
        last_seq = written.last_seqs.get((branch, read.table_id), last_seq)
        # Before `Moved`, after which all begins again: an expected seq never comes back, because seqs only grow.
        refused = refused or other_seq(read.table, mutation.last_seqs.get(read.table_id), last_seq)
        if refused is not None:
            return refused
        # A load or merge that holds the table has judged its rows already, and would not see what came in meanwhile.
        if held:
            return Held(read.table)
        since = any(number > mutation.base for number in numbers)
        # Keys and claims are written with versions: while the newest seq is the same, none of them was.
        if read.many and last_seq != read.last_seq:
            later = touches.written_since(txn.conn, branch, read.table_id, mutation.base)
            since = not later.isdisjoint((*read.hashes, *read.claims))
        # `numbers` were asked for before the first mutation of this transaction wrote anything.
        within = written.has(branch, read)
        # A key that is new to the table is among no hashes, so a reader of all rows looks at the seq.
        others = read.whole is not None and read.whole != last_seq
        # The barrier tells of what no hash does: a purge, a large load, rows taken over, hashes that were swept.
        if barrier != read.barrier or since or within or others:
            return Moved(read.table)
    return None


def _other_source(txn: Txn, mutation: Mutation, source: MergeSource) -> Exception | None:
    if merging_into(txn.conn, mutation.branch_id):
        return Held(mutation.branch)
    still = not mutation.changes
    return source_moved(txn.conn, mutation.branch_id, mutation.base, source, still=still)


def merging_into(conn: Connection, branch_id: str) -> bool:
    """Whether a merge into a branch is under way that is an operation: others wait for it."""
    intent = db.intents.c
    query = select(func.count()).where(
        intent.branch_id == branch_id, intent.kind == MERGE, intent.phase.in_(("staging", "staged"))
    )
    return bool(conn.execute(query).scalar_one())


def source_moved(conn: Connection, branch_id: str, base: int, source: MergeSource, *, still: bool) -> Exception | None:
    """Merges into a branch come one after another.

    One that takes over tables or schemas takes them as the source has them now, so this must be where it was read. Of
    one that writes rows, the source may have gone on unless it must be `still`: what came later is for the next merge.
    """
    tip = conn.execute(
        select(db.branches.c.tip).where(
            db.branches.c.branch_id == source.branch_id, db.branches.c.deleted_at_us.is_(None)
        )
    ).scalar()
    # Rows are in the mutation, as they were read; tables and schemas are taken from the source in this transaction.
    taken = source.adopted or source.schemas or still
    # A merge that came in since has moved the common ancestors by which this one was planned.
    if tip is None or (taken and tip != source.tip) or is_merged_since(conn, branch_id, base):
        return Moved("the branch")
    # Commits that came later don't matter to rows, but a purge does: it would be undone by a merge of what it removed.
    for table_id, barrier in source.barriers.items():
        if read_head(conn, source.branch_id, table_id).barrier != barrier:
            return Moved("the branch")
    for adoption in source.adopted:
        last_seq = adoption.last_seq
        if last_seq is not None and not can_adopt(conn, source.branch_id, branch_id, adoption.table_id, last_seq):
            return Moved(adoption.table)
    return None


def _store(txn: Txn, mutation: Mutation, tip: str | None, written: _Written) -> Commit:
    source = mutation.source
    placed: list[tuple[Append, int]] = []
    noted: list[tuple[TableChange, int]] = []
    next_seq = txn.last_seq + 1
    # The commit's own number comes behind the seqs of its rows: a view counts back from it to find where they begin.
    number = txn.last_seq + mutation.rows + 1
    for change in mutation.changes:
        placed.append((_under(change.append, source, number), next_seq))
        noted.append((change, next_seq))
        next_seq += change.append.rows
        written.last_seqs[mutation.branch_id, change.append.table_id] = next_seq - 1
    commit = Commit(
        commit_id=mutation.commit_id,
        branch=mutation.branch,
        kind=mutation.kind,
        actor=mutation.actor,
        message=mutation.message,
        seq=number,
        at_us=txn.at_us,
        parents=tuple(parent for parent in (tip, source.tip if source is not None else None) if parent),
        tables={
            **(touched(source) if source is not None else {}),
            **{change.append.table: change.append.rows for change in mutation.changes},
        },
    )
    if source is not None:
        bring(txn, mutation.branch_id, mutation.actor, source, number, txn.last_seq + 1)
    steps = writing(placed, txn.last_seq)
    for change, first in noted:
        keys, claims = change.packed
        steps += touches.noting(mutation.branch_id, change.append.table_id, commit.seq, first, keys)
        steps += touches.claiming(mutation.branch_id, change.append.table_id, commit.seq, claims)
        written.note(mutation.branch_id, change)
    txn.write_last([*steps, *commits.writing(commit, mutation.branch_id)])
    if mutation.remember is not None:
        key = mutation.remember.key
        answer: KeptAnswer = {
            **mutation.remember.answer,
            "first_seq": commit.seq - mutation.rows,
            "last_seq": commit.seq - 1,
            "commit": commit.commit_id,
        }
        remember(txn, key.scope, key.key, key.digest, answer, kept_s=key.kept_s)
    txn.allocate(commit.seq - txn.last_seq)
    written.tips[mutation.branch_id] = commit.commit_id
    return commit


def touched(source: MergeSource) -> dict[str, int]:
    """The tables that a merge changes without writing rows of its own to them."""
    return {brought.table: 0 for brought in source.schemas.values()} | {
        adoption.table: adoption.rows for adoption in source.adopted
    }


def _under(append: Append, source: MergeSource | None, number: int) -> Append:
    """The rows of a merge are written under the schema that it brings."""
    brought = source.schemas.get(append.table_id) if source is not None else None
    return append if brought is None else replace(append, schema_version=_version(brought, number))


def _version(brought: Brought, number: int) -> int:
    """The version of a schema that a merge of this number brings: the source's, where rows here read the same by it."""
    return number if brought.version is None else brought.version


def bring(txn: Txn, branch_id: str, actor: str, source: MergeSource, number: int, first_seq: int) -> None:
    """Give a branch what the merge of this number takes from its source besides rows: whole tables, and schemas.

    Rows of the branch below `first_seq`, that of the merge's own first row, have not seen these schemas.
    """
    _take_over(txn, branch_id, actor, source, number)
    for table_id, brought in source.schemas.items():
        schema = brought.schema.numbered(first_seq)
        if _version(brought, number) == number:
            insert_schema(txn, branch_id, table_id, number, schema)
        set_schema(txn, branch_id, table_id, _version(brought, number))


def _take_over(txn: Txn, branch_id: str, actor: str, source: MergeSource, number: int) -> None:
    moved = [at for adoption in source.adopted for at in adopt(txn, source.branch_id, branch_id, adoption, number)]
    leave_refs(txn, branch_id, moved, actor)
    # What others have planned by the tables as they were is refused then: new rules have not judged it.
    if source.schemas or any(adoption.last_seq is None for adoption in source.adopted):
        raise_shape(txn, branch_id)


def fast_forward(txn: Txn, mutation: Mutation) -> Exception | None:
    """Let a branch be at its source's commit, of which its own is an ancestor; an error when that has changed."""
    source = mutation.source
    assert source is not None and not mutation.changes, "a fast-forward writes no rows"
    rows = txn.ask(_asks(mutation))
    tip = rows[0][0][0] if rows[0] else None
    error = (
        # The tip is replaced: a commit that came in since the view would be lost.
        (Moved("the branch") if tip != mutation.tip else None)
        or _moved(txn, mutation, iter(rows[1:]), _Written())
        or _other_source(txn, mutation, source)
    )
    if error is None:
        # Asked before heads are moved: it goes by the last seqs that the target has of its own.
        were_one = are_one(txn.conn, source.branch_id, mutation.branch_id)
        number = txn.allocate(1)
        _take_over(txn, mutation.branch_id, mutation.actor, source, number)
        for table_id, brought in source.schemas.items():
            assert brought.version is not None, "the source's schema is the only one that was changed"
            set_schema(txn, mutation.branch_id, table_id, brought.version)
        commits.write_move(txn, mutation.branch_id, number, tip)
        txn.conn.execute(
            update(db.branches).where(db.branches.c.branch_id == mutation.branch_id).values(tip=source.tip)
        )
        if were_one:
            refork(txn, source.branch_id, mutation.branch_id)
    return error
