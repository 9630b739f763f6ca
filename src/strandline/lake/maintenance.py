"""Looking after tables: what is kept of them and for how long, and the work that keeps reads fast and disks small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from strandline.actors import default_actor
from strandline.ledger.ledger import MAIN

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.model.maintenance import Bounds, Compacting, Expiring, Maintained, Need, Retaining, Sweeping


class Maintenance:
    """`lake.maintenance`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def compact(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Compacting]) -> list[Maintained]:
        """Merge the small files of these tables, or of all; the neediest first, as far as the limits go."""
        from strandline.operations import upkeep

        return upkeep.compact(self._lake.context, tables, branch, actor or default_actor(), **how)

    def fold(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Bounds]) -> list[Maintained]:
        """Bring the states of these keyed tables, or of all, up to date: a read then looks through less of the log."""
        from strandline.operations import upkeep

        return upkeep.fold(self._lake.context, tables, branch, actor or default_actor(), **how)

    def retain(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Retaining]) -> list[Maintained]:
        """Remove the rows of these tables, or of all, that are past their retention and delivered by every sink."""
        from strandline.operations import upkeep

        return upkeep.retain(self._lake.context, tables, branch, actor or default_actor(), **how)

    def expire(self, *tables: str, actor: str = "", branch: str = MAIN, **how: Unpack[Expiring]) -> list[Maintained]:
        """Remove the snapshots of these tables, or of all, that nobody needs and whose grace is over."""
        from strandline.operations import upkeep

        return upkeep.expire(self._lake.context, tables, branch, actor or default_actor(), **how)

    def sweep(self, *tables: str, branch: str = MAIN, **how: Unpack[Sweeping]) -> list[Maintained]:
        """Remove what is nobody's any more: of these tables, or of all and of the lake itself."""
        from strandline.operations import upkeep

        return upkeep.sweep(self._lake.context, tables, branch, **how)

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
        from strandline.operations.purge import purge

        actor = actor or default_actor()
        return purge(self._lake.context, table, branch, actor, where, and_history=and_history, dry_run=dry_run)

    def needs(self, *, branch: str = MAIN) -> list[Need]:
        """What maintenance is due, by what the ledger knows alone; the neediest table first."""
        from strandline.operations import upkeep

        return upkeep.needs(self._lake.context, branch)
