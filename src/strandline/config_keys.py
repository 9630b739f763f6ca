"""Every key of `strand.toml`: its default, how its value is read, and what it means.

A setting is described here and nowhere else. The file that a new lake gets, the error about a wrong value and
`docs/settings.md` are made of these descriptions.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from strandline.settings_text import TRUTH, Key, choice, count, duration, or_off, size, text

DEFAULT_LEDGER = "sqlite:///ledger.db"
DEFAULT_WAREHOUSE = "warehouse"

# Readers of one value. Each takes what TOML or the environment gave, or raises ValueError with what it expected.

_text = text("a string that is not empty")
_size = size()
_some_bytes = size(if_nothing="a size larger than nothing")
_count = count("a whole number from 1 to 100000", 100_000)
_rows = count("a whole number from 1")
_duration = duration()
_positive_duration = duration(if_nothing="a duration longer than nothing")
_true_false_auto = choice('true, false or "auto"', {"auto": None, **TRUTH})
_maybe_duration = or_off(_positive_duration)
_token_or_open = choice('"token" or "open"', {"token": "token", "open": "open"})


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


def _text_or_none(value: object) -> str | None:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value.strip() or None


def read_address(value: object) -> str:
    """An address to listen on."""
    if not isinstance(value, str) or not re.fullmatch(r"\S+:\d{1,5}", value) or int(value.rpartition(":")[2]) > 65535:
        raise ValueError('HOST:PORT, such as "127.0.0.1:8400"')
    return value


_maybe_listen = or_off(read_address, "")


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
                "10m",
                or_off(_positive_duration),
                'how often the worker maintains a table that needs it; "off" is never',
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
