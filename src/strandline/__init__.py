"""Strandline: a branchable, exactly-once data pipeline on Spark and Iceberg.

import strandline as sl

with sl.open("lake") as lake:
    lake.append("messages", [{"part_id": "1", "body": "hello"}], actor="me")
    lake.view().sql("select count(*) from messages").rows()
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.errors import (
    BadRequest,
    Busy,
    CallerError,
    Conflict,
    Damaged,
    Environment,
    Forbidden,
    HistoryGone,
    Internal,
    InvalidRows,
    LeaseLost,
    MergeConflict,
    NewerFormat,
    NoSpace,
    NotFound,
    PersonError,
    PreconditionFailed,
    RecoveryRequired,
    RequestTimeout,
    StrandError,
    TooLarge,
    TooManyRequests,
    TransientError,
    Unauthorized,
    Unsupported,
)
from strandline.model.history.mutations import delete, head, insert, patch, put, row, table_head

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.model.delivery.sinks import Sink
    from strandline.model.history.commits import Commit
    from strandline.model.history.merge import Merged
    from strandline.model.operations import Flushed, Loaded, Recovered
    from strandline.model.tables import Ack
    from strandline.sinks.tick import Ticked
    from strandline.views.result import Result
    from strandline.views.view import Rows, View

__all__ = [
    "Ack", "BadRequest", "Busy", "CallerError", "Commit", "Conflict", "Damaged", "Environment", "Flushed", "Forbidden",
    "HistoryGone", "Internal", "InvalidRows", "Lake", "LeaseLost", "Loaded", "MergeConflict", "Merged", "NewerFormat",
    "NoSpace", "NotFound", "PersonError", "PreconditionFailed", "Recovered", "RecoveryRequired", "RequestTimeout",
    "Result", "Rows", "Sink", "StrandError", "Ticked", "TooLarge", "TooManyRequests", "TransientError", "Unauthorized",
    "Unsupported", "View", "delete", "head", "init", "insert", "open", "patch", "put", "row", "table_head",
]  # fmt: skip
__version__ = "0.1.0"


def open(path: str | Path | None = None, *, read_only: bool = False) -> Lake:
    """Open a lake: this folder, else $STRAND_LAKE, else the nearest one upwards. `read_only=True` touches nothing."""
    from strandline.config import find_root
    from strandline.lake import Lake

    return Lake(find_root(Path(path) if path is not None else None), read_only=read_only)


def init(path: str | Path, *, ledger: str | None = None, warehouse: str | None = None) -> Lake:
    """Make a new lake in an empty folder, and open it."""
    from strandline.create import create

    return create(Path(path), ledger=ledger, warehouse=warehouse)


def __getattr__(name: str) -> Any:
    """The rest on demand: it brings the database libraries along, and `strand --help` should not wait for them."""
    if name == "Lake":
        from strandline.lake import Lake

        return Lake
    if name in ("Result", "Rows", "View"):
        from strandline.views import view

        return getattr(view, name)
    if name in ("Flushed", "Loaded", "Recovered"):
        from strandline.model import operations

        return getattr(operations, name)
    if name == "Ack":
        from strandline.model.tables import Ack

        return Ack
    if name == "Commit":
        from strandline.model.history.commits import Commit

        return Commit
    if name == "Merged":
        from strandline.model.history.merge import Merged

        return Merged
    if name == "Sink":
        from strandline.model.delivery.sinks import Sink

        return Sink
    if name == "Ticked":
        from strandline.sinks.tick import Ticked

        return Ticked
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
