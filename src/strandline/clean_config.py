"""A config as a backup may keep it: written anew from what is known to be harmless, and nothing else.

Secrets stand in a `strand.toml` in many ways: under a key, in an address, in an inline table, in a comment. So nothing
of its text is kept. Its values are read, those that are on a list of harmless ones are written again, and what was left
out is named.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from strandline.config import FILE_NAME
from strandline.config_keys import SECTIONS
from strandline.redaction import has_secret, is_public_spark, secret_of
from strandline.sinks.settings import is_secret

PASSWORD_OF_LEDGER = "the password of the ledger"
HEAD = f"# Written by a backup: comments and secrets of the first {FILE_NAME} are not in here."


def without_secrets(text: str) -> tuple[str, list[str]]:
    """A config without what may be secret in it, and what was left out; "" where it can't be read at all."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return "", [f"all of {FILE_NAME}"]
    lines, left_out = [HEAD], list[str]()
    for section, keys in document.items():
        if section == "sinks" and isinstance(keys, Mapping):
            for name, settings in keys.items():
                lines += _section(f"sinks.{_key(str(name))}", _sink(settings, left_out))
        elif section in SECTIONS and isinstance(keys, Mapping):
            lines += _section(section, _settings(section, keys, left_out))
        else:
            left_out.append(f"{section} in {FILE_NAME}")
    return "\n".join(lines) + "\n", left_out


def _sink(settings: Any, left_out: list[str]) -> Iterator[tuple[str, Any]]:
    plain = {key: value for key, value in settings.items() if key != "catalog" or not isinstance(value, Mapping)}
    catalog = settings.get("catalog")
    flat = {**plain, **(_flat(catalog, "catalog") if isinstance(catalog, Mapping) else {})}
    yield from _kept(flat, lambda name, value: is_secret(str(plain.get("type")), name, value), left_out)


def _settings(section: str, keys: Mapping[str, Any], left_out: list[str]) -> Iterator[tuple[str, Any]]:
    harmless = SECTIONS[section].keys
    for key, value in _kept(keys, lambda name, _: name not in harmless, left_out, apart=("ledger", "conf")):
        if key == "ledger":
            address = _without_password(str(value), left_out)
            if secret_of(address) is None:
                yield key, address
            else:
                left_out.append(f"{key} in {FILE_NAME}")
        elif key == "conf" and isinstance(value, Mapping):
            yield key, dict(_kept(_flat(value, ""), lambda name, _: not is_public_spark(name), left_out))
        else:
            yield key, value


def _kept(
    values: Mapping[str, Any], is_hidden: Any, left_out: list[str], apart: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if is_hidden(key, value) or (key not in apart and has_secret(str(value))):
            left_out.append(f"{key} in {FILE_NAME}")
        else:
            yield key, value


def _without_password(url: str, left_out: list[str]) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    left_out.append(PASSWORD_OF_LEDGER)
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}"))


def _flat(value: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A key with dots that was not quoted is tables in tables to TOML."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}.{key}" if prefix else key
        flat |= _flat(item, name) if isinstance(item, Mapping) else {name: item}
    return flat


# -- writing -----------------------------------------------------------------------------------------------------------


def _section(name: str, settings: Iterator[tuple[str, Any]]) -> list[str]:
    return ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in settings)]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case list():
            return f"[{', '.join(_value(item) for item in value)}]"
        case Mapping():
            return f"{{ {', '.join(f'{_key(str(key))} = {_value(item)}' for key, item in value.items())} }}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
