"""What a large merge takes from its source besides rows, as data: who publishes it may not be who planned it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, select

from strandline.errors import TableMoved
from strandline.ledger import schema as db
from strandline.ledger.adoption import Adoption
from strandline.ledger.ledger import Txn
from strandline.ledger.mutations import Brought, Mutation, Source, bring, source_moved
from strandline.model.schema import from_json
from strandline.model.types import Column


def stored(mutation: Mutation, first_seq: int) -> dict[str, Any]:
    """What the publish has to know of a merge, whose own rows begin at a seq."""
    source = mutation.source
    assert source is not None, "a merge has a source"
    return {
        "base": mutation.base,
        "first_seq": first_seq,
        "shape": mutation.shape,
        "branch_id": source.branch_id,
        "tip": source.tip,
        "adopted": [asdict(one) for one in source.adopted],
        "schemas": {
            table_id: {"table": one.table, "schema": one.schema.to_json(), "version": one.version}
            for table_id, one in source.schemas.items()
        },
        "barriers": dict(source.barriers),
    }


def check(conn: Connection, branch_id: str, merge: Mapping[str, Any]) -> None:
    """Conflict where tables of the branch were made or changed since it was planned, or the source is another.

    The rows that it depends on are held.
    """
    shape = conn.execute(select(db.branches.c.shape).where(db.branches.c.branch_id == branch_id)).scalar_one()
    moved = source_moved(conn, branch_id, merge["base"], _source(merge), still=False)
    if shape != merge["shape"] or moved is not None:
        raise TableMoved(
            "a branch was changed while it was merged",
            hint="Nothing was changed. Try again.",
            expected=merge["shape"],
            actual=shape,
        )


def bring_stored(txn: Txn, branch_id: str, actor: str, merge: Mapping[str, Any], number: int) -> None:
    """Give the branch the tables and schemas that come with the merge of this number."""
    source = _source(merge)
    if "first_seq" not in merge:  # it was staged by format 1
        source = replace(source, schemas={at: _carried(one, number) for at, one in source.schemas.items()})
    bring(txn, branch_id, actor, source, number, merge.get("first_seq", number))


def _carried(brought: Brought, number: int) -> Brought:
    """A schema as format 1 brought it: where a column is required and has a default, all rows of the branch have that.

    Its rows were merged under this, and staged.
    """

    def carried(column: Column) -> Column:
        if column.nullable or not column.fills:
            return column
        *older, newest = column.fills
        return replace(column, fills=(*older, replace(newest, below=number)))

    schema = replace(brought.schema, columns=tuple(map(carried, brought.schema.columns)))
    return replace(brought, schema=schema, version=brought.version if schema == brought.schema else None)


def _source(merge: Mapping[str, Any]) -> Source:
    return Source(
        merge["branch_id"],
        merge["tip"],
        tuple(Adoption(**one) for one in merge["adopted"]),
        {
            table_id: Brought(one["table"], from_json(one["schema"]), one["version"])
            for table_id, one in merge["schemas"].items()
        },
        merge["barriers"],
    )
