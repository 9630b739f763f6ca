"""What rows were judged by, for an operation that wrote them long before its publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from strandline.errors import SchemaMoved
from strandline.ledger.publish.publishing import Effect, Intent
from strandline.ledger.tables.tables import branch_name, is_protected, read_branch_tables_of, refuse_protected
from strandline.model.schema.declarations import Declarations


@dataclass(frozen=True)
class KeepSchemas(Effect):
    """The tables that were `written`, and the `schemas` that rows were judged by, with their versions.

    These are of all tables that are joined to the written ones by references.
    """

    written: tuple[str, ...]
    schemas: Mapping[str, int]

    def check(self, conn: Connection, intent: Intent) -> None:
        """What tables declare of their rows has not changed since, and the branch may be written."""
        branch_id = intent.branch_id
        refuse_protected(branch_name(conn, branch_id), protected=is_protected(conn, branch_id))
        now = Declarations.of(branch_id, 0, read_branch_tables_of(conn, branch_id, tails=False)).joined(self.written)
        if now != self.schemas:
            raise SchemaMoved(
                "the schemas of tables were changed while rows were judged by them",
                hint="Nothing was changed. Try again.",
                expected=self.schemas,
                actual=now,
            )
