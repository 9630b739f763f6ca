"""A sink's settings: checked when they are given, complete when they are used, and shown without what is secret.

They come as text from the command line or as values from `strand.toml`, and leave here as plain values that JSON can
hold: sizes in bytes, durations in seconds, lists as lists. An unknown key names its nearest neighbour, because a
setting that is silently ignored sends rows to the wrong place. Which settings there are is said by the type of sinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from strandline.errors import BadRequest, StrandError, nearest
from strandline.model.delivery.sinks import Setting, SinkSettings
from strandline.redaction import MASK, redacted, remember_within, secret_of, shown_address
from strandline.settings_text import Key
from strandline.sinks.keys import OF_ALL, SECRET_FILE
from strandline.sinks.kind import SinkType
from strandline.sinks.registry import OURS, known_type, sink_type
from strandline.sinks.seam import code_of

BRANCH_GONE = "the branch that it follows was deleted; remove the sink, or add one for another branch"


def parse(type_: str, written: Mapping[str, object], where: str) -> SinkSettings:
    """Settings as they are written, checked and in plain units; `where` says in errors where that is."""
    try:
        kind = sink_type(type_)
    except StrandError as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from error
    keys = {**OF_ALL, **kind.keys}
    settings: dict[str, Setting] = {}
    for name, value in written.items():
        is_open = kind.open_keys is not None and name.startswith(kind.open_keys.prefix)
        if (is_open or name in keys) and _is_secret(kind, name, value):
            remember_within(value)
        if is_open:
            settings[name] = str(value)
            continue
        if name not in keys:
            raise BadRequest(f"{where}: the type {type_} has no setting {name!r}", hint=nearest(name, keys))
        try:
            with code_of(f"{where}: the type {type_} can't read the setting {name!r}", ValueError):
                settings[name] = keys[name].read(value)
        except ValueError as error:
            hint = f"Write file://{value}" if name == "uri" and str(value).startswith("/") else ""
            raise BadRequest(f"{where}: {name} is {_wrong(keys[name], value)}, expected {error}", hint=hint) from error
    _check(kind, settings, where)
    return settings


def _wrong(key: Key, value: object) -> str:
    return "…" if key.is_secret or key.is_sensitive else redacted(repr(value))


def _check(kind: SinkType, settings: SinkSettings, where: str) -> None:
    for name in kind.required:
        if name not in settings:
            raise BadRequest(f"{where}: the type {kind.name} needs {name!r}", hint=f"Add --set {name}=…")
    for name in _addresses(kind):
        if (secret := secret_of(str(settings.get(name, "")))) is not None:
            raise BadRequest(f"{where}: {name} has {secret} in it, which may be secret", hint=kind.where_secrets_go)
    if "every" in settings and "cron" in settings:
        raise BadRequest(f"{where}: both every and cron", hint="Give one of them.")
    with code_of(f"{where}: the type {kind.name} can't check its settings", is_ours=kind.name in OURS):
        kind.check(settings, where)


def _addresses(kind: SinkType) -> list[str]:
    return [name for name, key in kind.keys.items() if key.is_address]


def resolved(type_: str, settings: SinkSettings) -> SinkSettings:
    """All settings of a sink: those given, and the defaults of the rest. This is what a delivery is opened under.

    Of a type that can't be had, those that every sink has: its schedule is kept, and a tick says what is wrong.
    """
    kind = known_type(type_)
    keys = {**OF_ALL, **({} if kind is None else kind.keys)}
    return {**{name: key.default for name, key in keys.items()}, **settings}


def changed(type_: str, settings: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Settings with changes: an empty value takes one away, and one token takes the place of another."""
    kind = known_type(type_)
    groups = () if kind is None else kind.in_place_of
    replaced = {name for group in groups if group & changes.keys() for name in group}
    kept = {name: value for name, value in settings.items() if name not in replaced}
    return {name: value for name, value in {**kept, **changes}.items() if value != ""}


def unit_of(type_: str, name: str) -> str | None:
    """What a number in a setting counts: "s" or "bytes", if either."""
    kind = known_type(type_)
    key = OF_ALL.get(name) or (None if kind is None else kind.keys.get(name))
    return None if key is None else key.unit


_PORTS = {"http": 80, "https": 443}


def destination_of(type_: str, settings: SinkSettings) -> tuple[object, ...]:
    """Where a sink of these settings delivers to, however its address is written; other settings don't matter."""
    kind = known_type(type_)
    complete = resolved(type_, settings)
    names = () if kind is None else kind.place
    return tuple(_address(str(complete[name])) if complete[name] else None for name in names)


def _address(text: str) -> object:
    parts = urlsplit(text)
    if parts.scheme not in _PORTS:
        return text.rstrip("/")
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/"), parts.query


# -- what is secret ----------------------------------------------------------------------------------------------------


def is_secret(type_: str, name: str, value: object = "") -> bool:
    """Whether a setting must never be stored in clear: all are that are not known to be harmless.

    Of a type that can't be had, or that a section does not name, what any of our types knows to be harmless is.
    """
    kind = known_type(type_)
    kinds = [kind] if kind is not None else OURS.values()
    return all(_is_secret(each, name, value) for each in kinds)


def _is_secret(kind: SinkType | None, name: str, value: object) -> bool:
    if name in OF_ALL or name in (SECRET_FILE, "type"):
        return False
    if kind is None:
        return True
    if kind.open_keys is not None and name.startswith(kind.open_keys.prefix):
        try:
            with code_of("is_public"):
                return not kind.open_keys.is_public(name.removeprefix(kind.open_keys.prefix), value)
        except StrandError:  # what it can't say may be secret
            return True
    return name not in kind.keys or kind.keys[name].is_secret


def shown(type_: str, settings: SinkSettings) -> SinkSettings:
    """A sink's settings as they may be shown; an older version may have stored a secret among them."""
    kind = known_type(type_)
    addresses = [] if kind is None else _addresses(kind)
    return {
        name: MASK if _is_secret(kind, name, value) else _shown_value(value, is_address=name in addresses)
        for name, value in settings.items()
    }


def _shown_value(value: Setting, *, is_address: bool) -> Setting:
    return shown_address(value) if isinstance(value, str) and (is_address or "://" in value) else value


def in_clear(type_: str, settings: SinkSettings) -> list[str]:
    """The settings in a ledger that may hold a secret; an older version of ours stored them so.

    No older version knew a type that another package brings. Where that can't be had, what is secret was put away when
    the sink was made, and the rest is its address and the like: a backup without it would be of no use.
    """
    kind = known_type(type_)
    names = list(settings) if kind is None else _addresses(kind)
    addresses = [name for name in names if secret_of(str(settings.get(name) or "")) is not None]
    secrets = [] if kind is None else [name for name, value in settings.items() if _is_secret(kind, name, value)]
    return sorted({*secrets, *addresses})
