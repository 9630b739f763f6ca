"""Which types of sinks there are: ours, and those that other packages bring.

Ours are descriptions that import nothing heavy; what a type delivers with is imported when its destination is made. A
package brings a type by an entry point of the group `strandline.sinks` with the type's name, whose object is a
`SinkType`. Packages are looked at for a type that is not ours, and for nothing else.

A package that is missing or broken must not keep a lake from being opened, listed or repaired. So those that only look
at a sink use `known_type`, which never fails; the sink itself says what is wrong when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from strandline.errors import BadRequest, Environment, SinkFault, StrandError, nearest
from strandline.sinks.keys import OF_ALL, SECRET_FILE
from strandline.sinks.kind import SinkType, malformed
from strandline.sinks.seam import code_of
from strandline.sinks.types import blob, forward, iceberg

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "strandline.sinks"
OURS = {kind.name: kind for kind in (forward.TYPE, blob.TYPE, iceberg.TYPE)}
_TAKEN = frozenset({*OF_ALL, SECRET_FILE, "type"})


def in_words(*, quotes: bool = False) -> str:
    """Our types as a sentence lists them."""
    *names, last = (f'"{name}"' if quotes else name for name in OURS)
    return f"{', '.join(names)} or {last}"


def sink_type(name: str) -> SinkType:
    """The type of this name: BadRequest when there is none, Environment when its package can't be used."""
    return OURS[name] if name in OURS else _brought(name)


def known_type(name: str) -> SinkType | None:
    """The same for those that only look: None when it can't be had."""
    try:
        return sink_type(name)
    except StrandError:
        return None


@lru_cache(maxsize=32)
def _brought(name: str) -> SinkType:
    """A type that another package brings; one that fails is tried again when it is asked for again."""
    entries = [entry for entry in _entries() if entry.name == name]
    if not entries:
        raise BadRequest(
            f"there is no sink of type {name!r}", hint=nearest(name, [*OURS, *(entry.name for entry in _entries())])
        )
    packages = " and ".join(sorted({entry.dist.name if entry.dist else entry.value for entry in entries}))
    if len(entries) > 1:
        raise Environment(f"the sink type {name!r} is in {packages}", hint="Keep the package that is meant.")
    with code_of(_unusable(name, packages), hint=_INSTALL):  # whatever the package does when it is imported
        kind = entries[0].load()
    if not isinstance(kind, SinkType) or kind.name != name:
        raise _broken(name, packages, f"{entries[0].value} is no SinkType with that name")
    if isinstance(kind.keys, Mapping) and (taken := sorted(_TAKEN & kind.keys.keys())):
        raise _broken(name, packages, f"it has settings that every sink has: {', '.join(taken)}")
    if (field := malformed(kind)) is not None:
        raise _broken(name, packages, f"{field!r} of {entries[0].value} is not what a SinkType has there")
    return kind


def _entries() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # takes its time, and our own types need none

    try:
        return list(entry_points(group=GROUP))
    except Exception as error:  # the metadata of a package that has nothing to do with us
        raise Environment(f"the installed packages can't be listed: {error}", hint="`pip check` may tell.") from error


_INSTALL = "Install it anew, or another version of it, where this command and the worker run."


def _unusable(name: str, package: str) -> str:
    return f"the sink type {name!r} of the package {package} can't be used"


def _broken(name: str, package: str, why: str) -> SinkFault:
    return SinkFault(f"{_unusable(name, package)}: {why}", hint=_INSTALL)
