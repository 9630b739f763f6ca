"""Whether two values are the same where that decides a change, as SQL.

DuckDB's comparisons call 0.0 and -0.0 equal, so a row in which one became the other would look unchanged. Here they
differ, wherever in a value they are; a NaN is the same as any other, and a null as a null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def same(left: str, other: str, type_: pa.DataType) -> str:
    """The condition for two expressions of a type to have the same value; it is never null."""
    import pyarrow.types as kinds

    equal = f"{left} IS NOT DISTINCT FROM {other}"
    if kinds.is_floating(type_):
        return f"({equal} AND ({left} IS NULL OR {left} <> 0 OR signbit({left}) = signbit({other})))"
    if _has_floats(type_):
        # Of equal values the texts differ by the signs of zeros, and by those of NaNs, which say nothing.
        return f"({equal} AND {_text(left)} IS NOT DISTINCT FROM {_text(other)})"
    return f"({equal})"


def differ(left: str, other: str, type_: pa.DataType) -> str:
    """The condition for two expressions of a type to have different values; it is never null."""
    return f"(NOT {same(left, other, type_)})"


def _text(value: str) -> str:
    return f"replace(({value})::VARCHAR, '-nan', 'nan')"


def _has_floats(type_: pa.DataType) -> bool:
    import pyarrow.types as kinds

    if kinds.is_map(type_):
        return _has_floats(type_.key_type) or _has_floats(type_.item_type)
    if kinds.is_struct(type_) or kinds.is_list(type_) or kinds.is_large_list(type_):
        return any(_has_floats(type_.field(place).type) for place in range(type_.num_fields))
    return bool(kinds.is_floating(type_))
