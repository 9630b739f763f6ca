"""Names of objects in a blob store: a stream and a range as a path, and back.

    <table>/<partition>/<since>-<until>.<extension>        the first epoch
    <table>/<partition>/e2/<since>-<until>.<extension>     the second

A name says what the object covers, so a sink that has lost its marks can read them off a listing. Numbers have 19
digits, so names sort as seqs do.

A partition is `column=value` for each of its columns, as Hive writes them, or `all`. A value is written as it is where
that is safe on every disk and store. Everything else is percent-encoded, also capital letters, because `A` and `a` are
one folder on many disks. A null is Hive's word for it. A value that is too long for one folder's name goes on in the
next folder, behind a `~`. A partition that is too long for an object's key becomes the digest of its text, and the text
stands in the file `_partition.json` beside.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import orjson

from strandline.errors import BadRequest
from strandline.model.schema.partitions import ALL

NULL = "__HIVE_DEFAULT_PARTITION__"
MANIFEST = "_manifest.jsonl"
MARK = "_mark.json"
OWNER = "_strandline.json"
PARTITION = "_partition.json"
TEMPORARY = ".tmp-"
FIRST_EPOCH = 1

MAX_SEGMENT = 240
"""Most disks take 255 bytes in a name."""
MAX_PARTITION = 640
"""S3 takes 1,024 bytes in a key, and the prefix, the table and the range need room too."""

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
_RANGE = re.compile(r"(\d{19})-(\d{19})\.(?:parquet|jsonl\.zst|jsonl\.gz)")
_EPOCH = re.compile(r"e([1-9]\d*)")


@dataclass(frozen=True)
class ObjectName:
    """What an object's name says: the rows of `(since, until]` were considered for it."""

    since: int
    until: int


def object_name(since: int, until: int, extension: str) -> str:
    """The last part of an object's path."""
    if not 0 <= since < until < 10**19:
        raise BadRequest(f"({since}, {until}] is not a range of seqs")
    return f"{since:019d}-{until:019d}.{extension}"


def parse_object_name(name: str) -> ObjectName | None:
    """The inverse of `object_name`; None for any other file."""
    match = _RANGE.fullmatch(name)
    return ObjectName(int(match[1]), int(match[2])) if match else None


def epoch_folder(epoch: int) -> str:
    """What an epoch adds to a stream's path: nothing for the first."""
    return "" if epoch == FIRST_EPOCH else f"e{epoch}"


def parse_epoch(folder: str) -> int | None:
    """The inverse of `epoch_folder`; None for any other folder."""
    match = _EPOCH.fullmatch(folder)
    return int(match[1]) if match and int(match[1]) > FIRST_EPOCH else None


def stream_path(table: str, partition_by: Sequence[str], partition: str) -> str:
    """Where a stream's objects are, below the prefix."""
    return f"{table}/{partition_path(partition_by, partition)}"


def partition_path(partition_by: Sequence[str], partition: str) -> str:
    """A partition's text as folders."""
    if not partition_by:
        return ALL
    values = orjson.loads(partition)
    if len(values) != len(partition_by):
        raise BadRequest(f"the partition {partition} has not one value for each of {', '.join(partition_by)}")
    path = "/".join(
        segment
        for column, value in zip(partition_by, values, strict=True)
        for segment in _segments(f"{column}={_escaped(value)}")
    )
    return path if len(path) <= MAX_PARTITION else f"~{hashlib.sha256(partition.encode()).hexdigest()}"


def is_digest(path: str) -> bool:
    """Whether a partition's path is only its digest, so that its text has to be written down beside."""
    return path.startswith("~")


def parse_partition_path(path: str, types: Sequence[str]) -> str | None:
    """The inverse of `partition_path`, given the types of the partition columns; None where it is a digest."""
    if not types:
        return ALL
    if is_digest(path):
        return None
    joined = path.replace("/~", "").split("/")
    texts = [segment.partition("=")[2] for segment in joined]
    values = [_unescaped(text, type_) for text, type_ in zip(texts, types, strict=True)]
    return orjson.dumps(values).decode()


def _segments(text: str) -> list[str]:
    """A name in pieces that a disk takes; all but the first begin with `~`, which no escaped value contains."""
    first, rest = text[:MAX_SEGMENT], text[MAX_SEGMENT:]
    size = MAX_SEGMENT - 1
    return [first, *(f"~{rest[at : at + size]}" for at in range(0, len(rest), size))]


def _escaped(value: object) -> str:
    if value is None:
        return NULL
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    escaped = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in text.encode())
    # A dot at the end is lost on some disks, and a name of dots alone is somewhere else on all of them.
    return f"{escaped[:-1]}%2e" if escaped.endswith(".") else escaped


def _unescaped(text: str, type_: str) -> object:
    if text == NULL:
        return None
    value = unquote_to_bytes(text).decode()
    if type_ in ("string", "date"):
        return dt.date.fromisoformat(value) if type_ == "date" else value
    return orjson.loads(value)
