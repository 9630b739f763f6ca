"""Frozen dataclasses as JSON and back, strictly: what is read has every field, no other, and of its type.

A record that decides what is written to a ledger must never be half understood. So there is no guessing: an unknown
field is one of a newer version, and a missing one is damage. Where an older version may have left fields out, the
reader says so, and the defaults of the class fill them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from strandline.errors import StrandError
from strandline.model.schema.schema import Schema, from_json

Record = TypeVar("Record")

PLAIN = {int: "a whole number", str: "text", bool: "true or false"}


class NotStored(ValueError):
    """A document that is not what its class says; the message names the place in it."""


def to_stored(value: object) -> object:
    """A record, or a part of one, as JSON has it."""
    if isinstance(value, Schema):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: to_stored(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_stored(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_stored(item) for item in value]
    return value


def from_stored(kind: type[Record], document: object, at: str, *, older: bool = False) -> Record:
    """A record from what `to_stored` gave; NotStored where it is another. With `older`, defaults fill what is missing.

    `at` says what is read, for the error.
    """
    hints = _hints(cast(Any, kind))
    if not isinstance(document, dict):
        raise NotStored(f"{at} is not an object")
    unknown = sorted(document.keys() - hints.keys())
    if unknown:
        raise NotStored(f"{at} has an unknown field {unknown[0]!r}")
    absent = [name for name, (_, filled) in hints.items() if name not in document and not (older and filled)]
    if absent:
        raise NotStored(f"{at} lacks {absent[0]!r}")
    return kind(**{name: _value(hints[name][0], item, f"{at}.{name}", older) for name, item in document.items()})


@cache
def _hints(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """Of each field its type, and whether it has a default."""
    hints = get_type_hints(kind)
    return {field.name: (hints[field.name], _has_default(field)) for field in fields(kind)}


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _value(hint: Any, value: object, at: str, older: bool) -> object:
    if hint is object:
        return value
    if hint in PLAIN:
        if type(value) is not hint:  # true is no number here
            raise NotStored(f"{at} is not {PLAIN[hint]}")
        return value
    if hint is Schema:
        return _schema(value, at)
    if is_dataclass(hint) and isinstance(hint, type):
        return from_stored(hint, value, at, older=older)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (other,) = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _value(other, value, at, older)
    if origin is tuple:
        if not isinstance(value, list):
            raise NotStored(f"{at} is not a list")
        return tuple(_value(arguments[0], item, f"{at}[{number}]", older) for number, item in enumerate(value))
    assert origin is not None and issubclass(origin, Mapping), f"{at} can't be stored: it is a {hint}"
    if not isinstance(value, dict):
        raise NotStored(f"{at} is not an object")
    return {key: _value(arguments[1], item, f"{at}[{key!r}]", older) for key, item in value.items()}


def _schema(value: object, at: str) -> Schema:
    try:
        return from_json(value)
    except (StrandError, ValueError) as error:
        raise NotStored(f"{at} is no schema: {error}") from None
