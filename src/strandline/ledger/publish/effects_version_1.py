"""Bodies of version 1, as strandline wrote them before effects were classes: read, and translated.

Version 1 had one record for all that a publish writes, with a part for every purpose, and one order for all publishes.
The classes here say what it looked like and are never written any more. A part that an older strandline did not know
yet may be missing from it; anything else that is odd is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from strandline.ledger.changes.judged import KeepSchemas
from strandline.ledger.changes.purges import RecordPurge, Shortened, StayUnreferred, Tombstone
from strandline.ledger.history.commits import WriteCommit
from strandline.ledger.history.merges import TakeMerge
from strandline.ledger.publish.loads import AdvanceLoad
from strandline.ledger.publish.publishing import Effect, Effects
from strandline.ledger.rows.batches import ReleaseBatches
from strandline.ledger.rows.idempotency import KeepAnswer
from strandline.ledger.rows.query_marks import MoveQueryMark
from strandline.ledger.tables.heads import MoveStreams, MoveTable, PassOver, PruneStreams, RefuseStale
from strandline.ledger.tables.holds import CondemnSnapshots
from strandline.model.stored import NotStored, from_stored
from strandline.model.tables import DataFile


@dataclass(frozen=True)
class TableEffectOf1:
    """What version 1 said of one (branch, table)."""

    branch_id: str
    table_id: str
    from_version: int
    from_snapshot: int | None
    snapshot: int | None
    files: tuple[DataFile, ...]
    batches: tuple[str, ...] = ()
    rows_added: int = 0
    rows_acked: int = 0
    rows_dropped: int = 0
    rows_stale: int = 0
    last_seq: int = 0
    stream_heads: Mapping[str, int] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    rows_removed: int = 0
    pruned: Mapping[str, int] = field(default_factory=dict)
    past_sinks: bool = False
    condemned: tuple[int, ...] = ()
    barrier: bool = False
    unhashed: bool = False
    kept_from: int = 0


@dataclass(frozen=True)
class CommitOf1:
    """What version 1 said of a commit."""

    kind: str
    message: str
    tables: Mapping[str, int]
    commit_id: str | None = None


@dataclass(frozen=True)
class PurgeOf1:
    """What version 1 said of a purge: what it was judged by, and of the first of several operations its record."""

    relied: object = None
    branch_id: str | None = None
    table_id: str | None = None
    actor: str | None = None
    letters: tuple[str, ...] = ()
    quarantined: tuple[Shortened, ...] = ()
    tombstone: Tombstone | None = None


@dataclass(frozen=True)
class EffectsOf1:
    """Everything that version 1 said of a publish."""

    tables: tuple[TableEffectOf1, ...]
    commit: CommitOf1 | None
    answer: KeepAnswer | None
    progress: AdvanceLoad | None
    stream: MoveQueryMark | None
    purge: PurgeOf1 | None = None
    judged: KeepSchemas | None = None
    merge: TakeMerge | None = None


def translated(document: object) -> Effects:
    """What version 1 says, as effects in the order in which it was published; NotStored where it can't be read."""
    return tuple(_effects(from_stored(EffectsOf1, document, "effects", older=True)))


def _effects(stored: EffectsOf1) -> Iterator[Effect]:
    if stored.judged is not None:
        yield stored.judged
    if stored.purge is not None and stored.purge.relied:
        yield from_stored(StayUnreferred, stored.purge.relied, "effects.purge.relied")
    for table in stored.tables:
        yield from _of_table(table)
    if stored.purge is not None and stored.purge.tombstone is not None:
        yield _record(stored.purge, stored.purge.tombstone)
    if stored.commit is not None:
        commit, merged = stored.commit, stored.merge.tip if stored.merge is not None else None
        yield WriteCommit(commit.kind, commit.message, commit.tables, commit.commit_id, merged)
    elif stored.merge is not None or any(table.unhashed for table in stored.tables):
        raise NotStored("effects need a commit, and have none")
    if stored.merge is not None:
        yield stored.merge
    for table in stored.tables:
        if table.unhashed:
            yield PassOver(table.branch_id, table.table_id)
    for effect in (stored.progress, stored.answer, stored.stream):
        if effect is not None:
            yield effect


def _of_table(table: TableEffectOf1) -> Iterator[Effect]:
    at = table.branch_id, table.table_id
    yield MoveTable(
        *at,
        table.from_version,
        table.from_snapshot,
        table.snapshot,
        table.files,
        table.removed,
        table.rows_added,
        table.rows_removed,
        table.rows_acked,
        table.rows_dropped,
        table.last_seq,
        table.barrier,
        table.kept_from,
    )
    if table.rows_stale:
        yield RefuseStale(table.table_id, table.rows_stale)
    if table.condemned:
        yield CondemnSnapshots(table.table_id, table.condemned)
    if table.stream_heads:
        yield MoveStreams(*at, table.stream_heads)
    if table.pruned:
        yield PruneStreams(*at, table.pruned, table.past_sinks)
    if table.batches:
        yield ReleaseBatches(*at, table.batches)


def _record(purge: PurgeOf1, tombstone: Tombstone) -> RecordPurge:
    if purge.branch_id is None or purge.table_id is None or purge.actor is None:
        raise NotStored("effects.purge lacks what its tombstone is about")
    return RecordPurge(purge.branch_id, purge.table_id, purge.actor, purge.letters, purge.quarantined, tombstone)
