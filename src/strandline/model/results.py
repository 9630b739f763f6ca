"""How a result says which of its fields are left out of a document when they have nothing to say.

A service answers with a frozen dataclass, and its fields are the keys of the `--json` document. Most keys are always
there; a script that asks for one of the others has to look whether it is.
"""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

_OPTIONAL = "optional"


def optional() -> Any:
    """A field whose key is in the document only where it has a value: not where it is None."""
    return field(default=None, metadata={_OPTIONAL: True})


def is_optional(result_field: Field[object]) -> bool:
    """Whether a field was declared so."""
    return _OPTIONAL in result_field.metadata


def key_of(result_field: Field[object]) -> str:
    """The key of a field: its name, without the underscore behind a word that Python keeps for itself (`from_`)."""
    return result_field.name.removesuffix("_")
