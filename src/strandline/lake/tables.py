"""Tables: making them, looking at them, changing how they are kept, and dropping them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from strandline.actors import default_actor
from strandline.errors import PreconditionFailed
from strandline.ledger.ledger import MAIN
from strandline.ledger.tables import tables
from strandline.model.results import optional
from strandline.model.schema.types import AT
from strandline.model.wording import counted

if TYPE_CHECKING:
    from pathlib import Path

    from strandline.lake.door import Lake
    from strandline.model.maintenance import SettingChanges
    from strandline.model.schema.schema import Schema
    from strandline.model.tables import Dedupe, Table
    from strandline.reports.tables import TableHistory, TableReport


class Declaring(TypedDict, total=False):
    """How a table is made besides its columns: see `Lake.create_table`."""

    row_key: Sequence[str]
    key: Sequence[str]
    partition_by: Sequence[str]
    dedupe: Dedupe
    unknown_fields: Literal["error", "json"]
    branch: str
    actor: str


@dataclass(frozen=True)
class NewTable:
    """A table that was just made, as it was declared."""

    table: str
    columns: tuple[Mapping[str, object], ...]
    constraints: tuple[str, ...]
    dropped: bool | None = optional()
    began: int | None = optional()
    gone: tuple[Mapping[str, object], ...] | None = optional()
    row_key: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    dedupe: str = "table"
    unknown_fields: str = "error"

    @classmethod
    def of(cls, table: Table, schema: Schema) -> NewTable:
        """What `create` made of what was declared."""
        stored = schema.to_json()
        return cls(
            table.name,
            tuple(stored["columns"]),
            tuple(stored["constraints"]),
            dropped=stored.get("dropped"),
            began=stored.get("began"),
            gone=tuple(stored["gone"]) if "gone" in stored else None,
            row_key=table.row_key,
            key=table.key,
            partition_by=table.partition_by,
            dedupe=table.dedupe,
            unknown_fields="json" if table.extra else "error",
        )


@dataclass(frozen=True)
class KeptTable:
    """How a table is kept now."""

    table: str
    retention_s: float | None
    time_column: str
    target_file_bytes: int


@dataclass(frozen=True)
class DroppedTable:
    """A table that a branch shows no more, since a commit of it."""

    dropped: str
    branch: str
    commit: str | None


@dataclass(frozen=True)
class PastWindow:
    """How many of a table's rows are older than a window; of a keyed one, how many versions of rows."""

    table: str
    older: int
    total: int
    keyed: bool

    @property
    def unagreed(self) -> PreconditionFailed | None:
        """The refusal of a window that no row lies in, without anybody's yes: it is a mistake more often than not.

        Of a keyed table the newest version of each row stays, whatever the window is.
        """
        if self.keyed or self.older < self.total:
            return None
        consequence = f"the whole log of {self.table} ({counted(self.total, 'row')}) is older than that, and would go"
        return PreconditionFailed(consequence, hint="`--yes` sets it all the same.", count=self.total)


