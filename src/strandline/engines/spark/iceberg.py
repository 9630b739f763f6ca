"""Iceberg tables as operations write them: on private branches, invisible until a pin in the ledger names the snapshot.

This is one of the files in which the lake's Iceberg is written (`stage.py` writes new rows, `maintain.py` rewrites and
removes what is there, `copy.py` writes tables of other catalogs); the other rooms only read.
Everything goes through the table's Java API by py4j: a call is a few milliseconds, where the same procedure in SQL is
a Spark job.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from strandline.engines.spark.classes import JavaObject, JvmName, each, entries, java_of
from strandline.engines.spark.session import CATALOG
from strandline.errors import Damaged, of_outage
from strandline.model.schema.engine_types import spark_ddl
from strandline.model.schema.types import AT, SEQ, Column, List, Map, Struct
from strandline.model.tables import DataFile
from strandline.model.values.rows import partition_text
from strandline.outages import judge

if TYPE_CHECKING:
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import SparkSession

MAIN_REF = "main"
DAY_US = 24 * 3600 * 1_000_000
SETTLE_ATTEMPTS = 20
BUILD_ATTEMPTS = 5
BUILD_PAUSE_S = 0.2
TABLE_PROPERTIES = {
    "format-version": "2",
    # Our pins are not refs, so no other program's default expiry may remove what they point at.
    "history.expire.max-snapshot-age-ms": str(100 * 365 * 24 * 3600 * 1000),
    # Every operation makes three metadata files.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.column._seq": "full",
    "commit.manifest.min-count-to-merge": "20",
    # A task's rows are in seq order already; a shuffle would only undo that.
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    # Without the partition's value in a path: one of 300 characters, or two that differ in case, make no good folders.
    "write.object-storage.enabled": "true",
    "write.object-storage.partitioned-paths": "false",
}

STATE_PROPERTIES = {
    # A state is looked into for single keys: such a look reads a group of rows, and not a file.
    "write.parquet.row-group-size-bytes": str(2 << 20),
}

FILTER_PROPERTIES = {
    # As large as the values of a group of rows need, instead of always as large as it may become.
    "write.parquet.bloom-filter-adaptive-enabled": "true",
    "write.parquet.bloom-filter-max-bytes": str(256 << 10),
}
FILTER = "write.parquet.bloom-filter-enabled.column."


class MissingTable(Exception):
    """The catalog has no such table."""


@dataclass(frozen=True)
class RefReport:
    """What settling found: the ref's snapshot before and after, and whose it was when it was not ours."""

    before: int | None
    after: int | None
    foreign: int | None = None
    missing_pin: int | None = None


