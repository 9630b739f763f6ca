"""Purge: the rows that a condition names go for good, wherever they are.

The tail is flushed first, so that all rows are in the log; there they are found by DuckDB and removed by seq. One
publish removes them, empties dead letters, shortens quarantined batches, lets the hashes of the keys count as seen, and
appends the tombstone to `strand_purges`, which sinks deliver like any other table. Sinks may not have delivered these
rows: they never will, except by deliveries that were open already.

Older snapshots still hold the rows until they expire; with `and_history` that is at once, as far as nobody reads them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from strandline.engines.duck import relations
from strandline.engines.duck.predicates import check_predicate, without_matches
from strandline.errors import Conflict, StrandError
from strandline.ledger import batches, purges
from strandline.ledger.files import count_snapshots, read_files
from strandline.ledger.ledger import Connection
from strandline.ledger.purged_keys import note_hashes
from strandline.ledger.tables import create_table, read_states
from strandline.model.maintenance import Budget, Maintained
from strandline.model.operations import Effects, TableEffect
from strandline.model.schema import parse_mapping
from strandline.model.tables import TableState
from strandline.model.types import SEQ
from strandline.model.wire import decode, encode
from strandline.operations.context import Context
from strandline.operations.expire import expire
from strandline.operations.flush import flush, scope_of
from strandline.operations.removal import Removal, find_rows, stage_removal
from strandline.operations.steps import Coverage, Running, run
from strandline.operations.sweep import sweep
from strandline.views.view import View, key_scope, stored_columns

HASH = "hash"


@dataclass(frozen=True)
class Found:
    """Everything that a condition names, at one version of a table."""

    version: int
    removal: Removal
    hashes: Sequence[bytes] = ()
    letters: Sequence[str] = ()
    quarantined: Sequence[dict[str, Any]] = ()
    quarantined_rows: int = 0
    unsure: Sequence[str] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to remove."""
        return not (self.removal.rows or self.letters or self.quarantined)


@dataclass
class Purge:
    """The operation: it removes what was found, if the table is still at the version it was found in."""

    table: str
    branch: str
    actor: str
    where: str
    found: Found
    kind: str = "purge"
    state: TableState = field(init=False)

    def cover(self, conn: Connection) -> Coverage | None:
        """The table, unless it has moved."""
        self.state = read_states(conn, self.branch, [self.table])[0]
        if self.state.head.version != self.found.version:
            return None
        return Coverage(self.state.head.branch_id, (scope_of(self.state),))

    def stage(self, ctx: Context, running: Running) -> Effects:
        """Write the log without the rows, and the hashes of their keys."""
        state, found = self.state, self.found
        head = state.head
        note_hashes(ctx.ledger, state.table.table_id, running.op_id, found.hashes)
        effect = TableEffect(head.branch_id, head.table_id, head.version, head.log_snapshot, None)
        if found.removal.rows:
            effect = stage_removal(ctx, state, found.removal, running.op_id)
        return Effects(tables=(replace(effect, barrier=True),), purge=self._purge(running.op_id))

    def _purge(self, op_id: str) -> dict[str, Any]:
        state, found = self.state, self.found
        return {
            "branch_id": state.head.branch_id,
            "table_id": state.table.table_id,
            "actor": self.actor,
            "letters": list(found.letters),
            "quarantined": list(found.quarantined),
            "tombstone": {
                "purge_id": op_id,
                "table_name": state.table.name,
                "table_id": state.table.table_id,
                "predicate": self.where,
                "rows": found.removal.rows + found.quarantined_rows,
                "upto_seq": state.head.last_seq,
            },
        }


def purge(
    ctx: Context, table: str, branch: str, actor: str, where: str, *, and_history: bool = False, dry_run: bool = False
) -> Maintained:
    """Remove every row that a condition names; run again after a crash, it does what is left."""
    with ctx.ledger.read() as conn:
        state = read_states(conn, branch, [table])[0]
    state.table.require_log("its rows can't be purged")
    check_predicate(where, stored_columns(state), state.table.name)
    if dry_run:
        return _preview(ctx, state, branch, where)
    flush(ctx, table, branch, actor)
    before = _rows(ctx, table, branch)
    done, found = _run(ctx, table, branch, actor, where)
    warnings = list(done.warnings if done is not None else ())
    if and_history:
        warnings += _purge_history(ctx, table, branch, actor)
    warnings += found.unsure
    return Maintained(
        table=state.table.name,
        before=before,
        after=_rows(ctx, table, branch),
        operations=(done.op_id,) if done is not None else (),
        warnings=tuple(warnings),
        detail={**_detail(found), "and_history": and_history},
    )


def _run(ctx: Context, table: str, branch: str, actor: str, where: str) -> tuple[Any, Found]:
    while True:
        with ctx.ledger.read() as conn:
            state = read_states(conn, branch, [table])[0]
        found = find(ctx, state, where)
        if found.is_nothing:
            return None, found
        _ensure_tombstones(ctx, branch, actor)
        done = run(ctx, Purge(table, branch, actor, where, found))
        if done is not None:
            return done, found


