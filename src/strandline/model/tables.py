"""What a table is, where its log ends, and what its tail holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from strandline.errors import Unsupported
from strandline.model.ids import state_id
from strandline.model.schema.schema import Schema
from strandline.model.schema.shapes import Shape, file_columns, shape_of
from strandline.model.schema.types import AT, COMMIT, EXTRA, FILTERED, ORIGIN, OURS, REMOVED, Column, Fill

Dedupe = Literal["table", "partition"]
Kind = Literal["log", "keyed", "state"]

STATE = "$state"
"""Behind a keyed table's name: the table that holds its state. No table that a user makes has such a name."""

TARGET_FILE_BYTES = 128 << 20


@dataclass(frozen=True)
class TableSettings:
    """What may be changed of a table at any time: how it is kept, never what it holds.

    `retention_s` is how old a row may become by `time_column`; None keeps rows for good. `target_file_bytes` is the
    size that compaction merges small files to.
    """

    retention_s: float | None = None
    time_column: str = AT
    target_file_bytes: int = TARGET_FILE_BYTES

    def cutoff_us(self, now_us: int) -> int | None:
        """Rows whose time lies before this are past their retention; None when rows are kept for good."""
        return None if self.retention_s is None else now_us - int(self.retention_s * 1_000_000)


@dataclass(frozen=True)
class Table:
    """A table's identity and the settings that never change; `inbound` becomes true with its first forwarded row.

    A keyed table has a `key`: its log holds the versions of each row, and a reader gets the newest of them. Its `state`
    is a table of its own, with the newest version of each row up to a seq; no query names it.
    """

    table_id: str
    name: str
    kind: Kind
    iceberg_name: str
    row_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    dedupe: Dedupe
    extra: bool
    created_at_us: int
    key: tuple[str, ...] = ()
    inbound: bool = False
    settings: TableSettings = TableSettings()

    @property
    def state(self) -> Table:
        """The table that holds this keyed table's state."""
        _, _, plain = self.iceberg_name.partition(".")
        return replace(
            self,
            table_id=state_id(self.table_id),
            name=f"{self.name}{STATE}",
            kind="state",
            iceberg_name=f"state.{plain}",
        )

    def require_log(self, what: str, hint: str = "Its rows are changed by `strand load` and lake.mutate.") -> None:
        """Unsupported unless this is a log table: `what` is only done with one."""
        if self.key:
            raise Unsupported(f"{self.name!r} is a keyed table, and {what}", hint=hint, table=self.name)

    @property
    def added_columns(self) -> tuple[Column, ...]:
        """The columns that Strandline adds to this table's log, in their order behind the user's."""
        absent = {
            *(() if self.extra else (EXTRA,)),
            *(() if self.key else (REMOVED, COMMIT)),
            *(() if self.inbound else ORIGIN),
        }
        return tuple(Column(name, type_, True) for name, type_ in OURS.items() if name not in absent)


@dataclass(frozen=True)
class Books:
    """Where the acked rows of a (branch, table) went: acked = log + tail + dropped + pruned + quarantined."""

    acked: int
    log: int
    dropped: int
    pruned: int
    quarantined: int


@dataclass(frozen=True)
class Head:
    """The end of a (branch, table)'s log: the pins that every read starts from.

    `version` counts the log snapshots published here; the ledger's files are recorded against it, so a view that
    remembers a version can be planned later. `barrier` is raised by what changes rows, or what they have to keep,
    otherwise than by appending some. `refuses` is why writes are refused, when they are. `kept_from` is the number of
    the commit from which on retention has kept all points of a keyed table; 0 where it has removed nothing.
    """

    branch_id: str
    table_id: str
    version: int
    log_snapshot: int | None
    last_seq: int
    schema_version: int
    refuses: str | None
    books: Books
    barrier: int = 0
    kept_from: int = 0


class BatchRef(NamedTuple):
    """A batch in a tail, without its payload."""

    batch_id: str
    first_seq: int
    last_seq: int
    rows: int
    size_bytes: int
    schema_version: int
    actor: str
    at_us: int
    commit_id: str | None = None


@dataclass(frozen=True)
class Payload:
    """A batch with its bytes, as the ledger holds them."""

    ref: BatchRef
    payload: bytes
    checksum: bytes


