"""Erasing: the values of columns that no reader is shown any more go, out of all data files and out of the history.

A column that was dropped stays in the files, for other branches, tags and readers of the past. With `--hard` it does
not: files that hold values of it are written again without these, on every branch, a bite at a time; then the
snapshots and batches go that still have the older files. That is done only where no other branch and no tag shows the
column or keeps such files. Run again after a crash, it does what is left: what is left is seen in the files
themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow.parquet as pq

from strandline.engines.spark import maintain
from strandline.engines.storage import open_uri
from strandline.errors import Busy, NotFound
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.history.branches import KEPT, list_branches, list_tags
from strandline.ledger.ledger import MAIN, Connection, Ledger
from strandline.ledger.publish.loads import list_loads
from strandline.ledger.rows import batches
from strandline.ledger.tables.files import count_snapshots, read_files
from strandline.ledger.tables.tables import read_branch_tables, read_branch_tables_of
from strandline.model.maintenance import Budget
from strandline.model.schema.migration import MigrationPlan
from strandline.model.schema.schema import Schema
from strandline.model.schema.steps import Step
from strandline.model.tables import BranchTable, DataFile
from strandline.operations.core.bite_by_bite import BITE_BYTES, Bites
from strandline.operations.core.context import Context
from strandline.operations.maintain.compact import Compact
from strandline.operations.maintain.expire import expire
from strandline.operations.maintain.flush import flush
from strandline.operations.maintain.layout import take_bite
from strandline.operations.maintain.sweep import sweep
from strandline.views.time_travel import version_at

ERASE = "erase column"
ROWS = "the rows of a table are its history: drop it without --hard, and purge what must go"


@dataclass(frozen=True)
class _Place:
    """A branch, or a tag, that has a table: with the schema that it shows it under."""

    name: str
    branch_table: BranchTable
    schema: Schema
    is_tag: bool = False

    def shows(self, stored: str) -> bool:
        """Whether a reader there is shown a column; a table that was dropped there keeps its own for the past."""
        return stored in self.schema.stored

    @property
    def keeps_files(self) -> bool:
        """Whether it is a tag with files that no operation writes again; those of a log table are main's."""
        return self.is_tag and bool(self.branch_table.table.key)


def with_erasing(ledger: Ledger, planned: MigrationPlan, branch_tables: Sequence[BranchTable]) -> MigrationPlan:
    """A plan that leaves no values of what it drops from these tables, or dropped before; refused where others see it.

    A table is dropped without that: its rows are history, and a purge removes them.
    """
    steps = list(planned.steps)
    with ledger.read() as conn:
        for branch_table in branch_tables:
            _refuse_loading(conn, branch_table)
            planned_table = next((table for table in planned.tables if table.name == branch_table.table.name), None)
            after = branch_table.schema if planned_table is None else planned_table.schema
            if after.dropped:
                steps = [_refused(step, ROWS) if step.table == branch_table.table.name else step for step in steps]
                continue
            places = list(_places(conn, branch_table))
            places_after = [replace(place, schema=after) if place.name == planned.branch else place for place in places]
            gone = {
                column.name: stored
                for stored, column in branch_table.schema.stored.items()
                if stored not in after.stored
            }
            steps = [
                _judged(conn, step, gone, places_after) if step.table == branch_table.table.name else step
                for step in steps
            ]
            old = [
                stored
                for stored in unseen(places_after)
                if stored not in gone.values() and _any_holds(conn, places_after, stored)
            ]
            why = "it was dropped before; its values are removed from all files, and from what was before"
            steps += [
                _judged(
                    conn,
                    Step(ERASE, branch_table.table.name, stored, "loses data", why),
                    {stored: stored},
                    places_after,
                )
                for stored in old
            ]
    return replace(planned, steps=tuple(steps))


