"""Moving heads: only a publish does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, case, insert, select, update

from strandline.errors import Damaged, TableMoved
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Effect, Effects, Intent, Publishing, of_kind
from strandline.ledger.sinks.limits import check_limits
from strandline.ledger.tables import files
from strandline.model.ids import table_of
from strandline.model.tables import DataFile, Head


@dataclass(frozen=True)
class MoveTable(Effect):
    """What a publish does to one (branch, table): its pins, its books and its files.

    `snapshot` is None when nothing was written (every row was a duplicate, or nothing is removed but the version must
    not have moved): the books go on all the same. `removed` are the files that the snapshot lacks; `rows_removed` of
    their rows are not in `files` either. `barrier` says that rows changed otherwise than by being appended. `kept_from`
    is the number of the commit from which on a keyed table's log is kept whole, where retention has moved it.
    """

    branch_id: str
    table_id: str
    from_version: int
    from_snapshot: int | None
    snapshot: int | None = None
    files: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    rows_added: int = 0
    rows_removed: int = 0
    rows_acked: int = 0
    rows_dropped: int = 0
    last_seq: int = 0
    barrier: bool = False
    kept_from: int = 0

    @classmethod
    def of(cls, head: Head) -> MoveTable:
        """The head as it is, with nothing written yet."""
        return cls(head.branch_id, head.table_id, head.version, head.log_snapshot)

    def check(self, conn: Connection, intent: Intent) -> None:
        """The table takes writes, and is at the version that this was staged on."""
        head = db.heads.c
        now = conn.execute(
            select(head.refuses, head.version, head.log_snapshot).where(
                head.branch_id == self.branch_id, head.table_id == self.table_id
            )
        ).one()
        if now.refuses is not None:
            raise Damaged(f"table {self.table_id} refuses writes: {now.refuses}")
        if (now.version, now.log_snapshot) != (self.from_version, self.from_snapshot):
            raise TableMoved(
                f"the log of table {self.table_id} moved from version {self.from_version} to {now.version}",
                expected=self.from_version,
                actual=now.version,
            )

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Record the snapshot as the next version, with its files, and let the head be at it."""
        version = self.from_version
        if self.snapshot is not None:
            version += 1
            self._record_snapshot(txn, publishing.intent, version, self.snapshot)
        head = db.heads.c
        values = {
            "version": version,
            "rows_log": head.rows_log + self.rows_added - self.rows_removed,
            "rows_pruned": head.rows_pruned + self.rows_removed,
            "barrier": head.barrier + int(self.barrier),
            "rows_acked": head.rows_acked + self.rows_acked,
            "rows_dropped": head.rows_dropped + self.rows_dropped,
            "last_seq": case((head.last_seq > self.last_seq, head.last_seq), else_=self.last_seq),
            "kept_from": case((head.kept_from > self.kept_from, head.kept_from), else_=self.kept_from),
        }
        if self.snapshot is not None:
            values["log_snapshot"] = self.snapshot
        txn.conn.execute(
            update(db.heads).where(head.branch_id == self.branch_id, head.table_id == self.table_id).values(**values)
        )

    def _record_snapshot(self, txn: Txn, intent: Intent, version: int, snapshot: int) -> None:
        files.add_snapshot(
            txn,
            self.branch_id,
            self.table_id,
            version,
            snapshot_id=snapshot,
            op_id=intent.op_id,
            kind=intent.kind,
            rows=self.rows_added - self.rows_removed,
        )
        replaced = files.remove_files(txn, self.branch_id, self.table_id, version, self.removed)
        files.add_files(txn, self.branch_id, self.table_id, version, self.files, replaced)


def snapshots_of(effects: Effects | None) -> dict[str, int]:
    """The snapshot that each table is at by a publish, where it got another one."""
    moves = of_kind(effects or (), MoveTable)
    return {move.table_id: move.snapshot for move in moves if move.snapshot is not None}


@dataclass(frozen=True)
class RefuseStale(Effect):
    """Rows of a tail were left out because they were past the table's retention, and are no duplicates.

    Only an older strandline staged such a thing. It is not published: the rows were acked.
    """

    table_id: str
    rows: int

    def check(self, conn: Connection, intent: Intent) -> None:
        """It never holds."""
        raise TableMoved(
            f"{self.rows} acked rows of table {self.table_id} were left out for their age",
            hint="An older strandline staged this. The rows are still in the tail, and the next flush stores them.",
            expected=0,
            actual=self.rows,
        )