@dataclass(frozen=True)
class DataFile:
    """A data file of a log snapshot: enough to plan a read without Iceberg's metadata.

    `origin` says whether it has the columns of forwarded rows: one that was written before the first of them has not.
    `schema_version` is the newest version of the schema, on whatever branch, when it was written.
    `oldest_us` and `newest_us` are the range of the table's time column, as far as it is known and no row lacks it.
    """

    path: str
    rows: int
    size_bytes: int
    first_seq: int
    last_seq: int
    partition: str
    origin: bool = False
    oldest_us: int | None = None
    newest_us: int | None = None
    schema_version: int = 0


def disjoint_runs(files: list[DataFile]) -> Iterator[list[DataFile]]:
    """Files in seq order, cut wherever no file reaches over the cut: sorting each run sorts all of them."""
    run: list[DataFile] = []
    reach = 0
    for file in files:
        if run and file.first_seq > reach:
            yield run
            run = []
        run.append(file)
        reach = max(reach, file.last_seq)
    if run:
        yield run


@dataclass(frozen=True)
class BranchTable:
    """A table as one database snapshot shows it: its head, its schema, its tail and what is reserved.

    `schemas` are all versions of its schema: rows that were written under an older one are read under this one.
    A keyed table has its state beside it: `folded`, whose last seq is how far the log is folded into it.
    """

    table: Table
    head: Head
    schema: Schema
    tail: tuple[BatchRef, ...]
    reserved_from: int | None
    schemas: Mapping[int, Schema]
    folded: BranchTable | None = None

    @property
    def folded_seq(self) -> int:
        """Every version up to this seq is in the state, or was replaced by a later one up to it."""
        return self.folded.head.last_seq if self.folded is not None else 0

    @property
    def is_dropped(self) -> bool:
        """Whether it is not there any more for readers and writers of the branch; others, and the past, have it."""
        return self.schema.dropped

    def under(self, schema: Schema) -> BranchTable:
        """The same rows under another schema."""
        folded = self.folded.under(schema) if self.folded is not None else None
        return replace(self, schema=schema, folded=folded)

    @property
    def columns(self) -> list[Column]:
        """The columns of the table's log: the user's, then ours."""
        return [*self.schema.columns, *self.table.added_columns]

    @property
    def filtered(self) -> list[str]:
        """The columns by whose values rows are looked for, under any of its schemas: by their names in data files."""
        columns = {
            schema.column(name)
            for schema in self.schemas.values()
            for rule in schema.constraints
            if rule.scope != "row"
            for name in rule.columns
        }
        return sorted({column.stored for column in columns if column.type in FILTERED})

    def shapes(self, files: Iterable[DataFile]) -> dict[str, Shape]:
        """What each of these data files has of the table's columns."""
        by_kind: dict[tuple[int, bool], Shape] = {}
        by_path: dict[str, Shape] = {}
        for file in files:
            kind = file.schema_version, file.origin
            if kind not in by_kind:
                by_kind[kind] = shape_of(self.columns, self.schemas, file.schema_version, origin=file.origin)
            by_path[file.path] = by_kind[kind]
        return by_path

    @cached_property
    def stored(self) -> BranchTable:
        """The table as its data files hold it: all columns that it ever had, by their names there.

        A default that came with its column is written out in rows that were there before; no other is.
        """
        if len(self.schemas) == 1:
            return self
        times = next(column.stored for column in self.columns if column.name == self.table.settings.time_column)
        table = replace(self.table, settings=replace(self.table.settings, time_column=times))
        columns = tuple(
            replace(column, fills=self._written_out(column.stored)) for column in file_columns(self.schemas)
        )
        return replace(self, table=table, schema=Schema(columns))

    def _written_out(self, stored: str) -> tuple[Fill, ...]:
        column = self.schema.stored.get(stored)
        return () if column is None else tuple(fill for fill in column.fills if fill.adds)

    @property
    def stable_seq(self) -> int:
        """Everything up to this seq is in the log for good."""
        first_in_tail = self.tail[0].first_seq if self.tail else None
        blockers = [seq for seq in (first_in_tail, self.reserved_from) if seq is not None]
        return min(blockers) - 1 if blockers else self.head.last_seq

    @property
    def readable_seq(self) -> int:
        """Up to this seq no row can appear any more that is not visible now; the tail counts as visible.

        Only a reserved range can still put rows below others that are visible already, so a reader that remembers
        where it stopped stays below the first one.
        """
        return self.reserved_from - 1 if self.reserved_from is not None else self.head.last_seq


@dataclass(frozen=True)
class Ack:
    """The answer to an append: durable, with these seqs; `too_old` more rows were past the retention, and left out."""

    rows: int
    first_seq: int | None
    last_seq: int | None
    repeated: bool = False
    too_old: int = 0
