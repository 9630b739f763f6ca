"""Appends: rows become durable, in order, in one transaction.

Several appends may share it (`group_commit` says which). One that can't be stored (its key was used with other rows,
its schema moved) gets its own error and costs the others nothing.

On Postgres a transaction without anything to decide is sent whole, with the lock at its beginning and the commit at its
end: no writer waits for another process's way to the server while that holds the counter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import orjson
from sqlalchemy import bindparam, func, insert, literal, select, update

from strandline.errors import Damaged, SchemaMoved, StrandError
from strandline.failpoints import fail
from strandline.ledger.database import schema as db
from strandline.ledger.database.prepared import Bound, Prepared
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.rows.idempotency import recall, remember
from strandline.ledger.rows.query_marks import move_mark
from strandline.model.tables import Ack, BranchTable, TableSettings

AT_ONCE_BYTES = 1 << 20
"""Payloads up to this are sent together with the lock. More would be on their way for long while all writers wait."""


@dataclass(frozen=True)
class NewBatch:
    """A batch that has an id and its bytes, and no seqs yet."""

    batch_id: str
    rows: int
    payload: bytes
    checksum: bytes
    partitions: Mapping[str, int]


@dataclass(frozen=True)
class IdempotencyKey:
    """A caller's name for a call, so that a repeat stores nothing. `kept_s` None keeps it for good.

    `older` are digests that older versions of strandline would have stored for it.
    """

    scope: str
    key: str
    digest: str
    kept_s: int | None
    older: Callable[[], Collection[str]] = frozenset


@dataclass(frozen=True)
class Append:
    """Rows to append, validated against `schema_version`: a call's, or those of several calls by one actor.

    `too_old` more were left out by the table's `settings`, which must still be these; None where they left out none.
    """

    branch_id: str
    table_id: str
    table: str
    schema_version: int
    actor: str
    batches: tuple[NewBatch, ...]
    idempotency: IdempotencyKey | None = None
    query_mark: tuple[str, int] | None = None
    commit_id: str | None = None
    too_old: int = 0
    settings: TableSettings | None = None

    @classmethod
    def of(
        cls,
        branch_table: BranchTable,
        actor: str,
        batches: Sequence[NewBatch],
        *,
        idempotency: IdempotencyKey | None = None,
        query_mark: tuple[str, int] | None = None,
        commit_id: str | None = None,
        too_old: int = 0,
    ) -> Append:
        """Batches that were validated for a table as `branch_table` shows it."""
        return cls(
            branch_id=branch_table.head.branch_id,
            table_id=branch_table.table.table_id,
            table=branch_table.table.name,
            schema_version=branch_table.head.schema_version,
            actor=actor,
            batches=tuple(batches),
            idempotency=idempotency,
            query_mark=query_mark,
            commit_id=commit_id,
            too_old=too_old,
            settings=None if branch_table.table.key else branch_table.table.settings,
        )

    @property
    def rows(self) -> int:
        """Rows in all batches."""
        return sum(batch.rows for batch in self.batches)


_settings_text = select(db.tables.c.settings).where(db.tables.c.table_id == bindparam("b_table")).scalar_subquery()
_SELECT_HEAD = Prepared(
    select(db.heads.c.schema_version, db.heads.c.refuses, _settings_text.label("settings")).where(
        db.heads.c.branch_id == bindparam("b_branch"), db.heads.c.table_id == bindparam("b_table")
    )
)
# Seqs are counted from where the counter is, and it is moved last. So what stores rows need not know where it is.
_counter = db.counter.c
_last_seq = select(_counter.last_seq).where(_counter.id == 1).scalar_subquery()
_last_at_us = select(_counter.last_at_us).where(_counter.id == 1).scalar_subquery()
_UPDATE_HEAD = Prepared(
    update(db.heads)
    .where(db.heads.c.branch_id == bindparam("b_branch"), db.heads.c.table_id == bindparam("b_table"))
    .values(last_seq=_last_seq + bindparam("b_last"), rows_acked=db.heads.c.rows_acked + bindparam("b_rows"))
)
_INSERT_BATCH = Prepared(
    insert(db.batches).values(
        {
            **{column: bindparam(f"b_{column.name}", type_=column.type) for column in db.batches.columns},
            db.batches.c.first_seq: _last_seq + bindparam("b_first"),
            db.batches.c.last_seq: _last_seq + bindparam("b_last"),
            db.batches.c.at_us: _last_at_us,
        }
    )
)
_INSERT_TAIL = Prepared(
    insert(db.tail).values(
        branch_id=bindparam("b_branch"),
        table_id=bindparam("b_table"),
        first_seq=_last_seq + bindparam("b_first"),
        batch_id=bindparam("b_batch"),
    )
)
# An error where a table's head is not as the rows were validated for; then nothing behind it is run.
_REQUIRE_HEAD = Prepared(
    select(literal(1) / func.count())
    .select_from(db.heads)
    .where(
        db.heads.c.branch_id == bindparam("b_branch"),
        db.heads.c.table_id == bindparam("b_table"),
        db.heads.c.schema_version == bindparam("b_version"),
        db.heads.c.refuses.is_(None),
        _settings_text == bindparam("b_settings"),
    )
)


def heads_of(appends: Sequence[Append]) -> list[Bound]:
    """What `store` will ask of the ledger: the head of each table that gets rows."""
    heads = dict.fromkeys((append.branch_id, append.table_id) for append in appends)
    return [Bound(_SELECT_HEAD, {"b_branch": branch, "b_table": table}) for branch, table in heads]


def store(txn: Txn, appends: Sequence[Append]) -> list[Ack | StrandError]:
    """Store all of these in one transaction; the answers are in their order."""
    steps = heads_of(appends)
    heads = {
        (step.parameters["b_branch"], step.parameters["b_table"]): head
        for step, (head,) in zip(steps, txn.ask(steps), strict=True)
    }
    answers: list[Ack | StrandError] = []
    accepted: list[tuple[Append, int]] = []
    next_seq = txn.last_seq + 1
    for append in appends:
        schema_version, refuses, settings = heads[append.branch_id, append.table_id]
        refused = refusal(append, schema_version, refuses) or _other_settings(append, settings)
        earlier = refused or _earlier(txn, append)
        if earlier is not None:
            answers.append(earlier)
            continue
        ack = ack_of(append.rows, next_seq, append.too_old)
        answers.append(ack)
        accepted.append((append, next_seq))
        next_seq += append.rows
        _note(txn, append, ack)
    txn.write_last(writing(accepted, txn.last_seq))
    txn.allocate(next_seq - 1 - txn.last_seq)
    return answers


def store_at_once(ledger: Ledger, appends: Sequence[Append]) -> list[Ack | StrandError] | None:
    """Store them all in one way to the server and back; None when that can't be done, and nothing was stored.

    So no other process waits for this one's way to the server while it holds the counter. It can't be done where
    something has to be decided under the lock: a key that may be known, a head that has moved. Large payloads are not
    sent under it either.
    """
    if ledger.database.is_sqlite or any(append.idempotency or append.query_mark for append in appends):
        return None
    if sum(len(batch.payload) for append in appends for batch in append.batches) > AT_ONCE_BYTES:
        return None
    firsts = accumulate((append.rows for append in appends), initial=1)
    placed = list(zip(appends, firsts, strict=False))
    steps = [
        Bound(
            _REQUIRE_HEAD,
            {
                "b_branch": append.branch_id,
                "b_table": append.table_id,
                "b_version": append.schema_version,
                "b_settings": text_of_settings(append.settings or TableSettings()),
            },
        )
        for append in appends
    ]
    fail("append.before_commit")
    last_seq = ledger.write_at_once([*steps, *writing(placed, 0)], sum(append.rows for append in appends))
    if last_seq is None:
        return None
    return [ack_of(append.rows, last_seq + first, append.too_old) for append, first in placed]


def find_stored(txn: Txn, append: Append) -> Ack | None:
    """The ack of an append whose batches are here already; None when they are not."""
    ids = [batch.batch_id for batch in append.batches]
    if not ids:
        return None
    batch = db.batches.c
    rows = txn.conn.execute(select(batch.first_seq, batch.last_seq).where(batch.batch_id.in_(ids))).all()
    if not rows:
        return None
    assert len(rows) == len(ids), "an append was stored in part"
    first_seq, last_seq = min(row.first_seq for row in rows), max(row.last_seq for row in rows)
    return Ack(append.rows, first_seq, last_seq, too_old=append.too_old)


def writing(accepted: Sequence[tuple[Append, int]], last_seq: int) -> list[Bound]:
    """What writes these appends, each from its first seq on, while the counter is at `last_seq`."""
    batches: list[Bound] = []
    tail: list[Bound] = []
    moved: dict[tuple[str, str], tuple[int, int]] = {}
    for append, first_seq in accepted:
        first = first_seq - last_seq
        for batch in append.batches:
            batches.append(Bound(_INSERT_BATCH, _batch_row(append, batch, first)))
            tail.append(
                Bound(
                    _INSERT_TAIL,
                    {
                        "b_branch": append.branch_id,
                        "b_table": append.table_id,
                        "b_first": first,
                        "b_batch": batch.batch_id,
                    },
                )
            )
            first += batch.rows
        if append.rows:
            _, rows = moved.get((append.branch_id, append.table_id), (0, 0))
            moved[append.branch_id, append.table_id] = (first - 1, rows + append.rows)
    heads = [
        Bound(_UPDATE_HEAD, {"b_branch": branch, "b_table": table, "b_last": last, "b_rows": rows})
        for (branch, table), (last, rows) in moved.items()
    ]
    return [*batches, *tail, *heads]


def _batch_row(append: Append, batch: NewBatch, first: int) -> dict[str, Any]:
    return {
        "b_batch_id": batch.batch_id,
        "b_table_id": append.table_id,
        "b_first": first,
        "b_last": first + batch.rows - 1,
        "b_rows": batch.rows,
        "b_size_bytes": len(batch.payload),
        "b_schema_version": append.schema_version,
        "b_actor": append.actor,
        "b_partitions": orjson.dumps(batch.partitions).decode(),
        "b_commit_id": append.commit_id,
        "b_released_at_us": None,
        "b_checksum": batch.checksum,
        "b_payload": batch.payload,
    }


def refusal(append: Append, schema_version: int, refuses: str | None) -> StrandError | None:
    """Why the rows can't be stored where a table's head is so; None when they can."""
    if refuses is not None:
        return Damaged(f"table {append.table!r} refuses writes: {refuses}")
    if schema_version != append.schema_version:
        return SchemaMoved(
            f"the schema of {append.table!r} changed while the rows were validated",
            hint="Append again: the rows are then validated against the new schema.",
            expected=append.schema_version,
            actual=schema_version,
        )
    return None


def _other_settings(append: Append, text: str) -> StrandError | None:
    """Rows were judged too old, or not, by settings that have changed meanwhile."""
    if append.settings is None or settings_of(text) == append.settings:
        return None
    return SchemaMoved(
        f"the settings of {append.table!r} changed while the rows were judged by them",
        hint="Append again: the rows are then judged by the new settings.",
        expected=asdict(append.settings),
        actual=asdict(settings_of(text)),
    )


@lru_cache(maxsize=1024)
def settings_of(text: str) -> TableSettings:
    """A table's settings as the ledger has them."""
    return TableSettings(**orjson.loads(text))


