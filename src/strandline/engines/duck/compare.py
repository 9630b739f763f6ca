"""Rows compared, as queries: between two points, and from one version of a row to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.engines.duck.equality import differ
from strandline.engines.duck.sandbox import quote_name, quote_text, scratch
from strandline.model.schema.types import REMOVED, SEQ

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS, WAS, IS, EARLIER = "strand_fields", "strand_was", "strand_is", "strand_earlier_"
"""The fields that differ; whether the row was there before, and is there after; the columns of the version before."""


def differences(before: pa.Table, after: pa.Table, key: Sequence[str], values: Sequence[str]) -> pa.Table:
    """The keys of the rows that are not the same in two tables, in their order, and what differs."""
    using = f"USING ({', '.join(map(quote_name, key))})"
    first = quote_name(key[0])
    pairs = [(f"b.{quote_name(name)}", f"a.{quote_name(name)}", name) for name in values]
    differs = [differ(left, other, after.schema.field(name).type) for left, other, name in pairs]
    named = ", ".join(
        f"CASE WHEN {text} THEN {quote_text(pair[2])} END" for text, pair in zip(differs, pairs, strict=True)
    )
    listed = f"list_filter([{named}], lambda field: field IS NOT NULL)" if pairs else "[]::VARCHAR[]"
    condition = " OR ".join([f"b.{first} IS NULL", f"a.{first} IS NULL", *differs])
    keys = ", ".join(map(quote_name, key))
    query = (
        f"SELECT {keys}, {listed} AS {FIELDS} FROM strand_before b FULL JOIN strand_after a {using} "
        f"WHERE {condition} ORDER BY {keys}"
    )
    with scratch() as connection:
        connection.register("strand_before", before)
        connection.register("strand_after", after)
        return connection.sql(query).to_arrow_table()


def with_earlier(rows: str, key: Sequence[str], columns: Sequence[str], since: int, until: int) -> str:
    """Versions of `(since, until]` in their order, each with the columns of the version before it of the same row.

    `rows` are all versions of these rows, up to the last seq that matters.
    """
    window = f"OVER (PARTITION BY {', '.join(map(quote_name, key))} ORDER BY {SEQ})"
    earlier = ", ".join(f"lag({quote_name(name)}) {window} AS {quote_name(EARLIER + name)}" for name in columns)
    existence = f"coalesce(NOT lag({REMOVED}) {window}, false) AS {WAS}, NOT {REMOVED} AS {IS}"
    paired = f"SELECT *, {earlier}, {existence} FROM ({rows})"
    return f"SELECT * FROM ({paired}) WHERE {SEQ} > {since} AND {SEQ} <= {until} ORDER BY {SEQ}"
