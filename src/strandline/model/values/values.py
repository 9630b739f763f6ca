"""What a valid value is: the one definition, a rule per type.

A rule takes a Python value and gives the value that Arrow stores, or refuses it with a reason. Rows come as dicts, JSON
lines, Arrow and Parquet; the faster ways in `columns` and `casts` are shortcuts to what these rules say, and hand
over to them whenever they are not certain.

Nothing is guessed and nothing is rounded: no zone means no timestamp, 1.0 is not a long, a float is not a decimal.
(Two exceptions: fractions of a second past the sixth digit are cut off, and a `float` column keeps 32 bits.)
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import enum
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping

import orjson

from strandline.errors import nearest
from strandline.model.schema.types import MAX_PRECISION, Column, Decimal, List, Map, Primitive, Struct, Type, type_text
from strandline.model.values.json_text import json_fault, parsed
from strandline.model.values.user_rows import Value

Rule = Callable[[Value], Value]

INT_BOUNDS = {"long": (-(2**63), 2**63 - 1), "int": (-(2**31), 2**31 - 1)}
EPOCH = dt.datetime(1970, 1, 1)
MIN_US = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z, in microseconds since 1970: the first moment that Python and Spark agree on."""
MAX_US = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z."""

_JSON_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?"
    r"(?:([Zz])|([+-])([01][0-9]|2[0-3])(?::?([0-5][0-9]))?)?"
)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_EXACT = decimal.Context(prec=2 * MAX_PRECISION, traps=[decimal.Inexact, decimal.InvalidOperation])


class RefusedValue(Exception):
    """A value that a rule does not take. `path` leads to it from its column: `.b`, `[2]`, `['key']`."""

    def __init__(self, value: object, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason
        self.path = path

    def under(self, step: str) -> RefusedValue:
        """The same, one level further out."""
        return RefusedValue(self.value, self.reason, step + self.path)


def rule_for(type_: Type, nullable: bool, *, json_text: bool = False) -> Rule:
    """The rule of a column or a nested value. With `json_text`, a value of type json is JSON text, as Arrow has it."""
    take = _rule(type_, json_text)

    def rule(value: Value) -> Value:
        taken = None if value is None else take(value)
        if taken is None and not nullable:
            raise RefusedValue(value, "a value is required here, and it is missing or null")
        return taken

    return rule


def _rule(type_: Type, json_text: bool) -> Rule:
    match type_:
        case Primitive("json"):
            return take_json_text if json_text else take_json
        case Primitive(name):
            return _PRIMITIVE_RULES[name]
        case Decimal():
            return _decimal_rule(type_)
        case List(element, nullable):
            return _list_rule(rule_for(element, nullable, json_text=json_text))
        case Struct(fields):
            return _struct_rule(fields, json_text)
        case Map(key, value, nullable):
            return _map_rule(rule_for(key, False, json_text=json_text), rule_for(value, nullable, json_text=json_text))


def take_string(value: Value) -> str:
    """Text that UTF-8 can carry."""
    if not isinstance(value, str):
        raise RefusedValue(value, "is not a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RefusedValue(value, "is not valid Unicode: it has a lone surrogate") from None
    return value if type(value) is str else str.__str__(value)


def take_boolean(value: Value) -> bool:
    """True or False; 0 and 1 are numbers."""
    if not isinstance(value, bool):
        raise RefusedValue(value, "is not a boolean")
    return value


def _integer_rule(name: str) -> Rule:
    low, high = INT_BOUNDS[name]
    article = "an" if name == "int" else "a"

    def take_integer(value: Value) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise RefusedValue(value, f"is not {article} {name}")
        if not low <= value <= high:
            raise RefusedValue(value, f"is out of range for {article} {name} ({low} to {high})")
        return int(value)

    return take_integer


def take_double(value: Value) -> float:
    """A finite number; an integer only if it stays the same."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RefusedValue(value, "is not a double")
    return _finite(value, "a double")


