"""Whether a table can be made as it is described: the same rules for one by itself and for those of a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.errors import BadRequest
from strandline.ledger.tables import check_name
from strandline.model.keys import check_key
from strandline.model.partitions import check_partition_columns
from strandline.model.row_rules import Target, check_constraints
from strandline.model.schema import Schema


def check_new(
    name: str,
    schema: Schema,
    *,
    key: Sequence[str] = (),
    row_key: Sequence[str] = (),
    partition_by: Sequence[str] = (),
    dedupe: str = "table",
    target_of: Callable[[str], Target],
) -> None:
    """BadRequest unless there can be such a table; `target_of` finds what its references name."""
    check_name(name)
    for column in row_key:
        schema.column(column)
    check_partition_columns(schema, partition_by)
    if key:
        check_key(schema, key, partition_by)
        if row_key:
            raise BadRequest("a table has a key or a row key, not both", hint="A keyed table has no duplicates.")
    if dedupe not in ("table", "partition"):
        raise BadRequest(f"dedupe is {dedupe!r}", hint="It is 'table' or 'partition'.")
    if dedupe == "partition" and not partition_by:
        raise BadRequest("dedupe='partition' needs partition_by", hint="Name the partition columns, or use 'table'.")

    def target(table: str) -> Target:
        return Target(name, tuple(key), schema) if table.lower() == name.lower() else target_of(table)

    check_constraints(schema, key, target)
