"""Documents that come from JSON or go to it, as types.

`object` stands for what is handed on without a look, `Json` for what is read key by key, and a class where the keys are
ours. They can't be written through, so a `dict[str, int]` is a `JsonObject` as it is; a function that makes a document
for its caller to fill says `dict[str, Json]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""A JSON value."""

JsonObject: TypeAlias = Mapping[str, Json]
"""A JSON object."""
