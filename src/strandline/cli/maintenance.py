"""Commands that keep a lake tidy: compact, fold, retain, expire, sweep, purge."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import layout, output
from strandline.cli.params import Actor, All, Branch, Here, TableName, TableNames, who
from strandline.cli.session import Session, session_of
from strandline.errors import BadRequest, PreconditionFailed
from strandline.model.wording import counted
from strandline.settings_text import parse_duration, parse_size

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.model.maintenance import SettingChanges

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
MaxBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Rewrite about so much at most, such as 1GiB.")]
MaxTime = Annotated[str | None, typer.Option(metavar="TIME", help="Begin nothing more after that, such as 10m.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command("compact")(compact)
    app.command("fold", short_help="Bring the states of keyed tables up to date; no row changes.")(fold)
    app.command("retain")(retain)
    app.command("expire", short_help="Remove snapshots that nobody needs any more.")(expire)
    app.command("sweep", short_help="Remove what crashes left, and what is past its grace.")(sweep)
    app.command("purge", short_help="Remove rows for good, wherever they are.")(purge)


def compact(
    context: typer.Context,
    tables: TableNames = None,
    dry_run: DryRun = False,
    max_bytes: MaxBytes = None,
    max_time: MaxTime = None,
    branch: Branch = "main",
    actor: Actor = "",
    here: Here = False,
) -> None:
    """Merge small files into large ones; no row changes.

    The table with the most small files comes first. A run that was stopped, or that came to a limit, is gone on with by
    the next one.

    \b
    Example: strand compact messages --max-bytes 10GiB
    """
    how = {**_bounds(max_bytes, max_time), "dry_run": dry_run}
    _run(context, "compact", tables, branch, actor, how, here=here)


def fold(
    context: typer.Context,
    tables: TableNames = None,
    dry_run: DryRun = False,
    max_bytes: MaxBytes = None,
    max_time: MaxTime = None,
    branch: Branch = "main",
    actor: Actor = "",
    here: Here = False,
) -> None:
    """Bring the states of keyed tables up to date with their logs; no row changes.

    A read takes the newest version of each row from the state, and looks through the log only behind it. What is not
    flushed yet is folded by the next run.

    \b
    Example: strand fold person --branch try-out
    """
    how = {**_bounds(max_bytes, max_time), "dry_run": dry_run}
    _run(context, "fold", tables, branch, actor, how, here=here)


def retain(
    context: typer.Context,
    tables: TableNames = None,
    dry_run: DryRun = False,
    max_bytes: MaxBytes = None,
    max_time: MaxTime = None,
    force_past_sinks: Annotated[
        bool, typer.Option("--force-past-sinks", help="Also rows that sinks have not delivered; lists them.")
    ] = False,
    yes: Yes = False,
    branch: Branch = "main",
    actor: Actor = "",
    here: Here = False,
) -> None:
    """Remove rows that are older than their table's retention.

    A row that a sink still has to deliver stays, and the sink is named. `strand table set NAME retention=90d` sets the
    window, and `time_column=…` what it is measured by.

    \b
    Example: strand retain --dry-run
    """
    how = {
        **_bounds(max_bytes, max_time),
        "dry_run": dry_run,
        "force_past_sinks": force_past_sinks,
        "yes": yes,
    }
    try:
        _run(context, "retain", tables, branch, actor, how, here=here)
    except PreconditionFailed as error:
        if yes or not consents(session_of(context), f"{error} Go on?"):
            raise
        _run(context, "retain", tables, branch, actor, {**how, "yes": True}, here=here)


def expire(
    context: typer.Context,
    tables: TableNames = None,
    dry_run: DryRun = False,
    grace: Annotated[str | None, typer.Option(metavar="TIME", help="Instead of the lake's own, 15m.")] = None,
    max_time: MaxTime = None,
    branch: Branch = "main",
    actor: Actor = "",
    here: Here = False,
) -> None:
    """Remove snapshots that nobody needs any more, and the files that only they have.

    What a table is now stays, and whatever an open delivery or a held view reads.

    \b
    Example: strand expire --dry-run
    """
    how = {**_bounds(None, max_time), "grace_s": _seconds(grace), "dry_run": dry_run}
    _run(context, "expire", tables, branch, actor, how, here=here)


def sweep(
    context: typer.Context,
    tables: TableNames = None,
    dry_run: DryRun = False,
    branch: Branch = "main",
    here: Here = False,
) -> None:
    """Remove what crashes left: private branches, folders, files that no snapshot names.

    Also flushed batches whose grace is over and old idempotency keys. Nothing of a process that lives is touched, and
    no file that is younger than a day.

    \b
    Example: strand sweep --dry-run
    """
    _run(context, "sweep", tables, branch, "", {"dry_run": dry_run}, here=here)


def purge(
    context: typer.Context,
    table: TableName,
    where: Annotated[str, typer.Option(metavar="SQL", help="A condition on the table's columns.")],
    and_history: Annotated[
        bool, typer.Option("--and-history", help="Also out of older snapshots, as far as nobody reads them.")
    ] = False,
    branch: Branch = "main",
    dry_run: DryRun = False,
    yes: Yes = False,
    actor: Actor = "",
    here: Here = False,
    every: All = False,
) -> None:
    """Remove the rows that a condition names, wherever they are, for good.

    That is the log, the tail, dead letters and quarantine. The purge is recorded in the table strand_purges (or
    strand_purges_2, where a table of yours has that name), which sinks deliver too; the row keys count as seen, so
    that a backfill does not bring the rows back.

    Of a keyed table a row goes with all its versions, on every branch and tag, if the condition names any of them. It
    is read by the schema that the table has on --branch.

    \b
    Example: strand purge messages --where "session = 's1'" --and-history --yes
             strand purge person --where "id = 'a'" --dry-run
    """
    session = session_of(context)
    with session.open() as lake:
        if not dry_run and not yes:
            planned = lake.purge(table, where, branch=branch, dry_run=True)
            told = f"{counted(planned.detail['rows'], 'row')} of {planned.table} would be removed for good"
            if not consents(session, f"{told}. Go on?"):
                raise PreconditionFailed(told, hint="`--yes` removes them.", count=planned.detail["rows"])
        how = {"branch": branch, "and_history": and_history, "dry_run": dry_run}
        asked = {"table": table, "where": where, "actor": who(actor), "how": how}
        answer = session.carry_out(lake, "purge", asked, here=here or every)
    _emit(session, answer, "purge")


def confirm_window(session: Session, lake: Lake, name: str, changes: SettingChanges, *, yes: bool) -> None:
    """A window that no row of the log lies in is a mistake more often than not: ask before it is set."""
    past = None if yes else lake.tables.past_window(name, changes)
    if past is None:
        return
    if past.keyed:  # the newest version of each row stays
        versions = f"{counted(past.older, 'version')} of rows of {past.table}"
        ask_first(session, f"{versions} are older than that; those that were replaced would go", yes=yes)
        return
    if past.older < past.total:
        ask_first(session, f"{past.older:,} of {counted(past.total, 'row')} of {past.table} would go", yes=yes)
        return
    consequence = f"the whole log of {past.table} ({counted(past.total, 'row')}) is older than that, and would go"
    if not consents(session, f"{consequence}. Go on?"):
        raise PreconditionFailed(consequence, hint="`--yes` sets it all the same.", count=past.total)


def consents(session: Session, question: str) -> bool:
    """What a person at a terminal answers; nobody is asked where there is none."""
    if not asks(session):
        return False
    print(
        layout.wrapped(f"{question} [y/N]:", layout.terminal_width(sys.stderr), indent="  "), end=" ", file=sys.stderr
    )
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D: whatever is said next begins a line of its own
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def ask_first(session: Session, loss: str, *, yes: bool) -> None:
    """Ask a person at a terminal about what can't be brought back; `--yes` answers, and so does a script's silence."""
    if not yes and asks(session) and not consents(session, f"{loss}. Go on?"):
        raise PreconditionFailed("you said no, and nothing was changed", hint="`--yes` does it without asking.")


def asks(session: Session) -> bool:
    """Whether a person is there to answer."""
    return not session.json and sys.stdin.isatty() and sys.stderr.isatty()


def _bounds(max_bytes: str | None, max_time: str | None) -> dict[str, Any]:
    try:
        size = None if max_bytes is None else parse_size(max_bytes)
    except ValueError as error:
        raise BadRequest(f"--max-bytes is {max_bytes!r}, expected {error}", hint="Write 10GiB.") from None
    return {"max_bytes": size, "max_time_s": _seconds(max_time)}


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no time, expected {error}", hint="Write 10m.") from None


def _run(
    context: typer.Context,
    kind: str,
    tables: list[str] | None,
    branch: str,
    actor: str,
    how: Mapping[str, Any],
    *,
    here: bool,
) -> None:
    session = session_of(context)
    with session.open() as lake:
        for name in tables or ():
            lake.view(branch).state(name)
        asked = {"tables": tables or [], "branch": branch, "actor": who(actor), "how": how}
        answer = session.carry_out(lake, kind, asked, here=here)
    _emit(session, answer, kind)


def _emit(session: Session, done: list[dict[str, Any]], kind: str) -> None:
    for one in done:
        for text in one["warnings"]:
            session.warn(f"{one['table']}: {text}")
    session.emit(done, lambda: _table(done, kind))


def _table(done: list[dict[str, Any]], kind: str) -> None:
    if not done:
        output.say("There are no keyed tables." if kind == "fold" else "There are no tables yet.")
    for one in done:
        changed = [
            f"{_named(name)} {_shown(name, before)} → {_shown(name, one['after'].get(name, before))}"
            for name, before in one["before"].items()
            if before != one["after"].get(name, before)
        ]
        would = "would change: " if one["dry_run"] else ""
        left = "" if one["complete"] or one["dry_run"] else "; more is left to do"
        output.say(f"{one['table']}: {would + ', '.join(changed) if changed else 'nothing to do'}{left}.")


def _named(figure: str) -> str:
    """A figure's name for people; what it is in is said by its value."""
    return figure.removesuffix("_bytes").replace("_", " ")


def _shown(name: str, value: int) -> str:
    return output.size(value) if name.endswith("bytes") else f"{value:,}"
