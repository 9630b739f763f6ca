"""What differs between two points of the history, and what changed on a branch, commit by commit.

Both read what the commits in between wrote, and the rows that these meet; not the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import orjson
import pyarrow as pa

from strandline.engines.duck import compare
from strandline.errors import BadRequest, HistoryGone, Unsupported
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.history.branches import refuse_deleted
from strandline.ledger.history.refs import find_commit_at, find_homes
from strandline.ledger.ledger import Ledger
from strandline.ledger.tables.heads import read_pruned
from strandline.model.history.changes import Changes, RowChange, RowDiff, kind_of
from strandline.model.history.commits import Commit
from strandline.model.history.merge import key_text
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import ACTOR, AT, COMMIT, REMOVED, SEQ
from strandline.model.tables import BranchTable
from strandline.model.values.arrow import batch_arrow
from strandline.model.values.user_rows import UserRow
from strandline.model.values.wire import to_json_lines
from strandline.views.view import View

Take = Callable[[str, str | None], View]
"""A view of a branch, at a point of its past or now."""

Written: TypeAlias = Sequence[tuple[View, Sequence[Commit]]] | None
"""Commits by the views that have their rows, a side's own first; None where some are gone."""


def diff(ledger: Ledger, take: Take, before: str, after: str, *, branch: str, table: str | None) -> Iterator[RowDiff]:
    """The rows that are not the same at two points, by table and key. Each point is a branch, tag, commit or time."""
    with ledger.read() as conn:
        graph = Graph(conn)
        earlier, _ = find_commit_at(conn, before, branch)
        other, _ = find_commit_at(conn, after, branch)
        bases = graph.bases(earlier.commit_id, other.commit_id)
        base = bases[0].commit_id if bases else None  # none: their first commits were made apart
        sides = [(tip.commit_id, graph.only(tip.commit_id, base)) for tip in (earlier, other)]
        homes = [find_homes(conn, graph, tip, commits) for tip, commits in sides]
    views = take(branch, earlier.commit_id), take(branch, other.commit_id)
    written: Written = None
    if None not in homes:
        written = [(take(branch, tip), commits) for side in homes for tip, commits in side or () if commits]
    for name in _tables(views, [commit for _, commits in sides for commit in commits], table):
        yield from _differing(views, name, written)


def _tables(views: tuple[View, View], commits: Sequence[Commit], table: str | None) -> list[str]:
    """The keyed tables that some commits wrote, or the one that is asked for."""
    keyed = {name: view for view in views for name in view.tables if view.branch_table(name).table.key}
    if table is not None:
        named = next((view for view in views if table.lower() in map(str.lower, view.tables)), views[1])
        return [named.branch_table(table).table.name]
    return [name for name in sorted(keyed) if any(name in commit.tables for commit in commits)]


def _differing(views: tuple[View, View], name: str, written: Written) -> Iterator[RowDiff]:
    having = [view for view in views if name in view.tables]
    branch_table = having[-1].branch_table(name)
    shape = pa.schema(
        [column for column in batch_arrow(branch_table.schema, branch_table.table) if column.name != REMOVED]
    )
    key = list(branch_table.table.key)
    sides = [_under(view, name, branch_table.schema) if name in view.tables else None for view in views]
    is_one = len({view.branch_table(name).schema.began for view in having}) == 1
    keys = _touched(sides, name, key, written if is_one else None)
    rows = [
        (shape.empty_table() if view is None else view.pick(name, keys)).select(shape.names).cast(shape)
        for view in sides
    ]
    differences = compare.differences(rows[0], rows[1], key, [column for column in shape.names if column not in key])
    images = [
        {key_text({column: row[column] for column in key}): row for row in plain_rows(side, branch_table)}
        for side in rows
    ]
    for named, fields in zip(
        plain_rows(differences.select(key), branch_table), differences[compare.FIELDS].to_pylist(), strict=True
    ):
        was, is_ = (image.get(key_text(named)) for image in images)
        changed = tuple(fields) if was is not None and is_ is not None else ()
        yield RowDiff(name, kind_of(was, is_), named, changed, was, is_)


