"""What the tables of a branch declare of their rows, and of each other's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from strandline.errors import NotFound
from strandline.model.schema.constraints import Cardinality, Reference
from strandline.model.tables import BranchTable


@dataclass(frozen=True)
class Link:
    """A reference from one table to another, with how many rows may refer to one."""

    source: BranchTable
    target: BranchTable
    reference: Reference
    counts: tuple[Cardinality, ...] = ()


@dataclass(frozen=True)
class Declarations:
    """The keyed tables of a branch with their constraints, as of one `shape` of it.

    A branch's shape is a number that grows with every table and every schema that comes, changes or goes. What was
    judged by one shape is not stored under another.
    """

    branch_id: str
    shape: int
    branch_tables: Mapping[str, BranchTable]

    @classmethod
    def of(cls, branch_id: str, shape: int, branch_tables: Iterable[BranchTable]) -> Declarations:
        """What these tables declare."""
        return cls(
            branch_id,
            shape,
            {branch_table.table.table_id: branch_table for branch_table in branch_tables if branch_table.table.key},
        )

    def links_from(self, table_id: str) -> tuple[Link, ...]:
        """The references that rows of a table make."""
        return self._links[0].get(table_id, ())

    def links_to(self, table_id: str) -> tuple[Link, ...]:
        """The references that are made to rows of a table."""
        return self._links[1].get(table_id, ())

    def depends(self, table_id: str) -> bool:
        """Whether a row of a table is judged by other rows: then a change must know what was there before."""
        branch_table = self.branch_tables.get(table_id)
        rules = branch_table.schema.constraints if branch_table is not None else ()
        return bool(self.links_to(table_id)) or any(rule.scope != "row" for rule in rules)

    def joined(self, tables: Iterable[str]) -> dict[str, int]:
        """These tables, and those that they refer to or that refer to them; each with the version of its schema."""
        table_ids = set(tables)
        for link in [link for table_id in table_ids for link in (*self.links_from(table_id), *self.links_to(table_id))]:
            table_ids |= {link.source.table.table_id, link.target.table.table_id}
        return {
            table_id: self.branch_tables[table_id].head.schema_version
            for table_id in sorted(table_ids)
            if table_id in self.branch_tables
        }

    def cascades(self, table_id: str) -> bool:
        """Whether deleting a row of a table may delete others."""
        return any(link.reference.on_delete == "cascade" for link in self.links_to(table_id))

    @cached_property
    def _links(self) -> tuple[dict[str, tuple[Link, ...]], dict[str, tuple[Link, ...]]]:
        by_name = {branch_table.table.name.lower(): branch_table for branch_table in self.branch_tables.values()}
        sources: dict[str, tuple[Link, ...]] = {}
        targets: dict[str, tuple[Link, ...]] = {}
        for source in self.branch_tables.values():
            constraints = source.schema.constraints
            counts = [rule for rule in constraints if isinstance(rule, Cardinality)]
            for reference in constraints:
                if isinstance(reference, Reference):
                    target = by_name.get(reference.table.lower())
                    if target is None:
                        raise NotFound(
                            f"{source.table.name!r} refers to a table {reference.table!r} that the branch has not",
                            hint="Make that table there too, or drop the reference.",
                            table=reference.table,
                        )
                    counted = tuple(cardinality for cardinality in counts if cardinality.columns == reference.columns)
                    link = Link(source, target, reference, counted)
                    from_, to = source.table.table_id, target.table.table_id
                    sources[from_] = (*sources.get(from_, ()), link)
                    targets[to] = (*targets.get(to, ()), link)
        return sources, targets
