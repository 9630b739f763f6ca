"""Our types in other systems' words: Iceberg's JSON, Spark SQL. Arrow's are in `arrow`.

Types come in from data that another program wrote. A type is taken only when every one of its values fits ours, so that
what was validated once can't fail later in Spark; a type that does not fit is refused with what to use instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from strandline.errors import BadRequest, nearest
from strandline.model.schema.types import MAX_DEPTH, Column, Decimal, List, Map, Primitive, Struct, Type, type_text

_SPARK = {"long": "bigint", "json": "string"}

_ICEBERG = ("boolean", "int", "long", "float", "double", "date", "timestamptz", "string", "binary")
_ICEBERG_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)")
_ICEBERG_HINTS = {
    "timestamp": "A timestamp here has no zone; use timestamptz, which is stored in UTC.",
    "timestamp_ns": "Use timestamptz: microseconds, with a zone.",
    "timestamptz_ns": "Use timestamptz: microseconds, with a zone.",
    "uuid": "Use string.",
    "time": "Use string.",
    "variant": "Use string, and the type json in Strandline's own syntax.",
}


def column_from_iceberg(doc: object, path: str = "", depth: int = 0) -> Column:
    """A column from a field of an Iceberg schema's JSON."""
    if not isinstance(doc, dict) or not isinstance(name := doc.get("name"), str) or "type" not in doc:
        raise BadRequest(f"not a field of an Iceberg schema: {str(doc)[:80]}", hint='A field has "name" and "type".')
    type_ = type_from_iceberg(doc["type"], f"{path}{name}", depth)
    return Column(name, type_, not _required(doc, "required"))


def type_from_iceberg(doc: object, path: str, depth: int = 0) -> Type:
    """A type from an Iceberg schema's JSON: a name, or an object of type list, map or struct."""
    if depth > MAX_DEPTH:
        raise BadRequest("the schema is nested too deeply", hint=f"At most {MAX_DEPTH} levels.")
    if isinstance(doc, str):
        return _iceberg_primitive(doc, path)
    fields_of_type = doc if isinstance(doc, Mapping) else {}
    match fields_of_type:
        case {"type": "list", "element": element}:
            nullable = not _required(fields_of_type, "element-required")
            return List(type_from_iceberg(element, f"{path}[]", depth + 1), nullable)
        case {"type": "map", "key": key, "value": value}:
            key_type = type_from_iceberg(key, f"{path}[]", depth + 1)
            nullable = not _required(fields_of_type, "value-required")
            return Map(key_type, type_from_iceberg(value, f"{path}[]", depth + 1), nullable)
        case {"type": "struct", "fields": [*fields]}:
            return Struct(tuple(column_from_iceberg(field, f"{path}.", depth + 1) for field in fields))
    raise BadRequest(f"field {path!r}: {str(doc)[:80]} is not an Iceberg type", hint=nearest(str(doc), _ICEBERG))


def _required(doc: Mapping[str, object], key: str) -> bool:
    required = doc.get(key, False)
    if not isinstance(required, bool):
        raise BadRequest(f"{key!r} is {required!r} in an Iceberg schema", hint="It is true or false.")
    return required


def _iceberg_primitive(text: str, path: str) -> Type:
    if text == "timestamptz":
        return Primitive("timestamp")
    if text in _ICEBERG:
        return Primitive(text)
    decimal = _ICEBERG_DECIMAL.fullmatch(text)
    if decimal:
        return Decimal(int(decimal[1]), int(decimal[2]))
    hint = "Use binary." if text.startswith("fixed[") else _ICEBERG_HINTS.get(text) or nearest(text, _ICEBERG)
    raise BadRequest(f"field {path!r}: the Iceberg type {text!r} is not supported", hint=hint)


def spark_ddl(type_: Type) -> str:
    """The type as Spark SQL writes it in CREATE TABLE."""
    match type_:
        case Primitive(name):
            return _SPARK.get(name, name)
        case Decimal():
            return type_text(type_)
        case List(element, _):
            return f"array<{spark_ddl(element)}>"
        case Struct(fields):
            return f"struct<{','.join(f'{quoted(field.name)}:{spark_ddl(field.type)}' for field in fields)}>"
        case Map(key, value, _):
            return f"map<{spark_ddl(key)},{spark_ddl(value)}>"


def column_ddl(column: Column) -> str:
    """A column in CREATE TABLE. Without NOT NULL: in Iceberg all columns are optional."""
    return f"{quoted(column.name)} {spark_ddl(column.type)}"


def quoted(name: str) -> str:
    """A name in Spark SQL's backticks."""
    return "`" + name.replace("`", "``") + "`"
