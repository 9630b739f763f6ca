"""What a change of schemas consists of, and what each step means for the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["safe", "needs validation", "loses data", "refused"]


@dataclass(frozen=True)
class Step:
    """One change: what, of which table and column, and whether it can be done."""

    what: str
    table: str
    column: str | None
    verdict: Verdict
    why: str = ""
