"""What a check has found, told so that the reader knows what to type."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strandline.ledger.ledger import MAIN
from strandline.model.tables import BranchTable
from strandline.reports.open_lake import OpenLake
from strandline.views.view import View

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. An error needs a person; a warning can wait.

    `kind` is a word that scripts may rely on, and `about` names what is affected: a table, a sink, an operation.
    """

    kind: str
    about: str
    what: str
    meaning: str
    fix: str
    severity: Severity = "error"
    since: str | None = None


@dataclass(frozen=True)
class Examination:
    """What all checks look at: one view of one lake, and whether to take the time to read everything."""

    lake: OpenLake
    view: View
    deep: bool
    now_us: int

    @classmethod
    def at(cls, lake: OpenLake, *, deep: bool) -> Examination:
        """Take a view and look at it."""
        return cls(lake, lake.view(MAIN).whole(), deep, time.time_ns() // 1000)

    def branch_tables(self) -> list[BranchTable]:
        """Every table as the view has it, and the states of the keyed ones."""
        branch_tables = [self.view.branch_table(name) for name in self.view.tables]
        return [
            *branch_tables,
            *(branch_table.folded for branch_table in branch_tables if branch_table.folded is not None),
        ]


Findings = Sequence[Finding]

RESTORE = (
    "restore the lake from a backup (`strand restore`), or report this with the output of `strand doctor --deep --json`"
)
