"""What operations work on and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

INTENT_FORMAT = 2
"""The version of what an intent says of a publish; `ledger/publish/effects.py` writes it, and reads older ones."""

Arguments: TypeAlias = Mapping[str, Any]
"""What a request says, as it travels through the ledger: each kind of work reads its own keys, and the options of an
operation are fields of its class, in the worker's version maybe others than in the command's."""

Phase = Literal["staging", "staged", "published", "abandoned", "damaged"]
Outcome = Literal["rolled_forward", "rolled_back", "damaged", "alive"]


@dataclass(frozen=True)
class TableScope:
    """A (branch, table) that an operation works on, and the pins it depends on."""

    branch_id: str
    table_id: str
    iceberg_name: str
    version: int
    log_snapshot: int | None


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


class KeptAnswer(TypedDict, total=False):
    """What is kept of a call under its key, for the one that repeats it: an append, a change or a load.

    Each keeps the keys that it has. The last ones are a load's; one of an older version may lack some.
    """

    rows: int
    first_seq: int | None
    last_seq: int | None
    too_old: int
    commit: str | None
    duplicates_dropped: int
    skipped: int
    deleted: int
    tables: dict[str, int]


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
