"""What time it is for an operation that deletes: the ledger's rule, with the store's clock beside it.

A warehouse in an object store is the one clock that a lake with a SQLite ledger can ask besides its own. It is asked by
writing a file, so what it said is remembered for a while, and aged by the monotonic clock: a wall clock that jumps in
between moves nothing. A store that did not answer is not asked again for a moment, or every writer would
wait for it in turn.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from strandline.engines.storage import S3, open_uri
from strandline.errors import Internal, NoSpace, StrandError, in_our_words, of_outage
from strandline.ledger.clock import Clock, read_clock
from strandline.model.ids import new_id
from strandline.operations.core.staging import Staging
from strandline.outages import Outage, OutageKind

if TYPE_CHECKING:
    from strandline.operations.core.context import Context

CLOCK = "clock-"
"""The folder of a file that was written to ask what time it is begins with this."""

ASKED_FOR_S = 600.0
SILENT_FOR_S = 30.0

_answers: dict[str, tuple[float, float]] = {}
_silent: dict[str, tuple[float, StrandError]] = {}
_lock = Lock()


def deletion_us(ctx: Context, what: str) -> int:
    """The time that `what` deletes by; ClockBehind when the clock lies before the ledger's time."""
    return clock_of(ctx).deletion_us(what)


def clock_of(ctx: Context) -> Clock:
    """The clocks there are: this machine's, the database's, and that of an object store."""
    elsewhere_us = store_us(ctx.staging)
    with ctx.ledger.read() as conn:
        return read_clock(conn, *elsewhere_us)


def store_us(staging: Staging) -> tuple[int, ...]:
    """What time it is in the object store that has the lake's files; nothing where they are on a disk."""
    where = staging.uri("")
    try:
        return (int(_store_s(staging, where) * 1e6),) if where.startswith(S3) else ()
    except NoSpace:  # a full store can't be asked, and what deletes has to go on
        return ()


def _store_s(staging: Staging, where: str) -> float:
    with _lock:
        now_s = time.monotonic()
        asked_s, told_s = _answers.get(where, (-ASKED_FOR_S, 0.0))
        if now_s - asked_s >= ASKED_FOR_S:
            failed_s, error = _silent.get(where, (-SILENT_FOR_S, None))
            if error is not None and now_s - failed_s < SILENT_FOR_S:
                raise error
            try:
                told_s = ask_store(staging)
            except StrandError as silence:
                _silent[where] = (time.monotonic(), silence)
                raise
            asked_s = time.monotonic()
            _answers[where] = (asked_s, told_s)
        return told_s + (time.monotonic() - asked_s)


def ask_store(staging: Staging) -> float:
    """What time it is where the files are, in seconds: the time that the store gives to a file written now.

    A disk gives it to a folder that is touched, which needs no room: the process that asks may be about to make some.
    """
    try:
        if not staging.uri("").startswith(S3):
            return _touched_s(Path(open_uri(staging.warehouse)[1]))
        return _written_s(staging)
    except OSError as error:
        typed = in_our_words(error)
        if isinstance(typed, Internal):  # a folder or a bucket that is not there, which says so in its own words
            typed = of_outage(Outage(OutageKind.AWAY, staging.warehouse, str(error)))
        raise typed from error


def _touched_s(folder: Path) -> float:
    os.utime(folder)
    return folder.stat().st_mtime


def _written_s(staging: Staging) -> float:
    owner = f"{CLOCK}{new_id()}"
    staging.create(owner)
    try:
        system, path = open_uri(staging.uri(owner, "now"))
        with system.open_output_stream(path) as stream:
            stream.write(b"now")
        return float(system.get_file_info(path).mtime.timestamp())
    finally:
        staging.remove(owner)
