"""A view: all heads of a branch, read in one database snapshot. Every read starts from one.

A view is immutable. It names snapshots, versions and batches, and all of these stay readable after it was taken (for
the grace period at least), so the same question to the same view has the same answer, whatever is flushed meanwhile.
What it names and can't find any more is `history_gone`, never missing rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.config import QueryConfig
from strandline.engines.duck import compare, relations, sandbox, wall
from strandline.errors import HistoryGone, NotFound, nearest
from strandline.ledger.changes.purged_keys import seen_hashes
from strandline.ledger.clock import read_clock
from strandline.ledger.history.refs import find_point
from strandline.ledger.history.starting_points import read_base
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows.batches import GRACE_S
from strandline.ledger.rows.reservations import first_late
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.tables import dropped_by, not_shown, read_branch_tables, read_shown
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import COMMIT, OURS, SEQ, Column
from strandline.model.tables import STATE, BranchTable, DataFile, disjoint_runs
from strandline.views.pins import Keeper
from strandline.views.result import Result, typed
from strandline.views.time_travel import Shown, read_past
from strandline.views.unreadable import on_unreadable

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from strandline.engines.spark.iceberg import Iceberg
    from strandline.model.history.commits import Commit


LOG = "$log"
"""Behind a keyed table's name: every version of its rows."""


MATCHING = "strand_wanted"
"""What is looked for, where a read is told so by rows."""


@dataclass(frozen=True)
class Rows:
    """Rows in `_seq` order; `continuation` is what to pass as `since` to go on where these end."""

    batches: Iterator[pa.RecordBatch]
    continuation: int
    files_opened: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches


