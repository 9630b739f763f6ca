"""The rows of intents: what is under way, written before it has any effect.

Nothing here knows what an effect is: merges leave intents in the middle of a publish, and must be able to. What intents
say in full is read in `ledger/publish/intents.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from sqlalchemy import delete, insert, select, update

from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Intent
from strandline.model.history.commits import MERGE
from strandline.model.operations import Phase, TableScope
from strandline.model.stored import from_stored, to_stored

WITHOUT_EFFECTS = 1
"""The version of a body that says no effects. All versions write it alike, so each can undo what has only begun, and
let refs follow a merge.
"""


def body_of(scopes: Sequence[TableScope], effects: object) -> str:
    """What is stored of an intent as JSON."""
    return orjson.dumps({"scopes": to_stored(list(scopes)), "effects": effects}).decode()


def write_intent(txn: Txn, intent: Intent) -> None:
    """Write a new intent and the tables it is about."""
    assert intent.effects is None, f"operation {intent.op_id} begins with effects"
    txn.conn.execute(
        insert(db.intents).values(
            op_id=intent.op_id,
            kind=intent.kind,
            format=WITHOUT_EFFECTS,
            phase=intent.phase,
            branch_id=intent.branch_id,
            actor=intent.actor,
            owner=intent.owner,
            created_at_us=intent.created_at_us,
            body=body_of(intent.scopes, None),
        )
    )
    for scope in intent.scopes:
        txn.conn.execute(
            insert(db.intent_tables).values(op_id=intent.op_id, branch_id=scope.branch_id, table_id=scope.table_id)
        )


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


def take_refs_left(txn: Txn, branch_id: str) -> list[TableScope]:
    """Delete what earlier merges left to do for the refs of a branch, and say which tables it was about."""
    intent = db.intents.c
    left = txn.conn.execute(
        select(intent.op_id, intent.body)
        .where(
            intent.kind == MERGE,
            intent.phase == "published",
            intent.branch_id == branch_id,
            intent.format == WITHOUT_EFFECTS,
        )
        .order_by(intent.created_at_us, intent.op_id)
    ).all()
    scopes: list[TableScope] = []
    for row in left:
        refs = _refs_alone(row.body)
        if refs is not None:
            scopes += refs
            delete_intent(txn, row.op_id)
    return scopes


def _refs_alone(body: str) -> list[TableScope] | None:
    """The tables of a body without effects; None where it has some, or can't be read and waits for a person."""
    try:
        document = orjson.loads(body)
        if not isinstance(document, dict) or document["effects"] is not None:
            return None
        return [from_stored(TableScope, scope, "scope") for scope in document["scopes"]]
    except (ValueError, KeyError, TypeError):
        return None
