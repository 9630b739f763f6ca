"""What a purge covers beside logs and states: dead letters, quarantine, the record of it, and older snapshots."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from strandline.engines.duck.predicates import without_matches
from strandline.errors import StrandError, TableExists
from strandline.ledger import batches, purges
from strandline.ledger.files import count_snapshots
from strandline.ledger.ledger import MAIN
from strandline.ledger.tables import create_table, read_states
from strandline.model.maintenance import Budget
from strandline.model.migration import PURGE_COLUMNS, PURGE_KEY
from strandline.model.schema import parse_mapping
from strandline.model.tables import Table
from strandline.model.wire import decode, encode
from strandline.model.wording import counted
from strandline.operations.context import Context
from strandline.operations.expire import expire
from strandline.operations.sweep import sweep


def find_letters(letters: Sequence[tuple[str, int, bytes]], gone: set[int], where: str) -> tuple[list[str], list[str]]:
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


def find_quarantined(
    found: Sequence[tuple[str, int, bytes]], where: str
) -> tuple[list[dict[str, Any]], int, list[str]]:
    """Quarantined batches as far as they can be read: what is left of those that hold such rows."""
    shrunk: list[dict[str, Any]] = []
    gone = 0
    unread: list[str] = []
    for batch_id, rows, payload in found:
        try:
            kept, matched = without_matches(decode(payload), where)
        except (StrandError, pa.ArrowException):
            unread.append(
                f"quarantined batch {batch_id} ({counted(rows, 'row')}) can't be read: it may hold such rows. "
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


def ensure_tombstones(ctx: Context, actor: str) -> None:
    """Make the table of tombstones, unless it is there."""
    while True:
        with ctx.ledger.read() as conn:
            if purges.find_tombstones(conn) is not None:
                return
            name = purges.free_name(conn)
        try:
            create_table(
                ctx.ledger,
                name,
                parse_mapping(PURGE_COLUMNS),
                branch=MAIN,
                actor=actor,
                row_key=PURGE_KEY,
                partition_by=(),
                dedupe="table",
                extra=False,
            )
        except TableExists:
            continue  # another process, or a user, was faster with the name


def purge_history(ctx: Context, table: Table, branches: Sequence[str], actor: str) -> list[str]:
    """Let the snapshots and batches go that still hold the rows; says what has to stay, and why."""
    while batches.sweep(ctx.ledger, grace_s=0, table_id=table.table_id):
        pass
    parts = [table.name, table.state.name] if table.key else [table.name]
    warnings: list[str] = []
    for branch in branches:
        for part in parts:
            warnings += expire(ctx, part, branch, actor, Budget(), grace_s=0).warnings
    sweep(ctx, [table.name], grace_s=0)
    left = sum(_older(ctx, part, branch) for branch in branches for part in parts)
    told = f"{left} older snapshots stay: an open delivery or a held view reads them. Run it again later"
    return [*warnings, told] if left else warnings


def _older(ctx: Context, table: str, branch: str) -> int:
    """How many snapshots there are besides the current one."""
    with ctx.ledger.read() as conn:
        head = read_states(conn, branch, [table])[0].head
        kept, _ = count_snapshots(conn, head.branch_id, head.table_id)
    return kept - (0 if head.log_snapshot is None else 1)
