"""Purge of a keyed table: a row of which any version is named goes with all its versions, on every branch and tag.

One version alone can't go: an older one would come back to life. So the condition names keys, over all branches, and
these are removed from one branch or tag after another. On each the tail is flushed and the log folded, so that no hash
tells of a version that is about to go; then one operation takes the rows out of the log and the state together. A
branch that is being made has no hashes, and rows that it is still to lose: it is not folded.

The first of these operations records the purge and writes the hashes of its keys down. They stay until there is no
such row anywhere: the next purge of the table, after a crash, first does what is left of that. Changes and merges
that were judged by what was there before find the barrier raised, and begin again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines.duck import relations, sandbox
from strandline.errors import Busy, NotFound
from strandline.failpoints import fail
from strandline.json_types import JsonObject
from strandline.ledger.changes.purged_keys import forget_done, note_hashes, read_unfinished
from strandline.ledger.changes.purges import RecordPurge, StayUnreferred
from strandline.ledger.history.branches import holders
from strandline.ledger.history.past_branches import MAKING
from strandline.ledger.ledger import Connection
from strandline.ledger.publish.publishing import Effects
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.heads import MoveTable
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.history.names import Holder
from strandline.model.maintenance import Budget, Maintained
from strandline.model.schema.types import SEQ
from strandline.model.tables import BatchRef, BranchTable, DataFile, Table
from strandline.operations.core.bite_by_bite import run_unmoved
from strandline.operations.core.context import Context
from strandline.operations.core.steps import Coverage, Done, RunningOperation
from strandline.operations.maintain.flush import flush, scope_of
from strandline.operations.maintain.fold import fold, folded_of
from strandline.operations.maintain.purge_elsewhere import (
    Beside,
    count_rows,
    ensure_tombstones,
    find_beside,
    purge_history,
    read_kept,
    report,
)
from strandline.operations.maintain.referring import find_referring, refuse_referred
from strandline.operations.maintain.removal import Removal, find_rows, stage_removal
from strandline.views.pins import Keeper
from strandline.views.tail import read_batches
from strandline.views.unreadable import on_unreadable
from strandline.views.view import log_schema

HASH = "hash"
MOST_ROUNDS = 20
"""So often all branches are looked at again, because a writer may write these very rows meanwhile."""


@dataclass(frozen=True)
class TablePlace:
    """The table as a branch or tag has it: its log and its state, each with its files."""

    name: Holder
    kind: str
    parts: tuple[tuple[BranchTable, tuple[DataFile, ...]], ...]

    @property
    def tail(self) -> tuple[BatchRef, ...]:
        """What is not in the log yet."""
        return self.parts[0][0].tail


@dataclass(frozen=True)
class KeySurvey:
    """All places at one moment, and where in them there are versions of some keys: in files, and at seqs of tails.

    The seqs are in their order.
    """

    places: Sequence[TablePlace]
    paths: frozenset[str] = frozenset()
    in_tails: Sequence[int] = ()
    rows: int = 0

    @property
    def left(self) -> list[TablePlace]:
        """The places that have any."""
        return [place for place in self.places if self._has(place)]

    def _has(self, place: TablePlace) -> bool:
        filed = any(file.path in self.paths for _, files in place.parts for file in files)
        return filed or any(self._is_in(ref) for ref in place.tail)

    def _is_in(self, ref: BatchRef) -> bool:
        at = bisect_left(self.in_tails, ref.first_seq)
        return at < len(self.in_tails) and self.in_tails[at] <= ref.last_seq


@dataclass(frozen=True)
class DoomedKeys:
    """What a condition names: keys, with their hashes; and what goes besides. `unfinished` is left of other purges."""

    keys: pa.Table
    unfinished: Mapping[str, Sequence[bytes]]
    beside: Beside

    @cached_property
    def new(self) -> list[bytes]:
        """The hashes of keys that no purge has recorded yet."""
        recorded = {digest for hashes in self.unfinished.values() for digest in hashes}
        return sorted({bytes(digest) for digest in self.keys[HASH].to_pylist()} - recorded)

    @property
    def hashes(self) -> list[bytes]:
        """Those of all keys that are to go."""
        return [*self.new, *(digest for hashes in self.unfinished.values() for digest in hashes)]

    @property
    def to_record(self) -> bool:
        """Whether there is something that no purge has recorded."""
        return bool(self.new) or not self.beside.is_nothing


@dataclass
class PurgeKeys:
    """The operation: rows with these hashes go from one branch or tag. `record` is what the first one writes down.

    Only what is folded goes: of what came later, hashes tell, and the next look finds it. All goes of a branch that is
    being made.
    """

    table: str
    branch: Holder
    actor: str
    hashes: Sequence[bytes]
    record: RecordPurge | None
    new: Sequence[bytes]
    of: str
    kind: str = "purge"
    branch_table: BranchTable = field(init=False)

    def cover(self, conn: Connection) -> Coverage:
        """The log and the state."""
        self.branch_table = read_branch_tables(conn, self.branch, [self.table])[0]
        return Coverage(
            self.branch_table.head.branch_id, (scope_of(self.branch_table), scope_of(folded_of(self.branch_table)))
        )

    def stage(self, ctx: Context, running: RunningOperation) -> Effects:
        """Write both without the rows, and the hashes of what is recorded now."""
        log, branch_table = self.branch_table, folded_of(self.branch_table)
        (gone, rows), (folded, _) = self._find(ctx, log), self._find(ctx, branch_table)
        # Of branches alone: no reference can come to a tag, nor yet to a branch that is being made.
        relied = self._relied(ctx, rows) if self.of == "branch" else None
        if self.record is not None:  # before the publish, which a recovery may do in another process
            note_hashes(ctx.ledger, log.table.table_id, running.op_id, self.new)
        moves = (
            replace(_without(ctx, log, gone, running.op_id), barrier=True),
            _without(ctx, branch_table, folded, running.op_id),
        )
        unreferred = () if relied is None else (relied,)
        return *unreferred, *moves, *(() if self.record is None else (self.record,))

    def _find(self, ctx: Context, part: BranchTable) -> tuple[Removal, pa.Table]:
        head, key = part.head, part.table.key
        with ctx.ledger.read() as conn:
            files = read_files(conn, head.branch_id, head.table_id, head.version)
        named = _gone(part.table)
        folded = named if self.of == MAKING else f"{named} AND {SEQ} <= {self.branch_table.folded_seq}"
        return find_rows(part, files, folded, [sandbox.quote_name(name) for name in key], self.hashes)

    def _relied(self, ctx: Context, rows: pa.Table) -> StayUnreferred | None:
        if not rows.num_rows:
            return None
        key = list(self.branch_table.table.key)
        referring = find_referring(
            ctx, self.branch, self.branch_table.table.table_id, rows.select(key).group_by(key).aggregate([])
        )
        refuse_referred({self.branch: referring}, self.table)
        return referring.relied


def _without(ctx: Context, part: BranchTable, removal: Removal, op_id: str) -> MoveTable:
    if not removal.rows:
        return MoveTable.of(part.head)
    return stage_removal(ctx, part, removal, op_id)


def purge_keyed(
    ctx: Context, branch_table: BranchTable, branch: str, actor: str, where: str, *, and_history: bool, dry_run: bool
) -> Maintained:
    """Remove every row of which a condition names a version; run again after a crash, it does what is left.

    The condition is read by the schema that the table has on a branch.
    """
    table = branch_table.table
    doomed = find(ctx, branch_table, where)
    look = look_for(ctx, table, doomed.hashes)
    branches = [place.name for place in look.places if place.kind == "branch"]
    keys = doomed.keys.select(list(table.key))
    # All branches before any of them loses a row: else it would be refused half-way. Each operation asks once more,
    # because a reference may come in between.
    refuse_referred({name: find_referring(ctx, name, table.table_id, keys) for name in branches}, table.name)
    before, detail = _rows(ctx, table, branch), {**_detail(doomed, look), "and_history": and_history}
    if dry_run:
        after = _rows_without(ctx, branch_table, before, doomed.hashes)
        planned = report(table, (before, after), doomed.beside, detail)
        return replace(planned, dry_run=True, complete=not doomed.hashes)
    record = None
    if doomed.to_record:  # else all of it was recorded by one that died
        upto_seq = max(place.parts[0][0].head.last_seq for place in look.places)
        record = doomed.beside.record(branch_table, actor, where, look.rows, upto_seq)
    operations, warnings = _work_off(ctx, branch_table, Holder(branch), actor, doomed, record)
    if and_history:
        with ctx.ledger.read() as conn:
            names = [name for name, _ in holders(conn, table.table_id)]
        warnings += purge_history(ctx, table, names, actor)
    rows = (before, _rows(ctx, table, branch))
    return report(table, rows, doomed.beside, detail, operations=operations, warnings=warnings)


def find(ctx: Context, branch_table: BranchTable, where: str) -> DoomedKeys:
    """The keys that a condition names on any branch, and what is left of purges that died on the way."""
    table = branch_table.table
    with ctx.ledger.read() as conn:
        places, at_us = read_places(conn, table), ctx.ledger.last_at_us(conn)
        unfinished = read_unfinished(conn, table.table_id)
        kept = read_kept(conn, table.table_id)
    expressions = [f"{relations.key_hash(_scope(table))} AS {HASH}", *map(sandbox.quote_name, table.key)]
    with Keeper(ctx.ledger, at_us, ctx.grace_s).held():
        _, filed = find_rows(branch_table, _distinct(places, 0), where, expressions)
        rows = [filed, _in_tails(ctx, branch_table, places, where, expressions, None)]
        filled = [part for part in rows if part.num_rows]
        keys = pa.concat_tables(filled) if filled else rows[1]
        doomed = DoomedKeys(keys.drop_columns([SEQ]).group_by([HASH, *table.key]).aggregate([]), unfinished, Beside())
        gone = _of_letters(ctx, branch_table, places, [seq for _, seq, _ in kept.letters], doomed.hashes)
    return replace(doomed, beside=find_beside(kept, gone, where))


def _of_letters(
    ctx: Context, branch_table: BranchTable, places: Sequence[TablePlace], seqs: Sequence[int], hashes: Sequence[bytes]
) -> set[int]:
    """Those of these seqs, which dead letters have, that are versions of rows that go: not only of the named ones."""
    if not seqs or not hashes:
        return set()
    those = f"{_gone(branch_table.table)} AND {SEQ} IN ({', '.join(map(str, seqs))})"
    _, filed = find_rows(branch_table, _distinct(places, 0), those, hashes=hashes)
    waiting = _in_tails(ctx, branch_table, places, those, [], hashes)
    return {seq for rows in (filed, waiting) if rows.num_rows for seq in rows[SEQ].to_pylist()}


def read_places(conn: Connection, table: Table) -> list[TablePlace]:
    """The table wherever it is, as one database snapshot shows it."""
    places: list[TablePlace] = []
    for name, kind in holders(conn, table.table_id):
        branch_table = read_branch_tables(conn, name, [table.name])[0]
        heads = [(part, part.head) for part in (branch_table, folded_of(branch_table))]
        parts = [(part, tuple(read_files(conn, at.branch_id, at.table_id, at.version))) for part, at in heads]
        places.append(TablePlace(name, kind, tuple(parts)))
    return places


def look_for(ctx: Context, table: Table, hashes: Sequence[bytes]) -> KeySurvey:
    """Where there are versions with these hashes, over all branches and tags at one moment."""
    with ctx.ledger.read() as conn:
        places, at_us = read_places(conn, table), ctx.ledger.last_at_us(conn)
    if not hashes or not places:
        return KeySurvey(places)
    paths: set[str] = set()
    seqs: list[pa.ChunkedArray] = []
    with Keeper(ctx.ledger, at_us, ctx.grace_s).held():
        for part in (0, 1):
            branch_table = places[0].parts[part][0]
            removal, rows = find_rows(branch_table, _distinct(places, part), _gone(table), hashes=hashes)
            paths.update(file.path for file in (*removal.whole, *removal.partly))
            seqs += [rows[SEQ]] if rows.num_rows else []
        in_tails = _in_tails(ctx, places[0].parts[0][0], places, _gone(table), [], hashes)[SEQ]
    every = pa.chunked_array([*seqs, in_tails], pa.int64())
    return KeySurvey(places, frozenset(paths), sorted(in_tails.to_pylist()), pc.count_distinct(every).as_py())


def _distinct(places: Sequence[TablePlace], part: int) -> list[DataFile]:
    """The files of all logs, or of all states: those that branches share once."""
    return list({file.path: file for place in places for file in place.parts[part][1]}.values())


def _in_tails(
    ctx: Context,
    branch_table: BranchTable,
    places: Sequence[TablePlace],
    condition: str,
    more: Sequence[str],
    hashes: Sequence[bytes] | None,
) -> pa.Table:
    """The same as `find_rows` for what is not flushed on any branch: seqs, and `more` expressions."""
    refs = sorted({ref.batch_id: ref for place in places for ref in place.tail}.values(), key=lambda ref: ref.first_seq)
    with sandbox.interruptible(), sandbox.connect() as connection:
        if hashes is not None:
            relations.load_hashes(connection, hashes)
        rows = read_batches(ctx.ledger, branch_table, refs, on_unreadable(branch_table))
        relations.load_rows(connection, "tail", log_schema(branch_table), rows)
        sandbox.shut(connection, [])
        return relations.matching(connection, relations.everything("tail"), [SEQ, *more], condition)


def _work_off(
    ctx: Context, branch_table: BranchTable, holder: Holder, actor: str, doomed: DoomedKeys, record: RecordPurge | None
) -> tuple[list[str], list[str]]:
    """Remove the rows from one place after another, until no place has any; then forget their hashes."""
    name = branch_table.table.name
    operations: list[str] = []
    warnings: list[str] = []
    over = list(doomed.unfinished)
    if record is not None:
        ensure_tombstones(ctx, actor)
    for _ in range(MOST_ROUNDS):
        # In each round anew: a writer, or a branch that was made meanwhile, may have such rows again.
        look = look_for(ctx, branch_table.table, doomed.hashes)
        # Rows beside the table may be all that goes: an operation writes that down, though it removes none of its own.
        left = look.left or [place for place in look.places if place.name == holder and record is not None]
        if not left:
            # Not earlier: after a crash the next purge knows by these hashes what is left on other branches.
            _forget(ctx, over)
            return operations, warnings
        for place in left:
            operation = PurgeKeys(name, place.name, actor, doomed.hashes, record, doomed.new, place.kind)
            done = _remove(ctx, operation)
            if done is not None:
                over += [done.op_id] if record is not None else []
                record = None
                operations.append(done.op_id)
                warnings.extend(done.warnings)
                ctx.report(f"purging {name}", len(operations), None)
    raise Busy(f"rows of {name!r} that are being purged keep being written", reason="rows_written")


def _remove(ctx: Context, operation: PurgeKeys) -> Done | None:
    """Bring all of a place into its state, and take the rows out; None where it has gone or moved meanwhile."""
    try:
        # In this order: only what is in the log is folded, and only what is folded goes.
        flush(ctx, operation.table, operation.branch, operation.actor)
        if operation.of != MAKING:
            fold(ctx, operation.table, operation.branch, operation.actor, Budget())
        return run_unmoved(ctx, operation)
    except NotFound:
        return None


def _forget(ctx: Context, operations: Sequence[str]) -> None:
    if operations:
        fail("purge.before_forget")
        with ctx.ledger.write() as txn:
            forget_done(txn, operations)
        fail("purge.after_forget")


def _scope(table: Table) -> relations.KeyScope:
    return relations.KeyScope(table.key)


def _gone(table: Table) -> str:
    return relations.has_hash(_scope(table))


def _detail(doomed: DoomedKeys, look: KeySurvey) -> JsonObject:
    return {
        "rows": look.rows,
        "keys": len(doomed.hashes),
        "branches": sorted(place.name for place in look.left if place.kind == "branch"),
        **doomed.beside.counts,
    }


def _rows(ctx: Context, table: Table, branch: str) -> int:
    """How many versions a branch has."""
    with ctx.ledger.read() as conn:
        return count_rows(read_branch_tables(conn, branch, [table.name])[0])


def _rows_without(ctx: Context, branch_table: BranchTable, before: int, hashes: Sequence[bytes]) -> int:
    with ctx.ledger.read() as conn:
        places = read_places(conn, branch_table.table)
    place = next(place for place in places if place.parts[0][0].head.branch_id == branch_table.head.branch_id)
    _, filed = find_rows(branch_table, place.parts[0][1], _gone(branch_table.table), hashes=hashes)
    waiting = _in_tails(ctx, branch_table, [place], _gone(branch_table.table), [], hashes)
    return before - int(filed.num_rows + waiting.num_rows)