def find(ctx: Context, state: TableState, where: str) -> Found:
    """What a condition names in the log, among the dead letters and in quarantine."""
    head = state.head
    with ctx.ledger.read() as conn:
        files = read_files(conn, head.branch_id, head.table_id, head.version)
        letters = purges.read_letters(conn, head.table_id)
        quarantined = purges.read_quarantined(conn, head.table_id)
    scope = key_scope(state)
    hashed = [f"{relations.key_hash(scope)} AS {HASH}"] if scope.row_key else []
    removal, rows = find_rows(state, files, where, hashed)
    hashes = sorted({bytes(one) for one in rows.column(HASH).to_pylist() if one}) if hashed and rows.num_rows else []
    gone = set(rows.column(SEQ).to_pylist()) if rows.num_rows else set()
    named, unsure = _letters(letters, gone, where)
    shrunk, quarantined_rows, unread = _quarantined(quarantined, where)
    return Found(head.version, removal, hashes, named, shrunk, quarantined_rows, [*unsure, *unread])


def _letters(letters: Sequence[tuple[str, int, bytes]], gone: set[int], where: str) -> tuple[list[str], list[str]]:
    """Dead letters of rows that go, or whose own bytes the condition names: their rows may be gone from the log."""
    named: list[str] = []
    unsure: list[str] = []
    for letter_id, seq, payload in letters:
        matched = True if seq in gone else _matches(payload, where)
        if matched is None:
            unsure.append(f"dead letter {letter_id} lacks columns of the condition: look at it with `strand sink dead`")
        elif matched:
            named.append(letter_id)
    return named, unsure


def _matches(payload: bytes, where: str) -> bool | None:
    try:
        return without_matches(decode(payload), where)[1] > 0
    except (StrandError, pa.ArrowException):
        return None


def _quarantined(found: Sequence[tuple[str, int, bytes]], where: str) -> tuple[list[dict[str, Any]], int, list[str]]:
    """Quarantined batches as far as they can be read: what is left of those that hold such rows."""
    shrunk: list[dict[str, Any]] = []
    gone = 0
    unread: list[str] = []
    for batch_id, rows, payload in found:
        try:
            kept, matched = without_matches(decode(payload), where)
        except (StrandError, pa.ArrowException):
            unread.append(
                f"quarantined batch {batch_id} ({rows} rows) can't be read: it may hold such rows. "
                f"`strand quarantine discard {batch_id}` removes it"
            )
            continue
        if matched:
            gone += matched
            bytes_left = encode(kept) if kept.num_rows else b""
            shrunk.append(
                {"batch_id": batch_id, "rows": kept.num_rows, "payload": base64.b64encode(bytes_left).decode()}
            )
    return shrunk, gone, unread


def _ensure_tombstones(ctx: Context, branch: str, actor: str) -> None:
    """Make the table of tombstones, unless it is there."""
    try:
        create_table(
            ctx.ledger,
            purges.TOMBSTONES,
            parse_mapping(purges.TOMBSTONE_COLUMNS),
            branch=branch,
            actor=actor,
            row_key=["purge_id"],
            partition_by=(),
            dedupe="table",
            extra=False,
        )
    except Conflict as error:
        if error.detail["kind"] != "table_exists":
            raise


def _purge_history(ctx: Context, table: str, branch: str, actor: str) -> list[str]:
    """Let the snapshots and batches go that still hold the rows; says what has to stay, and why."""
    with ctx.ledger.read() as conn:
        state = read_states(conn, branch, [table])[0]
    while batches.sweep(ctx.ledger, grace_s=0, table_id=state.table.table_id):
        pass
    done = expire(ctx, table, branch, actor, Budget(), grace_s=0)
    sweep(ctx, [state.table.name], grace_s=0)
    with ctx.ledger.read() as conn:
        kept, _ = count_snapshots(conn, state.head.branch_id, state.table.table_id)
    left = kept - (0 if state.head.log_snapshot is None else 1)
    told = (
        [f"{left} older snapshots stay: an open delivery or a held view reads them. Run it again later"] if left else []
    )
    return [*done.warnings, *told]


def _preview(ctx: Context, state: TableState, branch: str, where: str) -> Maintained:
    found = find(ctx, state, where)
    tail = 0
    if state.tail:
        tail = View(ctx.ledger, branch, ctx.iceberg).count(state.table.name, where) - found.removal.rows
    before = {"rows": state.head.books.log + sum(ref.rows for ref in state.tail)}
    after = {"rows": before["rows"] - found.removal.rows - tail}
    return Maintained(
        state.table.name,
        before,
        after,
        dry_run=True,
        complete=found.is_nothing and not tail,
        warnings=tuple(found.unsure),
        detail={**_detail(found), "rows": found.removal.rows + tail},
    )


def _detail(found: Found) -> dict[str, Any]:
    return {
        "rows": found.removal.rows,
        "dead_letters": len(found.letters),
        "quarantined_rows": found.quarantined_rows,
        "keys": len(found.hashes),
    }


def _rows(ctx: Context, table: str, branch: str) -> dict[str, int]:
    with ctx.ledger.read() as conn:
        return {"rows": read_states(conn, branch, [table])[0].head.books.log}