class Tables:
    """`lake.tables`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def create(
        self,
        name: str,
        columns: Mapping[str, str] | Schema,
        *,
        row_key: Sequence[str] = (),
        key: Sequence[str] = (),
        constraints: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        dedupe: Dedupe = "table",
        unknown_fields: Literal["error", "json"] = "error",
        branch: str = MAIN,
        actor: str = "",
    ) -> Table:
        """Make a log table, or with a `key` a keyed one: see `Lake.create_table`."""
        from strandline.operations.change.declare import check_new, look_before
        from strandline.rules.kind import Target

        def target(table: str) -> Target:
            branch_table = self._lake.memory.branch_table(table, branch)
            return Target(branch_table.table.name, branch_table.table.key, branch_table.schema)

        schema = _declared(columns, constraints)
        how = {"key": key, "row_key": row_key, "partition_by": partition_by}
        check_new(name, schema, **how, dedupe=dedupe, target_of=target)
        return tables.create_table(
            self._lake.ledger,
            name,
            schema,
            branch=branch if key else MAIN,
            actor=actor or default_actor(),
            **how,
            dedupe=dedupe,
            extra=unknown_fields == "json",
            seen=look_before(lambda: self._lake.view(branch), name, schema),
        )

    def new(
        self,
        name: str,
        columns: Mapping[str, str] | Schema,
        *,
        constraints: Sequence[str] = (),
        **how: Unpack[Declaring],
    ) -> NewTable:
        """The same, as people see it."""
        schema = _declared(columns, constraints)
        return NewTable.of(self.create(name, schema, **how), schema)

    def drop(
        self, name: str, *, branch: str = MAIN, actor: str = "", message: str = "", yes: bool = False
    ) -> DroppedTable:
        """Drop a table of a branch, as one commit; without `yes` it is refused. Its history stays.

        Other branches, tags and older commits still have its rows.
        """
        table, document = self._dropping(name, branch)
        done = self._lake.schemas.change(document, branch=branch, actor=actor, message=message, yes=yes)
        return DroppedTable(table, branch, done.changed.commit)

    def unagreed_drop(self, name: str, *, branch: str = MAIN) -> PreconditionFailed | None:
        """The refusal to drop a table without anybody's yes; None where it shows nothing any more."""
        return self._lake.schemas.unagreed(self._dropping(name, branch)[1], branch=branch)

    def _dropping(self, name: str, branch: str) -> tuple[str, Mapping[str, object]]:
        table = self._lake.view(branch).branch_table(name).table.name
        return table, {"tables": {table: {"drop": True}}}

    def set(self, name: str, **changes: Unpack[SettingChanges]) -> Table:
        """Change how a table is kept: see `TableSettings`. What is not given stays as it is."""
        from strandline.ledger.tables.table_settings import change_settings

        return change_settings(self._lake.ledger, name, changes)

    def keep(self, name: str, changes: SettingChanges, *, yes: bool = False) -> KeptTable:
        """The same, as people see it; without `yes` a window is refused that no row of the log lies in."""
        past = None if yes else self.past_window(name, changes)
        if past is not None and past.unagreed is not None:
            raise past.unagreed
        table = self.set(name, **changes)
        return KeptTable(table.name, **vars(table.settings))

    def entries(self, branch: str = MAIN) -> list[TableReport]:
        """Every table of a branch: its settings, and where its rows are."""
        from strandline.reports.tables import describe

        view = self._lake.view(branch)
        return [describe(view, name) for name in view.tables]

    def show(self, name: str, branch: str = MAIN) -> TableHistory:
        """The same of one table, with its last snapshots."""
        from strandline.reports.tables import describe_fully

        return describe_fully(self._lake, branch, name)

    def past_window(self, name: str, changes: SettingChanges) -> PastWindow | None:
        """What a change of settings would let go of; None where it sets no window, or nothing is older than it."""
        window_s = changes.get("retention_s")
        if window_s is None:
            return None
        view = self._lake.view()
        branch_table = view.branch_table(name)
        keyed = bool(branch_table.table.key)
        column = AT if keyed else changes.get("time_column", branch_table.table.settings.time_column)
        total = branch_table.head.books.log
        older = view.count_older(name, column, window_s) if total else 0
        return PastWindow(branch_table.table.name, older, total, keyed) if older else None


def _declared(columns: Mapping[str, str] | Schema, constraints: Sequence[str]) -> Schema:
    """Columns and the rules that rows keep, of what was declared of both."""
    from strandline.model.schema.constraints import parse_constraints
    from strandline.model.schema.schema import Schema, parse_mapping

    schema = columns if isinstance(columns, Schema) else parse_mapping(columns)
    return Schema(schema.columns, parse_constraints([*schema.constraints, *constraints]))


def names_at(root: Path) -> Sequence[str]:
    """The tables of a lake that is not opened: only its ledger is read, as fast as a shell's completion has to be."""
    from strandline.config import load
    from strandline.ledger.ledger import Ledger

    ledger = Ledger.open(load(root).ledger, read_only=True)
    with ledger.read() as conn:
        return [table.name for table in tables.list_tables(conn) if table.kind != "state"]
