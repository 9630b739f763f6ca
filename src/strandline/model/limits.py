"""How much one request may hold, whatever it comes as.

A body's size says little about what becomes of it: `{}` has two bytes, and becomes an object, and a value for every
column of its table. So rows and values are counted too, and a body that has more of them is refused while it is read.
"""

from __future__ import annotations

from strandline.errors import TooLarge

MAX_ROWS = 1_000_000
MAX_CELLS = 10_000_000
"""Values, those inside lists, structs and maps too."""
MAX_ROW_CELLS = 250_000
"""Values of one row of JSON, which are objects all at once before they are columns."""

PIECE_ROWS = 16_384
PIECE_CELLS = 500_000
"""Rows are validated in pieces of so many rows and values of their table, which become columns one after another."""


def piece_rows(columns: int) -> int:
    """How many rows of a table with so many columns are validated at once."""
    return max(1, min(PIECE_ROWS, PIECE_CELLS // max(1, columns)))


def too_many(who: str, what: str, limit: int) -> TooLarge:
    """The error about a request, or a row, that has more of something than it may."""
    return TooLarge(f"{who} has more than {limit} {what}", hint="Nothing was stored. Send less at once.", limit=limit)
