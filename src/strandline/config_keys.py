"""Every key of `strand.toml`: its default, how its value is read, and what it means.

A setting is described here and nowhere else. The file that a new lake gets, the error about a wrong value and
`docs/settings.md` are made of these descriptions.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_LEDGER = "sqlite:///ledger.db"
DEFAULT_WAREHOUSE = "warehouse"


def parse_size(text: str) -> int:
    """Bytes in "64MiB", "1GB" or "512k": KiB and k are 1024, KB is 1000, in any case; a bare number is bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b)?|b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError('a size such as "64MiB", "1GB" or "512k"')
    number, prefix, suffix = match.groups()
    base = 1000 if (suffix or "").lower() == "b" else 1024
    power = "kmgt".index(prefix.lower()) + 1 if prefix else 0
    return int(float(number) * base**power)


_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds in "250ms", "60s", "5m", "2h" or "7d"; a bare number is refused, because nobody agrees on its unit."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if match is None:
        raise ValueError('a duration such as "250ms", "60s", "5m", "2h" or "7d"')
    return float(match[1]) * _UNIT_SECONDS[match[2]]


# Readers of one value. Each takes what TOML or the environment gave, or raises ValueError with what it expected.


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a string that is not empty")
    return value.strip()


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return parse_size(value if isinstance(value, str) else "")


def _some_bytes(value: object) -> int:
    size = _size(value)
    if size <= 0:
        raise ValueError("a size larger than nothing")
    return size


def read_memory(value: object) -> int:
    """A size, or a part of the memory that this process may have; never more than half of that."""
    percent = re.fullmatch(r"\s*(\d{1,3})\s*%\s*", value) if isinstance(value, str) else None
    half = process_memory_bytes() // 2
    if percent is None:
        return min(_some_bytes(value), half)
    if not 1 <= int(percent[1]) <= 100:
        raise ValueError('a size, or a part such as "50%"')
    return min(process_memory_bytes() * int(percent[1]) // 100, half)


def process_memory_bytes() -> int:
    """The memory that this process may have: its container's limit, or the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [machine]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such group, or "max"
            limits.append(int(Path(file).read_text()))
    return min(limits)


def _count(value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= 100_000:
        raise ValueError("a whole number from 1 to 100000")
    return number


def _rows(value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError("a whole number from 1")
    return number


def _duration(value: object) -> float:
    return parse_duration(value if isinstance(value, str) else "")


def _positive_duration(value: object) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise ValueError("a duration longer than nothing")
    return seconds


def _text_or_none(value: object) -> str | None:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value.strip() or None


def _true_false_auto(value: object) -> bool | None:
    choices: dict[object, bool | None] = {"auto": None, "true": True, "false": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in choices:
        raise ValueError('true, false or "auto"')
    return choices[value]


def _token_or_open(value: object) -> str:
    if value not in ("token", "open"):
        raise ValueError('"token" or "open"')
    return str(value)


def _maybe_duration(value: object) -> float | None:
    try:
        return None if value == "off" else _positive_duration(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "off"') from None


def read_address(value: object) -> str:
    """An address to listen on."""
    if not isinstance(value, str) or not re.fullmatch(r"\S+:\d{1,5}", value) or int(value.rpartition(":")[2]) > 65535:
        raise ValueError('HOST:PORT, such as "127.0.0.1:8400"')
    return value


def _maybe_listen(value: object) -> str | None:
    try:
        return None if value in ("", "off") else read_address(value)
    except ValueError as error:
        raise ValueError(f'{error}, or "off"') from None


def _spark_conf(value: object) -> dict[str, str]:
    """Flat Spark settings; `spark.sql.x = 1` unquoted is nested tables to TOML, and means the same to a person."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError("a JSON object of Spark settings") from error
    if not isinstance(value, dict):
        raise ValueError("a table of Spark settings")
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat.update({f"{key}.{rest}": text for rest, text in _spark_conf(item).items()})
        else:
            flat[key] = _spark_value(key, item)
    return flat


def _spark_value(key: str, item: object) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str | int | float):
        return str(item)
    raise ValueError(f"a string, a number or a boolean for {key!r}")


@dataclass(frozen=True)
class Key:
    """One setting. `read` takes what TOML or the environment gave, or raises ValueError with what it expected."""

    default: object
    read: Callable[[object], Any]
    meaning: str

    @property
    def expects(self) -> str:
        """What its values look like, in the words of the error about a wrong one."""
        try:
            self.read(None)
        except ValueError as error:
            return str(error)
        raise AssertionError(f"a setting takes no value at all: {self.meaning}")


@dataclass(frozen=True)
class Section:
    """The keys of a section, and what is to be said of all of them."""

    keys: Mapping[str, Key]
    about: str = ""