def take_float(value: Value) -> float:
    """A finite number, kept with 32 bits; an integer only if it stays the same."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RefusedValue(value, "is not a float")
    try:
        # In a standard order: in the machine's own, pack makes an infinity of what is too large.
        (single,) = struct.unpack("<f", struct.pack("<f", _finite(value, "a float")))
    except OverflowError:
        raise RefusedValue(value, "is out of range for a float of 32 bits") from None
    if isinstance(value, int) and single != value:
        raise RefusedValue(value, "is an integer that a float can't hold exactly")
    return float(single)


def _finite(value: float, what: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise RefusedValue(value, f"is out of range for {what}") from None
    if not math.isfinite(number):
        raise RefusedValue(value, "is not a finite number")
    if isinstance(value, int) and number != value:
        raise RefusedValue(value, f"is an integer that {what} can't hold exactly")
    return number


def take_date(value: Value) -> dt.date:
    """A date, or `YYYY-MM-DD`."""
    if isinstance(value, dt.datetime):
        raise RefusedValue(value, "is a timestamp, not a date")
    if isinstance(value, dt.date):
        return value
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return dt.date.fromisoformat(value)
        except ValueError as error:
            raise RefusedValue(value, f"is not a date: {error}") from None
    raise RefusedValue(value, "is not a date (YYYY-MM-DD)")


def take_timestamp(value: Value) -> int:
    """A moment, as microseconds since 1970 in UTC: a datetime with a zone, or ISO 8601 text with one."""
    if isinstance(value, str):
        micros = _timestamp_from_text(value)
    elif isinstance(value, dt.datetime):
        micros = _timestamp_from_datetime(value)
    else:
        raise RefusedValue(value, "is not a timestamp")
    if not MIN_US <= micros <= MAX_US:
        raise RefusedValue(value, "is out of range for a timestamp (years 1 to 9999 in UTC)")
    return micros


def _timestamp_from_text(text: str) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if not match:
        raise RefusedValue(text, "is not a timestamp (2025-01-31T12:00:00Z)")
    year, month, day, hour, minute, second, fraction, utc, sign, zone_hour, zone_minute = match.groups()
    if not utc and not sign:
        raise RefusedValue(text, "is a timestamp without a zone (add Z, or an offset such as +01:00)")
    try:
        local = dt.datetime(int(year), int(month), int(day), int(hour), int(minute or 0), int(second or 0))
    except ValueError as error:
        raise RefusedValue(text, f"is not a timestamp: {error}") from None
    offset_s = (int(zone_hour) * 60 + int(zone_minute or 0)) * 60 if sign else 0
    micros = _micros(local) + (int(fraction[:6].ljust(6, "0")) if fraction else 0)
    return micros + (offset_s if sign == "-" else -offset_s) * 1_000_000


def _timestamp_from_datetime(value: dt.datetime) -> int:
    if value.tzinfo is None or value.utcoffset() is None:
        raise RefusedValue(value, "is a timestamp without a zone")
    # A field at a time: a pandas Timestamp is a datetime whose arithmetic gives pandas' own types.
    local = dt.datetime(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return _micros(local) - _micros(EPOCH + (value.utcoffset() or dt.timedelta()))


def _micros(moment: dt.datetime) -> int:
    since = moment - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def take_binary(value: Value) -> bytes:
    """Bytes, or their base64 text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, str):
        raise RefusedValue(value, "is not binary (bytes, or base64 text)")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedValue(value, f"is not base64 text: {error}") from None


def _decimal_rule(type_: Decimal) -> Rule:
    unit = decimal.Decimal((0, (1,), -type_.scale))

    def take_decimal(value: Value) -> decimal.Decimal:
        number = _decimal_from(value)
        try:
            fixed = number.quantize(unit, context=_EXACT)
        except decimal.Inexact:
            raise RefusedValue(value, f"has more than {type_.scale} digits after the point") from None
        except decimal.InvalidOperation:
            raise RefusedValue(value, f"does not fit {type_text(type_)}") from None
        if fixed and fixed.adjusted() >= type_.precision - type_.scale:
            raise RefusedValue(value, f"does not fit {type_text(type_)}")
        return fixed

    return take_decimal


