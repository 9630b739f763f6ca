"""`strand doctor`: everything that can be checked, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.params import Actor
from strandline.cli.session import Session, session_of
from strandline.errors import BadRequest

if TYPE_CHECKING:
    from strandline.reports.doctor import Diagnosis

NEEDS_A_PERSON = 6


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context,
    fix: Annotated[bool, typer.Option("--fix", help="Do what is safe, then look again.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every payload, manifest and data file.")] = False,
    take_back: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="With --fix: move this table's `main` off somebody else's commit."),
    ] = None,
    claim_warehouse: Annotated[
        bool,
        typer.Option("--claim-warehouse", help="With --fix: this ledger is the one whose warehouse it is."),
    ] = False,
    failpoints: Annotated[bool, typer.Option("--failpoints", help="List the names for STRAND_FAILPOINTS.")] = False,
    actor: Actor = "",
) -> None:
    """Check everything that can be checked, and say what to do. Exit code 6 when a person is needed.

    \b
    Example: strand doctor --deep
    """
    session = session_of(context)
    if failpoints:
        _list_failpoints(session)
        return
    if (take_back or claim_warehouse) and not fix:
        option = "--take-back" if take_back else "--claim-warehouse"
        raise BadRequest(f"{option} changes the lake", hint="Add --fix to say that it may.")
    with session.open(read_only=not fix) as lake:
        if fix:
            diagnosis = lake.reports.mend(
                take_back=take_back or (), claim_warehouse=claim_warehouse, deep=deep, actor=actor
            )
        else:
            diagnosis = lake.reports.doctor(deep=deep)
    session.emit(diagnosis, lambda: _print(diagnosis))
    if not diagnosis.ok:
        raise typer.Exit(NEEDS_A_PERSON)


def _print(diagnosis: Diagnosis) -> None:
    for text in diagnosis.fixed:
        output.say(f"fixed: {output.cell(text)}")
    for finding in diagnosis.findings:
        since = f" (since {output.when(finding.since)})" if finding.since else ""
        output.say(f"{finding.severity}: {output.cell(finding.what)}{since}")
        output.say(f"  {output.cell(finding.meaning)}")
        output.say(f"  what to do: {output.cell(finding.fix)}")
    checks, warnings = len(diagnosis.checked), len(diagnosis.findings)
    errors = sum(finding.severity == "error" for finding in diagnosis.findings)
    if errors:
        output.say(f"{checks} checks: {errors} {'finding needs' if errors == 1 else 'findings need'} a person.")
    elif warnings:
        output.say(f"{checks} checks: the lake is well; {warnings} {'warning' if warnings == 1 else 'warnings'}.")
    else:
        output.say(f"{checks} checks: all is well.")


def _list_failpoints(session: Session) -> None:
    from strandline.failpoints import NAMES

    session.emit(NAMES, lambda: output.table(["failpoint", "where"], list(NAMES.items())))
