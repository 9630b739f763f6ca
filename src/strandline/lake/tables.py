"""Tables: making them, and changing how they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

from strandline.actors import default_actor
from strandline.ledger import tables
from strandline.ledger.ledger import MAIN

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.model.maintenance import SettingChanges
    from strandline.model.tables import Dedupe, Table


class Tables:
    """`lake.tables`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def create(
        self,
        name: str,
        columns: Mapping[str, str] | Any,
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
        from strandline.model.constraints import parse_constraints
        from strandline.model.schema import Schema, parse_mapping
        from strandline.operations.declare import check_new, look_before
        from strandline.rules.row_rules import Target

        def target(table: str) -> Target:
            state = self._lake.memory.state(table, branch)
            return Target(state.table.name, state.table.key, state.schema)

        schema = columns if isinstance(columns, Schema) else parse_mapping(columns)
        schema = Schema(schema.columns, parse_constraints([*schema.constraints, *constraints]))
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

    def set(self, name: str, **changes: Unpack[SettingChanges]) -> Table:
        """Change how a table is kept: see `TableSettings`. What is not given stays as it is."""
        from strandline.ledger.table_settings import change_settings

        return change_settings(self._lake.ledger, name, changes)
