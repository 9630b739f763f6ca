"""What became of a transaction whose connection was cut: undone, so that it may be run again; or unknown."""

from __future__ import annotations

from strandline.errors import Busy

UNDONE, UNKNOWN = "undone", "unknown"


def may_be_there(happened: str, reason: str) -> Busy:
    """The error of a caller that can't be told whether a transaction was committed."""
    return Busy(
        f"{happened} in the middle of a commit: what was written may be there or not",
        hint="Look, or run the same command again: under an idempotency key it stores nothing twice.",
        reason=reason,
        outcome=UNKNOWN,
    )


def was_undone(error: BaseException) -> bool:
    """Whether a transaction failed for no fault of its own and left nothing behind, so that it may be run again."""
    return isinstance(error, Busy) and error.detail.get("outcome") == UNDONE


def is_unknown(error: BaseException) -> bool:
    """Whether it stayed unknown if a transaction was committed."""
    return isinstance(error, Busy) and error.detail.get("outcome") == UNKNOWN
