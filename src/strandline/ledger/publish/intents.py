"""Intents as they are read: what is under way, with all that a publish will write."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
from sqlalchemy import Connection, Row, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.effects import VERSION, UnknownVersion, decode_body, encode
from strandline.ledger.publish.intent_rows import body_of
from strandline.ledger.publish.publishing import Effects, Intent
from strandline.model.stored import NotStored


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


def set_staged(txn: Txn, intent: Intent, effects: Effects) -> Intent:
    """Record all that the publish will write; from here on any process can finish the operation."""
    txn.conn.execute(
        update(db.intents)
        .where(db.intents.c.op_id == intent.op_id)
        .values(phase="staged", format=VERSION, body=body_of(intent.scopes, encode(effects)))
    )
    return replace(intent, phase="staged", effects=effects)


def read_intents(conn: Connection) -> list[Intent | UnreadableIntent]:
    """Everything under way, oldest first; what can't be read comes back as such, and hides nothing else."""
    rows = conn.execute(select(db.intents).order_by(db.intents.c.created_at_us, db.intents.c.op_id)).all()
    return [_read(conn, row) for row in rows]


def read_intent(conn: Connection, op_id: str) -> Intent | UnreadableIntent | None:
    """One intent, or None when it is settled."""
    row = conn.execute(select(db.intents).where(db.intents.c.op_id == op_id)).one_or_none()
    return None if row is None else _read(conn, row)


def _read(conn: Connection, row: Row) -> Intent | UnreadableIntent:  # type: ignore[type-arg]
    try:
        body = decode_body(row.format, orjson.loads(row.body))
        if row.phase == "staged" and body.effects is None:
            raise NotStored("it is staged and does not say what to publish")
    except UnknownVersion as error:
        return _unreadable(conn, row, str(error))
    except ValueError as error:
        return _unreadable(conn, row, f"its body can't be read ({type(error).__name__}: {error})")
    return Intent(
        op_id=row.op_id,
        kind=row.kind,
        phase=row.phase,
        branch_id=row.branch_id,
        actor=row.actor,
        owner=row.owner,
        created_at_us=row.created_at_us,
        scopes=body.scopes,
        effects=body.effects,
    )


def _unreadable(conn: Connection, row: Row, reason: str) -> UnreadableIntent:  # type: ignore[type-arg]
    about = conn.execute(select(db.intent_tables.c.table_id).where(db.intent_tables.c.op_id == row.op_id)).scalars()
    return UnreadableIntent(row.op_id, row.kind, row.phase, row.owner, row.created_at_us, tuple(about), reason)