def note_rewrite(txn: Txn, branch_id: str, table_id: str) -> None:
    """Visible rows of a table have changed otherwise than by later versions: none are to be added to what was read.

    The token is the number of this write transaction, and not a count: two branches that were changed differently must
    never come to the same one, because a branch may take over another one's head. A state has none of its own; it
    shows rows of its table.
    """
    head = db.heads.c
    number = txn.conn.execute(select(db.counter.c.writes)).scalar_one()
    where = head.branch_id == branch_id, head.table_id == table_of(table_id)
    txn.conn.execute(update(db.heads).where(*where).values(rewrites=number))


@dataclass(frozen=True)
class PassOver(Effect):
    """An operation has put rows into a keyed table that are known by no hash, below its commit.

    The seq of its commit is the table's last seq too: branches that were made after the rows had their seqs, and before
    the commit, don't have them. And up to it hashes are lacking: such versions are looked for in the log.
    """

    branch_id: str
    table_id: str

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Let the table's last seq, and the one up to which hashes are lacking, be that of the commit."""
        head, number = db.heads.c, publishing.number
        txn.conn.execute(
            update(db.heads)
            .where(head.branch_id == self.branch_id, head.table_id == self.table_id)
            .values(last_seq=number, swept_seq=number)
        )


@dataclass(frozen=True)
class MoveStreams(Effect):
    """The streams of a (branch, table) that got rows, each with the seq of its last one."""

    branch_id: str
    table_id: str
    last_seqs: Mapping[str, int]

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Raise their heads."""
        for partition, last_seq in self.last_seqs.items():
            where = _is_stream(self.branch_id, self.table_id, partition)
            moved = txn.conn.execute(update(db.stream_heads).where(*where).values(last_seq=last_seq))
            if moved.rowcount == 0:
                txn.conn.execute(
                    insert(db.stream_heads).values(
                        branch_id=self.branch_id,
                        table_id=self.table_id,
                        partition=partition,
                        last_seq=last_seq,
                        pruned_upto=0,
                    )
                )


@dataclass(frozen=True)
class PruneStreams(Effect):
    """How far retention has come in the streams of a (branch, table) that lose rows: the highest seq that goes of each.

    With `past_sinks` a person said that rows may go which sinks have not delivered.
    """

    branch_id: str
    table_id: str
    upto: Mapping[str, int]
    past_sinks: bool

    def check(self, conn: Connection, intent: Intent) -> None:
        """No sink still has to deliver what goes: one may have been moved back, or added, since it was staged."""
        if not self.past_sinks:
            check_limits(conn, self.branch_id, self.table_id, self.upto)

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Say so in the heads of the streams."""
        for partition, seq in self.upto.items():
            where = _is_stream(self.branch_id, self.table_id, partition)
            behind = db.stream_heads.c.pruned_upto < seq
            txn.conn.execute(update(db.stream_heads).where(*where, behind).values(pruned_upto=seq))


def _is_stream(branch_id: str, table_id: str, partition: str) -> tuple[ColumnElement[bool], ...]:
    stream = db.stream_heads.c
    return stream.branch_id == branch_id, stream.table_id == table_id, stream.partition == partition


def read_pruned(conn: Connection, branch_id: str, table_id: str) -> Mapping[str, int]:
    """Of each stream that retention has taken rows of, the highest seq that it took.

    A reader that has to read a stream again from a seq below it does not get all that was there.
    """
    stream = db.stream_heads.c
    rows = conn.execute(
        select(stream.partition, stream.pruned_upto).where(
            stream.branch_id == branch_id, stream.table_id == table_id, stream.pruned_upto > 0
        )
    )
    return {row.partition: row.pruned_upto for row in rows}


def read_streams(conn: Connection, branch_id: str, table_id: str) -> Mapping[str, int]:
    """The last seq of each stream of a (branch, table)."""
    rows = conn.execute(
        select(db.stream_heads.c.partition, db.stream_heads.c.last_seq).where(
            db.stream_heads.c.branch_id == branch_id, db.stream_heads.c.table_id == table_id
        )
    )
    return {row.partition: row.last_seq for row in rows}
