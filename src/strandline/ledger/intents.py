"""Intents: what is under way, written before it has any effect."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, Row, delete, insert, select, update

from strandline.ledger import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.operations import INTENT_FORMAT, Effects, Intent, Phase, effects_from, scopes_from


@dataclass(frozen=True)
class UnreadableIntent:
    """An intent that this version can't read: of a newer format, or damaged. Its tables wait for a person."""

    op_id: str
    kind: str
    phase: str
    owner: str
    created_at_us: int
    table_ids: tuple[str, ...]
    reason: str


def write_intent(txn: Txn, intent: Intent) -> None:
    """Write a new intent and the tables it is about."""
    txn.conn.execute(
        insert(db.intents).values(
            op_id=intent.op_id,
            kind=intent.kind,
            format=INTENT_FORMAT,
            phase=intent.phase,
            branch_id=intent.branch_id,
            actor=intent.actor,
            owner=intent.owner,
            created_at_us=intent.created_at_us,
            body=orjson.dumps(intent.body()).decode(),
        )
    )
    for scope in intent.scopes:
        txn.conn.execute(
            insert(db.intent_tables).values(op_id=intent.op_id, branch_id=scope.branch_id, table_id=scope.table_id)
        )


def set_staged(txn: Txn, intent: Intent, effects: Effects) -> Intent:
    """Record all that the publish will write; from here on anybody can finish the operation."""
    staged = Intent(**{**intent.__dict__, "phase": "staged", "effects": effects})
    txn.conn.execute(
        update(db.intents)
        .where(db.intents.c.op_id == intent.op_id)
        .values(phase="staged", body=orjson.dumps(staged.body()).decode())
    )
    return staged


def set_phase(txn: Txn, op_id: str, phase: Phase) -> None:
    """Move an intent on."""
    txn.conn.execute(update(db.intents).where(db.intents.c.op_id == op_id).values(phase=phase))


def set_owner(txn: Txn, op_id: str, owner: str) -> None:
    """Hand what is left of an operation to another process."""
    txn.conn.execute(update(db.intents).where(db.intents.c.op_id == op_id).values(owner=owner))


def delete_intent(txn: Txn, op_id: str) -> None:
    """The operation is settled: nothing about it is under way any more."""
    txn.conn.execute(delete(db.intent_tables).where(db.intent_tables.c.op_id == op_id))
    txn.conn.execute(delete(db.intents).where(db.intents.c.op_id == op_id))


def read_intents(conn: Connection) -> list[Intent | UnreadableIntent]:
    """Everything under way, oldest first; what can't be read comes back as such, and hides nothing else."""
    rows = conn.execute(select(db.intents).order_by(db.intents.c.created_at_us, db.intents.c.op_id)).all()
    return [_read(conn, row) for row in rows]


def read_intent(conn: Connection, op_id: str) -> Intent | UnreadableIntent | None:
    """One intent, or None when it is settled."""
    row = conn.execute(select(db.intents).where(db.intents.c.op_id == op_id)).one_or_none()
    return None if row is None else _read(conn, row)


def _read(conn: Connection, row: Row) -> Intent | UnreadableIntent:  # type: ignore[type-arg]
    if row.format != INTENT_FORMAT:
        return _unreadable(conn, row, f"its format is {row.format}, and this strandline knows format {INTENT_FORMAT}")
    try:
        body = orjson.loads(row.body)
        if row.phase == "staged" and body["effects"] is None:
            raise ValueError("it is staged and does not say what to publish")
        return Intent(
            op_id=row.op_id,
            kind=row.kind,
            phase=row.phase,
            branch_id=row.branch_id,
            actor=row.actor,
            owner=row.owner,
            created_at_us=row.created_at_us,
            scopes=scopes_from(body),
            effects=effects_from(body),
        )
    except (ValueError, KeyError, TypeError) as error:
        return _unreadable(conn, row, f"its body can't be read ({type(error).__name__}: {error})")


def _unreadable(conn: Connection, row: Row, reason: str) -> UnreadableIntent:  # type: ignore[type-arg]
    about = conn.execute(select(db.intent_tables.c.table_id).where(db.intent_tables.c.op_id == row.op_id)).scalars()
    return UnreadableIntent(row.op_id, row.kind, row.phase, row.owner, row.created_at_us, tuple(about), reason)