class Iceberg:
    """The Iceberg tables of one catalog: the lake's own, or by another name the one that a sink copies to."""

    def __init__(self, session: SparkSession, catalog: Mapping[str, str], name: str = CATALOG) -> None:
        self.session = session
        self.name = name
        self.jvm = cast(JavaObject, session._jvm)
        self.java = java_of(self.jvm)
        # A catalog of our own beside the session's: a session is found through a thread's state, a catalog is just
        # held.
        self._catalog: JavaObject = self._build(catalog)

    def _build(self, catalog: Mapping[str, str]) -> JavaObject:
        """The catalog. Its first user makes its tables, and one that comes at the same moment has to try again."""
        from py4j.protocol import Py4JJavaError

        context: JavaObject = cast(JavaObject, self.session)._jsparkSession.sparkContext()
        for left in reversed(range(BUILD_ATTEMPTS)):
            try:
                return self.java.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
                    self.name, self.java.java.util.HashMap(dict(catalog)), context.hadoopConfiguration()
                )
            except Py4JJavaError as error:
                if left == 0 and (outage := judge(error)) is not None:
                    raise of_outage(outage, "the Iceberg catalog") from error
                if left == 0 or not is_a(error, "UncheckedSQLException"):
                    raise
                time.sleep(BUILD_PAUSE_S)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Give the catalog's connections back, ours and the session's: the JVM outlives the lake."""
        self._catalog.close()
        manager: JavaObject = cast(JavaObject, self.session)._jsparkSession.sessionState().catalogManager()
        if manager.listCatalogs(self.java.scala.Option.empty()).contains(self.name):
            manager.catalog(self.name).icebergCatalog().close()

    def exists(self, name: str) -> bool:
        """Whether the catalog has this table."""
        return bool(self._catalog.tableExists(self._identifier(name)))

    def load(self, name: str) -> JavaObject:
        """The Java table, with its newest metadata."""
        from py4j.protocol import Py4JJavaError

        try:
            return self._catalog.loadTable(self._identifier(name))
        except Py4JJavaError as error:
            if is_a(error, "NoSuchTableException"):
                raise MissingTable(name) from error
            raise

    def tables(self, namespace: str) -> list[str]:
        """The names of a namespace's tables, with the namespace."""
        place = self.java.org.apache.iceberg.catalog.Namespace.of(_strings(self.java, *namespace.split(".")))
        return sorted(f"{namespace}.{table.name()}" for table in each(self._catalog.listTables(place)))

    def tables_if_any(self, namespace: str) -> list[str]:
        """The same, and none when there is no such namespace."""
        place = self.java.org.apache.iceberg.catalog.Namespace.of(_strings(self.java, *namespace.split(".")))
        return self.tables(namespace) if self._catalog.namespaceExists(place) else []

    def ensure_table(self, name: str, columns_ddl: str, partition_by: Sequence[str], *, is_state: bool = False) -> None:
        """Create the table unless it is there; two processes may do so at once."""
        if self.exists(name):
            return
        namespace = name.split(".", 1)[0]
        self.ensure_namespace(namespace)
        partition = f"PARTITIONED BY ({', '.join(f'`{column}`' for column in partition_by)})" if partition_by else ""
        values = {**TABLE_PROPERTIES, **(STATE_PROPERTIES if is_state else {})}
        properties = ", ".join(f"'{key}'='{value}'" for key, value in values.items())
        self.session.sql(
            f"CREATE TABLE IF NOT EXISTS {self.name}.{name} ({columns_ddl}) USING iceberg {partition} "
            f"TBLPROPERTIES ({properties})"
        )

    def ensure_columns(self, name: str, columns: Sequence[Column]) -> None:
        """Add those of these columns that the table lacks, and widen those that are too narrow for them.

        A caller that commits nothing afterwards leaves them unused; one that reads less than a column holds casts it.
        """
        from py4j.protocol import Py4JJavaError

        for attempt in range(SETTLE_ATTEMPTS):
            table = self.load(name)
            fields = {column.stored: table.schema().findField(column.stored) for column in columns}
            absent = [column for column in columns if fields[column.stored] is None]
            narrow = [column for column in columns if self._is_wider(column, fields[column.stored])]
            if not absent and not narrow:
                return
            change = table.updateSchema()
            for column in absent:
                change = change.addColumn(column.stored, self._type(column))
            for column in narrow:
                change = change.updateColumn(column.stored, self._type(column))
            try:
                change.commit()
                return
            except Py4JJavaError as error:
                if not is_a(error, "CommitFailedException") or attempt == SETTLE_ATTEMPTS - 1:
                    raise

    def ensure_filters(self, name: str, columns: Sequence[str]) -> None:
        """Let files that are written from now on say of each group of rows which values these columns don't have."""
        table = self.load(name)
        before = table.properties()
        filters = {**FILTER_PROPERTIES, **{f"{FILTER}{column}": "true" for column in columns}}
        lacking = {key: value for key, value in filters.items() if before.get(key) != value}
        if not lacking:
            return
        change = table.updateProperties()
        for key, value in lacking.items():
            change = change.set(key, value)
        change.commit()  # tried again inside, whatever others commit

    def _is_wider(self, column: Column, field: JavaObject) -> bool:
        """Whether a column takes more than the table's field holds, and the field can be made to hold it."""
        if field is None or isinstance(column.type, List | Map | Struct):
            return False
        type_ = self._type(column)
        types = self.java.org.apache.iceberg.types.TypeUtil
        return not field.type().equals(type_) and bool(types.isPromotionAllowed(field.type(), type_))

    def _type(self, column: Column) -> JavaObject:
        """A column's type in Iceberg's words, by way of Spark's, where every type of ours has its text."""
        util = self.java.org.apache.iceberg.spark.SparkSchemaUtil
        return util.convert(self.java.org.apache.spark.sql.types.DataType.fromDDL(spark_ddl(column.type)))

    def ensure_namespace(self, namespace: str) -> None:
        """Create a namespace unless it is there; the first operations of two processes may do so at once.

        The catalog looks and then inserts. A process that is too late in between gets the database's error and not the
        catalog's, so what counts is whether the namespace is there afterwards.
        """
        from py4j.protocol import Py4JJavaError

        name = self.java.org.apache.iceberg.catalog.Namespace.of(_strings(self.java, *namespace.split(".")))
        try:
            self._catalog.createNamespace(name)
        except Py4JJavaError:
            if not self._catalog.namespaceExists(name):
                raise

    def register(self, name: str, metadata_file: str) -> None:
        """Make an existing table known to the catalog; nothing of the table is touched."""
        self._catalog.registerTable(self._identifier(name), metadata_file)

    def unregister(self, name: str) -> None:
        """Take a registered table's name away again; its files stay."""
        self._catalog.dropTable(self._identifier(name), False)

    def _identifier(self, name: str) -> JavaObject:
        return self.java.org.apache.iceberg.catalog.TableIdentifier.parse(name)

    def create_branch(self, name: str, branch: str, at_snapshot: int | None, *, shared: bool = False) -> None:
        """Make a private branch at a pin, or without one an empty one.

        Then the table has no snapshot yet, unless it is `shared` with branches of the lake that have published some.
        """
        self._create_branch(name, branch, at_snapshot, shared=shared)
        table = self.load(name)
        if at_snapshot is None and table.snapshot(branch).summary().get("total-data-files") not in (None, "0"):
            # Iceberg began it at what main has: take all of that away.
            nothing = table.newDelete().deleteFromRowFilter(
                self.java.org.apache.iceberg.expressions.Expressions.alwaysTrue()
            )
            nothing.toBranch(branch).set("strand-op", branch.removeprefix("op_")).commit()

    def _create_branch(self, name: str, branch: str, at_snapshot: int | None, *, shared: bool) -> None:
        from py4j.protocol import Py4JJavaError

        for attempt in range(SETTLE_ATTEMPTS):
            table = self.load(name)
            if at_snapshot is None and table.currentSnapshot() is not None and not shared:
                raise Damaged(
                    f"the Iceberg table {name} has rows, and this lake has published none there",
                    hint="Does another lake use the same catalog? Give this one a warehouse and a ledger of its own.",
                )
            manage = table.manageSnapshots()
            change = manage.createBranch(branch) if at_snapshot is None else manage.createBranch(branch, at_snapshot)
            try:
                change.commit()
                return
            except Py4JJavaError as error:
                if not is_a(error, "CommitFailedException") or attempt == SETTLE_ATTEMPTS - 1:
                    raise

    def branch_snapshot(self, name: str, branch: str) -> int | None:
        """The snapshot at the tip of a branch."""
        snapshot = self.load(name).snapshot(branch)
        return None if snapshot is None else int(snapshot.snapshotId())

    def has_snapshot(self, name: str, snapshot_id: int) -> bool:
        """Whether the table's metadata still knows this snapshot."""
        try:
            return self.load(name).snapshot(snapshot_id) is not None
        except MissingTable:
            return False

    def refs(self, name: str) -> dict[str, int]:
        """Every ref of a table."""
        return {ref: int(at.snapshotId()) for ref, at in entries(self.load(name).refs())}

    def added_files(self, name: str, snapshot_id: int, time_column: str = AT) -> list[DataFile]:
        """The data files that a snapshot added, with their ranges of seqs and of the table's time column."""
        table = self.load(name)
        seq_id = table.schema().findField(SEQ).fieldId()
        time_of = self._time_bounds(table, time_column)
        fields = table.spec().partitionType().fields()
        is_date = [field.type().toString() == "date" for field in each(fields)]
        long_type = self.java.org.apache.iceberg.types.Types.LongType.get()
        bound = self.java.org.apache.iceberg.types.Conversions.fromByteBuffer
        files = []
        for file in each(table.snapshot(snapshot_id).addedDataFiles(table.io())):
            oldest_us, newest_us = time_of(file)
            files.append(
                DataFile(
                    path=str(file.location()),
                    rows=int(file.recordCount()),
                    size_bytes=int(file.fileSizeInBytes()),
                    first_seq=int(bound(long_type, file.lowerBounds().get(seq_id))),
                    last_seq=int(bound(long_type, file.upperBounds().get(seq_id))),
                    partition=self._partition(file, is_date),
                    oldest_us=oldest_us,
                    newest_us=newest_us,
                )
            )
        return sorted(files, key=lambda file: (file.first_seq, file.path))

    def _time_bounds(self, table: JavaObject, column: str) -> Callable[[JavaObject], tuple[int | None, int | None]]:
        """How to read a file's range of a time column, in µs; a file without figures about it has none."""
        field = table.schema().findField(column)
        kind, field_id = field.type(), field.fieldId()
        unit_us = DAY_US if kind.toString() == "date" else 1
        value_of = self.java.org.apache.iceberg.types.Conversions.fromByteBuffer

        def read(bounds: JavaObject) -> int | None:
            stored = None if bounds is None else bounds.get(field_id)
            return None if stored is None else int(value_of(kind, stored)) * unit_us

        def read_both(file: JavaObject) -> tuple[int | None, int | None]:
            counts = file.nullValueCounts()
            nulls = None if counts is None else counts.get(field_id)
            return read(file.lowerBounds()), read(file.upperBounds()) if nulls == 0 else None

        return read_both

    def _partition(self, file: JavaObject, is_date: Sequence[bool]) -> str:
        if not is_date:
            return "all"
        any_class = self.java.java.lang.Class.forName("java.lang.Object")
        values = [file.partition().get(position, any_class) for position in range(len(is_date))]
        epoch = dt.date(1970, 1, 1)
        return partition_text(
            [
                epoch + dt.timedelta(days=value) if date and value is not None else value
                for value, date in zip(values, is_date, strict=True)
            ]
        )

    def sync_to_disk(self, name: str, snapshot_id: int | None, data_files: Iterable[DataFile] = ()) -> None:
        """Force what a snapshot consists of onto the local disk, as an ack promises; object stores need no telling."""
        table = self.load(name)
        paths = [file.path for file in data_files]
        paths.append(str(table.operations().current().metadataFileLocation()))
        snapshot = None if snapshot_id is None else table.snapshot(snapshot_id)
        if snapshot is not None:
            paths.append(str(snapshot.manifestListLocation()))
            paths.extend(
                str(manifest.path())
                for manifest in each(snapshot.allManifests(table.io()))
                if manifest.snapshotId() == snapshot_id
            )
        sync(paths)

    def settle(
        self, name: str, ref: str, branch: str, pin: Callable[[], int | None], ours: Callable[[int], bool]
    ) -> RefReport:
        """Point `ref` at the pin and drop the private branch, in one commit.

        The metadata is taken first and the pin read after it: a pin that is older than the metadata can then only lose
        the race for the commit, so a late settle never moves a ref back. A ref at a snapshot that is not `ours` was
        moved by another program: it is reported and left alone.
        """
        from py4j.protocol import Py4JJavaError

        for _ in range(SETTLE_ATTEMPTS):
            table = self.load(name)
            manage = table.manageSnapshots()  # this call takes the metadata that the commit will insist on
            before = self._ref(table, ref)
            pinned = pin()
            foreign = before if before is not None and not ours(before) else None
            if pinned is not None and table.snapshot(pinned) is None:
                if self.has_snapshot(name, pinned):
                    continue  # it was published after our metadata was taken
                return RefReport(before, before, foreign, missing_pin=pinned)
            change = None
            if pinned is not None and pinned != before and foreign is None:
                change = manage.createBranch(ref, pinned) if before is None else manage.replaceBranch(ref, pinned)
            if table.snapshot(branch) is not None:
                change = (change or manage).removeBranch(branch)
            if change is None:
                return RefReport(before, before, foreign)
            try:
                change.commit()
            except Py4JJavaError as error:
                if not is_a(error, "CommitFailedException"):
                    raise
                continue
            self.sync_to_disk(name, None)
            return RefReport(before, before if foreign is not None else pinned, foreign)
        raise TimeoutError(f"the refs of {name} were moved {SETTLE_ATTEMPTS} times while this one was being set")

    def take_back(self, name: str, ref: str, foreign: int, pin: Callable[[], int | None]) -> str:
        """Point `ref` at the pin though another program's commit is there; that commit stays, under a tag."""
        from py4j.protocol import Py4JJavaError

        tag = f"foreign_{foreign}"
        for attempt in range(SETTLE_ATTEMPTS):
            table = self.load(name)
            manage = table.manageSnapshots()
            if self._ref(table, ref) != foreign:
                return tag
            pinned = pin()
            if table.snapshot(tag) is None:
                manage = manage.createTag(tag, foreign)
            try:
                (manage.removeBranch(ref) if pinned is None else manage.replaceBranch(ref, pinned)).commit()
                return tag
            except Py4JJavaError as error:
                if not is_a(error, "CommitFailedException") or attempt == SETTLE_ATTEMPTS - 1:
                    raise
        return tag

    def _ref(self, table: JavaObject, ref: str) -> int | None:
        snapshot = table.snapshot(ref)
        return None if snapshot is None else int(snapshot.snapshotId())


def _strings(java: JvmName, *texts: str) -> JavaObject:
    """A Java array of strings, for methods that take any number of them."""
    array = java.java.lang.reflect.Array.newInstance(java.java.lang.Class.forName("java.lang.String"), len(texts))
    for place, text in enumerate(texts):
        array[place] = text
    return array


def is_a(error: Py4JJavaError, name: str) -> bool:
    """Whether it is Java's exception of this name."""
    return bool(error.java_exception.getClass().getSimpleName() == name)


def sync(paths: Iterable[str]) -> None:
    """Force local files and their folders onto the disk, up to the folder of the table: any of them may be new."""
    local = {Path(path.removeprefix("file:")) for path in paths if path.startswith(("file:", "/"))}
    folders = {folder for path in local for folder in _folders(path)}
    for place in [*local, *folders]:
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _folders(path: Path) -> list[Path]:
    """The folders above a table's file, up to the one that holds `data` and `metadata`; at least the nearest."""
    parents = list(path.parents)
    roots = [place for place, folder in enumerate(parents) if folder.name in ("data", "metadata")]
    return parents[: roots[0] + 2] if roots else parents[:1]
