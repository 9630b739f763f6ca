"""What users hand in and get back: their rows and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Value: TypeAlias = Any
"""A value of a user's row, in Python.

A table's schema says what it is, and a table is made while the program runs: no type checker can know. Whatever a
caller hands in, the rules of `model.values.values` judge it; what a reader gets back is for the caller to know.
Signatures that mean something else than users' values don't say `Any`.
"""

UserRow: TypeAlias = Mapping[str, Value]
"""A user's row, or some of its fields: values by column."""
