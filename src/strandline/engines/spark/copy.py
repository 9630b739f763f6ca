"""A table in another catalog that units are appended to, each once. It is one of the files that write Iceberg.

Rows are staged on a private branch, where no reader looks. Then one commit moves `main` to that branch and sets the
stream's mark, a property of the table. Iceberg takes the commit only if `main` is still what the branch began at, so of
two writers of one unit the second is refused and finds the mark of the first.

A mark is a property of its own for each place it has reached, and the highest counts. Setting a lower one, as a late
writer may, then changes nothing, although properties have no compare-and-set in every catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from strandline.config import Store
from strandline.engines.spark.classes import JavaObject, each, entries
from strandline.engines.spark.iceberg import MAIN_REF, Iceberg, MissingTable, is_a, sync
from strandline.engines.spark.session import lake_session
from strandline.errors import BadRequest, Busy, Environment, StrandError, of_outage
from strandline.model.schema.engine_types import quoted, spark_ddl
from strandline.model.schema.types import SEQ
from strandline.model.values.arrow import type_from_arrow
from strandline.outages import judge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.column._seq": "full",
    # Every unit makes three metadata files.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # A unit's rows are in seq order and of one partition; a shuffle would only undo that.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    # A partition's value may be longer than a folder's name.
    "write.object-storage.enabled": "true",
    "write.object-storage.partitioned-paths": "false",
}


@dataclass(frozen=True)
class StagedSnapshot:
    """A snapshot on a private branch, and the one of `main` that it was put on."""

    branch: str
    base: int | None
    snapshot: int
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class PropertyChange:
    """Properties that a commit sets and removes, and what must hold of those that are there: `guard` raises if not."""

    set: Mapping[str, str]
    remove: Sequence[str]
    guard: Callable[[Mapping[str, str]], None]


class Copy:
    """The tables of one target catalog, in a session of their own: the catalog's name is part of a JDBC catalog's key,
    so it can't be made up, and the lake's own catalog may have the same.
    """

    def __init__(self, spark: SparkSession, name: str, properties: Mapping[str, str], store: Store) -> None:
        """`store` is where staged files are; the catalog's own is in its properties."""
        self._where = f"the catalog {name!r} at {properties.get('uri', '?').partition('?')[0]}"
        self.session = lake_session(spark, properties, name, store)
        with self._telling():
            self._iceberg = Iceberg(self.session, properties, name)

    def reach(self, namespace: str) -> None:
        """Ask the catalog something, and make sure of the namespace: what is wrong is raised."""
        with self._telling():
            self._iceberg.ensure_namespace(namespace)

    def tables(self, namespace: str) -> list[str]:
        """The tables of a namespace."""
        with self._telling():
            return self._iceberg.tables(namespace)

    def properties(self, table: str) -> dict[str, str] | None:
        """A table's properties; None when there is no such table."""
        with self._telling():
            try:
                return _properties(self._iceberg.load(table))
            except MissingTable:
                return None

    def is_empty(self, table: str) -> bool:
        """Whether a table has never had rows."""
        with self._telling():
            return self._iceberg.load(table).currentSnapshot() is None

    def create(self, table: str, schema: pa.Schema, partition_by: Sequence[str], owner: Mapping[str, str]) -> None:
        """Create the table unless it is there."""
        self.reach(table.rpartition(".")[0])
        by = f"PARTITIONED BY ({', '.join(quoted(column) for column in partition_by)})" if partition_by else ""
        properties = ", ".join(f"'{key}'='{value}'" for key, value in {**TABLE_PROPERTIES, **owner}.items())
        with self._telling():
            self.session.sql(
                f"CREATE TABLE IF NOT EXISTS {self._full(table)} ({_ddl(schema)}) USING iceberg {by} "
                f"TBLPROPERTIES ({properties})"
            )

    def set_properties(self, table: str, properties: Mapping[str, str]) -> None:
        """Set properties of a table, in a commit of their own."""
        with self._telling():
            update = self._iceberg.load(table).updateProperties()
            for key, value in properties.items():
                update = update.set(key, value)
            update.commit()

    def evolve(self, table: str, schema: pa.Schema) -> None:
        """Add what the table lacks and widen what is too narrow; nothing is removed, and nothing renamed."""
        java = self._iceberg.java
        target = java.org.apache.iceberg.spark.SparkSchemaUtil.convert(
            java.org.apache.spark.sql.types.StructType.fromDDL(_ddl(schema))
        )
        with self._telling():
            loaded = self._iceberg.load(table)
            update = loaded.updateSchema().unionByNameWith(target)
            if not update.apply().sameSchema(loaded.schema()):
                update.commit()

    def drop_branches(self, table: str, prefix: str) -> None:
        """Drop the private branches that dead writers of a stream left, and those of live ones that are late."""
        with self._telling():
            java = self._iceberg.load(table)
            for branch in [ref for ref, _ in entries(java.refs()) if ref.startswith(prefix)]:
                try:
                    self._iceberg.load(table).manageSnapshots().removeBranch(branch).commit()
                except Py4JJavaError as error:
                    # Gone already, or another commit came between: the next shipment tries again.
                    if not (is_a(error, "CommitFailedException") or is_a(error, "IllegalArgumentException")):
                        raise

    def branch(self, table: str, branch: str) -> int | None:
        """Make a private branch at `main` as it is now, and return which snapshot that is."""
        with self._telling():
            for _ in range(20):
                java = self._iceberg.load(table)
                manage = java.manageSnapshots()  # this call takes the metadata that the commit will insist on
                main = java.snapshot(MAIN_REF)
                base = None if main is None else int(main.snapshotId())
                made = manage.createBranch(branch) if base is None else manage.createBranch(branch, base)
                try:
                    made.commit()
                    return base
                except Py4JJavaError as error:
                    if not is_a(error, "CommitFailedException"):
                        raise
        raise Busy(f"{self._where}: the refs of {table} keep moving", reason="contention")

    def rows_between(self, table: str, since: int, until: int) -> pa.Table:
        """The rows that a table has with seqs in a range."""
        with self._telling():
            rows = self.session.table(self._full(table))
            return rows.where(f"`{SEQ}` > {since} AND `{SEQ}` <= {until}").toArrow()

    def append(
        self,
        table: str,
        path: str,
        schema: pa.Schema,
        branch: str,
        base: int | None,
        delivery: str,
        without: Sequence[int] = (),
    ) -> StagedSnapshot:
        """Append a Parquet file's rows, but for those with these seqs, to a private branch.

        They are on the disk when this returns.
        """
        with self._telling():
            rows = self._shaped(table, path, schema)
            if without:
                present = self.session.createDataFrame([(seq,) for seq in without], f"`{SEQ}` long")
                rows = rows.join(present.hint("broadcast"), SEQ, "left_anti").select(*rows.columns)
            (
                rows.writeTo(f"{self._full(table)}.{quoted(f'branch_{branch}')}")
                .option("snapshot-property.strand-delivery", delivery)
                .option("use-table-distribution-and-ordering", "false")
                .option("fanout-enabled", "true")
                .append()
            )
            java = self._iceberg.load(table)
            snapshot = java.snapshot(branch)
            files = list(each(snapshot.addedDataFiles(java.io())))
            manifests = [
                manifest
                for manifest in each(snapshot.allManifests(java.io()))
                if manifest.snapshotId() == snapshot.snapshotId()
            ]
            sync([str(file.location()) for file in files] + [str(manifest.path()) for manifest in manifests])
            sync([str(snapshot.manifestListLocation())])
            return StagedSnapshot(
                branch=branch,
                base=base,
                snapshot=int(snapshot.snapshotId()),
                rows=sum(int(file.recordCount()) for file in files),
                size_bytes=sum(int(file.fileSizeInBytes()) for file in files),
            )

    def _shaped(self, table: str, path: str, schema: pa.Schema) -> DataFrame:
        """The staged rows with the target's columns in its order; those that the rows lack are null."""
        from pyspark.sql import functions as sf

        rows = self.session.read.schema(_ddl(schema)).option("__globPaths__", "false").parquet(path)
        names = {name.lower(): name for name in schema.names}
        return rows.select(
            *[
                sf.col(quoted(names[field.name.lower()])).alias(field.name)
                if field.name.lower() in names
                else sf.lit(None).cast(field.dataType).alias(field.name)
                for field in self.session.table(self._full(table)).schema.fields
            ]
        )

    def commit(self, table: str, staged: StagedSnapshot | None, change: PropertyChange) -> bool:
        """Move `main` to what was staged, and the properties with it, in one commit. False: start over."""
        with self._telling():
            transaction = self._iceberg.load(table).newTransaction()
            now = transaction.table()  # what the commit insists on, and so what has to be looked at
            change.guard(_properties(now))
            update = transaction.updateProperties()
            for key, value in change.set.items():
                update = update.set(key, value)
            for key in change.remove:
                update = update.remove(key)
            update.commit()
            if staged is not None:
                main, tip = now.snapshot(MAIN_REF), now.snapshot(staged.branch)
                base = None if main is None else int(main.snapshotId())
                if base != staged.base or tip is None or int(tip.snapshotId()) != staged.snapshot:
                    return False
                manage = transaction.manageSnapshots()
                moved = (
                    manage.createBranch(MAIN_REF, staged.snapshot)
                    if base is None
                    else manage.fastForwardBranch(MAIN_REF, staged.branch)
                )
                moved.removeBranch(staged.branch).commit()
            try:
                transaction.commitTransaction()
            except Py4JJavaError as error:
                # Refused, or unknown: what is there decides, and that is looked at again.
                if is_a(error, "CommitFailedException") or is_a(error, "CommitStateUnknownException"):
                    return False
                raise
            sync([str(self._iceberg.load(table).operations().current().metadataFileLocation())])
        return True

    def _full(self, table: str) -> str:
        return ".".join(quoted(part) for part in (self._iceberg.name, *table.split(".")))

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What Java says about another catalog, in our words."""
        try:
            yield
        except Py4JJavaError as error:
            if (outage := judge(error)) is not None:
                raise of_outage(outage, self._where) from error
            java = error.java_exception
            raise _typed(self._where, java.getClass().getSimpleName(), str(java.getMessage())) from error
        except PySparkException as error:
            if (outage := judge(error)) is not None:
                raise of_outage(outage, self._where) from error
            raise _typed(self._where, type(error).__name__, str(error)) from error


_NOT_ALLOWED = {"NotAuthorizedException", "ForbiddenException", "AccessControlException"}
_WRONG = {"IllegalArgumentException", "ValidationException", "AnalysisException", "IncompatibleSchemaException"}


def _typed(where: str, kind: str, words: str) -> StrandError:
    text = f"{where}: {words[:400]}"
    if kind in _NOT_ALLOWED:
        return Environment(text, hint="Check the credentials among the sink's `catalog.…` settings.")
    if kind in _WRONG:
        return BadRequest(text, hint="Check the sink's settings, and that the target's columns fit the table's.")
    return Busy(
        text, hint="Check the sink's `uri` and the network; delivery goes on when it answers.", reason="catalog"
    )


def _properties(table: JavaObject) -> dict[str, str]:
    return {key: str(value) for key, value in entries(table.properties())}


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{quoted(field.name)} {spark_ddl(type_from_arrow(field.type, field.name))}" for field in schema)
