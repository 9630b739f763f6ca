"""Reading on behind a seq, again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strandline.errors import BadRequest

if TYPE_CHECKING:
    from strandline.lake.door import Lake


def refuse_future(lake: Lake, since: int) -> None:
    """A seq that was never given is another lake's, or a slip: following from it would silently skip rows."""
    with lake.ledger.read() as conn:
        last = lake.ledger.last_seq(conn)
    if since > last:
        raise BadRequest(f"this lake has no seq {since} yet", hint=f"Its last one is {last}.")
