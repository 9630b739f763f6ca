"""What a type of sinks is: its settings, what they must be together, and how its destination is made.

A type is one value in one file, and everything that tells it from another type is said there. The tick, the commands
and the reports ask the value and never its name, so a type of another package is as good as one of ours (`registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.settings_text import Key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.model.delivery.sinks import Noted, Sink, SinkSettings, Stream
    from strandline.sinks.destination import Destination


@dataclass(frozen=True)
class Sender:
    """A sink as its destination may know it: its settings, its lake, and what the ledger knows of its deliveries.

    `settings` are all of them, defaults and secrets included. `take_over` is a person's word that a place which belongs
    to another sink may be taken.
    """

    sink: Sink
    settings: SinkSettings
    lake_id: str
    root: Path
    warehouse: str
    generation: str | None
    take_over: bool
    spark: Callable[[], SparkSession]
    has_delivered: Callable[[str | None], bool]
    """Whether anything was delivered: of a table, or at all."""
    noted: Callable[[Stream], Noted | None]
    """A stream's watermark in the ledger, with what is kept beside it."""
    name_of: Callable[[str], str | None]
    """The name of a sink of this lake, by its id; None when it was removed."""


@dataclass(frozen=True)
class OpenKeys:
    """Settings of any name behind a prefix; `is_public` says of one, without the prefix, that it holds no secret."""

    prefix: str
    is_public: Callable[[str, object], bool]


def _check_nothing(_settings: SinkSettings, _where: str) -> None:
    return


@dataclass(frozen=True)
class SinkType:
    """A type of sinks, by the `name` that `--type` takes.

    `keys` are its settings beside those of every sink, and `required` those that must be given. `place` are those that
    say where it delivers: sinks that agree in them deliver to one place. `check` raises BadRequest where settings don't
    go together; its second argument says where they are written. `make` imports what it delivers with, and no other
    part of the file does.
    """

    name: str
    keys: Mapping[str, Key]
    make: Callable[[Sender], Destination]
    required: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    check: Callable[[SinkSettings, str], None] = _check_nothing
    open_keys: OpenKeys | None = None
    in_place_of: tuple[frozenset[str], ...] = ()
    """Groups of settings of which one is given: another that is set takes the first away."""
    where_secrets_go: str = "Addresses are shown and logged. Use a setting that is kept secret."
    """What to do with an address that has a secret in it."""
    when_shared: str = "a row that both follow arrives there twice"
    """What happens where two sinks deliver to one place."""
    has_receiver: bool = False
    """Whether its destination is a lake, which the sink knows by its id from the first contact on."""
    looks_with_spark: bool = False
    """Whether its destination can only be looked at with Spark."""


def malformed(kind: SinkType) -> str | None:
    """The first field of a type that a package has made wrongly: every command that lists sinks goes by the fields."""
    if not isinstance(kind.keys, Mapping) or not all(map(_is_key, kind.keys.items())):
        return "keys"
    names = {"required": [kind.required], "place": [kind.place], "in_place_of": kind.in_place_of}
    for field, groups in names.items():
        if not isinstance(groups, list | tuple) or not all(_are_names(group, kind.keys) for group in groups):
            return field
    for field in ("make", "check"):
        if not callable(getattr(kind, field)):
            return field
    opened = kind.open_keys
    if opened is not None and not (
        isinstance(opened, OpenKeys) and isinstance(opened.prefix, str) and opened.prefix and callable(opened.is_public)
    ):
        return "open_keys"
    texts = [field for field in ("where_secrets_go", "when_shared") if not isinstance(getattr(kind, field), str)]
    flags = [field for field in ("has_receiver", "looks_with_spark") if not isinstance(getattr(kind, field), bool)]
    return next(iter(texts + flags), None)


def _is_key(named: tuple[object, object]) -> bool:
    name, key = named
    return isinstance(name, str) and isinstance(key, Key) and callable(key.read) and isinstance(key.meaning, str)


def _are_names(group: object, keys: Mapping[str, Key]) -> bool:
    return isinstance(group, tuple | list | set | frozenset) and all(name in keys for name in group)
