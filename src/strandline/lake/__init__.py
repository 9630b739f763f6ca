"""The services of a lake, one module for each subject, and the front door to them: `Lake`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.lake.door import Lake

__all__ = ["Lake"]


def __getattr__(name: str) -> Any:
    """The door on demand: it brings the database libraries along, and what only lists services can do without."""
    if name == "Lake":
        from strandline.lake.door import Lake

        return Lake
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
