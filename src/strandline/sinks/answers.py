"""What a receiver's answer to a chunk means.

The question is always the same: did it arrive, will it ever, and what to do next. A doubt is resolved towards sending
the same chunk again, because the receiver knows what it has; and never towards dropping rows.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from strandline.model.sinks import Mark

RETRY_AFTER_MAX_S = 3600.0


@dataclass(frozen=True)
class Acked:
    """Stored now, or before."""


@dataclass(frozen=True)
class Renew:
    """The token is not accepted (any more)."""

    said: str


@dataclass(frozen=True)
class Gap:
    """The receiver is elsewhere: at this mark, or at none."""

    mark: Mark | None


@dataclass(frozen=True)
class Wait:
    """Alive, and not now: after so many seconds, if it says."""

    said: str
    told_s: float | None


@dataclass(frozen=True)
class Unknown:
    """It may have arrived: the same chunk again."""

    said: str


@dataclass(frozen=True)
class TooLarge:
    """Less at once."""

    said: str


@dataclass(frozen=True)
class BadRows:
    """Rows that will never be taken: by their places where the answer names them, else somewhere in the chunk."""

    said: str
    places: Mapping[int, Mapping[str, Any]]
    count: int | None


@dataclass(frozen=True)
class Refusal:
    """Not about rows, and it won't pass by itself."""

    said: str


Verdict = Acked | Renew | Gap | Wait | Unknown | TooLarge | BadRows | Refusal


def judge(status: int, headers: Mapping[str, str], body: Any) -> Verdict:
    """What an HTTP answer to a chunk means; `body` is its JSON, or None when it is none."""
    found = body.get("error") if isinstance(body, dict) else None
    error: Mapping[str, Any] = found if isinstance(found, dict) else {}
    said = f"{status} {error.get('code', '')}: {error.get('message', '')}".rstrip(": ")
    told = error.get("detail")
    detail: Mapping[str, Any] = told if isinstance(told, dict) else {}
    if 200 <= status < 300:
        return Acked()
    if status == 401:
        return Renew(said)
    if status == 409 and detail.get("kind") == "gap":
        return Gap(mark_of(detail))
    if status in (429, 503):
        return Wait(said, retry_after_s(headers.get("retry-after")))
    if status == 408 or status >= 500:
        return Unknown(said)
    if status == 413:
        return TooLarge(said)
    if status in (400, 422) and error.get("code", "invalid_rows" if status == 422 else None) == "invalid_rows":
        rows = detail.get("rows")
        listed = rows if isinstance(rows, list) else []
        places = {row["index"]: row for row in listed if isinstance(row, dict) and isinstance(row.get("index"), int)}
        count = detail.get("bad")
        return BadRows(said, places, count if isinstance(count, int) else None)
    hint = str(error.get("hint") or "")
    return Refusal(f"{said}. {hint}" if hint else said)


def mark_of(body: Any) -> Mark | None:
    """The mark that an answer carries; None when it carries none."""
    if not isinstance(body, dict) or not isinstance(body.get("mark"), int):
        return None
    epoch = body.get("epoch")
    return Mark(epoch if isinstance(epoch, int) else 1, body["mark"])


def retry_after_s(text: str | None) -> float | None:
    """Seconds in a Retry-After header: a number, or a date."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - dt.datetime.now(dt.UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S) if math.isfinite(seconds) else None