def _refuse_loading(conn: Connection, branch_table: BranchTable) -> None:
    """What a load has read already may have values of the column, and comes in later."""
    if any(load.table == branch_table.table.name for load in list_loads(conn)):
        raise Busy(
            f"a load into {branch_table.table.name!r} is not finished",
            hint="Nothing was changed. Run that load again to finish it; `strand status` shows it.",
            reason="loading",
        )


def _refused(step: Step, why: str) -> Step:
    return replace(step, verdict="refused", why=why)


def _judged(conn: Connection, step: Step, gone: dict[str, str], places: Sequence[_Place]) -> Step:
    if step.verdict != "loses data" or step.column not in gone:
        return step
    stored = gone[step.column]
    others = [place.name for place in places if place.shows(stored)]
    tags = [place for place in places if place.keeps_files and place.name not in others]
    others += [tag.name for tag in tags if _holds_any(conn, tag, stored)]
    if others:
        reason = f"{', '.join(others)} still has it: drop it there too, or delete that, or leave --hard out"
        return _refused(step, reason)
    return replace(step, why="its values are removed from all files, and from what was before")


def unseen(places: Sequence[_Place]) -> list[str]:
    """The columns of a table that no branch and no tag shows, by their names in data files."""
    every = {name for place in places for schema in place.branch_table.schemas.values() for name in schema.stored}
    return sorted(name for name in every if not any(place.shows(name) for place in places))


def _places(conn: Connection, branch_table: BranchTable) -> Iterator[_Place]:
    """Every branch and tag that has a table; a log table is main's, and tags show it as it was then."""
    name = branch_table.table.name
    for branch in list_branches(conn) if branch_table.table.key else ():
        try:
            branch_table = read_branch_tables(conn, branch.name, [name])[0]
        except NotFound:
            continue
        yield _Place(branch.name, branch_table, branch_table.schema)
    if not branch_table.table.key:
        branch_table = read_branch_tables(conn, MAIN, [name])[0]
        yield _Place(MAIN, branch_table, branch_table.schema)
    graph = Graph(conn)
    for tag in list_tags(conn, kept=True):
        branch_tables = {tagged.table.name: tagged for tagged in read_branch_tables_of(conn, tag.branch_id)}
        if name not in branch_tables:
            continue
        commit = graph.commit(tag.commit)
        earlier = [number for number in branch_tables[name].schemas if number <= commit.seq]
        version = (
            version_at(graph, branch_tables[name], commit) if branch_table.table.key else max(earlier, default=None)
        )
        if version is not None:
            title = "the history of a deleted branch" if tag.name.startswith(KEPT) else f"tag {tag.name}"
            yield _Place(title, branch_tables[name], branch_tables[name].schemas[version], is_tag=True)


def _parts(place: _Place) -> list[BranchTable]:
    return [place.branch_table, *([place.branch_table.folded] if place.branch_table.folded is not None else [])]


def _files(conn: Connection, branch_table: BranchTable) -> list[DataFile]:
    return read_files(conn, branch_table.head.branch_id, branch_table.head.table_id, branch_table.head.version)


def _holds_any(conn: Connection, place: _Place, stored: str) -> bool:
    """Whether files of a branch or tag, or rows of its tail, may have values of a column."""
    return _in_tail(place.branch_table, [stored]) or any(
        holds(file, {stored}) for branch_table in _parts(place) for file in _files(conn, branch_table)
    )


def _in_tail(branch_table: BranchTable, columns: Collection[str]) -> bool:
    written = {ref.schema_version for ref in branch_table.tail}
    return any(name in branch_table.schemas[version].stored for version in written for name in columns)


def _any_holds(conn: Connection, places: Sequence[_Place], stored: str) -> bool:
    return any(_holds_any(conn, place, stored) for place in places)


def holds(file: DataFile, stored: set[str]) -> bool:
    """Whether a data file has a value of one of these columns, by its footer; by its rows where that says nothing."""
    system, path = open_uri(file.path)
    with pq.ParquetFile(path, filesystem=system) as parquet:
        footer = parquet.metadata
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                name = column.path_in_schema.split(".")[0]
                if name not in stored:
                    continue
                statistics = column.statistics
                if statistics is None or not statistics.has_null_count:
                    return any(values.null_count < len(values) for values in parquet.read(columns=[name]).columns)
                if statistics.null_count < column.num_values:
                    return True
    return False


