"""Schemas of a branch's tables, as a document: what it is, what a change of it means, and making it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from strandline.actors import checked_actor
from strandline.errors import NotFound, PreconditionFailed, nearest
from strandline.ledger.ledger import MAIN
from strandline.model.schema.steps import Step

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.model.history.mutations import HeadIs
    from strandline.model.schema.document import SchemaDocument
    from strandline.model.schema.migration import Applied, MigrationPlan


@dataclass(frozen=True)
class SchemaPlan:
    """The steps that a document would take, each with its verdict."""

    branch: str
    steps: tuple[Step, ...]

    @property
    def is_refused(self) -> bool:
        """Whether a step of it can't be done."""
        return any(step.verdict == "refused" for step in self.steps)


@dataclass(frozen=True)
class SchemaChanged:
    """The steps that were taken, and the commit that took them; none where there was nothing to do."""

    branch: str
    commit: str | None
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class ChangedWithWarnings:
    """The same, and what a person should know whose values are still somewhere."""

    changed: SchemaChanged
    warnings: tuple[str, ...]


class Schemas:
    """`lake.schemas`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def show(self, branch: str = MAIN, *, at: str | None = None, table: str | None = None) -> SchemaDocument:
        """The schemas of a branch's tables, or of one of them, as a document that a user can change and apply."""
        from strandline.operations.change.schema_apply import describe

        view = self._lake.view(branch, at=at)
        if table is None:
            return describe(view, view.tables)
        names = {name.lower(): name for name in view.tables}
        if table.lower() not in names:
            raise NotFound(f"there is no table {table!r}", hint=nearest(table, names.values()), table=table)
        return describe(view, [names[table.lower()]])

    def plan(self, doc: object, *, branch: str = MAIN, hard: bool = False) -> MigrationPlan:
        """The steps from the schemas of a branch to those of a document, each with a verdict; nothing is changed."""
        from strandline.operations.change.schema_apply import look_at, make_plan

        view = self._lake.view(branch)
        planned = make_plan(view, doc, hard=self._lake.ledger if hard else None)
        if not planned.refused:
            look_at(view, planned)
        return planned

    def steps(self, doc: object, *, branch: str = MAIN, hard: bool = False) -> SchemaPlan:
        """The same, as people see it."""
        return SchemaPlan(branch, self.plan(doc, branch=branch, hard=hard).steps)

    def apply(
        self,
        doc: object,
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

    def change(
        self,
        doc: object,
        *,
        branch: str = MAIN,
        actor: str = "",
        message: str = "",
        hard: bool = False,
        yes: bool = False,
    ) -> ChangedWithWarnings:
        """The same, as people see it; without `yes` it is refused where values would be lost."""
        refusal = None if yes else self.unagreed(doc, branch=branch, hard=hard)
        if refusal is not None:
            raise refusal
        done = self.apply(doc, branch=branch, actor=actor, message=message, hard=hard)
        commit = done.commit.commit_id if done.commit is not None else None
        return ChangedWithWarnings(SchemaChanged(branch, commit, done.steps), done.warnings)

    def unagreed(self, doc: object, *, branch: str = MAIN, hard: bool = False) -> PreconditionFailed | None:
        """The refusal of values that would be lost without anybody's yes; None where a document loses none."""
        lost = self.plan(doc, branch=branch, hard=hard).loses
        if not lost:
            return None
        what = ", ".join(" ".join(filter(None, (step.table, step.what, step.column))) for step in lost)
        return PreconditionFailed(
            f"values would be {'removed for good' if hard else 'shown no more'}: {what}",
            hint="`--yes` does it; `strand schema plan FILE` shows all steps of a file.",
            steps=[asdict(step) for step in lost],
        )
