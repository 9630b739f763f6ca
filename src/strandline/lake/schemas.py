"""Schemas of a branch's tables, as a document: what it is, what a change of it means, and making it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.actors import checked_actor
from strandline.ledger.ledger import MAIN
from strandline.model.schema.steps import Step

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.model.history.mutations import HeadIs
    from strandline.model.schema.migration import Applied, MigrationPlan


@dataclass(frozen=True)
class SchemaPlan:
    """The steps that a document would take, each with its verdict."""

    branch: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class SchemaChanged:
    """The steps that were taken, and the commit that took them; none where there was nothing to do."""

    branch: str
    commit: str | None
    steps: tuple[Step, ...]


class Schemas:
    """`lake.schemas`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def show(self, branch: str = MAIN, *, at: str | None = None) -> dict[str, Any]:
        """The schemas of a branch's tables, as a document that a user can change and apply."""
        from strandline.operations.change.schema_apply import describe

        return describe(self._lake.view(branch, at=at))

    def plan(self, doc: Any, *, branch: str = MAIN, hard: bool = False) -> MigrationPlan:
        """The steps from the schemas of a branch to those of a document, each with a verdict; nothing is changed."""
        from strandline.operations.change.schema_apply import look_at, make_plan

        view = self._lake.view(branch)
        planned = make_plan(view, doc, hard=self._lake.ledger if hard else None)
        if not planned.refused:
            look_at(view, planned)
        return planned

    def apply(
        self,
        doc: Any,
        *,
        branch: str = MAIN,
        actor: str = "",
        message: str = "",
        expect: HeadIs | None = None,
        hard: bool = False,
    ) -> Applied:
        """Make schemas what a document says, as one commit; `hard`: no file keeps values of columns that are gone."""
        from strandline.operations.change.schema_apply import SchemaRequest, apply_change

        request = SchemaRequest(doc, checked_actor(actor, None), message, expect.commit if expect is not None else None)
        return apply_change(self._lake.context, lambda: self._lake.view(branch), request, hard=hard)