def _under(view: View, name: str, schema: Schema) -> View:
    """A side's rows as the other's schema has them; which rows these are is its own affair."""
    branch_table = view.branch_table(name)
    return view.under({branch_table.table.table_id: replace(schema, began=branch_table.schema.began)})


def _touched(sides: Sequence[View | None], name: str, key: list[str], written: Written) -> pa.Table:
    """The keys of rows that may differ: those that the commits in between wrote.

    All, where their logs are gone, and where the table is on one side alone: it may have been dropped.
    """
    if written is None or None in sides:
        keys = [view.having(name, key, None) for view in sides if view is not None]
    else:
        keys = [changed_rows(view, name, commits).select(key) for view, commits in written if name in view.tables]
    return pa.concat_tables(keys).group_by(key).aggregate([])


def changed_rows(view: View, name: str, commits: Sequence[Commit]) -> pa.Table:
    """What commits left of a table's rows: the newest version of each."""
    return view.changed(name, [commit for commit in commits if name in commit.tables])


def plain_rows(rows: pa.Table, branch_table: BranchTable) -> list[UserRow]:
    """Rows as JSON can say them."""
    return [orjson.loads(line) for line in to_json_lines(rows, branch_table.schema)]


def changes(ledger: Ledger, view: View, table: str, since: int, limit: int) -> Changes:
    """The next changes of a keyed table behind a seq, each with the row before and after it.

    Where to go on is never above the last row: a merge may bring rows that are older than others of the lake.
    """
    if since < 0 or limit < 1:
        raise BadRequest(
            f"there are no {limit} changes behind {since}", hint="since is a seq or 0, and limit from 1 on."
        )
    branch_table = view.branch_table(table)
    if not branch_table.table.key:
        raise Unsupported(
            f"{table!r} is a log table: its rows don't change",
            hint=f"`strand tail {table}` shows its rows, and `view.read` in Python.",
        )
    _refuse_gap(ledger, branch_table, since)
    page = tuple(_changes(view, branch_table, since, limit))
    return Changes(page, page[-1].seq if page else since)


def _refuse_gap(ledger: Ledger, branch_table: BranchTable, since: int) -> None:
    with ledger.read() as conn:
        refuse_deleted(conn, branch_table.head.branch_id)  # what is gone is not known any more then
        pruned = read_pruned(conn, branch_table.head.branch_id, branch_table.table.table_id)
    gone = max(pruned.values(), default=0)
    if gone > since:
        raise HistoryGone(
            f"versions of table {branch_table.table.name!r} up to seq {gone} are no longer kept",
            hint=f"Read the table as it is, and go on from seq {gone}.",
            table=branch_table.table.name,
            since=since,
            first=gone,
        )


def _changes(view: View, branch_table: BranchTable, since: int, limit: int) -> Iterator[RowChange]:
    rows = view.page(branch_table.table.name, since, limit)
    key, columns = list(branch_table.table.key), list(branch_table.schema.names)
    earlier = rows.select([compare.EARLIER + column for column in columns]).rename_columns(columns)
    was, is_ = rows[compare.WAS].to_pylist(), rows[compare.IS].to_pylist()
    parts = (rows.select(columns), earlier, rows.select(key), rows.select([SEQ, COMMIT, ACTOR, AT]))
    lines = zip(*(plain_rows(part, branch_table) for part in parts), strict=True)
    for place, (now, then, named, facts) in enumerate(lines):
        before, after = then if was[place] else None, now if is_[place] else None
        yield RowChange(
            table=branch_table.table.name,
            kind=kind_of(before, after),
            key=named,
            before=before,
            after=after,
            seq=facts[SEQ],
            commit=facts[COMMIT],
            actor=facts[ACTOR],
            at=facts[AT],
        )
