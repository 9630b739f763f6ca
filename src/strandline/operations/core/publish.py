"""Publishing: the one short transaction that makes staged work visible.

What it writes was decided when the operation was staged, and is data. So the process that staged it and the process
that recovers it come through here alike, and there is one place where a table can move.
"""

from __future__ import annotations

from strandline.ledger import audit
from strandline.ledger.changes import purged_keys
from strandline.ledger.history.branches import refuse_deleted
from strandline.ledger.ledger import Txn
from strandline.ledger.publish import intent_rows, leases
from strandline.ledger.publish.publishing import Effects, Intent, Publishing, of_kind
from strandline.ledger.rows import reservations
from strandline.ledger.tables import heads
from strandline.ledger.tables.heads import MoveTable

REWRITING = frozenset({"purge", "erase", "retain"})
"""The kinds of operations that take rows, versions or values away which readers were shown.

By kind, because an intent of an older version says nothing else. Flush, fold, compaction and expiry show the same rows
before and after; loads and merges write later versions; no reader sees a branch at a past commit until it is made.
"""


def apply(txn: Txn, intent: Intent) -> None:
    """Write everything an intent's effects say, or raise Conflict because something they depend on has moved.

    Effects are not independent of each other, so the order is fixed: all checks, then what has to be known before any
    head moves or any seq is taken, then the effects in their stored order.
    """
    refuse_deleted(txn.conn, intent.branch_id)
    effects = intent.effects
    assert effects is not None, f"operation {intent.op_id} is published before it was staged"
    for effect in effects:
        effect.check(txn.conn, intent)
    _note_rewrites(txn, intent, effects)
    # The commit takes a seq. Noted behind it, the operation's rows would look as if they had come after their commit.
    reservations.note_published(txn, intent.op_id)
    publishing = Publishing(intent)
    for effect in effects:
        effect.apply(txn, publishing)
    reservations.release(txn, intent.op_id)
    intent_rows.set_phase(txn, intent.op_id, "published")
    leases.release_tables(txn, intent.op_id)


def _note_rewrites(txn: Txn, intent: Intent, effects: Effects) -> None:
    """Tell readers that rows which they were shown go, or that rows come in below those that they have read.

    Whether rows come in below others is told by the last seqs of heads. So it is asked before these move: then every
    load would seem to have been overtaken, by its own rows.
    """
    rewritten = set(reservations.read_overtaken(txn.conn, intent.op_id))
    if intent.kind in REWRITING:
        rewritten |= {(move.branch_id, move.table_id) for move in of_kind(effects, MoveTable)}
    for branch_id, table_id in rewritten:
        heads.note_rewrite(txn, branch_id, table_id)


def abandon(txn: Txn, intent: Intent, *, actor: str, reason: str) -> None:
    """Give an operation up: its reserved seqs become a gap, its leases are free, what it staged is garbage."""
    reservations.release(txn, intent.op_id)
    purged_keys.forget_hashes(txn, intent.op_id)
    intent_rows.set_phase(txn, intent.op_id, "abandoned")
    leases.release_tables(txn, intent.op_id)
    audit.audit_intent(txn, intent, "rolled_back", reason, moved={}, actor=actor)
