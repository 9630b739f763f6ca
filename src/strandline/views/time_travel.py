"""Looking at the past: which rows of a view's tables there were at a point of the history.

Logs are only added to, so any later log serves: it is read without the rows that came after the point. Of a keyed table
these are the rows of commits that the point's commit does not reach; seqs only prune. A log table is not branched, and
there it is the seq, or the time, that decides. In both, a load's rows came when it was published, not
with their seqs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strandline.errors import HistoryGone
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.rows.reservations import read_late
from strandline.ledger.tables.tables import read_branch_tables_of
from strandline.model.schema.types import AT, COMMIT, SEQ
from strandline.model.tables import BranchTable

if TYPE_CHECKING:
    from strandline.ledger.history.refs import Point
    from strandline.ledger.ledger import Connection
    from strandline.model.history.commits import Commit


@dataclass(frozen=True)
class Shown:
    """The rows of a table that a point shows: those below a seq or up to a time, but for some commits and ranges.

    `gone` where retention has taken some of them away.
    """

    below: int | None
    upto_us: int | None
    commits: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    gone: bool = False

    def require_whole(self, table: str) -> None:
        """HistoryGone where rows of the table that the point showed are no longer kept."""
        if self.gone:
            raise HistoryGone(
                f"what table {table!r} had then is past its retention, and some of it is no longer kept",
                hint="Look at a later point; a tag would have kept this one.",
                table=table,
            )

    def condition(self, microseconds: str = "epoch_us") -> str:
        """As SQL that both engines read; they differ in what they call the microseconds of a time."""
        parts = [f"{SEQ} < {self.below}"] if self.below is not None else []
        if self.upto_us is not None:
            parts.append(f"{microseconds}({AT}) <= {self.upto_us}")
        if self.commits:
            parts.append(f"{COMMIT} NOT IN ({', '.join(repr(commit) for commit in self.commits)})")
        parts += [f"NOT ({SEQ} BETWEEN {first} AND {last})" for first, last in self.ranges]
        return " AND ".join(parts)


def read_past(conn: Connection, point: Point) -> list[tuple[BranchTable, Shown]]:
    """The tables that there were at a point, under the schemas of then, with the rows of each that it shows.

    One that had been dropped by then is among them, under the schema that says so.
    """
    tables: list[tuple[BranchTable, Shown]] = []
    older = tuple(commit.commit_id for commit in point.hidden if commit.seq < point.commit.seq)
    graph = Graph(conn)
    for branch_table in read_branch_tables_of(conn, point.holder):
        version = _schema_version(graph, branch_table, point)
        if version is None:
            continue
        if branch_table.table.key:
            late = read_late(conn, branch_table.table.table_id, number=point.commit.seq, at_us=None)
            kept = branch_table.head.kept_from
            gone = bool(kept) and not graph.reaches(point.commit.commit_id, graph.at(kept))
            shown = Shown(point.commit.seq, None, older, tuple(late), gone)
        else:
            late = read_late(conn, branch_table.table.table_id, number=point.commit.seq, at_us=point.at_us)
            shown = Shown(point.commit.seq if point.at_us is None else None, point.at_us, ranges=tuple(late))
        head = replace(branch_table.head, schema_version=version)
        tables.append((replace(branch_table, head=head, schema=branch_table.schemas[version]), shown))
    return tables


def refuse_pruned(conn: Connection, point: Point) -> None:
    """HistoryGone where a point can't be made a branch or a tag any more: a keyed table lacks rows."""
    for branch_table, shown in read_past(conn, point):
        shown.require_whole(branch_table.table.name)


def _schema_version(graph: Graph, branch_table: BranchTable, point: Point) -> int | None:
    """The version of a table's schema at a point; None where there was no such table."""
    if branch_table.table.key:
        return version_at(graph, branch_table, point.commit)
    made = [number for number in sorted(branch_table.schemas, reverse=True) if number <= point.commit.seq]
    if point.at_us is not None:
        made = [
            number for number in sorted(branch_table.schemas, reverse=True) if graph.at(number).at_us <= point.at_us
        ]
    return next(iter(made), None)


def version_at(graph: Graph, branch_table: BranchTable, commit: Commit) -> int | None:
    """The version of a keyed table's schema at a commit: the newest that it reaches; None where there is none."""
    made = [number for number in sorted(branch_table.schemas, reverse=True) if number <= commit.seq]
    return next((number for number in made if graph.reaches(commit.commit_id, graph.at(number))), None)
