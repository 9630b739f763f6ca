"""Backups: to make one while everything runs, and to put one in the place of a lost lake."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.session import session_of
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.copies import AskedStream, RestoredLake

NEEDS_A_PERSON = 6


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command("backup", short_help="Back the lake up while everything runs.")(backup)
    app.command("restore", short_help="Put a backup in the place of a lost lake.")(restore)
    app.command("clone", short_help="Make a lake of its own out of a lake or a backup.")(clone)
    app.command("relocate", short_help="Make a lake that was moved at home in its new place.")(relocate)


def backup(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder that does not exist yet.")],
    with_data: Annotated[bool, typer.Option("--with-data", help="Copy the data files too.")] = False,
    link: Annotated[
        bool, typer.Option("--link", help="With --with-data: hard links where the disk is the same.")
    ] = False,
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="Without --with-data: how long the lake keeps the files it names.")
    ] = "30d",
) -> None:
    """Back the lake up while everything runs: ledger, catalog, config without secrets, and a manifest.

    \b
    Example: strand backup /backups/monday --with-data
    """
    session = session_of(context)
    if link and not with_data:
        raise typer.BadParameter("--link goes with --with-data", ctx=context)
    with session.open() as lake:
        made = lake.backups.make(folder, with_data=with_data, link=link, keep_s=_duration(keep))

    def human() -> None:
        output.say(f"Backed up to {made.backup}: {counted(made.files, 'file')}, {output.size(made.size_bytes)}.")
        output.say(f"  everything up to seq {made.seq:,}, as of {output.when(made.at)}")
        if not with_data:
            until = output.when(made.until)
            output.say(f"  without data files: these stay in {made.warehouse}, at least until {until}")
        for secret in made.left_out:
            output.say(f"  left out, because it is secret: {secret}")

    session.emit(made, human)


def _duration(text: str) -> float:
    from strandline.errors import BadRequest
    from strandline.settings_text import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"--keep is {text!r}", hint=f"It is {error}.") from error


def restore(
    context: typer.Context,
    backup: Annotated[str, typer.Argument(metavar="BACKUP", help="A folder that `strand backup` made.")],
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The lake's folder.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Put the lake that is there aside; nothing of it is deleted.")
    ] = False,
    ledger: Annotated[
        str | None, typer.Option(metavar="URL", help="Another database than the config's; an empty one.")
    ] = None,
    warehouse: Annotated[
        str | None, typer.Option(metavar="URI", help="Another warehouse than the config's; a path, or s3://…")
    ] = None,
) -> None:
    """Put a backup in the place of a lost lake, ask every destination where it is, and examine the result.

    DIR may be another folder than the lake's was: files are copied to its warehouse, and their metadata is written for
    it. Stop everything that uses the lake first. New rows get seqs far above all that were ever given out, so that no
    destination takes them for old ones. Exit code 6 when the examination finds something that needs a person.

    \b
    Example: strand restore /backups/monday lake --replace
    """
    from strandline.cli.progress import Progress
    from strandline.copies import restore_lake

    session = session_of(context)
    with Progress(shown=not session.quiet) as progress:
        restored = restore_lake(
            Path(backup),
            Path(folder),
            replace=replace,
            ledger=ledger,
            warehouse=warehouse,
            report=progress.report,
        )
    session.emit(restored.report, lambda: _print_restored(restored))
    if not restored.report.ok:
        raise typer.Exit(NEEDS_A_PERSON)


def clone(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="LAKE|BACKUP", help="A lake's folder, or a backup's.")],
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    ledger: Annotated[
        str | None, typer.Option(metavar="URL", help="sqlite:///FILE or postgresql://…; an empty database.")
    ] = None,
    warehouse: Annotated[
        str | None, typer.Option(metavar="URI", help="Where its files go: a path, or s3://BUCKET/PREFIX.")
    ] = None,
) -> None:
    """Make a lake of its own out of another lake, which goes on meanwhile, or out of a backup.

    It has an id of its own and shares no file. Tables, rows, branches, tags and history come along; tokens, secrets,
    leases and the state of deliveries don't. Its sinks are paused until you let them go on.

    \b
    Example: strand clone lake try-out
    """
    from strandline.cli.progress import Progress
    from strandline.copies import clone_lake

    session = session_of(context)
    with Progress(shown=not session.quiet) as progress:
        cloned = clone_lake(Path(source), Path(folder), ledger=ledger, warehouse=warehouse, report=progress.report)
    made = cloned.report

    def human() -> None:
        output.say(f"Cloned to {made.lake}: {counted(len(made.tables), 'table')}, {counted(made.rows, 'row')}.")
        for sink in made.sinks:
            output.say(
                f"  sink {sink} is paused; to let it send: `strand --lake {shlex.quote(folder)} sink resume {sink}`"
            )
        for secret in cloned.left_out:
            output.say(f"  left out, because it is secret: {secret}")

    session.emit(made, human)


def relocate(context: typer.Context) -> None:
    """Make a lake that was moved, with its files, at home in its new place. Stop everything that uses it first.

    Refused where the first one is still in its place: that is a copy, and `strand clone` makes a lake of its own.

    \b
    Example: strand relocate   (in the folder that the lake is in now)
    """
    from strandline.cli.progress import Progress
    from strandline.config import find_root
    from strandline.copies import relocate_lake

    session = session_of(context)
    root = find_root(Path(session.lake) if session.lake is not None else None)
    with Progress(shown=not session.quiet) as progress:
        relocated = relocate_lake(root, report=progress.report)
    session.emit(relocated, lambda: output.say(f"The lake is at home in {relocated.lake}."))


def _print_restored(restored: RestoredLake) -> None:
    report = restored.report
    output.say(f"Restored {report.lake} as of {output.when(report.at)}; new seqs begin above {report.raised_to:,}.")
    if report.replaced is not None:
        output.say(f"  what was there is in {report.replaced}")
    if restored.twin is not None:
        output.say(f"  this is the lake of {restored.twin}: see that nobody uses that one any more")
    for secret in report.left_out:
        output.say(f"  not in the backup, because it is secret: {secret}")
    for line in [*map(_answer_text, report.asked), *report.followed]:
        output.say(f"  {output.cell(line)}")
    for finding in report.findings:
        output.say(f"{finding.severity}: {output.cell(finding.what)}")
        output.say(f"  what to do: {output.cell(finding.fix)}")
    count = len(report.findings)
    output.say(f"Doctor has {counted(count, 'finding')}." if count else "Doctor says that all is well.")


def _answer_text(stream: AskedStream) -> str:
    where = f"{stream.sink}: {stream.table}/{stream.partition}" if stream.table else stream.sink
    if stream.watermark is None:
        return f"{where} can't be asked now, and gets nothing until a tick has asked it: {stream.error}"
    return f"{where} goes on behind seq {stream.watermark:,}, in epoch {stream.epoch}"
