"""Whose warehouse it is.

Two ledgers on one warehouse would sweep each other's files away. So the first lake that uses a warehouse leaves its id
there, and every process that is about to write looks at it.
"""

from __future__ import annotations

import json

from strandline.engines.conditional import create_bytes
from strandline.engines.objects import Place, read_bytes
from strandline.errors import Conflict, Damaged

__all__ = ["MARKER", "Place", "claim", "owner_of", "refuse_other"]

MARKER = "_strand.json"


def owner_of(warehouse: Place) -> str | None:
    """The id of the lake that a warehouse belongs to; None when it is nobody's yet."""
    content = read_bytes(warehouse, MARKER)
    try:
        return None if content is None else str(json.loads(content)["lake"])
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"{warehouse.shown(MARKER)} can't be read, and it says whose the warehouse is",
            hint="If it is this lake's, remove that file: the next flush writes it again.",
        ) from error


def claim(warehouse: Place, lake_id: str) -> None:
    """Leave a lake's id in its warehouse; Conflict when another lake's is there, or comes first."""
    if owner_of(warehouse) is None:
        create_bytes(warehouse, MARKER, json.dumps({"lake": lake_id}).encode())
    refuse_other(warehouse, owner_of(warehouse), lake_id)


def refuse_other(warehouse: Place, owner: str | None, lake_id: str | None) -> None:
    """Conflict when a warehouse belongs to another lake; None is a lake that is being made."""
    if owner is not None and owner != lake_id:
        raise Conflict(
            f"the warehouse {warehouse.uri} belongs to another lake ({owner})",
            kind="warehouse_taken",
            hint="Give each lake a warehouse of its own. If that lake is gone for good, move its warehouse away.",
            expected=lake_id,
            actual=owner,
        )
