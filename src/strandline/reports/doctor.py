"""`strand doctor`: everything that can be checked, each finding with what to do.

A check that fails itself is a finding too, and never keeps the others from running. Others write while we look, so what
one look finds may only be a writer's work between two steps: it is told when a second look finds it too. Nothing is
changed here; `repairs.py` does what is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.reports import file_checks, iceberg_checks, ledger_checks, machine_checks, secret_checks, sink_checks
from strandline.reports.findings import RESTORE, Examination, Finding

if TYPE_CHECKING:
    from strandline.reports.open_lake import OpenLake

Check = Callable[[Examination], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "ledger integrity": ledger_checks.integrity,
    "references and heads": ledger_checks.references,
    "books": ledger_checks.books,
    "order of seqs": ledger_checks.seq_order,
    "payloads of the tail": ledger_checks.payloads,
    "operations under way": ledger_checks.under_way,
    "leases": ledger_checks.leases,
    "jobs": ledger_checks.parked_jobs,
    "quarantine and refusals": ledger_checks.set_aside,
    "warehouse": file_checks.warehouse,
    "data files": file_checks.data_files,
    "orphans": file_checks.orphans,
    "Iceberg catalog": iceberg_checks.catalog,
    "watermarks": sink_checks.watermarks,
    "branches of sinks": sink_checks.branches,
    "paused sinks": sink_checks.paused,
    "sinks after a restore": sink_checks.unasked,
    "deliveries that wait": sink_checks.waiting,
    "destinations": sink_checks.destinations,
    "clock": machine_checks.clock,
    "Java": machine_checks.java,
    "jars": machine_checks.jars,
    "versions": machine_checks.versions,
    "disk": machine_checks.room,
    "permissions": machine_checks.permissions,
    "modes": secret_checks.readable,
    "secrets": secret_checks.in_the_clear,
}


@dataclass(frozen=True)
class Diagnosis:
    """What was checked, what was found, and what was mended before that; `ok` when no finding needs a person."""

    ok: bool
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    fixed: tuple[str, ...]


NOT_THERE = {"displaced", "no_marker"}
"""What is said of a warehouse in which the lake's files can't be: that they are gone says nothing more."""
NEED_FILES = {"data files", "orphans", "Iceberg catalog"}


def diagnose(lake: OpenLake, *, deep: bool = False, fixed: Sequence[str] = ()) -> Diagnosis:
    """Examine the lake, and say whether a person is needed."""
    findings = tuple(examine(lake, deep=deep))
    ok = all(finding.severity != "error" for finding in findings)
    return Diagnosis(ok, findings, tuple(CHECKS), tuple(fixed))


def examine(lake: OpenLake, *, deep: bool = False) -> list[Finding]:
    """Run every check on the lake as it is now; errors come before warnings."""
    look = Examination.at(lake, deep=deep)
    is_there = NOT_THERE.isdisjoint(finding.kind for finding in _checked("warehouse", CHECKS["warehouse"], look))
    checks = {name: check for name, check in CHECKS.items() if is_there or name not in NEED_FILES}
    first_findings = {name: _checked(name, check, look) for name, check in checks.items()}
    suspect = [name for name, findings in first_findings.items() if findings]
    again = Examination.at(lake, deep=deep) if suspect else look
    confirmed: list[Finding] = []
    for name in suspect:
        first = {(finding.kind, finding.about) for finding in first_findings[name]}
        second = _checked(name, CHECKS[name], again)
        confirmed += [finding for finding in second if (finding.kind, finding.about) in first]
    return sorted(confirmed, key=lambda finding: finding.severity != "error")


def _checked(name: str, check: Check, look: Examination) -> list[Finding]:
    try:
        return list(check(look))
    except Exception as error:
        return [
            Finding(
                kind="check_failed",
                about=name,
                what=f"the check of {name} failed: {error}",
                meaning="It can't be said whether this is well; another finding may say why.",
                fix=RESTORE,
            )
        ]
