"""`strand status`: one page, whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import output, sinks
from strandline.cli.audit import AUDIT_HEADS, audit_cells
from strandline.cli.quarantine import QUARANTINE_HEADS, quarantine_cells
from strandline.cli.session import Session, session_of

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.reports.status import BranchStatus, Status, TableStatus
    from strandline.reports.work import JobReport

WATCH_S = 2.0

MOODS: dict[str, output.Mood] = {"well": "good", "look": "careful", "person": "bad"}


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("status", short_help="One page: whether all is well, and what is under way.")(status)


def status(
    context: typer.Context,
    why: Annotated[bool, typer.Option("--why", help="What the workers decided about each job, and why.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until Ctrl-C.")] = False,
) -> None:
    """One page: whether all is well, tables, tails, what is under way.

    \b
    Example: strand status --watch
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        try:
            _show(session, lake, why=why, again=watch)
            while watch:
                time.sleep(WATCH_S)
                _show(session, lake, why=why, again=True)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _show(session: Session, lake: Lake, *, why: bool, again: bool) -> None:
    """The page as it is now; one that is shown again and again takes the place of the one before."""
    page = lake.reports.status()
    if why:
        from strandline.worker.due_inputs import decisions

        page = replace(page, decisions=tuple(decisions(lake)))
    if again and not session.json:
        output.clear()
    session.emit(page, lambda: print_status(page))
    output.flush()


def print_status(page: Status) -> None:
    """The page for people."""
    _verdict(page)
    _place(page)
    _tables(page)
    _branches(page)
    _section(
        "Sinks (`strand sink show NAME` tells more)", sinks.LIST_HEADS, [sinks.list_row(sink) for sink in page.sinks]
    )
    sinks.say_paused(page.sinks)
    _operations(page)
    _section("In quarantine", QUARANTINE_HEADS, [quarantine_cells(batch) for batch in page.quarantined])
    _workers(page)
    _jobs(page)
    _section("Last recoveries", AUDIT_HEADS, [audit_cells(entry) for entry in page.last_recoveries])


def _verdict(page: Status) -> None:
    output.say(page.verdict.text, MOODS[page.verdict.level])
    for concern in page.verdict.needs:
        output.say(f"  {output.cell(concern.what)}: `{concern.command}`", MOODS[concern.level])
    output.say()


def _place(page: Status) -> None:
    output.say(f"lake       {page.lake}")
    output.say(f"ledger     {page.ledger}  (format {page.format})")
    output.say(f"warehouse  {page.warehouse}")
    if page.displaced:
        output.say(f"NOT AT HOME: {page.displaced}. `strand doctor` says what to do")
    if page.not_there:
        output.say(f"NOT THERE: {page.not_there}. `strand doctor` says what to do")
    if page.clock_behind_s is not None:
        behind = output.age(page.clock_behind_s)
        output.say(f"CLOCK: {behind} behind the ledger's time, so nothing is deleted. `strand doctor` says what to do")
    output.say()


def _tables(page: Status) -> None:
    if page.tables:
        output.table(
            ["table", "in log", "in tail", "tail size", "tail age", "last seq", "dropped", "set aside"],
            [_table_cells(table) for table in page.tables],
        )
    else:
        output.say("There are no tables yet. `strand table create` makes one.")


def _table_cells(table: TableStatus) -> list[Any]:
    return [
        table.table,
        table.rows.log,
        table.rows.tail,
        output.size(table.size_bytes.tail),
        output.age(table.oldest_tail_age_s),
        table.last_seq,
        table.rows.dropped,
        table.rows.quarantined,
    ]


def _branches(page: Status) -> None:
    for branch in page.branches:
        where = "" if branch.branch == "main" else f" on branch {branch.branch}"
        for table, reason in branch.refuses.items():
            output.say(f"{table}{where} REFUSES WRITES: {reason}")
    if len(page.branches) > 1:
        heads = ["branch", "newest commit", "from", "in tail", "tail size", "tail age", "tables with a tail"]
        _section("Branches (`strand branch list`)", heads, [_branch_cells(branch) for branch in page.branches])
    if page.tags:
        output.say()
        output.say(f"Tags: {', '.join(tag.tag for tag in page.tags)}")


def _branch_cells(branch: BranchStatus) -> list[Any]:
    return [
        f"{branch.branch} (protected)" if branch.protected else branch.branch,
        branch.tip or "",
        branch.from_ or "",
        branch.tail.rows,
        output.size(branch.tail.size_bytes),
        output.age(branch.tail.oldest_age_s),
        ", ".join(branch.tail.tables),
    ]


def _operations(page: Status) -> None:
    _section(
        "Operations under way",
        ["operation", "kind", "phase", "branch", "tables", "age", "process"],
        [
            [
                operation.op,
                operation.kind,
                operation.phase,
                operation.branch,
                ", ".join(operation.tables),
                output.age(operation.age_s),
                operation.process,
            ]
            for operation in page.operations
        ],
    )
    _section(
        "Operations that can't be read (`strand doctor` says what to do)",
        ["operation", "kind", "tables", "since", "reason"],
        [
            [operation.op, operation.kind, ", ".join(operation.tables), output.when(operation.since), operation.reason]
            for operation in page.unreadable_intents
        ],
    )
    _section(
        "Unfinished loads",
        ["table", "parts done", "of", "age"],
        [[load.table, load.parts_done, load.parts, output.age(load.age_s)] for load in page.loads],
    )


def _workers(page: Status) -> None:
    """Workers, and what they were asked for."""
    _section(
        "Workers",
        ["worker", "host", "process", "state", "Spark", "doing"],
        [
            [
                worker.worker,
                worker.host,
                worker.pid,
                worker.state,
                "up" if worker.spark else "down",
                ", ".join(job.job for job in worker.running) or "nothing",
            ]
            for worker in page.workers
        ],
    )
    _section(
        "Asked of a worker",
        ["request", "what", "state", "age", "progress"],
        [
            [
                request.request,
                request.kind,
                request.state,
                output.age(request.age_s),
                request.progress and request.progress.what,
            ]
            for request in page.requests
        ],
    )


def _jobs(page: Status) -> None:
    """What workers could not do, and what they would do now."""
    _section(
        "Jobs that fail (`strand worker retry JOB` lets one go on at once)",
        ["job", "state", "failures", "since", "error"],
        [
            [job.job, "parked" if job.parked else "tried again", job.failures, output.when(job.at), job.error]
            for job in page.failing_jobs
        ],
    )
    _section(
        "Decisions",
        ["job", "now", "because", "last run", "outcome", "it was because"],
        [
            [decision.job, "do it" if decision.due else "not now", decision.why, *_last_run(decision.last)]
            for decision in page.decisions or ()
        ],
    )


def _last_run(last: JobReport | None) -> Sequence[str]:
    return ("never", "", "") if last is None else (output.when(last.at), last.outcome, last.why)


def _section(title: str, heads: list[str], rows: list[list[Any]]) -> None:
    if rows:
        output.say()
        output.table(heads, rows, title=title)
