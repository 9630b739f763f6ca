"""Every operation that people and the worker can ask for: a line for each, in the order of the help.

The list itself costs nothing. An operation's file, and with it the engines that it works with, is imported by the first
look at it, so that a command that only lists what there is does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from strandline.operations.core.declared import Declared


@dataclass(frozen=True)
class ListedOperation:
    """An operation as `strand --help` lists it, and where its class is found."""

    short_help: str
    load: Callable[[], type[Declared]]


# fmt: off
ENTRIES: dict[str, ListedOperation] = {
    "compact": ListedOperation("Merge small files into large ones; no row changes.", lambda: import_module("strandline.operations.maintain.compact").Compaction),  # noqa: E501
    "fold": ListedOperation("Bring the states of keyed tables up to date; no row changes.", lambda: import_module("strandline.operations.maintain.fold").Folding),  # noqa: E501
    "refilter": ListedOperation("Let lookups by value skip files that are older than a rule.", lambda: import_module("strandline.operations.maintain.refilter").Refiltering),  # noqa: E501
    "retain": ListedOperation("Remove rows that are older than their table's retention.", lambda: import_module("strandline.operations.maintain.retain").Retention),  # noqa: E501
    "expire": ListedOperation("Remove snapshots that nobody needs any more.", lambda: import_module("strandline.operations.maintain.expire").Expiry),  # noqa: E501
    "sweep": ListedOperation("Remove what crashes left, and what is past its grace.", lambda: import_module("strandline.operations.maintain.sweep").Sweep),  # noqa: E501
    "purge": ListedOperation("Remove rows for good, wherever they are.", lambda: import_module("strandline.operations.maintain.purge").Purging),  # noqa: E501
}
# fmt: on


def declared(name: str) -> type[Declared]:
    """The operation of this name."""
    return ENTRIES[name].load()


def all_declared() -> list[type[Declared]]:
    """Every operation, in the order of the help."""
    return [entry.load() for entry in ENTRIES.values()]