class View:
    """All tables of a branch as they were at one moment: now, or at a commit, a tag or a time of the past."""

    def __init__(
        self,
        ledger: Ledger,
        branch: str,
        iceberg: Callable[[], Iceberg],
        *,
        at: str | None = None,
        grace_s: float = GRACE_S,
        only: Sequence[str] | None = None,
        limits: QueryConfig | None = None,
    ) -> None:
        self._shown: Mapping[str, Shown] = {}
        with ledger.read() as conn:
            if at is not None:
                past = read_past(conn, find_point(conn, at, branch))
                branch_tables = [branch_table for branch_table, _ in past]
                self._shown = {branch_table.table.table_id: shown for branch_table, shown in past}
            elif only is not None:
                branch_tables = read_shown(conn, branch, only)
            else:
                branch_tables = read_branch_tables(conn, branch)
            gone = {
                branch_table.table.name.lower(): dropped_by(conn, branch_table)
                for branch_table in branch_tables
                if branch_table.is_dropped
            }
            self.base = read_base(conn, branch, ())
            at_us = ledger.last_at_us(conn)
        self.branch = branch
        self._ledger = ledger
        self._at_us = at_us
        self._keeper = Keeper(ledger, at_us, grace_s)
        self._iceberg = iceberg
        self.limits = limits or QueryConfig()
        self._gone = gone
        self._every = {branch_table.table.name.lower(): branch_table for branch_table in branch_tables}
        self._branch_tables = {name: branch_table for name, branch_table in self._every.items() if name not in gone}

    def whole(self) -> View:
        """The same view with dropped tables too, for a caller that needs their history."""
        other = copy.copy(self)
        other._branch_tables = self._every
        return other

    @property
    def tables(self) -> list[str]:
        """The names of all tables."""
        return [branch_table.table.name for branch_table in self._branch_tables.values()]

    @property
    def relations(self) -> list[str]:
        """What a query can name: the tables, the versions of the keyed ones, and both of those that were dropped.

        Of these the answer is the commit that dropped them.
        """
        every = (self._branch_tables | self._every).values()
        return [
            *(branch_table.table.name for branch_table in every),
            *(f"{branch_table.table.name}{LOG}" for branch_table in every if branch_table.table.key),
        ]

    def under(self, schemas: Mapping[str, Schema]) -> View:
        """The same view, with the rows of some tables, by id, as another schema has them.

        Which of them lack a value, and have the default, is said by the schema that the view has them under.
        """
        other = copy.copy(self)
        other._branch_tables = {
            name: branch_table.under(
                schemas.get(branch_table.table.table_id, branch_table.schema).along(branch_table.schema)
            )
            for name, branch_table in self._branch_tables.items()
        }
        return other

    def beside(self, branch_tables: Sequence[BranchTable]) -> View:
        """The same view, with tables that another branch has."""
        other = copy.copy(self)
        other._branch_tables = self._branch_tables | {
            branch_table.table.name.lower(): branch_table for branch_table in branch_tables
        }
        return other

    def branch_table(self, name: str) -> BranchTable:
        """A table's head, schema and tail in this view."""
        named = self._branch_tables.get(name.removesuffix(LOG).removesuffix(STATE).lower())
        if named is not None and name.endswith(STATE):
            named = named.folded
        if named is None and (dropped := self._gone.get(name.removesuffix(LOG).lower())) is not None:
            raise not_shown(name, dropped)
        if named is None:
            raise NotFound(f"there is no table {name!r}", hint=nearest(name, self.tables), table=name)
        if (shown := self._shown.get(named.table.table_id)) is not None:
            shown.require_whole(named.table.name)
        return named

    def stable_seq(self, name: str) -> int:
        """Everything up to this seq is in the table's Iceberg log for good."""
        return self.branch_table(name).stable_seq

    def files(self, name: str, since: int | None = None, until: int | None = None) -> list[DataFile]:
        """The data files of a table's pinned log; with a range, those alone that can hold rows of it."""
        self._keeper.keep()
        branch_table = self.branch_table(name)
        with self._ledger.read() as conn:
            return read_files(
                conn,
                branch_table.head.branch_id,
                branch_table.table.table_id,
                branch_table.head.version,
                since=since,
                until=until,
            )

    def sql(self, query: str) -> Result:
        """Run one read-only query over this view's tables, tail included, on DuckDB; no JVM is involved.

        It is bounded by the limits of [query], and `too_large` past one of them.
        """
        return self._sql(query, self.limits)

    def ask(self, query: str) -> Result:
        """The same for a query of our own, which takes what it needs."""
        return self._sql(query, None)

    def _sql(self, query: str, limits: QueryConfig | None) -> Result:
        hidden = self._added()
        with sandbox.interruptible():
            connection = sandbox.connect(limits)
            statement = wall.parse(connection, query, self.relations, hidden)
            paths: list[str] = []
            for name in sorted({table.removesuffix(LOG) for table in statement.tables}):
                paths.extend(self._attach(connection, self.branch_table(name), hidden, statement.tables))
            sandbox.shut(connection, paths)
            return Result(connection, statement.text, limits)

    def _added(self) -> list[str]:
        """The columns that Strandline adds to some table of the view: all of its tables can be asked for them."""
        added = {
            column.name for branch_table in self._branch_tables.values() for column in branch_table.table.added_columns
        }
        return [name for name in OURS if name in added]

    def table(self, name: str) -> pa.Table:
        """A table's rows as Arrow, without the columns that Strandline adds."""
        return self.ask(f"SELECT * FROM {sandbox.quote_name(self.branch_table(name).table.name)}").arrow()

    def having(self, name: str, columns: Sequence[str], values: pa.Table | None) -> pa.Table:
        """Columns of the current rows that agree with one of these `values` in all its columns; of all with None.

        What agrees may have been replaced since. So all versions that do are looked for first, where the filters of a
        state's files tell what need not be read; only of their keys the newest ones are compared.
        """
        branch_table = self.branch_table(name)
        files = self.files(name)
        with sandbox.scratch() as connection, typed():
            self._load_tail(connection, branch_table, files)
            rows = (
                self._current_sql(branch_table, files)
                if values is None
                else self._agreeing(connection, branch_table, files, values)
            )
            return connection.sql(f"SELECT {_list(list(columns))} FROM ({rows})").to_arrow_table()

    def _agreeing(
        self, connection: duckdb.DuckDBPyConnection, branch_table: BranchTable, files: list[DataFile], values: pa.Table
    ) -> str:
        valued, near, names = relations.internal("asked"), relations.internal("near"), values.column_names
        relations.load_rows(connection, "asked", values.schema, values.to_batches())
        agreeing = [
            relations.matched(part, valued, names) for part in self._parts(branch_table, files) if part is not None
        ]
        if not relations.keep_keys(connection, "near", agreeing, branch_table.table.key):
            return relations.empty(stored_columns(branch_table))
        return relations.matched(self._current_sql(branch_table, files, matching=near), valued, names)

    def count(self, name: str, where: str) -> int:
        """How many rows a condition names."""
        table = sandbox.quote_name(self.branch_table(name).table.name)
        ((count,),) = self.ask(f"SELECT count(*) FROM {table} WHERE ({where})").rows()
        return int(count)

    def count_older(self, name: str, column: str, window_s: float) -> int:
        """How many rows of the log have a time that lies further back than a window."""
        branch_table = self.branch_table(name)
        files = self.files(name)
        with self._ledger.read() as conn:
            cutoff_us = read_clock(conn).now_us - int(window_s * 1_000_000)
        if not files or column not in {stored.name for stored in stored_columns(branch_table)}:
            return 0
        with sandbox.scratch() as connection, typed():
            shape = [stored for stored in stored_columns(branch_table) if stored.name in (SEQ, column)]
            rows = files_sql(branch_table, files, shape)
            old = relations.matching(connection, rows, [SEQ], relations.older_than(column, cutoff_us))
        return int(old.num_rows)

    def before_last(self, name: str, rows: int) -> int:
        """The seq to read since in order to get the last so many rows."""
        branch_table = self.branch_table(name)
        end = branch_table.readable_seq
        table = sandbox.quote_name(branch_table.table.name)
        seqs = self.ask(f"SELECT {SEQ} FROM {table} WHERE {SEQ} <= {end} ORDER BY {SEQ} DESC LIMIT {rows}").rows()
        return int(seqs[-1][0]) - 1 if seqs else end

    def read(self, name: str, since: int = 0, until: int | None = None, *, resumable: bool = True) -> Rows:
        """Rows of `(since, until]` in `_seq` order, all columns, opening only the files of that range.

        It ends where a reader that comes back later can safely go on: no row below `continuation` will appear any more.
        That is below the rows of a load that is under way. Not `resumable`, it gives everything that is visible.
        """
        branch_table = self.branch_table(name)
        end = _end(branch_table, until, resumable=resumable)
        files = self.files(name, since, end)
        return Rows(self._read(branch_table, files, since, end), max(since, end), len(files))

    def rows(self, name: str) -> Iterator[pa.RecordBatch]:
        """All rows as they are now, in `_seq` order: those of a log, or the newest version of each of a keyed table."""
        branch_table = self.branch_table(name)
        if not branch_table.table.key:
            return iter(self.read(name, resumable=False))
        columns = _list([column.name for column in stored_columns(branch_table)])
        return self.ask(f"SELECT {columns} FROM {sandbox.quote_name(branch_table.table.name)} ORDER BY {SEQ}").reader()

    def spark(self, name: str, since: int = 0, until: int | None = None) -> DataFrame:
        """All visible rows of a range as a Spark DataFrame, all columns: the pinned snapshot, plus the tail.

        Of a keyed table these are the newest versions of its rows; `NAME$log` are all versions.
        """
        from strandline.engines.spark.read import current, newest

        branch_table = self.branch_table(name)
        end = _end(branch_table, until, resumable=False)
        if not branch_table.table.key or name.endswith(LOG):
            return self._spark_versions(branch_table, since, end)
        folded = self._folded(branch_table)
        if folded is None or until is not None:
            return newest(self._spark_versions(branch_table, since, end), branch_table.table.key)
        later = self._spark_versions(branch_table, max(since, branch_table.folded_seq), end)
        return current(self._spark_versions(folded, since, end), later, branch_table.table.key)

    def _spark_versions(self, branch_table: BranchTable, since: int, until: int) -> DataFrame:
        """All versions of a range, or those that a state holds, in the pinned snapshot and in the tail."""
        import pyarrow as pa

        from strandline.engines.spark.read import read_view

        pin = branch_table.head.log_snapshot
        if pin is not None and not self._iceberg().has_snapshot(branch_table.table.iceberg_name, pin):
            raise HistoryGone(
                f"snapshot {pin} of table {branch_table.table.name!r} has expired", table=branch_table.table.name
            )
        columns = stored_columns(branch_table)
        batches = list(self._read_tail(branch_table, since, until)) if branch_table.tail else []
        # Not `from_batches` of none: PySpark can't read a list column that has no chunk.
        schema = log_schema(branch_table)
        tail = pa.Table.from_batches(batches, schema=schema) if batches else schema.empty_table()
        rows = read_view(self._iceberg().session, branch_table.table.iceberg_name, pin, tail, columns, since, until)
        rows = rows.where(f"{SEQ} > {branch_table.schema.began}") if branch_table.schema.began else rows
        shown = self._shown.get(branch_table.table.table_id)
        return rows if shown is None else rows.where(shown.condition("unix_micros"))

    def held(self) -> AbstractContextManager[None]:
        """Within the block all that the view names stays, however long it takes; HistoryGone when some is gone already.

        Short reads need no block: a view that has become old is held by itself when it is read.
        """
        return self._keeper.held()

    def changed(self, name: str, commits: Sequence[Commit]) -> pa.Table:
        """What these commits left of a keyed table's rows: the newest version of each, all columns.

        Files that are older than all of their rows are not opened.
        """
        import pyarrow as pa

        branch_table = self.branch_table(name)
        since = self._before(branch_table, commits)
        files = self.files(name, since)
        with sandbox.scratch() as connection, typed():
            self._load_tail(connection, branch_table, files)
            connection.register(
                MATCHING, pa.table({COMMIT: pa.array([commit.commit_id for commit in commits], pa.string())})
            )
            rows = relations.within(self._versions_sql(branch_table, files), since)
            latest = relations.latest(relations.matched(rows, MATCHING, [COMMIT]), branch_table.table.key)
            return connection.sql(latest).to_arrow_table()

    def _before(self, branch_table: BranchTable, commits: Sequence[Commit]) -> int:
        """A seq that all rows of these commits are above."""
        with self._ledger.read() as conn:
            late = first_late(conn, branch_table.table.table_id, [commit.seq for commit in commits])
        firsts = [commit.seq - sum(commit.tables.values()) for commit in commits]
        return max(min([*firsts, *([late] if late is not None else [])], default=1) - 1, 0)

    def page(self, name: str, since: int, rows: int) -> pa.Table:
        """The next versions of a keyed table behind a seq, each with the columns of the one before it of its row."""
        branch_table = self.branch_table(name)
        files = self.files(name)
        key, names = list(branch_table.table.key), [column.name for column in stored_columns(branch_table)]
        with sandbox.scratch() as connection, typed():
            self._load_tail(connection, branch_table, files)
            later = [file for file in files if file.last_seq > since]
            end = _end(branch_table, None, resumable=True)
            behind = relations.within(self._versions_sql(branch_table, later), since, end)
            page = connection.sql(f"SELECT {_list([*key, SEQ])} FROM ({behind}) ORDER BY {SEQ} LIMIT {rows}")
            page_keys = page.to_arrow_table()
            until = page_keys[SEQ][-1].as_py() if page_keys.num_rows else since
            connection.register(MATCHING, page_keys.select(key).group_by(key).aggregate([]))
            upto = relations.within(self._versions_sql(branch_table, files), 0, until)
            every = relations.matched(upto, MATCHING, key)
            return connection.sql(compare.with_earlier(every, key, names, since, until)).to_arrow_table()

    def pick(self, name: str, keys: pa.Table) -> pa.Table:
        """The rows of a keyed table with these keys, all columns; one that is not there is left out."""
        branch_table = self.branch_table(name)
        files = self.files(name)
        with sandbox.scratch() as connection, typed():
            self._load_tail(connection, branch_table, files)
            connection.register(MATCHING, keys)
            return connection.sql(self._current_sql(branch_table, files, matching=MATCHING)).to_arrow_table()

    def current(self, connection: duckdb.DuckDBPyConnection, name: str) -> str:
        """The rows of a keyed table, as SQL for a connection that goes on asking about them."""
        branch_table = self.branch_table(name)
        files = self.files(name)
        self._load_tail(connection, branch_table, files)
        return self._current_sql(branch_table, files)

    def _attach(
        self, connection: duckdb.DuckDBPyConnection, branch_table: BranchTable, columns: list[str], named: Set[str]
    ) -> list[str]:
        """Make a table known to a connection under those of its names that are `named`; returns the paths it needs.

        It has all these `columns`.
        """
        name = branch_table.table.name
        files = self.files(name)
        self._load_tail(connection, branch_table, files)
        shown: dict[str, str] = {}
        if branch_table.table.key and name in named:
            shown[name] = self._current_sql(branch_table, files)
        if not branch_table.table.key or f"{name}{LOG}" in named:
            shown[f"{name}{LOG}" if branch_table.table.key else name] = self._versions_sql(branch_table, files)
        names = {column.name for column in stored_columns(branch_table)}
        lacking = "".join(
            f", NULL::{relations.duck_type(OURS[column])} AS {column}" for column in columns if column not in names
        )
        with typed():
            for title, rows in shown.items():
                connection.execute(f"CREATE VIEW {sandbox.quote_name(title)} AS SELECT *{lacking} FROM ({rows})")
        if self._folded(branch_table) is not None:
            files = [*files, *self.files(f"{name}{STATE}")]
        return [relations.local_path(file.path) for file in files]

    def _versions_sql(self, branch_table: BranchTable, files: list[DataFile]) -> str:
        """All rows of a log, or of a keyed table all versions: those in these files, and the tail."""
        columns = stored_columns(branch_table)
        names = [column.name for column in columns]
        log = self._log_sql(branch_table, files) if files else relations.empty(columns)
        return (
            f"{log} UNION ALL SELECT {_list(names)} FROM ({self._tail_sql(branch_table)})" if branch_table.tail else log
        )

    def _current_sql(self, branch_table: BranchTable, files: list[DataFile], matching: str | None = None) -> str:
        """The rows of a keyed table: its state, and what is later than that. Older files of its log are not opened.

        Of the past there is no state: there they are found among all versions. `matching` is a relation with the keys
        of those that matter.
        """

        def picked(rows: str) -> str:
            return rows if matching is None else relations.matched(rows, matching, branch_table.table.key)

        held, later = self._parts(branch_table, files)
        if held is None:
            return relations.newest(picked(later), branch_table.table.key)
        if not branch_table.tail and not _unfolded(branch_table, files):
            return picked(held)
        names = [column.name for column in stored_columns(branch_table)]
        return relations.current(picked(held), picked(later), branch_table.table.key, names)

    def _parts(self, branch_table: BranchTable, files: list[DataFile]) -> tuple[str | None, str]:
        """Where the rows of a keyed table are: in its state if it has one, and among the versions later than that."""
        folded = self._folded(branch_table)
        if folded is None:
            return None, self._versions_sql(branch_table, files)
        later = relations.within(
            self._versions_sql(branch_table, _unfolded(branch_table, files)), branch_table.folded_seq
        )
        held = self.files(folded.table.name)
        return self._log_sql(folded, held) if held else None, later

    def _folded(self, branch_table: BranchTable) -> BranchTable | None:
        """The state to read a keyed table's rows through, if there is one."""
        folded = branch_table.folded
        past = branch_table.table.table_id in self._shown
        return None if past or folded is None or folded.head.last_seq == 0 else folded

    def _load_tail(
        self, connection: duckdb.DuckDBPyConnection, branch_table: BranchTable, files: list[DataFile]
    ) -> None:
        if not branch_table.tail:
            return
        from strandline.model.values.rows import partitions
        from strandline.views.tail_memory import read_tail_rows

        touched: set[str] = set()

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in read_tail_rows(self._ledger, branch_table, on_unreadable(branch_table)):
                if scope.within:
                    touched.update(partitions(batch, branch_table.table.partition_by))
                yield batch

        scope = key_scope(branch_table)
        tail, dropped = _tail_names(branch_table)
        with sandbox.interruptible():
            relations.load_rows(connection, tail, log_schema(branch_table), rows())
        if scope.row_key:
            with self._ledger.read() as conn:
                seen = seen_hashes(conn, branch_table.table.table_id)
            searched = [file for file in files if not scope.within or file.partition in touched]
            log = relations.parquet([relations.local_path(f.path) for f in searched], [*scope.within, *scope.row_key])
            with typed():
                relations.find_duplicates(
                    connection, relations.internal(tail), log if searched else None, scope, into=dropped, seen=seen
                )

    def _tail_sql(self, branch_table: BranchTable) -> str:
        tail, dropped = _tail_names(branch_table)
        rows = f"SELECT * FROM {relations.internal(tail)}"
        if branch_table.table.row_key:
            rows = f"{rows} ANTI JOIN {relations.internal(dropped)} USING ({SEQ})"
        return self._as_shown(branch_table, rows)

    def _log_sql(self, branch_table: BranchTable, files: list[DataFile]) -> str:
        return self._as_shown(branch_table, files_sql(branch_table, files, stored_columns(branch_table)))

    def _as_shown(self, branch_table: BranchTable, rows: str) -> str:
        """Without the rows that came after the moment that is looked at, or before the table was added again."""
        rows = (
            f"SELECT * FROM ({rows}) WHERE {SEQ} > {branch_table.schema.began}" if branch_table.schema.began else rows
        )
        shown = self._shown.get(branch_table.table.table_id)
        return rows if shown is None else f"SELECT * FROM ({rows}) WHERE {shown.condition()}"

    def _read(
        self, branch_table: BranchTable, files: list[DataFile], since: int, until: int
    ) -> Iterator[pa.RecordBatch]:
        columns = [column.name for column in stored_columns(branch_table)]
        for run in disjoint_runs(files):
            self._keeper.keep()
            with sandbox.scratch() as connection:
                yield from self._ordered(connection, self._log_sql(branch_table, run), columns, since, until)
        if any(ref.last_seq > since and ref.first_seq <= until for ref in branch_table.tail):
            yield from self._read_tail(branch_table, since, until)

    def _read_tail(self, branch_table: BranchTable, since: int, until: int) -> Iterator[pa.RecordBatch]:
        columns = [column.name for column in stored_columns(branch_table)]
        with sandbox.scratch() as connection:
            self._load_tail(connection, branch_table, self.files(branch_table.table.name))
            yield from self._ordered(connection, self._tail_sql(branch_table), columns, since, until)

    def _ordered(
        self, connection: duckdb.DuckDBPyConnection, rows: str, columns: list[str], since: int, until: int
    ) -> Iterator[pa.RecordBatch]:
        query = f"SELECT {_list(columns)} FROM ({rows}) WHERE {SEQ} > {since} AND {SEQ} <= {until} ORDER BY {SEQ}"
        with typed():
            yield from connection.sql(query).to_arrow_reader(10_000)


