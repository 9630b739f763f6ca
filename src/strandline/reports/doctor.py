"""`strand doctor`: everything that can be checked, each finding with what to do.

A check that fails itself is a finding too, and never keeps the others from running. `fix` does only what can't make
anything worse: it finishes or undoes what dead processes left, sets unreadable batches aside with their bytes, and
deletes batches that were flushed long ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from strandline.errors import StrandError
from strandline.ledger import batches
from strandline.reports import iceberg_checks, ledger_checks, machine_checks
from strandline.reports.findings import RESTORE, Finding, Look

if TYPE_CHECKING:
    from strandline.lake import Lake

CHECKS: dict[str, Callable[[Look], Iterator[Finding]]] = {
    "ledger integrity": ledger_checks.integrity,
    "books": ledger_checks.books,
    "order of seqs": ledger_checks.seq_order,
    "payloads of the tail": ledger_checks.payloads,
    "operations under way": ledger_checks.under_way,
    "quarantine and refusals": ledger_checks.set_aside,
    "data files": iceberg_checks.data_files,
    "Iceberg catalog": iceberg_checks.catalog,
    "Java": machine_checks.java,
    "jars": machine_checks.jars,
    "disk": machine_checks.room,
    "permissions": machine_checks.permissions,
}


def examine(lake: Lake, *, deep: bool = False) -> list[Finding]:
    """Run every check on the lake as it is now; errors come before warnings."""
    look = Look.at(lake, deep=deep)
    found = [finding for name, check in CHECKS.items() for finding in _checked(name, check, look)]
    return sorted(found, key=lambda finding: finding.severity != "error")


def _checked(name: str, check: Callable[[Look], Iterator[Finding]], look: Look) -> list[Finding]:
    try:
        return list(check(look))
    except Exception as error:
        return [
            Finding(
                f"the check of {name} failed: {error}",
                "It can't be said whether this is well; another finding may say why.",
                RESTORE,
            )
        ]


def fix(lake: Lake) -> list[str]:
    """Do what is safe, and say what was done."""
    done = [f"operation {one.op_id} ({one.kind}): {one.outcome}" for one in lake.recovered]
    look = Look.at(lake, deep=True)
    for name in look.view.tables:
        state = look.view.state(name)
        for ref, reason in ledger_checks.unreadable(look, state):
            if batches.quarantine(lake.ledger, state.head.branch_id, state.table.table_id, ref.batch_id, reason):
                done.append(f"batch {ref.batch_id} of {name} set aside ({ref.rows:,} rows)")
    done += _recovered(lake)
    swept = sum(iter(lambda: batches.sweep(lake.ledger), 0))
    return [*done, f"{swept:,} batches deleted that were flushed long ago"] if swept else done


def _recovered(lake: Lake) -> list[str]:
    """The Iceberg half needs Java; where there is none, that is a finding of the examination that follows."""
    try:
        return [f"operation {one.op_id} ({one.kind}): {one.outcome}" for one in lake.recover() if one.settled]
    except StrandError:
        return []