@lru_cache(maxsize=1024)
def text_of_settings(settings: TableSettings) -> str:
    """The inverse; a ledger of an older version may have the same in other words."""
    return orjson.dumps(asdict(settings)).decode()


def _earlier(txn: Txn, append: Append) -> Ack | StrandError | None:
    """The answer that an earlier call under the same key got, if there was one."""
    if append.idempotency is None:
        return None
    try:
        key = append.idempotency
        answer = recall(txn, key.scope, key.key, key.digest, older=key.older)
    except StrandError as error:
        return error
    if answer is None:
        return None
    seqs = answer["first_seq"], answer["last_seq"]
    return Ack(answer["rows"], *seqs, repeated=True, too_old=answer.get("too_old", 0))


def _note(txn: Txn, append: Append, ack: Ack) -> None:
    if append.idempotency is not None:
        key = append.idempotency
        answer = {
            "rows": ack.rows,
            "first_seq": ack.first_seq,
            "last_seq": ack.last_seq,
            "too_old": ack.too_old,
        }
        remember(txn, key.scope, key.key, key.digest, answer, kept_s=key.kept_s)
    if append.query_mark is not None:
        move_mark(txn, append.query_mark[0], append.table_id, append.query_mark[1])


def ack_of(rows: int, first_seq: int, too_old: int = 0) -> Ack:
    """The answer for so many rows from this seq on."""
    return Ack(rows, first_seq, first_seq + rows - 1, too_old=too_old) if rows else Ack(0, None, None, too_old=too_old)
