"""Words that messages share: numbers with their nouns, and what is the matter with a value."""

from __future__ import annotations

_VERBS = ("is ", "has ", "does ", "names ", "breaks ", "still ")


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 row`, `2,000 rows`; `plural` where it is not the noun with an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def judged(value: str, reason: str) -> str:
    """A value with what is wrong about it; a reason that is a sentence of its own stands alone."""
    return f"{value} {reason}" if reason.startswith(_VERBS) else reason
