"""What an operation says about itself before, and after, it did anything.

An intent is written before the first effect outside the ledger. It holds all that another process needs to finish the
operation or to undo it. `Effects` is what the publish transaction will write; because it is data and not code, the
process that staged it and the process that recovers it publish through the same function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from strandline.model.commits import MERGE
from strandline.model.tables import DataFile

INTENT_FORMAT = 1

Phase = Literal["staging", "staged", "published", "abandoned", "damaged"]
Outcome = Literal["rolled_forward", "rolled_back", "damaged", "alive"]


@dataclass(frozen=True)
class TableEffect:
    """What a publish does to one (branch, table).

    `snapshot` is None when nothing was written (every row was a duplicate): the tail moves on all the same.

    `rows_stale` of the `rows_dropped` were past the table's retention, and no duplicates: only an older strandline
    staged such a thing, and it is not published (`publish.py`).
    `removed` are the files that the snapshot lacks; `rows_removed` of their rows are not in `files` either. `pruned` is
    the highest seq that retention removes of each stream: checked against the sinks' watermarks when it is published,
    unless `past_sinks`. `condemned` are snapshots that nobody may pin from the publish on, and that settling removes.
    `barrier` says that rows changed otherwise than by being appended. `unhashed` are versions of a keyed table that
    are known by no hash: from the commit down, they are looked for in the log. `kept_from` is the number of the commit
    from which on a keyed table's log is kept whole, where retention has moved it.
    """

    branch_id: str
    table_id: str
    from_version: int
    from_snapshot: int | None
    snapshot: int | None
    batches: tuple[str, ...] = ()
    files: tuple[DataFile, ...] = ()
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
class CommitDraft:
    """A commit to be written by the publish; with an id where rows carry it already."""

    kind: str
    message: str
    tables: Mapping[str, int]
    commit_id: str | None = None


@dataclass(frozen=True)
class Effects:
    """Everything a publish writes, over all tables of the operation.

    `answer` settles an idempotency key, `progress` moves a load on, `stream` moves a streaming query's mark: each in
    the same transaction as the rows, so neither can be there without the other. `purge` is what a purge does in the
    ledger itself. `judged` are the tables that were `written`, and the `schemas` that rows were judged by: those of
    all tables that are joined to them by references. `merge` is what a merge takes from where, besides rows.
    """

    tables: tuple[TableEffect, ...]
    commit: CommitDraft | None = None
    answer: Mapping[str, Any] | None = None
    progress: Mapping[str, Any] | None = None
    stream: Mapping[str, Any] | None = None
    purge: Mapping[str, Any] | None = None
    judged: Mapping[str, Any] | None = None
    merge: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TableScope:
    """A (branch, table) that an operation works on, and the pins it depends on."""

    branch_id: str
    table_id: str
    iceberg_name: str
    version: int
    log_snapshot: int | None


@dataclass(frozen=True)
class Intent:
    """The record of an operation that has begun and is not settled."""

    op_id: str
    kind: str
    phase: Phase
    branch_id: str
    actor: str
    owner: str
    created_at_us: int
    scopes: tuple[TableScope, ...]
    effects: Effects | None = None

    @property
    def is_refs_alone(self) -> bool:
        """Whether it is what a merge in the ledger leaves to do: no operation, and nobody has died."""
        return (self.kind, self.phase, self.effects) == (MERGE, "published", None)

    def body(self) -> dict[str, Any]:
        """The part that is stored as JSON."""
        return {
            "scopes": [asdict(scope) for scope in self.scopes],
            "effects": asdict(self.effects) if self.effects is not None else None,
        }


def scopes_from(body: Mapping[str, Any]) -> tuple[TableScope, ...]:
    """Read the scopes of a stored body; raises KeyError or TypeError when it is not one."""
    return tuple(TableScope(**scope) for scope in body["scopes"])


def effects_from(body: Mapping[str, Any]) -> Effects | None:
    """Read the effects of a stored body; None while the operation is still staging."""
    stored = body["effects"]
    if stored is None:
        return None
    tables = tuple(_table_effect(effect) for effect in stored["tables"])
    commit = CommitDraft(**stored["commit"]) if stored["commit"] is not None else None
    more = stored.get("purge"), stored.get("judged"), stored.get("merge")
    return Effects(tables, commit, stored["answer"], stored["progress"], stored["stream"], *more)


def _table_effect(stored: Mapping[str, Any]) -> TableEffect:
    values = dict(stored)
    values["files"] = tuple(DataFile(**file) for file in stored["files"])
    for name in ("batches", "removed", "condemned"):
        values[name] = tuple(stored.get(name, ()))
    return TableEffect(**values)


@dataclass(frozen=True)
class Recovered:
    """What recovery did with one intent, or would do; `settled` says whether its Iceberg half is done too."""

    op_id: str
    kind: str
    outcome: Outcome
    reason: str
    settled: bool
    wait_s: float = 0.0
    """How much longer its process has to be silent before it is called dead; 0 when it is."""


@dataclass(frozen=True)
class Flushed:
    """What a flush of one table did."""

    table: str
    branch: str
    rows: int
    duplicates_dropped: int
    flushed_seq: int
    snapshot_id: int | None
    operation: str | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """What a load did; `already_loaded` when an earlier run had done all of it.

    Of keyed tables `rows` are those that were put, of each table as in `tables`, and `deleted` those that went. Of log
    tables `too_old` more were past the retention, and left out.
    """

    table: str
    rows: int
    duplicates_dropped: int
    first_seq: int | None
    last_seq: int | None
    commit: str | None
    already_loaded: bool = False
    skipped: int = 0
    operations: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    deleted: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    too_old: int = 0
