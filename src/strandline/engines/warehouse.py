"""Whose warehouse it is, and which copy of its lake may write there.

Two ledgers on one warehouse would sweep each other's files away. So a lake leaves a marker in its warehouse: its id,
its generation, and a fence, a number that the ledger has too. The marker is compared before every publish and raised,
by compare-and-swap, before anything is deleted. A copy of the ledger that lags behind finds another number, and stops.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from strandline.engines.conditional import change_bytes, read_version
from strandline.engines.objects import ObjectPlace, listing
from strandline.engines.storage import S3
from strandline.errors import Conflict, Damaged

__all__ = [
    "LEFT_BY_INIT",
    "MARKER",
    "Marker",
    "ObjectPlace",
    "canonical",
    "is_same_place",
    "owner_of",
    "read_marker",
    "refuse_nested",
    "refuse_other",
    "swap_marker",
]

MARKER = "_strand.json"
LEFT_BY_INIT = frozenset({MARKER, f".{MARKER}.lock"})
"""What a warehouse holds in which nothing was written yet."""

DEPTH_BELOW = 4
FOLDERS_BELOW = 500
"""How far `init` looks for other lakes below a warehouse: so deep, and into so many folders at most."""


@dataclass(frozen=True)
class Marker:
    """What a warehouse says about its lake. A lake of format 1 wrote its id alone."""

    lake: str
    generation: str = ""
    fence: int = 0
    op: str = ""

    @classmethod
    def parse(cls, content: bytes) -> Marker:
        """Read a marker file's content; ValueError, KeyError or TypeError when it is none."""
        document = json.loads(content)
        return cls(
            str(document["lake"]),
            str(document.get("generation", "")),
            int(document.get("fence", 0)),
            str(document.get("op", "")),
        )

    def content(self) -> bytes:
        """What the marker file holds."""
        return json.dumps(self.__dict__).encode()


def read_marker(warehouse: ObjectPlace) -> Marker | None:
    """The marker of a warehouse; None when there is none."""
    content = read_version(warehouse, MARKER)
    return None if content is None else _parsed(warehouse, content)


def swap_marker(warehouse: ObjectPlace, change: Callable[[Marker | None], Marker]) -> None:
    """Write what `change` makes of the marker that is there; of any number that try at once, each sees the last one's.

    `change` may be called several times; what it raises leaves the marker as it is.
    """

    def changed(content: bytes | None) -> bytes:
        marker = None if content is None else _parsed(warehouse, content)
        after = change(marker)
        return content if content is not None and after == marker else after.content()

    change_bytes(warehouse, MARKER, changed)


def _parsed(warehouse: ObjectPlace, content: bytes) -> Marker:
    try:
        return Marker.parse(content)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(
            f"{warehouse.shown(MARKER)} can't be read, and it says whose the warehouse is",
            hint="If the warehouse is this lake's, move that file away and run "
            "`strand doctor --fix --claim-warehouse`: it writes the file again.",
        ) from error


def owner_of(warehouse: ObjectPlace) -> str | None:
    """The id of the lake that a warehouse belongs to; None when it has no owner yet."""
    marker = read_marker(warehouse)
    return None if marker is None else marker.lake


def refuse_other(warehouse: ObjectPlace, owner: str | None, lake_id: str | None) -> None:
    """Conflict when a warehouse belongs to another lake; None is a lake that is being made."""
    if owner is not None and owner != lake_id:
        raise Conflict(
            f"the warehouse {warehouse.uri} belongs to another lake ({owner})",
            kind="warehouse_taken",
            hint="Give each lake a warehouse of its own. If that lake is gone for good, move its warehouse away.",
            expected=lake_id,
            actual=owner,
        )


# -- addresses ---------------------------------------------------------------------------------------------------------


def canonical(uri: str) -> str:
    """One address for one warehouse: the real path of a local folder, a bucket's prefix without a slash at its end."""
    if uri.startswith("file://"):
        return f"file://{os.path.realpath(uri.removeprefix('file://'))}"
    return uri.rstrip("/")


def is_same_place(left: str, other: str) -> bool:
    """Whether two addresses lead to the same warehouse.

    A symlink has the real path of what it leads to. A bind mount has not: there the folder itself is compared, which is
    the same one on the same device.
    """
    if canonical(left) == canonical(other):
        return True
    if not (left.startswith("file://") and other.startswith("file://")):
        return False
    try:
        return Path(left.removeprefix("file://")).samefile(other.removeprefix("file://"))
    except OSError:
        return False


def refuse_nested(warehouse: ObjectPlace) -> None:
    """Conflict when a prefix lies inside, or above, a warehouse: a sweep of one would remove the other's files."""
    for address in (*_above(warehouse.uri), *_below(warehouse)):
        owner = owner_of(ObjectPlace(address, warehouse.store))
        if owner is not None:
            where = "inside" if warehouse.uri.startswith(f"{address.rstrip('/')}/") else "above"
            raise Conflict(
                f"{warehouse.uri} is {where} {address}, the warehouse of another lake ({owner})",
                kind="warehouse_taken",
                hint="Name a folder or a prefix that is apart from every other lake's.",
                expected=None,
                actual=owner,
            )


def _above(uri: str) -> Iterator[str]:
    """The addresses of all folders above a warehouse."""
    if uri.startswith(S3):
        bucket, *parts = uri.removeprefix(S3).split("/")
        yield from (S3 + "/".join([bucket, *parts[:count]]) for count in range(len(parts)))
    else:
        yield from (f"file://{folder}" for folder in Path(uri.removeprefix("file://")).parents)


def _below(warehouse: ObjectPlace) -> Iterator[str]:
    """The addresses of folders below a warehouse, the nearest first, as far as the limits go."""
    level, seen = [""], 0
    for _ in range(DEPTH_BELOW):
        below: list[str] = []
        for folder in level:
            seen += 1
            if seen > FOLDERS_BELOW:
                return
            entries = listing(warehouse, folder)
            below += [f"{folder}/{entry.name}".lstrip("/") for entry in entries if entry.is_folder]
            if folder and any(entry.name == MARKER for entry in entries):
                yield f"{warehouse.uri}/{folder}"
        level = below
