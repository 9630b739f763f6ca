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

from strandline.json_types import Json, JsonObject
from strandline.model.delivery.sinks import Mark, Replayed, SentChunk, Standing

RETRY_AFTER_MAX_S = 3600.0


@dataclass(frozen=True)
class Acked:
    """Stored now, or before; `chunk` is what the receiver keeps of the last chunk with rows, if it says."""

    chunk: SentChunk | None = None


@dataclass(frozen=True)
class Renew:
    """The token is not accepted (any more)."""

    reason: str


@dataclass(frozen=True)
class Gap:
    """The receiver is elsewhere: at this mark, or at none."""

    mark: Mark | None


@dataclass(frozen=True)
class Wait:
    """Alive, and not now: after so many seconds, if it says."""

    reason: str
    told_s: float | None


@dataclass(frozen=True)
class Unknown:
    """It may have arrived: the same chunk again."""

    reason: str


@dataclass(frozen=True)
class LessAtOnce:
    """Less at once."""

    reason: str


@dataclass(frozen=True)
class BadRows:
    """Rows that will never be taken: by their places where the answer names them, else somewhere in the chunk."""

    reason: str
    places: Mapping[int, JsonObject]
    count: int | None


@dataclass(frozen=True)
class Refusal:
    """Not about rows, and it won't pass by itself."""

    reason: str


Verdict = Acked | Renew | Gap | Wait | Unknown | LessAtOnce | BadRows | Refusal


def judge(status: int, headers: Mapping[str, str], body: Json) -> Verdict:
    """What an HTTP answer to a chunk means; `body` is its JSON, or None when it is none."""
    error = _mapping(_mapping(body).get("error"))
    reason = f"{status} {error.get('code', '')}: {error.get('message', '')}".rstrip(": ")
    detail = _mapping(error.get("detail"))
    if 200 <= status < 300:
        return Acked(chunk_of(body))
    if status == 401:
        return Renew(reason)
    if status == 409 and detail.get("kind") == "gap":
        return Gap(mark_of(detail))
    if status in (429, 503):
        return Wait(reason, retry_after_s(headers.get("retry-after")))
    if status == 408 or status >= 500:
        return Unknown(reason)
    if status == 413:
        return LessAtOnce(reason)
    if status in (400, 422) and error.get("code", "invalid_rows" if status == 422 else None) == "invalid_rows":
        rows = detail.get("rows")
        listed = rows if isinstance(rows, list) else []
        places = {row["index"]: row for row in listed if isinstance(row, dict) and isinstance(row.get("index"), int)}
        count = detail.get("bad")
        return BadRows(reason, places, count if isinstance(count, int) else None)
    hint = str(error.get("hint") or "")
    return Refusal(f"{reason}. {hint}" if hint else reason)


def _mapping(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}


def mark_of(body: Json) -> Mark | None:
    """The mark that an answer carries; None when it carries none."""
    document = _mapping(body)
    epoch, seq = document.get("epoch"), document.get("mark")
    return Mark(epoch if isinstance(epoch, int) else 1, seq) if isinstance(seq, int) else None


def standing_of(body: Json) -> Standing | None:
    """Where a stream is by a receiver's document; None when it carries no mark. One of an older version says less."""
    mark = mark_of(body)
    if mark is None:
        return None
    document = _mapping(body)
    lake, letters, sender = document.get("lake"), document.get("replayed"), document.get("sender_generation")
    return Standing(
        mark,
        chunk=chunk_of(body),
        replayed=_replayed_of(letters),
        lake=lake if isinstance(lake, str) else None,
        is_lake=True,
        reads_back=isinstance(lake, str),
        sender=sender if isinstance(sender, str) else None,
    )


def no_mark_of(body: Json) -> Standing | None:
    """The same for a 404: only a receiver's own document says that nothing of the stream is there."""
    error = body.get("error") if isinstance(body, dict) else None
    detail = error.get("detail") if isinstance(error, dict) else None
    if not isinstance(error, dict) or error.get("code") != "not_found" or not isinstance(detail, dict):
        return None
    if "mark" not in detail:
        missing = f"404 not_found: {error.get('message', '')}" if "table" in detail else None
        return None if missing is None else Standing(None, is_lake=True, missing=missing)
    lake = detail.get("lake")
    return Standing(None, lake=lake if isinstance(lake, str) else None, is_lake=True, reads_back=isinstance(lake, str))


def chunk_of(body: Json) -> SentChunk | None:
    """The last chunk with rows that an answer carries; None when it carries none."""
    chunk = body.get("chunk") if isinstance(body, dict) else None
    if not isinstance(chunk, dict):
        return None
    since, until, digest = chunk.get("since"), chunk.get("until"), chunk.get("digest")
    if not (isinstance(since, int) and isinstance(until, int) and isinstance(digest, str)):
        return None
    return SentChunk(since, until, digest)


def _replayed_of(letters: Json) -> Replayed | None:
    if not isinstance(letters, dict):
        return None
    count, text = letters.get("count"), letters.get("hash")
    return Replayed(count, text) if isinstance(count, int) and isinstance(text, str) else None


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
