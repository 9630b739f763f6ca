"""A sink's settings: which there are, what they may be, and what they are when nobody says.

They come as text from the command line or as values from `strand.toml`, and leave here as plain values that JSON can
hold: sizes in bytes, durations in seconds, lists as lists. An unknown key names its nearest neighbour, because a
setting that is silently ignored sends rows to the wrong place.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from strandline.errors import BadRequest, nearest
from strandline.redaction import MASK, is_public_catalog, redacted, secret_of, shown_address
from strandline.settings_text import SIZE, TRUTH, Key, Reader, choice, count, duration, size, text

TYPES = ("forward", "blob", "iceberg")
BRANCH_GONE = "the branch that it follows was deleted; remove the sink, or add one for another branch"


_text = text("a text that is not empty")
_count = count("a whole number from 1 on")
_size = size(if_nothing=SIZE, floats=True)
_duration = duration(if_nothing='a duration such as "60s", "5m" or "2h"', floats=True)
_flag = choice("true or false", TRUTH, any_case=True)


def _variable(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("the name of an environment variable, and not the token itself")
    return str(value)


def _names(value: object) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) and part.strip() for part in parts) or not parts:
        raise ValueError("names with commas between them")
    return [part.strip() for part in parts]


def _redactions(value: object) -> dict[str, str]:
    """`email:hash,body:blank`, or a TOML table; a name alone is hashed."""
    if isinstance(value, str):
        pairs = (part.partition(":") for part in _names(value))
        value = {name.strip(): how.strip() or "hash" for name, _, how in pairs}
    if not isinstance(value, dict) or not all(how in ("hash", "blank") for how in value.values()):
        raise ValueError('columns with hash or blank, such as "email:hash,body:blank"')
    return {str(name): str(how) for name, how in value.items()}


def _moment(value: object) -> str:
    if isinstance(value, dt.datetime):
        value = value.isoformat()
    try:
        moment = dt.datetime.fromisoformat(str(value))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("a time with its zone, such as 2026-01-31T08:00:00Z")
    return moment.astimezone(dt.UTC).isoformat()


def _cron(value: object) -> str:
    from cronsim import CronSim, CronSimError

    if not isinstance(value, str):
        raise ValueError("a cron line of five fields")
    try:
        CronSim(value.strip(), dt.datetime.now(dt.UTC))
    except CronSimError as error:
        raise ValueError(f"a cron line of five fields ({error})") from error
    return value.strip()


def _url(*schemes: str) -> Reader[str]:
    def read(value: object) -> str:
        text = value.strip() if isinstance(value, str) else ""
        parts = urlsplit(text)
        if parts.scheme not in schemes or not (parts.netloc or parts.path.strip("/")):
            raise ValueError(f"an address that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return text.rstrip("/")

    return read


def _one_of(*words: str) -> Reader[str]:
    return choice(f"one of {', '.join(words)}", {word: word for word in words})


OF_ALL: dict[str, Key] = {
    "tables": Key(None, _names, "which tables; without it all"),
    "branch": Key("main", _text, "which branch of keyed tables"),
    "where": Key(
        None, _text, "a SQL condition on a row; rows that don't meet it are withheld, counted, and passed over"
    ),
    "drop_columns": Key(None, _names, "columns that are not sent"),
    "redact": Key(None, _redactions, "a text becomes its SHA-256, or nothing"),
    "every": Key(60.0, _duration, "how often the worker ticks it"),
    "cron": Key(None, _cron, "when the worker ticks it, instead of `every`"),
    "unit_rows": Key(1_000_000, _count, "how many rows one delivery carries at most"),
    "unit_bytes": Key(256 << 20, _size, "how many bytes one delivery carries at most"),
    "hold_until": Key(None, _moment, "nothing is sent before this time; `strand sink preview` shows what would be"),
    "max_attempts": Key(8, _count, "failed attempts until a delivery is parked"),
}
"""Settings of every sink, by name; defaults are in plain units: bytes, seconds."""

OF_TYPE: dict[str, dict[str, Key]] = {
    "forward": {
        "url": Key(None, _url("http", "https"), "the receiver's root"),
        "gateway": Key(None, _text, "this lake's name at the receiver; without it the lake's id"),
        "token": Key(None, _text, "the token itself; it is put away, and never shown"),
        "token_env": Key(None, _variable, "the environment variable that has the token"),
        "token_file": Key(None, _text, "the file that has the token"),
        "format": Key("arrow", _one_of("arrow", "ndjson"), "how rows are sent"),
        "compression": Key("zstd", _one_of("zstd", "gzip", "none"), "how bodies are compressed"),
        "chunk_rows": Key(5000, _count, "how many rows one request carries at most"),
        "chunk_bytes": Key(4 << 20, _size, "how many bytes one request carries at most, before it is compressed"),
        "timeout": Key(30.0, _duration, "how long an answer may take"),
    },
    "blob": {
        "uri": Key(None, _url("file", "s3"), "the folder, or the bucket and prefix"),
        "format": Key("parquet", _one_of("parquet", "jsonl"), "what the objects are; jsonl: one JSON object a line"),
        "compression": Key("zstd", _one_of("zstd", "gzip"), "how JSON lines are compressed; Parquet is with zstd"),
        "endpoint": Key(None, _url("http", "https"), "of an object store that is not AWS, addressed by path"),
        "region": Key(None, _text, "of the bucket; without it AWS_REGION, or what the bucket says"),
        "manifest": Key(False, _flag, "keep a `_manifest.jsonl` in each stream's folder"),
        "taken_away": Key(False, _flag, "readers take objects away: the mark alone says what was delivered"),
    },
    "iceberg": {
        "catalog": Key("jdbc", _one_of("jdbc", "rest"), "the kind of catalog; `catalog.KEY` is any property of it"),
        "uri": Key(None, _text, "the catalog's address; for JDBC it begins with `jdbc:`"),
        "warehouse": Key(None, _text, "where its tables are; a REST catalog may know that itself"),
        "namespace": Key("lake", _text, "where our tables go; made if it is not there"),
    },
}
"""Settings of a type of sinks."""

REQUIRED = {"forward": ("url",), "blob": ("uri",), "iceberg": ("uri",)}


def parse(type_: str, given: Mapping[str, object], where: str) -> dict[str, Any]:
    """The settings that were given, checked and in plain units; `where` says in errors who gave them."""
    if type_ not in TYPES:
        raise BadRequest(f"{where}: there is no sink of type {type_!r}", hint=nearest(type_, TYPES))
    keys = {**OF_ALL, **OF_TYPE[type_]}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if type_ == "iceberg" and name.startswith("catalog."):
            found[name] = str(value)
            continue
        if name not in keys:
            raise BadRequest(f"{where}: the type {type_} has no setting {name!r}", hint=nearest(name, keys))
        try:
            found[name] = keys[name].read(value)
        except ValueError as error:
            hint = f"Write file://{value}" if name == "uri" and str(value).startswith("/") else ""
            raise BadRequest(f"{where}: {name} is {_shown(name, value)}, expected {error}", hint=hint) from error
    _check(type_, found, where)
    return found


_DESTINATION = {"forward": ("url",), "blob": ("uri", "endpoint"), "iceberg": ("uri", "warehouse", "namespace")}
_PORTS = {"http": 80, "https": 443}


def destination_of(type_: str, settings: Mapping[str, Any]) -> tuple[object, ...]:
    """Where a sink of these settings delivers to, however its address is written; other settings don't matter."""
    found = resolved(type_, settings)
    return tuple(_address(str(found[name])) if found[name] else None for name in _DESTINATION.get(type_, ()))


