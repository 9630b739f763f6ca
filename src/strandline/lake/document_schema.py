"""JSON Schema of documents, made from the result classes that `documents.document` prints.

A program that reads `--json` learns from it which keys there are, which may be missing and which may be null. Users'
rows and values have no schema here: a table's own columns say what they hold.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from strandline.json_types import Json, JsonObject
from strandline.model.results import is_optional, key_of

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
WARNINGS: JsonObject = {"type": "array", "items": {"type": "string"}}


class Definitions:
    """The classes that schemas refer to, each described once under its name."""

    def __init__(self) -> None:
        self.schemas: dict[str, dict[str, Json]] = {}
        self._classes: dict[str, type] = {}

    def schema_of(self, kind: object) -> dict[str, Json]:
        """The schema of what `document` makes of a value of a type."""
        origin, arguments = get_origin(kind), get_args(kind)
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if kind is Any or kind is object:
            return {}
        if is_dataclass(kind) and isinstance(kind, type):
            return self._reference(kind)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return _either([self.schema_of(argument) for argument in arguments])
        if origin in (list, Sequence) or (origin is tuple and arguments[1:] == (...,)):
            return {"type": "array", "items": self.schema_of(arguments[0])}
        if origin is tuple:
            items = [self.schema_of(argument) for argument in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.schema_of(arguments[1])}
        raise TypeError(f"a document can't hold {kind!r}: say what it is in the result's class")

    def _reference(self, kind: type) -> dict[str, Json]:
        name = kind.__name__
        if self._classes.setdefault(name, kind) is not kind:
            raise TypeError(f"two classes of results are called {name}: {kind} and {self._classes[name]}")
        if name not in self.schemas:
            self.schemas[name] = {}  # one that holds itself refers to it
            self.schemas[name] = self._described(kind)
        return {"$ref": f"#/$defs/{name}", "unevaluatedProperties": False}

    def _described(self, kind: Any) -> dict[str, Json]:
        hints = get_type_hints(kind)
        properties: dict[str, Json] = {}
        required = []
        for result_field in fields(kind):
            schema = self.schema_of(hints[result_field.name])
            if is_optional(result_field):
                schema = _without_null(schema)
            else:
                required.append(key_of(result_field))
            properties[key_of(result_field)] = schema
        text = " ".join((kind.__doc__ or "").split())
        return {"description": text, "type": "object", "properties": properties, "required": required}

    def answer(self, kind: object) -> dict[str, Json]:
        """The schema of a command's document: an object may also have the warnings of that run."""
        if get_origin(kind) in (Union, types.UnionType):
            return _either([self.answer(argument) for argument in get_args(kind)])
        schema = self.schema_of(kind)
        return {**schema, "properties": {"warnings": WARNINGS}} if "$ref" in schema else schema


def _either(schemas: Sequence[dict[str, Json]]) -> dict[str, Json]:
    """One of these; of plain types the short form."""
    if all(schema.keys() == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": list(schemas)}


def _without_null(schema: dict[str, Json]) -> dict[str, Json]:
    """A key that is there has a value."""
    names, parts = schema.get("type"), schema.get("anyOf")
    if isinstance(names, list):
        left = [name for name in names if name != "null"]
        return {"type": left[0] if len(left) == 1 else left}
    if isinstance(parts, list):
        left = [part for part in parts if part != {"type": "null"}]
        return left[0] if len(left) == 1 else {"anyOf": left}
    return schema
