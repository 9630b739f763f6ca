"""Rewriting and removing what a table has: compaction, retention, purge, folds, expiry.

Rows are rewritten the way Iceberg's own `rewrite_data_files` does it, by a scan of chosen files and a write whose files
are committed apart. We choose the files ourselves: a group is neighbouring files of one partition in seq order, it is
read by one task in that order and written as one file. So nothing is sorted, and the files of a log never come to
overlap in seqs, which the procedure does not promise. Iceberg sees one commit, on a private branch.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.engines.spark.classes import JavaObject, each, entries
from strandline.engines.spark.iceberg import SETTLE_ATTEMPTS, Iceberg, is_a
from strandline.engines.spark.read import with_defaults
from strandline.errors import Damaged
from strandline.model.ids import new_id
from strandline.model.schema.types import SEQ, Column
from strandline.model.tables import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A group becomes one task; as much as this is never split into two.
WHOLE = str(1 << 40)
GROUPS_AT_ONCE = 64
"""A Spark plan over more scans than this takes longer to make than to run."""
LISTING_ATTEMPTS = 5
_PATH = re.compile(r"BaseFileScanTask\{file=(.*?), partition_data=")

Group = Sequence[DataFile]


@dataclass(frozen=True)
class RewritePlace:
    """Where a rewrite is staged: a table, its pin, and the private branch of an operation."""

    table: str
    pin: int | None
    branch: str
    op_id: str


def merge(
    iceberg: Iceberg,
    place: RewritePlace,
    groups: Sequence[Group],
    columns: Sequence[Column],
    blank: Sequence[str] = (),
) -> int:
    """Write each group as one file in its files' place; returns the snapshot. Every row stays as it is.

    Defaults of `columns` are written out, and the columns in `blank` have no values any more.
    """
    table = iceberg.load(place.table)
    with _Rewrite(iceberg, table, place) as rewrite:
        added = rewrite.write(groups, None, columns, blank)
        change = table.newRewrite().validateFromSnapshot(place.pin)
        change = change.rewriteFiles(rewrite.files_of(groups), added)
        change.toBranch(place.branch).set("strand-op", place.op_id).commit()
    return _tip(iceberg, place)


def remove(
    iceberg: Iceberg,
    place: RewritePlace,
    whole: Sequence[DataFile],
    groups: Sequence[Group],
    columns: Sequence[Column],
    without: str | None,
) -> int:
    """Take files away whole, and write the groups again without the rows whose seqs the file `without` names.

    Defaults of `columns` are written out.
    """
    table = iceberg.load(place.table)
    with _Rewrite(iceberg, table, place) as rewrite:
        added = rewrite.write(groups, without, columns)
        change = table.newOverwrite()
        for file in rewrite.files_of([whole, *groups]):
            change = change.deleteFile(file)
        for file in added:
            change = change.addFile(file)
        change.toBranch(place.branch).set("strand-op", place.op_id).commit()
    return _tip(iceberg, place)


def replace(
    iceberg: Iceberg, place: RewritePlace, gone: Sequence[DataFile], rows: Callable[[DataFrame | None], DataFrame]
) -> int:
    """Put other rows in the place of whole files: what `rows` makes of those that the files hold, if there are any.

    Each partition of Spark that has rows becomes a file, or one for each partition of the table that it has rows of.
    """
    table = iceberg.load(place.table)
    with _Rewrite(iceberg, table, place) as rewrite:
        added = rewrite.save(rows(rewrite.read(gone) if gone else None))
        change = table.newOverwrite()
        for file in rewrite.files_of([gone] if gone else []):
            change = change.deleteFile(file)
        for file in added:
            change = change.addFile(file)
        change.toBranch(place.branch).set("strand-op", place.op_id).commit()
    return _tip(iceberg, place)


def _tip(iceberg: Iceberg, place: RewritePlace) -> int:
    snapshot = iceberg.branch_snapshot(place.table, place.branch)
    assert snapshot is not None and snapshot != place.pin, f"operation {place.op_id} rewrote files without a snapshot"
    return snapshot


class _Rewrite:
    """The scans and writes of one rewrite; Iceberg keeps them in registries of the JVM, until the block ends."""

    def __init__(self, iceberg: Iceberg, table: JavaObject, place: RewritePlace) -> None:
        spark = iceberg.java.org.apache.iceberg.spark
        self._iceberg = iceberg
        self._table = table
        self._place = place
        self._tables = spark.SparkTableCache.get()
        self._scans = spark.ScanTaskSetManager.get()
        self._writes = spark.FileRewriteCoordinator.get()
        self._tasks: dict[str, JavaObject] = {}
        self._lists: dict[tuple[str, ...], JavaObject] = {}
        self._scan_ids: list[str] = []
        self._write_ids: list[str] = []

    def __enter__(self) -> _Rewrite:
        # Iceberg looks for its rewrites through the thread's active session, which may be that of a sink's target.
        session = self._iceberg.session
        classes: Any = type(session)
        classes._get_j_spark_session_class(self._iceberg.jvm).setActiveSession(session._jsparkSession)
        return self

    def __exit__(self, *_: object) -> None:
        for rewrite_id in self._scan_ids:
            self._scans.removeTasks(self._table, rewrite_id)
        for rewrite_id in self._write_ids:
            self._writes.clearRewrite(self._table, rewrite_id)
        for rewrite_id in [*self._scan_ids, *self._write_ids]:
            self._tables.remove(rewrite_id)

    def files_of(self, groups: Sequence[Group]) -> JavaObject:
        """Iceberg's own records of the files of these groups."""
        self._plan([file for group in groups for file in group])
        records = self._iceberg.java.java.util.HashSet()
        for group in groups:
            # As Iceberg's own rewrites find them, because that takes one call into the JVM and not one for each file.
            tasks = self._tasks_of(group)
            records.addAll(
                self._iceberg.java.org.apache.iceberg.actions.RewriteFileGroup(None, tasks, 0, 0, 0, 0).rewrittenFiles()
            )
        return records

    def write(
        self, groups: Sequence[Group], without: str | None, columns: Sequence[Column], blank: Sequence[str] = ()
    ) -> JavaObject:
        """Let Spark write each group as one file; returns the new files, which no snapshot has yet."""
        added = self._iceberg.java.java.util.HashSet()
        self._plan([file for group in groups for file in group])
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            rows = reduce(
                lambda left, right: left.unionByName(right),
                [self._read(group) for group in groups[start : start + GROUPS_AT_ONCE]],
            )
            added.addAll(self.save(_blanked(_filled(_without(rows, without), columns), blank)))
        return added

    def save(self, rows: DataFrame) -> JavaObject:
        """Let Spark write rows; returns the new files, which no snapshot has yet."""
        write_id = new_id()
        self._tables.add(write_id, self._table)
        self._write_ids.append(write_id)
        (
            rows.write.format("iceberg")
            .option("target-file-size-bytes", WHOLE)
            .option("use-table-distribution-and-ordering", "false")
            .option("fanout-enabled", "true")
            .mode("append")
            .save(write_id)
        )
        return self._writes.fetchNewFiles(self._table, write_id)

    def read(self, files: Sequence[DataFile]) -> DataFrame:
        """The rows of some files, in no order, by as many tasks as Spark thinks right."""
        self._plan(files)
        return self._iceberg.session.read.format("iceberg").load(self._staged(files))

    def _read(self, group: Group) -> DataFrame:
        """A group's rows in the order of its files, as one partition of Spark."""
        whole = self._iceberg.session.read.format("iceberg").option("split-size", WHOLE).option("file-open-cost", "0")
        return whole.load(self._staged(group))

    def _staged(self, files: Sequence[DataFile]) -> str:
        """The name under which Spark finds a scan of these files."""
        scan_id = new_id()
        self._tables.add(scan_id, self._table)
        self._scan_ids.append(scan_id)
        self._scans.stageTasks(self._table, scan_id, self._tasks_of(files))
        return scan_id

    def _tasks_of(self, files: Group) -> JavaObject:
        """The scan tasks of a group in the order of its seqs, as a list that Java has."""
        paths = tuple(file.path for file in sorted(files, key=lambda file: file.first_seq))
        tasks = self._lists.get(paths)
        if tasks is None:
            tasks = self._lists[paths] = self._iceberg.java.java.util.ArrayList()
            for path in paths:
                tasks.add(self._tasks[path])
        return tasks

    def _plan(self, files: Sequence[DataFile]) -> None:
        """Find Iceberg's scan tasks of these files; Damaged when the snapshot lacks one that the ledger names."""
        absent = {file.path for file in files} - self._tasks.keys()
        if not absent:
            return
        filters = self._iceberg.java.org.apache.iceberg.expressions.Expressions
        first, last = min(file.first_seq for file in files), max(file.last_seq for file in files)
        within = filters.__getattr__("and")(filters.greaterThanOrEqual(SEQ, first), filters.lessThanOrEqual(SEQ, last))
        scan = self._table.newScan().useSnapshot(self._place.pin).filter(within).ignoreResiduals()
        planned = scan.planFiles()
        try:
            tasks = self._iceberg.java.org.apache.iceberg.relocated.com.google.common.collect.Lists.newArrayList(
                planned
            )
        finally:
            planned.close()
        # What the whole list says of itself has the paths in its order, in one call into the JVM instead of thousands.
        paths = _PATH.findall(tasks.toString())
        assert len(paths) == tasks.size(), "Iceberg tells of its scan tasks in other words"
        self._tasks.update((path, tasks.get(place)) for place, path in enumerate(paths) if path in absent)
        lost = absent - self._tasks.keys()
        if lost:
            raise Damaged(
                f"snapshot {self._place.pin} of {self._place.table} lacks {len(lost)} files that the ledger names, "
                f"such as {sorted(lost)[0]}",
                operation=self._place.op_id,
            )