def _address(text: str) -> object:
    parts = urlsplit(text)
    if parts.scheme not in _PORTS:
        return text.rstrip("/")
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path.rstrip("/"), parts.query


SECRET_FILE = "secret_file"
"""Set by us alone: where what is secret was put."""

CATALOG_OPTION = "catalog."
_ADDRESSES = ("url", "uri", "warehouse", "endpoint")
_NAMES = frozenset({*OF_ALL, *(name for keys in OF_TYPE.values() for name in keys), SECRET_FILE, "type"} - {"token"})


def is_secret(name: str, value: object = "") -> bool:
    """Whether a setting must never be stored in clear: all are that are not known to be harmless."""
    if name.startswith(CATALOG_OPTION):
        return not is_public_catalog(name.removeprefix(CATALOG_OPTION), value)
    return name not in _NAMES


def shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A sink's settings as they may be shown; an older version may have stored a secret among them."""
    return {name: MASK if is_secret(name, value) else _shown_value(name, value) for name, value in settings.items()}


def _shown_value(name: str, value: Any) -> Any:
    is_address = isinstance(value, str) and (name in _ADDRESSES or "://" in value)
    return shown_address(value) if is_address else value


def in_clear(settings: Mapping[str, Any]) -> list[str]:
    """The settings in a ledger that may hold a secret; an older version stored them so."""
    addresses = [name for name in _ADDRESSES if secret_of(str(settings.get(name) or "")) is not None]
    return sorted({*(name for name, value in settings.items() if is_secret(name, value)), *addresses})


def _check(type_: str, found: Mapping[str, Any], where: str) -> None:
    for name in REQUIRED[type_]:
        if name not in found:
            raise BadRequest(f"{where}: the type {type_} needs {name!r}", hint=f"Add --set {name}=…")
    if type_ == "iceberg" and found.get("catalog", "jdbc") == "jdbc" and "warehouse" not in found:
        # A REST catalog says itself where its tables are.
        raise BadRequest(f"{where}: a JDBC catalog needs 'warehouse'", hint="Add --set warehouse=…")
    for name in _ADDRESSES:
        if (secret := secret_of(str(found.get(name, "")))) is not None:
            raise BadRequest(f"{where}: {name} has {secret} in it, which may be secret", hint=_WHERE_SECRETS_GO[type_])
    if "every" in found and "cron" in found:
        raise BadRequest(f"{where}: both every and cron", hint="Give one of them.")
    if type_ == "forward":
        if sum(name in found for name in ("token", "token_env", "token_file")) > 1:
            raise BadRequest(f"{where}: more than one token", hint="Give one of token, token_env and token_file.")
        if "_seq" in found.get("drop_columns", []):
            raise BadRequest(f"{where}: a forward sink can't drop _seq", hint="The receiver knows rows by it.")
    if type_ == "blob" and found.get("format", "parquet") == "parquet" and found.get("compression") == "gzip":
        raise BadRequest(f"{where}: Parquet is written with zstd", hint="Leave compression out, or use format=jsonl.")


_WHERE_SECRETS_GO = {
    "forward": "Addresses are shown and logged. Use token_file, token_env or token, which is put away.",
    "blob": "Addresses are shown and logged. The store's credentials come from the environment or ~/.aws.",
    "iceberg": "Addresses are shown and logged. Use a property of the catalog, such as catalog.jdbc.password or "
    "catalog.header.Authorization: those that may be secret are put away.",
}


def _shown(name: str, value: object) -> str:
    return "…" if name.startswith("token") else redacted(repr(value))


def resolved(type_: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a sink: those given, and the defaults of the rest. This is what a delivery is opened under."""
    defaults = {name: key.default for name, key in {**OF_ALL, **OF_TYPE[type_]}.items()}
    return {**defaults, **given}
