"""How a sink's settings are read, and those that every sink has.

Defaults are in plain units: bytes, seconds. What only one type of sinks can be told is in that type's own file.
"""

from __future__ import annotations

import datetime as dt
import re
from urllib.parse import urlsplit

from strandline.settings_text import SIZE, TRUTH, Key, Reader, choice, duration, text
from strandline.settings_text import count as whole_number
from strandline.settings_text import size as bytes_of

plain_text = text("a text that is not empty")
count = whole_number("a whole number from 1 on")
size = bytes_of(if_nothing=SIZE, floats=True)
span = duration(if_nothing='a duration such as "60s", "5m" or "2h"', floats=True)
flag = choice("true or false", TRUTH, any_case=True)


def one_of(*words: str) -> Reader[str]:
    """One of these words."""
    return choice(f"one of {', '.join(words)}", {word: word for word in words})


def url(*schemes: str) -> Reader[str]:
    """An address with one of these schemes."""

    def read(value: object) -> str:
        address = value.strip() if isinstance(value, str) else ""
        parts = urlsplit(address)
        if parts.scheme not in schemes or not (parts.netloc or parts.path.strip("/")):
            raise ValueError(f"an address that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return address.rstrip("/")

    return read


def variable(value: object) -> str:
    """The name of an environment variable."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("the name of an environment variable, and not the token itself")
    return str(value)


def names(value: object) -> list[str]:
    """Names, with commas between or as a list."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) and part.strip() for part in parts) or not parts:
        raise ValueError("names with commas between them")
    return [part.strip() for part in parts]


def _redactions(value: object) -> dict[str, str]:
    """`email:hash,body:blank`, or a TOML table; a name alone is hashed."""
    if isinstance(value, str):
        pairs = (part.partition(":") for part in names(value))
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


SECRET_FILE = "secret_file"
"""Set by us alone: where what is secret was put."""

OF_ALL: dict[str, Key] = {
    "tables": Key(None, names, "which tables; without it all"),
    "branch": Key("main", plain_text, "which branch of keyed tables"),
    "where": Key(
        None, plain_text, "a SQL condition on a row; rows that don't meet it are withheld, counted, and passed over"
    ),
    "drop_columns": Key(None, names, "columns that are not sent"),
    "redact": Key(None, _redactions, "a text becomes its SHA-256, or nothing"),
    "every": Key(60.0, span, "how often the worker ticks it", unit="s"),
    "cron": Key(None, _cron, "when the worker ticks it, instead of `every`"),
    "unit_rows": Key(1_000_000, count, "how many rows one delivery carries at most"),
    "unit_bytes": Key(256 << 20, size, "how many bytes one delivery carries at most", unit="bytes"),
    "hold_until": Key(None, _moment, "nothing is sent before this time; `strand sink preview` shows what would be"),
    "max_attempts": Key(8, count, "failed attempts until a delivery is parked"),
}
"""Settings of every sink, by name."""