def _without(rows: DataFrame, seqs: str | None) -> DataFrame:
    """The rows in their order, without those whose seqs a file names."""
    if seqs is None:
        return rows
    from pyspark.sql import functions as sf

    gone = rows.sparkSession.read.option("__globPaths__", "false").parquet(seqs)
    return rows.join(sf.broadcast(gone), on=SEQ, how="left_anti").select(*rows.columns)


def _filled(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The rows in their order, with the defaults of these columns where rows lack a value."""
    from pyspark.sql import functions as sf

    for column in columns:
        if column.fills and column.stored in rows.columns:
            rows = rows.withColumn(column.stored, with_defaults(sf.col(f"`{column.stored}`"), column))
    return rows


def _blanked(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows in their order, without values in these columns."""
    from pyspark.sql import functions as sf

    for name in columns:
        if name in rows.columns:
            rows = rows.withColumn(name, sf.lit(None).cast(rows.schema[name].dataType))
    return rows


def expire(iceberg: Iceberg, name: str, snapshot_ids: Sequence[int]) -> list[int]:
    """Let Iceberg forget these snapshots and delete the files that it needs no more; returns those that are gone now.

    By name alone: whatever else is old stays. One that a ref still points at stays too, until the ref has moved.
    """
    from py4j.protocol import Py4JJavaError

    table = iceberg.load(name)
    named = {int(at.snapshotId()) for _, at in entries(table.refs())}
    gone = [snapshot_id for snapshot_id in snapshot_ids if snapshot_id not in named]
    held = [snapshot_id for snapshot_id in gone if table.snapshot(snapshot_id) is not None]
    if held:
        change = table.expireSnapshots().expireOlderThan(0)
        for snapshot_id in held:
            change = change.expireSnapshotId(snapshot_id)
        try:
            change.cleanExpiredFiles(True).commit()
        except Py4JJavaError as error:
            # A table that a restore brought back names snapshots whose files have gone since. They are forgotten first,
            # and files are looked for then: what is left of them is a sweep's.
            if not is_a(error, "NotFoundException") or any(
                iceberg.has_snapshot(name, snapshot_id) for snapshot_id in held
            ):
                raise
        iceberg.sync_to_disk(name, None)
    return gone


def staged_snapshots(iceberg: Iceberg, name: str) -> dict[int, str]:
    """The snapshots that operations of ours have written, and the operation of each.

    A table's first branch begins with an empty snapshot that Iceberg makes up: it has no operation, and says so.
    """
    written: dict[int, str] = {}
    for snapshot in each(iceberg.load(name).snapshots()):
        op_id = snapshot.summary().get("strand-op")
        made_up = snapshot.parentId() is None and snapshot.summary().get("total-data-files") in (None, "0")
        if op_id is not None or made_up:
            written[int(snapshot.snapshotId())] = str(op_id or "")
    return written


def drop_branch(iceberg: Iceberg, name: str, branch: str) -> None:
    """Drop a private branch whose operation is over."""
    from py4j.protocol import Py4JJavaError

    for attempt in range(SETTLE_ATTEMPTS):
        table = iceberg.load(name)
        manage = table.manageSnapshots()
        if table.snapshot(branch) is None:
            return
        try:
            manage.removeBranch(branch).commit()
            return
        except Py4JJavaError as error:
            if not is_a(error, "CommitFailedException") or attempt == SETTLE_ATTEMPTS - 1:
                raise


def orphans(iceberg: Iceberg, name: str, older_than: dt.datetime) -> list[str]:
    """The files in a table's folders that none of its snapshots names; they are listed, and none is removed.

    An expiry beside it removes what the listing is about to read; then it is made anew, of the snapshots that are left.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    place = str(iceberg.load(name).location())
    is_local = place.startswith(("file:", "/"))
    if is_local and not _has_older(Path(place.removeprefix("file:")), older_than.timestamp()):
        return []  # a young table needs no Spark job to find that
    moment = older_than.strftime("%Y-%m-%d %H:%M:%S UTC")
    # A local disk is listed by Hadoop, a bucket by Iceberg's own client: Hadoop has none for it here.
    by_prefix = "false" if is_local else "true"
    listing = (
        f"CALL {iceberg.name}.system.remove_orphan_files(table => '{name}', older_than => TIMESTAMP '{moment}', "
        f"dry_run => true, prefix_listing => {by_prefix})"
    )
    for _ in range(LISTING_ATTEMPTS - 1):
        try:
            return _listed(iceberg, listing)
        except (Py4JJavaError, CapturedException) as error:
            if "NotFoundException" not in str(error):
                raise
    return _listed(iceberg, listing)


def _has_older(folder: Path, moment_s: float) -> bool:
    """Whether any file below a folder is that old; one that goes while it is looked at is not."""
    for place, _, names in os.walk(folder):  # which minds no folder that goes, either
        for name in names:
            with suppress(FileNotFoundError):
                if (Path(place) / name).stat().st_mtime < moment_s:
                    return True
    return False


def _listed(iceberg: Iceberg, listing: str) -> list[str]:
    return sorted(str(row.orphan_file_location) for row in iceberg.session.sql(listing).collect())