def key_scope(branch_table: BranchTable) -> relations.KeyScope:
    """What makes two rows of a table the same row."""
    table = branch_table.table
    return relations.KeyScope(table.row_key, table.partition_by if table.dedupe == "partition" else ())


def stored_columns(branch_table: BranchTable) -> list[Column]:
    """The columns of a table's log: the user's, then ours."""
    return branch_table.columns


def log_schema(branch_table: BranchTable) -> pa.Schema:
    """The same columns as an Arrow schema."""
    from strandline.model.values.arrow import log_arrow

    return log_arrow(branch_table.schema, branch_table.table)


def _unfolded(branch_table: BranchTable, files: Sequence[DataFile]) -> list[DataFile]:
    return [file for file in files if file.last_seq > branch_table.folded_seq]


def _end(branch_table: BranchTable, until: int | None, *, resumable: bool) -> int:
    last = (
        branch_table.readable_seq
        if resumable
        else max([branch_table.head.last_seq, *(ref.last_seq for ref in branch_table.tail)])
    )
    return last if until is None else min(until, last)


def files_sql(branch_table: BranchTable, files: Sequence[DataFile], columns: Sequence[Column]) -> str:
    """Columns of a table's data files, under whatever schemas these were written."""
    return relations.files([file.path for file in files], columns, branch_table.shapes(files))


def _tail_names(branch_table: BranchTable) -> tuple[str, str]:
    return f"tail_{branch_table.table.table_id}", f"dropped_{branch_table.table.table_id}"


def _list(names: list[str]) -> str:
    return ", ".join(sandbox.quote_name(name) for name in names)
