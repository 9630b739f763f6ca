"""What an open lake remembers of its tables' schemas, so that a write need not ask for them each time.

A write is validated and encoded by the schema that is remembered, and its transaction compares: where the table's head
has another one by then, nothing is stored, what is remembered is forgotten, and the write is done again by the schema
that there is. So memory may be old, and a stored row never is wrong for it. One memory serves all threads of a lake,
and the copies of it that have a place for progress of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from strandline.errors import BadRequest, Conflict, InvalidRows, SchemaMoved, StrandError, TakesNoVersions
from strandline.ledger.rows.group_commit import Appender
from strandline.ledger.rows.rereading import RereadableInput
from strandline.ledger.tables.tables import has_schema, read_shown

if TYPE_CHECKING:
    from strandline.ledger.ledger import Ledger
    from strandline.model.tables import BranchTable, Head
    from strandline.operations.change.mutate import Mutator
    from strandline.operations.core.context import Context

SCHEMA_RETRIES = 5

T = TypeVar("T")
TableOf: TypeAlias = "Callable[[str], BranchTable]"


class SchemaMemory:
    """The schemas that a lake's writers go by, and the two queues in which their writes meet."""

    def __init__(self, ledger: Ledger, context: Callable[[], Context]) -> None:
        self.appender = Appender(ledger)
        self._ledger = ledger
        self._context = context
        self._branch_tables: dict[tuple[str, str], BranchTable] = {}

    @cached_property
    def mutator(self) -> Mutator:
        """What changes keyed tables; only lakes that do so import it."""
        from strandline.operations.change.mutate import Mutator

        return Mutator(self._ledger, self.appender, self._context)

    def retried(self, work: Callable[[TableOf], T], branch: str, rows: object = ()) -> T:
        """Do it, and again with what the tables are then if they have changed meanwhile.

        `rows` that can be read once are read by a schema that was looked up for them, and again as far as they are
        kept: rows that can't be read again must not be refused for a schema that was remembered.
        """
        kept = rows if isinstance(rows, RereadableInput) else None
        for _ in range(SCHEMA_RETRIES):
            heads: list[Head] = []

            def table_of(table: str, heads: list[Head] = heads) -> BranchTable:
                branch_table = self.branch_table(table, branch) if kept is None else self._current_table(table, branch)
                heads.append(branch_table.head)
                return branch_table

            try:
                return work(table_of)
            except (Conflict, InvalidRows, BadRequest) as error:
                if not self._forgets(error, heads, branch):
                    raise
                if kept is not None and not kept.is_whole:
                    raise SchemaMoved(
                        "the schema changed while the rows were read, and they are too many to be kept",
                        hint="Nothing was stored. Do it again: the rows are then read by the new schema.",
                    ) from error
        raise SchemaMoved("the schemas keep changing")

    def branch_table(self, table: str, branch: str) -> BranchTable:
        """A table's schema, remembered: the append's transaction checks that it is still the same."""
        key = (branch, table.lower())
        remembered = self._branch_tables.get(key)
        if remembered is None:  # one look: another thread may forget it in between
            with self._ledger.read() as conn:
                remembered = self._branch_tables[key] = read_shown(conn, branch, [table])[0]
        return remembered

    def _current_table(self, table: str, branch: str) -> BranchTable:
        """The same as `branch_table`, after one look whether it is still so."""
        branch_table = self.branch_table(table, branch)
        with self._ledger.read() as conn:
            current = has_schema(conn, branch_table.head)
        if not current:
            self._forget()
            branch_table = self.branch_table(table, branch)
        return branch_table

    def _forgets(self, error: StrandError, judged_by: Iterable[Head], branch: str) -> bool:
        """Whether an error may be due to schemas that we remember and that have moved; then they are forgotten.

        Rows that don't fit the schema that we know may fit the one that there is by now. The heads that the rows were
        judged by are compared too: another thread may have forgotten them, and looked again, since then.
        """
        moved = isinstance(error, SchemaMoved)
        if isinstance(error, TakesNoVersions) or not isinstance(error, Conflict):
            remembered = [
                branch_table.head for (on, _), branch_table in list(self._branch_tables.items()) if on == branch
            ]
            with self._ledger.read() as conn:
                moved = not all(has_schema(conn, head) for head in [*judged_by, *remembered])
        if moved:
            self._forget()
        return moved

    def _forget(self) -> None:
        self._branch_tables.clear()
        self.mutator.forget()
