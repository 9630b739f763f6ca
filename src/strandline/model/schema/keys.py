"""Keys of keyed tables: which columns can be one, and the hash that stands for a key everywhere.

A key is compared by its values alone, so its columns have types whose values are equal in one way only, in Python, in
Arrow and in every engine, and no key has a null in it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence
from decimal import Decimal as Number
from typing import TYPE_CHECKING

import orjson

from strandline.errors import BadRequest
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import KEY_TYPES, is_exact
from strandline.model.values.user_rows import Value

if TYPE_CHECKING:
    import pyarrow as pa

HASH_BYTES = 16


def check_key(schema: Schema, key: Sequence[str], partition_by: Sequence[str]) -> None:
    """BadRequest unless these columns can be the key of a table that is partitioned so."""
    if len(set(key)) < len(key):
        raise BadRequest(f"a column is named twice in the key: {', '.join(key)}")
    for name in key:
        column = schema.column(name)
        if not is_exact(column.type) or column.nullable:
            raise BadRequest(
                f"column {column.text()!r} can't be part of a key",
                hint=f"A key's columns are never null, and one of {', '.join(sorted(KEY_TYPES))}, decimal.",
            )
    for name in partition_by:
        if name not in key:
            raise BadRequest(
                f"the partition column {name!r} is not part of the table's key",
                hint="A row may not move between partitions: partition by columns of the key.",
            )


def key_fields(key: Sequence[str], value: Value, table: str) -> dict[str, Value]:
    """A key as the caller gives it, by column: one value, a sequence in the key's order, or a mapping."""
    if isinstance(value, Mapping):
        fields = dict(value)
    elif len(key) == 1 and not isinstance(value, list | tuple):
        fields = {key[0]: value}
    elif isinstance(value, list | tuple) and len(value) == len(key):
        fields = dict(zip(key, value, strict=True))
    else:
        fields = {}
    if set(fields) != set(key):
        raise BadRequest(
            f"{value!r} is not a key of table {table!r}", hint=f"Its key is ({', '.join(key)}): give a value for each."
        )
    return fields


def key_hash(values: Sequence[Value]) -> bytes:
    """128 bits that stand for a key with these values."""
    return hashlib.blake2b(orjson.dumps([_plain(value) for value in values]), digest_size=HASH_BYTES).digest()


def key_hashes(keys: pa.Table) -> list[bytes]:
    """The same of many keys, which are rows of these columns."""
    from pyarrow import types

    def is_plain(type_: pa.DataType) -> bool:
        return bool(types.is_string(type_) or types.is_integer(type_) or types.is_boolean(type_))

    columns = [
        column.to_pylist() if is_plain(column.type) else map(_plain, column.to_pylist()) for column in keys.columns
    ]
    dumps, blake2b = orjson.dumps, hashlib.blake2b
    return [blake2b(dumps(values), digest_size=HASH_BYTES).digest() for values in zip(*columns, strict=True)]


def claim_hash(rule: str, columns: Sequence[str], values: Sequence[Value]) -> bytes:
    """128 bits that stand for a value that is taken by a rule on these columns; never those of a key."""
    claim = orjson.dumps([list(columns), [_plain(value) for value in values]])
    return hashlib.blake2b(claim, digest_size=HASH_BYTES, person=rule.encode()).digest()


def shown_key(values: Sequence[Value]) -> str:
    """A key as messages name it."""
    texts = [str(_plain(value)) for value in values]
    return repr(texts[0]) if len(texts) == 1 else f"({', '.join(map(repr, texts))})"


def _plain(value: Value) -> Value:
    match value:
        case str():
            return value
        case bytes():
            return value.hex()
        case dt.datetime():
            return value.astimezone(dt.UTC).isoformat()
        case Number():
            return str(value)
        case _:
            return value
