"""What refers to rows that are about to go: a purge must not leave them with references to nothing.

What is found is true of one moment. What came after it is known by its claims, as for a mutation: the publish looks
whether any of them was written since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from strandline.errors import Conflict
from strandline.ledger.changes.purges import StayUnreferred
from strandline.ledger.history.starting_points import Base, read_base
from strandline.ledger.tables.tables import read_branch_tables
from strandline.model.reporting import and_more, most_reported
from strandline.model.schema.declarations import Declarations, Link
from strandline.model.schema.keys import claim_hash, shown_key
from strandline.model.schema.violations import Violation
from strandline.model.values.arrow import batch_arrow
from strandline.model.values.values import shown
from strandline.operations.core.context import Context
from strandline.views.view import View


@dataclass(frozen=True)
class Referring:
    """The rows of a branch that refer to some others, and what that was judged by, for the publish to compare."""

    violations: Sequence[Violation]
    relied: StayUnreferred | None


def find_referring(ctx: Context, branch: str, table_id: str, keys: pa.Table) -> Referring:
    """The current rows of a branch that refer to rows with these keys and don't have one of them themselves."""
    with ctx.ledger.read() as conn:
        branch_tables = read_branch_tables(conn, branch, tails=False)
        base = read_base(conn, branch, [branch_table.table.table_id for branch_table in branch_tables])
    links = Declarations.of(base.branch_id, base.shape, branch_tables).links_to(table_id)
    if not links or not keys.num_rows:
        return Referring((), None)
    view = View(ctx.ledger, branch, ctx.iceberg, only=list({link.source.table.name: None for link in links}))
    violations = [violation for link in links for violation in _violations(view, link, keys)]
    return Referring(violations, _relied(base, links, keys))


def _violations(view: View, link: Link, keys: pa.Table) -> Iterator[Violation]:
    source, columns = link.source, link.reference.columns
    shape = batch_arrow(source.schema, source.table)
    pairs = zip(columns, link.target.table.key, strict=True)
    referred = pa.table({name: keys[key].cast(shape.field(name).type) for name, key in pairs})
    names = list(dict.fromkeys([*source.table.key, *columns]))
    is_own = source.table.table_id == link.target.table.table_id
    going = set(zip(*keys.to_pydict().values(), strict=True)) if is_own else set()
    for row in view.having(source.table.name, names, referred).to_pylist():
        key, value = tuple(row[name] for name in source.table.key), tuple(row[name] for name in columns)
        if key not in going:
            bare_value = value[0] if len(value) == 1 else value
            reason = f"refers to a row of {link.target.table.name!r} that would be purged"
            rule = link.reference
            yield Violation(
                source.table.name, shown_key(key), ", ".join(columns), rule.text(), shown(bare_value), reason
            )


def _relied(base: Base, links: Sequence[Link], keys: pa.Table) -> StayUnreferred:
    claims: dict[str, list[str]] = {}
    values = list(zip(*keys.to_pydict().values(), strict=True))
    for link in links:
        noted = claims.setdefault(link.source.table.table_id, [])
        noted += [claim_hash("reference", link.reference.columns, value).hex() for value in values]
    return StayUnreferred(
        branch_id=base.branch_id,
        number=base.number,
        shape=base.shape,
        claims={table_id: tuple(hashes) for table_id, hashes in claims.items()},
        barriers={table_id: base.heads[table_id].barrier for table_id in claims},
    )


def refuse_referred(by_branch: Mapping[str, Referring], table: str) -> None:
    """Conflict where rows of a branch refer to some that would go; it lists the first of them."""
    violations = [(branch, violation) for branch, referring in by_branch.items() for violation in referring.violations]
    if not violations:
        return
    branch, first = violations[0]
    raise Conflict(
        f"on branch {branch!r}: {first.text()}{and_more(len(violations))}",
        kind="constraint",
        hint=f"Delete these rows, or let them refer to others; then purge {table} again.",
        expected=first.rule,
        actual=first.value,
        violations=[{"branch": at, **asdict(violation)} for at, violation in violations[: most_reported()]],
        count=len(violations),
    )
