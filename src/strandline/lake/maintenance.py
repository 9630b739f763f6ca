"""Looking after tables: what is kept of them and for how long, and the work that keeps reads fast and disks small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from strandline.actors import default_actor
from strandline.errors import PreconditionFailed
from strandline.ledger.ledger import MAIN

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.model.maintenance import Bounds, Compacting, Expiring, Maintained, Need, Retaining, Sweeping
    from strandline.operations.core.declared import Declared

D = TypeVar("D", bound="Declared")


class Maintenance:
    """`lake.maintenance`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def compact(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Compacting]) -> list[Maintained]:
        """Merge the small files of these tables, or of all; the neediest first, as far as the limits go."""
        from strandline.operations.maintain.compact import Compaction

        return self.run(_declared(Compaction, how), tables, branch, actor)

    def fold(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Bounds]) -> list[Maintained]:
        """Bring the states of these keyed tables, or of all, up to date: a read then looks through less of the log."""
        from strandline.operations.maintain.fold import Folding

        return self.run(_declared(Folding, how), tables, branch, actor)

    def refilter(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Bounds]) -> list[Maintained]:
        """Let lookups by value skip files of these keyed tables, or of all, that are older than a rule."""
        from strandline.operations.maintain.refilter import Refiltering

        return self.run(_declared(Refiltering, how), tables, branch, actor)

    def retain(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Retaining]) -> list[Maintained]:
        """Remove the rows of these tables, or of all, that are past their retention and delivered by every sink."""
        from strandline.operations.maintain.retain import Retention

        return self.run(_declared(Retention, how), tables, branch, actor)

    def expire(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Expiring]) -> list[Maintained]:
        """Remove the snapshots of these tables, or of all, that no reader needs and whose grace is over."""
        from strandline.operations.maintain.expire import Expiry

        return self.run(_declared(Expiry, how), tables, branch, actor)

    def sweep(self, *tables: str, branch: str = MAIN, **how: Unpack[Sweeping]) -> list[Maintained]:
        """Remove what nothing refers to any more: of these tables, or of all and of the lake itself."""
        from strandline.operations.maintain.sweep import Sweep

        return self.run(_declared(Sweep, how), tables, branch)

    def purge(
        self,
        table: str,
        where: str,
        *,
        actor: str = "",
        branch: str = MAIN,
        and_history: bool = False,
        dry_run: bool = False,
    ) -> Maintained:
        """Remove the rows that a condition names for good: from the log, the tail, dead letters and quarantine."""
        from strandline.operations.maintain.purge import Purging

        purging = Purging(where=where, and_history=and_history, dry_run=dry_run)
        return self.run(purging, [table], branch, actor)[0]

    def run(self, operation: Declared, tables: Sequence[str], branch: str = MAIN, actor: str = "") -> list[Maintained]:
        """Do any operation that was declared, in this process."""
        from strandline.operations.core.running import run_declared

        return run_declared(self._lake.context, operation, tables, branch, actor or default_actor())

    def unagreed(self, operation: Declared, tables: Sequence[str], branch: str = MAIN) -> PreconditionFailed | None:
        """The refusal of what can't be brought back without anybody's yes, by what a dry run says; None for the rest.

        A table that there is not is refused here already.
        """
        for name in () if operation.of_one_table else tables:
            self._lake.view(branch).branch_table(name)
        if not operation.asks_beforehand:
            return None
        (planned,) = self.run(operation.with_option("dry_run"), tables, branch)
        loss = operation.loss(planned)
        return PreconditionFailed(loss, hint="`--yes` removes them.", count=planned.detail["rows"])

    def needs(self, *, branch: str = MAIN) -> list[Need]:
        """What maintenance is due, by what the ledger knows alone; the neediest table first."""
        from strandline.operations.core import running

        return running.needs(self._lake.context, branch)


def _declared(operation: type[D], how: Mapping[str, Any]) -> D:
    """The operation with these options; one that it has not is refused by the name that a caller knows."""
    for name in how.keys() - {option.name for option in fields(operation)}:
        raise TypeError(f"{operation.name}() got an unexpected keyword argument {name!r}")
    return operation(**how)
