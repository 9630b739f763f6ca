"""What a purge covers beside logs and states: dead letters, quarantine, the record of it, and older snapshots."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from strandline.engines.duck.predicates import without_matches
from strandline.errors import StrandError, TableExists
from strandline.json_types import JsonObject
from strandline.ledger.changes import purges
from strandline.ledger.changes.purges import RecordPurge, Shortened, Tombstone
from strandline.ledger.ledger import MAIN, Connection
from strandline.ledger.rows import batches
from strandline.ledger.tables.files import count_snapshots
from strandline.ledger.tables.tables import create_table, read_branch_tables
from strandline.model.maintenance import Budget, Maintained
from strandline.model.schema.migration import PURGE_COLUMNS, PURGE_KEY
from strandline.model.schema.schema import parse_mapping
from strandline.model.tables import BranchTable, Table
from strandline.model.values.wire import decode, encode
from strandline.model.wording import counted
from strandline.operations.core.context import Context
from strandline.operations.maintain.expire import expire
from strandline.operations.maintain.sweep import sweep


@dataclass(frozen=True)
class RowsSetAside:
    """Dead letters, with their seqs, and quarantined batches of a table: rows lie there too."""

    letters: Sequence[tuple[str, int, bytes]]
    quarantined: Sequence[tuple[str, int, bytes]]


@dataclass(frozen=True)
class Beside:
    """What goes of these, and which of them can't be judged."""

    letters: Sequence[str] = ()
    quarantined: Sequence[Shortened] = ()
    quarantined_rows: int = 0
    unsure: Sequence[str] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether nothing goes here."""
        return not (self.letters or self.quarantined)

    def record(self, branch_table: BranchTable, actor: str, where: str, rows: int, upto_seq: int) -> RecordPurge:
        """What the publish writes down of a purge that removes so many rows."""
        table = branch_table.table
        return RecordPurge(
            branch_id=branch_table.head.branch_id,
            table_id=table.table_id,
            actor=actor,
            letters=tuple(self.letters),
            quarantined=tuple(self.quarantined),
            tombstone=Tombstone(table.name, table.table_id, where, rows + self.quarantined_rows, upto_seq),
        )

    @property
    def counts(self) -> dict[str, int]:
        """How much of it goes."""
        return {"dead_letters": len(self.letters), "quarantined_rows": self.quarantined_rows}


def report(
    table: Table,
    rows: Sequence[int],
    beside: Beside,
    detail: JsonObject,
    *,
    operations: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Maintained:
    """What a purge did to a table whose rows were so many before, and are so many after it."""
    before, after = ({"rows": number} for number in rows)
    warnings = (*warnings, *beside.unsure)
    return Maintained(table.name, before, after, operations=tuple(operations), warnings=warnings, detail=detail)


def count_rows(branch_table: BranchTable) -> int:
    """How many rows, or versions, a table has in its log and its tail."""
    return branch_table.head.books.log + sum(ref.rows for ref in branch_table.tail)


def read_kept(conn: Connection, table_id: str) -> RowsSetAside:
    """What there is of a table."""
    return RowsSetAside(purges.read_letters(conn, table_id), purges.read_quarantined(conn, table_id))


def find_beside(kept: RowsSetAside, gone: set[int], where: str) -> Beside:
    """What a condition names of it, and the letters of rows that go: these may be gone from the log already."""
    letters: list[str] = []
    shrunk: list[Shortened] = []
    unsure: list[str] = []
    rows_gone = 0
    for letter_id, seq, payload in kept.letters:
        left = None if seq in gone else _without(payload, where)
        if seq not in gone and left is None:
            unsure.append(f"dead letter {letter_id} lacks columns of the condition: look at it with `strand sink dead`")
        elif left is None or left.matched:
            letters.append(letter_id)
    for batch_id, rows, payload in kept.quarantined:
        left = _without(payload, where)
        if left is None:
            unsure.append(
                f"quarantined batch {batch_id} ({counted(rows, 'row')}) can't be read: it may hold such rows. "
                f"`strand quarantine discard {batch_id}` removes it"
            )
        elif left.matched:
            rows_gone += left.matched
            bytes_left = base64.b64encode(encode(left.rows) if left.rows.num_rows else b"").decode()
            shrunk.append(Shortened(batch_id, left.rows.num_rows, bytes_left))
    return Beside(letters, shrunk, rows_gone, unsure)


@dataclass(frozen=True)
class _Left:
    rows: pa.RecordBatch
    matched: int


def _without(payload: bytes, where: str) -> _Left | None:
    """Stored rows without those that a condition names; None where they can't be read, or lack its columns."""
    try:
        return _Left(*without_matches(decode(payload), where))
    except (StrandError, pa.ArrowException):
        return None


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
    warning = f"{left} older snapshots stay: an open delivery or a held view reads them. Run it again later"
    return [*warnings, warning] if left else warnings


def _older(ctx: Context, table: str, branch: str) -> int:
    """How many snapshots there are besides the current one."""
    with ctx.ledger.read() as conn:
        head = read_branch_tables(conn, branch, [table])[0].head
        kept, _ = count_snapshots(conn, head.branch_id, head.table_id)
    return kept - (0 if head.log_snapshot is None else 1)
