"""The operations that a person or a worker can ask for, as a skin needs them: listed, looked at, asked for.

What a skin shows and reads is made of the declarations, so a new operation is in every skin. The list costs nothing;
looking at one of them imports what it works with.
"""

from __future__ import annotations

from strandline.operations.core import registry
from strandline.operations.core.declared import Declared, Option, options

__all__ = ["Declared", "Option", "declared", "listed", "options"]


def listed() -> dict[str, str]:
    """Every operation, in the order of the help: its name, and what it is for."""
    return {name: entry.short_help for name, entry in registry.ENTRIES.items()}


def declared(name: str) -> type[Declared]:
    """The class of one of them."""
    return registry.declared(name)
