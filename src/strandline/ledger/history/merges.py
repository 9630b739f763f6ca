"""What a large merge takes from its source besides rows, as data: another process may publish it than planned it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection, select

from strandline.errors import TableMoved
from strandline.ledger.changes.mutations import Brought, MergeSource, Mutation, bring, source_moved
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Effect, Intent, Publishing
from strandline.ledger.tables.adoption import Adoption
from strandline.model.schema.types import Column


@dataclass(frozen=True)
class TakeMerge(Effect):
    """The tables and schemas that come with a large merge, from the branch `branch_id` as it was at its `tip`.

    `base` and `shape` are the target's last commit and that of its tables when it was planned. Its own rows begin at
    `first_seq`; None where it was staged by ledger format 1.
    """

    base: int
    shape: int | None
    branch_id: str
    tip: str
    adopted: tuple[Adoption, ...]
    schemas: Mapping[str, Brought]
    barriers: Mapping[str, int]
    first_seq: int | None = None

    @classmethod
    def of(cls, mutation: Mutation, first_seq: int) -> TakeMerge:
        """What the publish has to know of a merge, whose own rows begin at a seq."""
        source = mutation.source
        assert source is not None, "a merge has a source"
        return cls(
            mutation.base,
            mutation.shape,
            source.branch_id,
            source.tip,
            source.adopted,
            source.schemas,
            source.barriers,
            first_seq,
        )

    @property
    def source(self) -> MergeSource:
        """The branch that it takes from."""
        return MergeSource(self.branch_id, self.tip, self.adopted, self.schemas, self.barriers)

    def check(self, conn: Connection, intent: Intent) -> None:
        """No table of the branch was made or changed since it was planned, and the source is the same.

        The rows that it depends on are held.
        """
        branch = db.branches.c
        shape = conn.execute(select(branch.shape).where(branch.branch_id == intent.branch_id)).scalar_one()
        moved = source_moved(conn, intent.branch_id, self.base, self.source, still=False)
        if shape != self.shape or moved is not None:
            raise TableMoved(
                "a branch was changed while it was merged",
                hint="Nothing was changed. Try again.",
                expected=self.shape,
                actual=shape,
            )

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Give the branch the tables and schemas, known by the merge's commit."""
        intent, source, number = publishing.intent, self.source, publishing.number
        first_seq = self.first_seq
        if first_seq is None:
            first_seq = number
            carried = {table_id: _carried(brought, number) for table_id, brought in source.schemas.items()}
            source = replace(source, schemas=carried)
        bring(txn, intent.branch_id, intent.actor, source, number, first_seq)


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
