"""What an engine throws, in our own words.

An operation that fails is undone, and its rows stay where they were. The caller needs to know that, and whether to make
room, to wait for a store, to look at a damaged file, or to look at Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from strandline import private
from strandline.errors import Damaged, Environment, StrandError, of_outage
from strandline.outages import OutageKind, judge

if TYPE_CHECKING:
    from strandline.operations.core.context import Context

P = ParamSpec("P")
T = TypeVar("T")

UNDONE = "the operation was undone, and no row is lost"
AGAIN = "Run it again. If it fails again: `strand doctor`, and the [spark] section of strand.toml."
ROOM_BYTES = 1 << 20


def typed(ctx: Context, error: Exception, op_id: str) -> StrandError:
    """One of our errors for anything that went wrong while an operation was staged or published."""
    if isinstance(error, StrandError):
        return error
    if (away := _away(ctx, error, note=UNDONE, operation=op_id)) is not None:
        return away
    words = _short(str(error) or type(error).__name__)
    if _library(error) in ("duckdb", "_duckdb"):
        return Damaged(f"the log's files can't be read: {words}", operation=op_id)
    return Environment(f"the operation failed and was undone; no row is lost: {words}", hint=AGAIN, operation=op_id)


def outages_typed(work: Callable[Concatenate[Context, P], T]) -> Callable[Concatenate[Context, P], T]:
    """For work that goes beyond an operation's steps: what is full, away or refuses, in our words."""

    @wraps(work)
    def typed_work(ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(ctx, *args, **kwargs)
        except StrandError:
            raise
        except Exception as error:
            if (away := _away(ctx, error)) is not None:
                raise away from error
            if _library(error) in ("py4j", "pyspark"):
                raise Environment(f"Spark failed: {_short(str(error))}", hint=AGAIN) from error
            raise

    return typed_work


def _away(ctx: Context, error: Exception, **detail: Any) -> StrandError | None:
    """What is full, away or refuses; None when the error is about something else, and the warehouse is there."""
    if (outage := judge(error)) is not None:
        return of_outage(outage, outage.where or _place_of(outage.kind, ctx.staging.warehouse), **detail)
    return ctx.fence.why_away()


def _library(error: Exception) -> str:
    """The library that an error's class is from."""
    return type(error).__module__.partition(".")[0]


def _place_of(kind: OutageKind, warehouse: str) -> str:
    """What an engine did not say: Java has no name for what is full, and Iceberg's client none for its bucket."""
    if kind is not OutageKind.FULL:
        return warehouse
    places = [private.working_folder(), *([] if "s3://" in warehouse else [Path(warehouse.removeprefix("file://"))])]
    full = [place for place in places if _room_bytes(place) < ROOM_BYTES]
    return " and ".join(str(place) for place in reversed(full or places))


def _room_bytes(place: Path) -> int:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return 0


def _short(message: str) -> str:
    """The first lines of what may be pages of a Java stack trace."""
    return "\n".join(message.splitlines()[:3])[:600]
