"""Times of the ledger as text: UTC, with microseconds and a Z, as an export writes them; and how long something is."""

from __future__ import annotations

import datetime as dt

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def text_of(at_us: int) -> str:
    """Microseconds since 1970 as text; integers all the way, because a float loses the last digit."""
    return f"{_EPOCH + dt.timedelta(microseconds=at_us):%Y-%m-%dT%H:%M:%S.%fZ}"


def age_s(at_us: int, now_us: int) -> float:
    """How many seconds ago something was; 0 for what a clock that is ahead wrote down."""
    return round(max(0, now_us - at_us) / 1_000_000, 1)


def span_of(seconds: float) -> str:
    """A length of time in the largest unit that it fills."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