SECTIONS: dict[str, Section] = {
    "lake": Section(
        {
            "ledger": Key(
                DEFAULT_LEDGER,
                _text,
                "the database: a file, relative to this one, or postgresql://USER@HOST/DATABASE",
            ),
            "warehouse": Key(
                DEFAULT_WAREHOUSE, _text, "where the Iceberg tables are: a path, file:///path or s3://bucket/prefix"
            ),
        }
    ),
    "spark": Section(
        {
            "master": Key("local[*]", _text, "where Spark runs: local[*], spark://…, k8s://…, yarn"),
            "conf": Key({}, _spark_conf, 'any Spark setting, such as { "spark.driver.memory" = "4g" }'),
        }
    ),
    "flush": Section(
        {
            "max_bytes": Key("64MiB", _size, "the worker flushes a tail that is larger"),
            "max_age": Key("60s", _duration, "and one that is older"),
            "keyed_max_age": Key(
                "15m",
                _duration,
                "the same for a keyed table, unless it has 1,000 batches: no reader waits for it",
            ),
        }
    ),
    "lease": Section(
        {
            "ttl": Key("30s", _positive_duration, "a holder that is silent for this long may be replaced"),
            "wait": Key("5m", _duration, "how long a command waits for a holder that is alive"),
        }
    ),
    "s3": Section(
        {
            "endpoint": Key("", _text_or_none, "address of a store that is not AWS"),
            "region": Key("", _text_or_none, "of the bucket; else AWS_REGION, or what the bucket says"),
            "path_style": Key(
                "auto", _true_false_auto, "true: the bucket is a part of the path; auto: so where there is an endpoint"
            ),
        },
        about="for s3:// addresses; credentials come from the environment or ~/.aws, as for the AWS tools",
    ),
    "maintenance": Section(
        {
            "every": Key(
                "10m", _maybe_duration, 'how often the worker maintains a table that needs it; "off" is never'
            ),
            "grace": Key("15m", _duration, "how long superseded snapshots and flushed batches stay readable"),
            "fold_bytes": Key("64MiB", _size, "a keyed table's log is folded when so much of it is not in the state"),
            "fold_percent": Key(10, _count, "and when that is more than this share of the state, in percent"),
        }
    ),
    "server": Section(
        {
            "listen": Key("127.0.0.1:8400", read_address, "where `strand serve` listens"),
            "metrics": Key(
                "token",
                _token_or_open,
                "who may read /metrics, the worker's too: a token and this machine itself, or with open everybody",
            ),
            "max_body": Key("64MiB", _some_bytes, "the largest body of a request, before and after it is decompressed"),
            "read_timeout": Key(
                "30s",
                _positive_duration,
                "a body that stops arriving for so long is given up, and so is one that is slower than 64 KiB a second",
            ),
            "max_connections": Key(
                512, _count, "connections at the same time; past it the one that waited longest for a request is closed"
            ),
            "max_requests": Key(16, _count, "requests of one actor at the same time"),
            "max_bytes": Key("4GiB", _some_bytes, "bytes of one actor's requests at the same time"),
            "queue": Key(256, _count, "requests that wait for the ledger, before others are told to come back later"),
            "threads": Key(16, _count, "threads that decode, validate and store"),
        }
    ),
    "query": Section(
        {
            "time": Key("60s", _positive_duration, "a query that computes for longer is ended"),
            "memory": Key(
                "2GiB",
                _some_bytes,
                "of one query, and of its answer; a quarter of the process's memory if that is less",
            ),
            "spill": Key("10GiB", _size, "what one query may put on the disk when its memory is full"),
            "rows": Key(10_000_000, _rows, "the longest answer that is collected; a stream has no end"),
        },
        about="limits of every SQL query that a user writes; past one of them it is `too_large`",
    ),
    "admission": Section(
        {
            "process_bytes": Key(
                "512MiB",
                read_memory,
                "memory for the bodies of all requests of a process, in which a decoded byte counts five times; "
                'a part of what the process may have is written "50%", and more than that half is never taken. A third '
                "is shared: an actor holds no more of it than it leaves free. The rest is for one large body at a time",
            ),
        }
    ),
    "worker": Section(
        {
            "metrics": Key("off", _maybe_listen, 'where the worker shows its metrics, such as "127.0.0.1:8401"'),
            "attempts": Key(12, _count, "a job that fails so often in a row is parked until `strand worker retry`"),
        }
    ),
}

VARIABLES = {f"STRAND_{name}_{key}".upper(): (name, key) for name, section in SECTIONS.items() for key in section.keys}
"""The environment variable of each key."""

OTHER_VARIABLES = {
    "STRAND_LAKE": "the lake's folder, where `--lake` names none",
    "STRAND_ACTOR": "who changes things, where `--actor` names nobody; else the login name",
    "STRAND_CACHE_DIR": "where jars and the archive of Spark's classes are kept; else the user's cache folder",
    "STRAND_IVY_SETTINGS": "an ivysettings.xml that names a mirror to fetch jars from",
    "STRAND_FAILPOINTS": "for tests: where a process ends, see `strand doctor --failpoints`",
    "STRAND_SUPERVISED": "set by `strand up` for the processes that it starts",
}
"""Variables that are no key of the file."""