def erase(ctx: Context, table: str, branch: str, actor: str, dropped: Collection[str]) -> list[str]:
    """Remove the values of a table's columns that no branch and no tag shows, with those just `dropped`.

    The answer says what has to stay for now, and why.
    """
    warnings: list[str] = []
    while True:
        with ctx.ledger.read() as conn:
            every = list(_places(conn, read_branch_tables(conn, branch, [table])[0]))
        columns = unseen(every)
        places = [place for place in every if not place.is_tag]
        done = [_rewritten(ctx, place, actor, columns) for place in places]
        warnings += [text for texts in done if texts is not None for text in texts]
        if not any(texts is not None for texts in done):
            break  # none of those that are there now holds a value: a branch may have come meanwhile
    for place in places:
        warnings += _forget(ctx, table, place.name, actor)
    for stored in sorted(set(dropped) - set(columns)):
        shown = ", ".join(place.name for place in every if place.shows(stored))
        warnings.append(f"{stored} of {table} is shown by {shown} since: its values stay")
    return warnings


def _rewritten(ctx: Context, place: _Place, actor: str, columns: Sequence[str]) -> list[str] | None:
    """Take the values of these columns out of a branch's log and state; None where there were none."""
    flushed = (
        flush(ctx, place.branch_table.table.name, place.name, actor) if _in_tail(place.branch_table, columns) else None
    )
    done = [_rewrite(ctx, part.table.name, place.name, actor, columns) for part in _parts(place)]
    warnings = [
        *(flushed.warnings if flushed is not None else ()),
        *(text for rewrite in done for text in rewrite.warnings),
    ]
    changed = (flushed is not None and flushed.operation is not None) or any(rewrite.operations for rewrite in done)
    return warnings if changed else None


def _rewrite(ctx: Context, table: str, branch: str, actor: str, columns: Sequence[str]) -> Bites:
    """Write the files of a log, or of a state, again that hold values of these columns."""
    bites = Bites(ctx, Budget())
    while columns:
        with ctx.ledger.read() as conn:
            branch_table = read_branch_tables(conn, branch, [table])[0]
            files = _files(conn, branch_table)
        groups = [(file,) for file in files if holds(file, set(columns))]
        if not groups:
            break
        bite = take_bite(groups, BITE_BYTES, maintain.GROUPS_AT_ONCE)
        operation = Compact(table, branch, actor, branch_table.head.version, bite, kind="erase", blank=tuple(columns))
        bites.take(operation, branch_table, 0)
        ctx.report(f"erasing from {branch_table.table.name}", len(bite), len(groups))
    return bites


def _forget(ctx: Context, table: str, branch: str, actor: str) -> list[str]:
    """Let the snapshots and batches go that still hold values; says what has to stay."""
    with ctx.ledger.read() as conn:
        branch_table = read_branch_tables(conn, branch, [table])[0]
    while batches.sweep(ctx.ledger, grace_s=0, table_id=branch_table.table.table_id):
        pass
    parts = [branch_table, *([branch_table.folded] if branch_table.folded is not None else [])]
    warnings: list[str] = []
    for part in parts:
        warnings += expire(ctx, part.table.name, branch, actor, Budget(), grace_s=0).warnings
    sweep(ctx, [branch_table.table.name], grace_s=0)
    for part in parts:
        with ctx.ledger.read() as conn:
            kept, _ = count_snapshots(conn, part.head.branch_id, part.table.table_id)
        left = kept - (0 if part.head.log_snapshot is None else 1)
        if left:
            warnings.append(f"{left} older snapshots of {part.table.name} stay on {branch}: an open delivery or a held "
                            "view reads them. Run it again later")  # fmt: skip
    return warnings