def _decimal_from(value: Value) -> decimal.Decimal:
    if isinstance(value, float):
        raise RefusedValue(value, "is a float, which is not exact: write a decimal as text")
    if isinstance(value, bool) or not isinstance(value, (decimal.Decimal, int, str)):
        raise RefusedValue(value, "is not a decimal")
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise RefusedValue(value, "is not a decimal")
    number = decimal.Decimal(value)
    if not number.is_finite():
        raise RefusedValue(value, "is not a finite number")
    return number


def take_json(value: Value) -> str:
    """Any value that JSON can say, as compact text."""
    try:
        text = orjson.dumps(value, option=_JSON_OPTIONS)
    except (TypeError, RecursionError) as error:
        raise RefusedValue(value, f"is not a JSON value: {error}") from None
    if b"null" in text and _has_infinite(value):
        raise RefusedValue(value, "is not a JSON value: it has a number that is not finite")
    return text.decode()


def _has_infinite(value: Value) -> bool:
    """Whether NaN or an infinity is in there somewhere: orjson writes them as null."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, float):
        return not math.isfinite(value)
    inside: Iterable[Value] = value.values() if isinstance(value, dict) else value
    return isinstance(value, (dict, list, tuple)) and any(map(_has_infinite, inside))


def take_json_text(value: Value) -> str | None:
    """JSON text, kept as it is. The text `null` is null, as the value None is."""
    if not isinstance(value, str):
        raise RefusedValue(value, "is not JSON text")
    try:
        return None if parsed(value.encode()) is None else value
    except ValueError as error:
        raise RefusedValue(value, f"is not JSON text: {json_fault(value.encode(errors='replace'), error)}") from None


def _list_rule(element: Rule) -> Rule:
    def take_list(value: Value) -> list[Value]:
        if not isinstance(value, (list, tuple)):
            raise RefusedValue(value, "is not a list")
        return [_inside(element, item, f"[{i}]") for i, item in enumerate(value)]

    return take_list


def _struct_rule(fields: tuple[Column, ...], json_text: bool) -> Rule:
    rules = {field.name: rule_for(field.type, field.nullable, json_text=json_text) for field in fields}

    def take_struct(value: Value) -> dict[str, Value]:
        if not isinstance(value, Mapping):
            raise RefusedValue(value, "is not a struct")
        for name in value:
            if name not in rules:
                raise RefusedValue(value[name], f"no such field. {nearest(str(name), rules)}", f".{name}")
        return {name: _inside(rule, value.get(name), f".{name}") for name, rule in rules.items()}

    return take_struct


def _map_rule(key_rule: Rule, value_rule: Rule) -> Rule:
    def take_map(value: Value) -> list[tuple[Value, Value]]:
        taken: dict[Value, Value] = {}
        for key, item in _pairs(value):
            step = f"[{shown(key)}]"
            taken_key = _inside(key_rule, key, step)
            if taken_key in taken:
                raise RefusedValue(key, "is a key that occurs twice", step)
            taken[taken_key] = _inside(value_rule, item, step)
        return list(taken.items())

    return take_map


def _pairs(value: Value) -> Iterable[tuple[Value, Value]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)) and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in value):
        return [(pair[0], pair[1]) for pair in value]
    raise RefusedValue(value, "is not a map (an object, or a list of pairs)")


def _inside(rule: Rule, value: Value, step: str) -> Value:
    try:
        return rule(value)
    except RefusedValue as refused:
        raise refused.under(step) from None


def shown(value: object) -> str:
    """A value as an error shows it: `null`, or its repr, cut to 80 characters."""
    if value is None:
        return "null"
    if isinstance(value, (str, bytes)):
        value = value[:100]
    try:
        text = repr(value)
    except RecursionError:  # deeper than Python prints, and not than a parser reads
        return f"a {type(value).__name__} with lists or objects inside each other, hundreds of times"
    return text if len(text) <= 80 else text[:79] + "…"


_PRIMITIVE_RULES: dict[str, Rule] = {
    "string": take_string,
    "long": _integer_rule("long"),
    "int": _integer_rule("int"),
    "double": take_double,
    "float": take_float,
    "boolean": take_boolean,
    "date": take_date,
    "timestamp": take_timestamp,
    "binary": take_binary,
}
