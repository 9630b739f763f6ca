"""What `--json` and HTTP print of a result: the one place where results become plain values.

A result is a frozen dataclass, and its fields are the keys of its document, in their order. Rows and values of users
stay as they are: how a timestamp or a decimal looks in JSON is decided where the bytes are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from strandline.model.results import is_optional, key_of


def document(result: object) -> object:
    """A result, or several, as plain values: dicts, lists, and what users' rows hold."""
    if is_dataclass(result) and not isinstance(result, type):
        values = [(result_field, getattr(result, result_field.name)) for result_field in fields(result)]
        return {
            key_of(result_field): document(value)
            for result_field, value in values
            if value is not None or not is_optional(result_field)
        }
    if isinstance(result, Mapping):
        return {key: document(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [document(value) for value in result]
    return result
