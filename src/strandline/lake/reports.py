"""How a lake is: its status, what doctor finds, and the audit."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.reports.audit import AuditEntry
    from strandline.reports.doctor import Diagnosis
    from strandline.reports.status import Status


class Reports:
    """`lake.reports`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def status(self) -> Status:
        """One page: whether all is well, tables, tails, what is under way."""
        from strandline.reports.status import status

        return status(self._lake)

    def doctor(self, *, deep: bool = False) -> Diagnosis:
        """Check everything that can be checked; `deep` reads every payload, manifest and data file."""
        from strandline.reports.doctor import diagnose

        return diagnose(self._lake, deep=deep)

    def mend(
        self, *, take_back: Collection[str] = (), claim_warehouse: bool = False, deep: bool = False, actor: str = ""
    ) -> Diagnosis:
        """Do what is safe, then check everything.

        `take_back` names tables whose `main` may leave another writer's commit; `claim_warehouse` says that the
        warehouse is this ledger's.
        """
        from strandline.reports.repairs import mend

        return mend(self._lake, take_back=take_back, claim_warehouse=claim_warehouse, deep=deep, actor=actor)

    def audit(self, limit: int | None = None) -> list[AuditEntry]:
        """What recovery did and what people decided, newest first; only the newest `limit`, where that is given."""
        from strandline.reports.audit import audit

        return audit(self._lake, limit)
