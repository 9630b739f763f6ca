"""What an engine throws, in our own words.

An operation that fails is undone, and its rows stay where they were. Whoever asked for it needs to know that, and
whether to make room, to wait for a store, to look at a damaged file, or to look at Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from strandline import private
from strandline.errors import Damaged, Environment, StrandError, of_outage
from strandline.outages import Kind, judge

if TYPE_CHECKING:
    from strandline.operations.context import Context

P = ParamSpec("P")
T = TypeVar("T")

UNDONE = "the operation was undone, and no row is lost"
ROOM_BYTES = 1 << 20


def typed(error: Exception, op_id: str, warehouse: str) -> StrandError:
    """One of our errors for anything that went wrong while an operation was staged or published."""
    if isinstance(error, StrandError):
        return error
    if (outage := judge(error)) is not None:
        return of_outage(outage, outage.where or _place_of(outage.kind, warehouse), note=UNDONE, operation=op_id)
    said = str(error) or type(error).__name__
    if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
        return Damaged(f"the log's files can't be read: {_short(said)}", operation=op_id)
    return Environment(
        f"the operation failed and was undone; no row is lost: {_short(said)}",
        hint="Run it again. If it fails again: `strand doctor`, and the [spark] section of strand.toml.",
        operation=op_id,
    )


def outages_typed(work: Callable[Concatenate[Context, P], T]) -> Callable[Concatenate[Context, P], T]:
    """For work that goes beyond an operation's steps: what is full, away or refuses, in our words."""

    @wraps(work)
    def typed_work(ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(ctx, *args, **kwargs)
        except StrandError:
            raise
        except Exception as error:
            if (outage := judge(error)) is None:
                raise
            raise of_outage(outage, outage.where or _place_of(outage.kind, ctx.staging.warehouse)) from error

    return typed_work


def _place_of(kind: Kind, warehouse: str) -> str:
    """What an engine did not say: Java has no name for what is full, and Iceberg's client none for its bucket."""
    if kind is not Kind.FULL:
        return warehouse
    places = [private.working_folder(), *([] if "s3://" in warehouse else [Path(warehouse.removeprefix("file://"))])]
    full = [place for place in places if _room_bytes(place) < ROOM_BYTES]
    return " and ".join(str(place) for place in reversed(full or places))


def _room_bytes(place: Path) -> int:
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return 0


def _short(said: str) -> str:
    """The first lines of what may be pages of a Java stack trace."""
    return "\n".join(said.splitlines()[:3])[:600]
