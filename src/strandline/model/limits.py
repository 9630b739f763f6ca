"""How much one request may hold, whatever it comes as.

A body's size says little about what becomes of it: `{}` has two bytes, and becomes an object, and a value for every
column of its table. So rows and values are counted too, and a body that has more of them is refused while it is read.
"""

from __future__ import annotations

from strandline.errors import TooLarge

MAX_ROWS = 1_000_000
MAX_CELLS = 10_000_000
"""Values: of every row one for each column of its table, and those inside lists, structs and maps."""


def too_many(what: str, limit: int) -> TooLarge:
    """The error about a request that has more of something than it may."""
    return TooLarge(
        f"the request has more than {limit} {what}",
        hint="Send it in several requests; nothing was stored.",
        limit=limit,
    )
