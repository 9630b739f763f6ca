"""Publishing: the one short transaction that makes staged work visible.

What it writes was decided when the operation was staged, and is data. So the process that staged it and the process
that recovers it come through here alike, and there is one place where a table can move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from strandline.errors import Damaged, SchemaMoved, TableMoved
from strandline.ledger import (
    audit,
    batches,
    files,
    heads,
    holds,
    intents,
    leases,
    loads,
    merges,
    purged_keys,
    purges,
    reservations,
)
from strandline.ledger.branches import refuse_deleted
from strandline.ledger.commits import write_commit
from strandline.ledger.idempotency import remember
from strandline.ledger.ledger import Connection, Txn
from strandline.ledger.limits import check_limits
from strandline.ledger.query_marks import move_mark
from strandline.ledger.tables import branch_name, is_protected, read_head, read_states_of, refuse_protected
from strandline.model.commits import Commit
from strandline.model.declared import Declared
from strandline.model.operations import Effects, Intent, TableEffect

REWRITING = frozenset({"purge", "erase", "retain"})
"""The kinds of operations that take rows, versions or values away which readers were shown.

By kind, because an intent of an older version says nothing else. Flush, fold, compaction and expiry show the same rows
before and after; loads and merges write later versions; a branch at a past commit is seen by nobody until it is made.
"""


def apply(txn: Txn, intent: Intent) -> None:
    """Write everything an intent's effects say, or raise Conflict because something they depend on has moved."""
    refuse_deleted(txn.conn, intent.branch_id)
    effects = intent.effects
    assert effects is not None, f"operation {intent.op_id} is published before it was staged"
    if effects.judged is not None:
        _check_judged(txn.conn, intent.branch_id, effects.judged)
    if effects.purge is not None:
        purges.check(txn.conn, effects.purge)
    if effects.merge is not None:
        merges.check(txn.conn, intent.branch_id, effects.merge)
    rewritten = set(reservations.read_overtaken(txn.conn, intent.op_id))
    for effect in effects.tables:
        _check(txn.conn, effect)
        _move(txn, intent, effect)
        if intent.kind in REWRITING:
            rewritten.add((effect.branch_id, effect.table_id))
    for branch_id, table_id in rewritten:
        heads.note_rewrite(txn, branch_id, table_id)
    if effects.purge is not None:
        purges.record(txn, intent.op_id, effects.purge)
    reservations.note_published(txn, intent.op_id)
    commit = _commit(txn, intent, effects)
    if effects.merge is not None:
        assert commit is not None, f"operation {intent.op_id} merges without a commit"
        merges.bring_stored(txn, intent.branch_id, intent.actor, effects.merge, commit.seq)
    for effect in effects.tables:
        if effect.unhashed:
            assert commit is not None, f"operation {intent.op_id} changes rows of a keyed table without a commit"
            heads.pass_over(txn, effect.branch_id, effect.table_id, commit.seq)
    _keep_answers(txn, effects, commit.commit_id if commit is not None else None)
    reservations.release(txn, intent.op_id)
    intents.set_phase(txn, intent.op_id, "published")
    leases.release_tables(txn, intent.op_id)


def abandon(txn: Txn, intent: Intent, *, actor: str, reason: str) -> None:
    """Give an operation up: its reserved seqs become a gap, its leases are free, what it staged is garbage."""
    reservations.release(txn, intent.op_id)
    purged_keys.forget_hashes(txn, intent.op_id)
    intents.set_phase(txn, intent.op_id, "abandoned")
    leases.release_tables(txn, intent.op_id)
    audit.audit_intent(txn, intent, "rolled_back", reason, moved=False, actor=actor)


def _check(conn: Connection, effect: TableEffect) -> None:
    head = read_head(conn, effect.branch_id, effect.table_id)
    if head.refuses is not None:
        raise Damaged(f"table {effect.table_id} refuses writes: {head.refuses}")
    if effect.rows_stale:
        raise TableMoved(
            f"{effect.rows_stale} acked rows of table {effect.table_id} were left out for their age",
            hint="An older strandline staged this. The rows are still in the tail, and the next flush stores them.",
            expected=0,
            actual=effect.rows_stale,
        )
    if (head.version, head.log_snapshot) != (effect.from_version, effect.from_snapshot):
        raise TableMoved(
            f"the log of table {effect.table_id} moved from version {effect.from_version} to {head.version}",
            expected=effect.from_version,
            actual=head.version,
        )
    found = batches.count_in_tail(conn, effect.branch_id, effect.table_id, effect.batches)
    if found != len(effect.batches):
        raise TableMoved(
            f"the tail of table {effect.table_id} has {found} of the {len(effect.batches)} batches that were staged",
            expected=len(effect.batches),
            actual=found,
        )


def _check_judged(conn: Connection, branch_id: str, judged: Mapping[str, Any]) -> None:
    """What tables declare of their rows has not changed since rows were judged by it, and the branch may be written."""
    refuse_protected(branch_name(conn, branch_id), protected=is_protected(conn, branch_id))
    now = Declared.of(branch_id, 0, read_states_of(conn, branch_id, tails=False)).joined(judged["written"])
    if now != judged["schemas"]:
        raise SchemaMoved(
            "the schemas of tables were changed while rows were judged by them",
            hint="Nothing was changed. Try again.",
            expected=judged["schemas"],
            actual=now,
        )


def _move(txn: Txn, intent: Intent, effect: TableEffect) -> None:
    version = effect.from_version
    if effect.snapshot is not None:
        version += 1
        files.add_snapshot(
            txn,
            effect.branch_id,
            effect.table_id,
            version,
            snapshot_id=effect.snapshot,
            op_id=intent.op_id,
            kind=intent.kind,
            rows=effect.rows_added - effect.rows_removed,
        )
        replaced = files.remove_files(txn, effect.branch_id, effect.table_id, version, effect.removed)
        files.add_files(txn, effect.branch_id, effect.table_id, version, effect.files, replaced)
    if effect.pruned and not effect.past_sinks:
        check_limits(txn.conn, effect.branch_id, effect.table_id, effect.pruned)
    if effect.condemned:
        holds.condemn(txn, effect.table_id, effect.condemned, intent.created_at_us)
    heads.move(txn, effect, version)
    heads.move_streams(txn, effect)
    batches.release(txn, effect.branch_id, effect.table_id, effect.batches)


def _commit(txn: Txn, intent: Intent, effects: Effects) -> Commit | None:
    if effects.commit is None:
        return None
    return write_commit(
        txn,
        branch_name(txn.conn, intent.branch_id),
        kind=effects.commit.kind,
        actor=intent.actor,
        message=effects.commit.message,
        tables=effects.commit.tables,
        op_id=intent.op_id,
        commit_id=effects.commit.commit_id,
        merged=effects.merge["tip"] if effects.merge is not None else None,
    )


def _keep_answers(txn: Txn, effects: Effects, commit: str | None) -> None:
    if effects.progress is not None:
        progress = effects.progress
        loads.advance_load(
            txn,
            progress["load_id"],
            since=progress["since"],
            parts_done=progress["parts_done"],
            answer=progress["answer"],
        )
        if progress["finished"]:
            loads.finish_load(txn, progress["load_id"])
    if effects.answer is not None:
        kept = orjson.loads(orjson.dumps({**effects.answer["answer"], "commit": commit}))
        remember(txn, effects.answer["scope"], effects.answer["key"], effects.answer["digest"], kept, kept_s=None)
    if effects.stream is not None:
        move_mark(txn, effects.stream["query_id"], effects.stream["table_id"], effects.stream["batch"])
