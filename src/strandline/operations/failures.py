"""What an engine throws, in our own words.

An operation that fails is undone, and its rows stay where they were. Whoever asked for it needs to know that, and
whether to make room, to look at a damaged file, or to look at Spark.
"""

from __future__ import annotations

import errno

from strandline.errors import Damaged, Environment, NoSpace, StrandError


def typed(error: Exception, op_id: str) -> StrandError:
    """One of our errors for anything that went wrong while an operation was staged or published."""
    if isinstance(error, StrandError):
        return error
    said = str(error) or type(error).__name__
    if "No space left on device" in said or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return NoSpace("no room in the warehouse; the operation was undone, and no row is lost", operation=op_id)
    if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
        return Damaged(f"the log's files can't be read: {_short(said)}", operation=op_id)
    return Environment(
        f"the operation failed and was undone; no row is lost: {_short(said)}",
        hint="Run it again. If it fails again: `strand doctor`, and the [spark] section of strand.toml.",
        operation=op_id,
    )


def _short(said: str) -> str:
    """The first lines of what may be pages of a Java stack trace."""
    return "\n".join(said.splitlines()[:3])[:600]
