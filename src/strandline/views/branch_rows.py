"""Rows of a branch, to judge a change by: found by their keys, and by the values of other columns.

What is looked up may be a little newer than where the change starts from. That does no harm: everything that was asked
for is remembered, and the transaction that stores the change compares it with what was committed since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.errors import NotFound, SchemaMoved
from strandline.ledger.history.starting_points import Base, HeadNow, read_base
from strandline.ledger.ledger import Ledger
from strandline.ledger.tables.tables import read_shown
from strandline.model.schema.declarations import Declarations
from strandline.model.schema.keys import key_hash
from strandline.model.tables import BranchTable
from strandline.model.values.arrow import batch_arrow
from strandline.model.values.row_versions import Keys, ValueHolder, Version
from strandline.model.values.user_rows import Value
from strandline.views.versions import NewestVersions, read_versions, row_at
from strandline.views.view import View

if TYPE_CHECKING:
    from strandline.engines.spark.iceberg import Iceberg


class Looking:
    """A branch, and what was asked of it so far: by table id. Tables that are `coming` have no rows there yet."""

    def __init__(self, ledger: Ledger, branch: str, versions: NewestVersions, coming: Collection[str] = ()) -> None:
        self._ledger = ledger
        self._coming = coming
        self._branch = branch
        self.base = versions.base
        self.heads: dict[str, HeadNow] = dict(versions.base.heads)
        self.asked: dict[str, dict[bytes, None]] = {}
        self._newest: dict[str, dict[bytes, Version]] = {}
        self._take(versions)

    def get(self, table_id: str, key: bytes) -> Version | None:
        """The newest version of a key that was asked for; None where there never was one."""
        return self._newest.get(table_id, {}).get(key)

    def ask(self, branch_table: BranchTable, keys: Keys) -> None:
        """Look up the newest versions of these keys; `get` then has them."""
        looked_up = self.asked.setdefault(branch_table.table.table_id, {})
        unknown = {hash_: key for hash_, key in keys.items() if hash_ not in looked_up}
        if unknown or branch_table.table.table_id not in self.heads:
            self._take(read_versions(self._ledger, self._branch, [(branch_table, unknown)]))
            looked_up.update(dict.fromkeys(unknown))

    def having(
        self, branch_table: BranchTable, columns: Sequence[str], values: Sequence[tuple[Value, ...]] | None
    ) -> list[ValueHolder]:
        """The current rows with one of these values in these columns, or with None all rows.

        It reads these columns of this one table, whatever the size of the others.
        """
        if branch_table.table.table_id in self._coming:
            return []
        self.ask(branch_table, {})  # its head first: what changes after that is noticed
        shape = batch_arrow(branch_table.schema, branch_table.table)
        rows = None
        if values is not None:
            types = [shape.field(name).type for name in columns]
            parts = [pa.array(column, type_) for column, type_ in zip(zip(*values, strict=True), types, strict=True)]
            rows = pa.Table.from_arrays(parts, names=list(columns))
        names = list(dict.fromkeys([*branch_table.table.key, *columns]))
        try:
            view = View(self._ledger, self._branch, _no_spark, only=[branch_table.table.name])
        except NotFound as error:  # it was dropped meanwhile
            raise SchemaMoved(f"the schema of {branch_table.table.name!r} has changed") from error
        if view.branch_table(branch_table.table.name).head.schema_version != branch_table.head.schema_version:
            raise SchemaMoved(f"the schema of {branch_table.table.name!r} has changed")
        view = view.under({branch_table.table.table_id: branch_table.schema})  # a merge may bring another one
        key_types = pa.schema([pa.field(name, shape.field(name).type) for name in names])
        holders: list[ValueHolder] = []
        for batch in view.having(branch_table.table.name, names, rows).cast(key_types).to_batches():
            keys = zip(*(batch.column(name).to_pylist() for name in branch_table.table.key), strict=True)
            had = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            for place, (key, value) in enumerate(zip(keys, had, strict=True)):
                holders.append(ValueHolder(value, key_hash(key), row_at(batch, place, branch_table.table.key)))
        return holders

    def _take(self, versions: NewestVersions) -> None:
        if versions.base.branch_id != self.base.branch_id:
            raise SchemaMoved(f"branch {self._branch!r} was made anew")
        for table_id, head in versions.base.heads.items():
            self.heads.setdefault(table_id, head)
        for table_id, newest in versions.newest.items():
            self._newest.setdefault(table_id, {}).update(newest)


def read_declared(ledger: Ledger, branch: str) -> Declarations:
    """What the tables of a branch declare, as it is now."""
    with ledger.read() as conn:
        base: Base = read_base(conn, branch, [])
        return Declarations.of(base.branch_id, base.shape, read_shown(conn, branch, tails=False))


def _no_spark() -> Iceberg:
    raise AssertionError("rows are looked up without Spark")
