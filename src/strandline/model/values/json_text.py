"""JSON as text, and the one rule about keys that are there twice: they are refused, in whatever way a value comes in.

JSON leaves open what `{"n": 1, "n": 2}` means. Readers take the last value, or the first, or both; so a row that one
program has checked would be stored as another one. orjson takes the last and says nothing. Reading every text with a
slower parser costs more than the whole append, so keys are counted first, of many texts at once: where as many stand in
the text as in what was read of it, none was dropped.
"""

from __future__ import annotations

import json
import re

import numpy
import orjson

from strandline.json_types import Json

_DIGITS_AS_ZERO = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_LONG_NUMBER = b"0" * 19

_SPACES_BEFORE = (b" :", b"\t:", b"\n:", b"\r:")
_MANY_BYTES = 8 << 10
_SPACED_KEY_END = re.compile(rb'"[ \t\r\n]+:')


class DoubledKey(ValueError):
    """An object has a key more than once."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key[:80]!r} is there more than once in an object")
        self.key = key


def parsed(text: bytes) -> Json:
    """The value of a JSON text. ValueError if it is none, DoubledKey if a key in it is doubled."""
    value = parsed_quickly(text)
    return _read_exactly(text) if may_double(text, value) else value


def parsed_quickly(text: bytes) -> Json:
    """The same without a look at its keys, for a caller that looks at those of many texts at once."""
    value = orjson.loads(text)
    # orjson makes a float of an integer beyond 64 bits.
    return _read_exactly(text) if _LONG_NUMBER in text.translate(_DIGITS_AS_ZERO) else value


def json_fault(text: bytes, error: ValueError) -> str:
    """What the parser says of a text. Of one line it is told by column: the parser counts lines from its own first."""
    if not isinstance(error, json.JSONDecodeError) or b"\n" in text.strip():
        return str(error)
    return f"{error.msg} at {f'column {error.colno}' if error.lineno == 1 else 'its end'}"


def written(value: object) -> bytes:
    """The JSON text of a value that `parsed` gave, with integers of any size."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False).encode()


def may_double(text: bytes, value: object) -> bool:
    """Whether a key may be doubled in a text, or in one of the texts of a list of values; a False is certain.

    `":` stands behind every key, but where there is a space between. It may also stand in strings, which are the same
    in the value's own text, unless it was written there with escapes.
    """
    ends, is_spaced = _key_ends(text)
    if is_spaced and _SPACED_KEY_END.search(text):
        return True
    if ends == _keys_in_sight(value):
        return False
    if b"\\u00" in text:
        return True
    try:
        return ends != _key_ends(orjson.dumps(value))[0]
    except TypeError:  # deeper than orjson writes, or a number that is too long
        return True


def _keys_in_sight(value: object) -> int:
    """How many keys a value has at least: its own, or those of its elements."""
    if isinstance(value, list):
        return sum(len(element) for element in value if type(element) is dict)
    return len(value) if type(value) is dict else 0


def _key_ends(text: bytes) -> tuple[int, bool]:
    """How often `":` stands in a text, and whether there is a space before a colon anywhere."""
    if len(text) < _MANY_BYTES:
        return text.count(b'":'), any(before in text for before in _SPACES_BEFORE)
    codes = numpy.frombuffer(text, numpy.uint8)
    colons, before = codes[1:] == ord(":"), codes[:-1]
    return int(numpy.count_nonzero(colons & (before == ord('"')))), bool((colons & (before <= ord(" "))).any())


def _read_exactly(text: bytes) -> Json:
    """By a parser that shows every key; orjson has checked the text before."""
    try:
        value: Json = json.loads(text, object_pairs_hook=_object)
        return value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    fields: dict[str, Json] = {}
    for key, value in pairs:
        if key in fields:
            raise DoubledKey(key)
        fields[key] = value
    return fields
