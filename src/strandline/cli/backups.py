"""Backups: to make one while everything runs, and to put one in the place of a lost lake."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import output
from strandline.cli.session import session_of
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.model.backups import Manifest
    from strandline.reports.findings import Finding
    from strandline.restore import Restoration
    from strandline.sinks.marks import Asked

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
    from strandline.backup import backup as make

    session = session_of(context)
    if link and not with_data:
        raise typer.BadParameter("--link goes with --with-data", ctx=context)
    with session.open() as lake:
        manifest = make(lake, Path(folder), with_data=with_data, link=link, keep_s=_duration(keep))
    document = {"backup": str(Path(folder).expanduser().resolve()), **_told(manifest)}
    extent = f"{counted(len(manifest.files), 'file')}, {output.size(manifest.size_bytes)}"

    def human() -> None:
        output.say(f"Backed up to {document['backup']}: {extent}.")
        output.say(f"  everything up to seq {manifest.seq:,}, as of {output.when(document['at'])}")
        if not with_data:
            until = output.when(document["until"])
            output.say(f"  without data files: these stay in {manifest.warehouse}, at least until {until}")
        for what in manifest.left_out:
            output.say(f"  left out, because it is secret: {what}")

    session.emit(document, human)


def _duration(text: str) -> float:
    from strandline.errors import BadRequest
    from strandline.settings_text import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"--keep is {text!r}", hint=f"It is {error}.") from error


def _told(manifest: Manifest) -> dict[str, Any]:
    from strandline.model.moments import text_of

    return {
        "backup_id": manifest.backup_id,
        "lake_id": manifest.lake_id,
        "at": text_of(manifest.at_us),
        "seq": manifest.seq,
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "with_data": manifest.with_data,
        "until": None if manifest.held_until_us is None else text_of(manifest.held_until_us),
        "warehouse": manifest.warehouse,
        "left_out": list(manifest.left_out),
    }


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
    from strandline.lake import Lake
    from strandline.reports.doctor import examine
    from strandline.reports.repairs import follow
    from strandline.restore import restore as put_back

    session = session_of(context)
    root = Path(folder).expanduser().resolve()
    with Progress(shown=not session.quiet) as progress:
        done = put_back(Path(backup), root, replace=replace, ledger=ledger, warehouse=warehouse, report=progress.report)
        with Lake(root, report=progress.report) as lake:
            followed = follow(lake)
            findings = examine(lake)
            contents = _contents(lake)
    ok = all(finding.severity != "error" for finding in findings)
    document = {
        "lake": str(root),
        **contents,
        **_told(done.manifest),
        "raised_to": done.restored.seq,
        "replaced": None if done.aside is None else str(done.aside),
        "asked": [_asked(one) for one in done.asked],
        "followed": followed,
        "ok": ok,
        "findings": [finding.__dict__ for finding in findings],
    }

    session.emit(document, lambda: _print_restored(root, done, followed, findings))
    if not ok:
        raise typer.Exit(NEEDS_A_PERSON)


def _contents(lake: Lake) -> dict[str, list[str]]:
    """What a lake has, by name."""
    return {"tables": lake.view().tables, "sinks": sorted(sink.name for sink in lake.sinks())}


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
    from strandline.clone import clone as make

    session = session_of(context)
    root = Path(folder).expanduser().resolve()
    with Progress(shown=not session.quiet) as progress:
        done = make(Path(source), root, ledger=ledger, warehouse=warehouse, report=progress.report)
    rows = sum(done.rows.values())
    document = {"lake": str(root), "tables": sorted(done.rows), "rows": rows, "sinks": list(done.sinks)}

    def human() -> None:
        output.say(f"Cloned to {root}: {counted(len(done.rows), 'table')}, {counted(rows, 'row')}.")
        for sink in done.sinks:
            output.say(
                f"  sink {sink} is paused; to let it send: `strand --lake {shlex.quote(folder)} sink resume {sink}`"
            )
        for what in done.manifest.left_out:
            output.say(f"  left out, because it is secret: {what}")

    session.emit(document, human)


def relocate(context: typer.Context) -> None:
    """Make a lake that was moved, with its files, at home in its new place. Stop everything that uses it first.

    Refused where the first one is still in its place: that is a copy, and `strand clone` makes a lake of its own.

    \b
    Example: strand relocate   (in the folder that the lake is in now)
    """
    from strandline.cli.progress import Progress
    from strandline.config import find_root
    from strandline.lake import Lake
    from strandline.relocate import relocate as settle_in

    session = session_of(context)
    root = find_root(Path(session.lake) if session.lake is not None else None)
    with Progress(shown=not session.quiet) as progress:
        settle_in(root, report=progress.report)
    with Lake(root) as lake:
        document = {"lake": str(root), **_contents(lake)}
    session.emit(document, lambda: output.say(f"The lake is at home in {root}."))


def _print_restored(root: Path, done: Restoration, followed: list[str], findings: list[Finding]) -> None:
    from strandline.config import FILE_NAME

    at = output.when(_told(done.manifest)["at"])
    output.say(f"Restored {root} as of {at}; new seqs begin above {done.restored.seq:,}.")
    if done.aside is not None:
        output.say(f"  what was there is in {done.aside}")
    if Path(done.manifest.root) != root and (Path(done.manifest.root) / FILE_NAME).exists():
        output.say(f"  this is the lake of {done.manifest.root}: see that nobody uses that one any more")
    for what in done.manifest.left_out:
        output.say(f"  not in the backup, because it is secret: {what}")
    for line in [*map(_said, done.asked), *followed]:
        output.say(f"  {output.cell(line)}")
    for finding in findings:
        output.say(f"{finding.severity}: {output.cell(finding.what)}")
        output.say(f"  what to do: {output.cell(finding.fix)}")
    output.say("Doctor says that all is well." if not findings else f"Doctor has {counted(len(findings), 'finding')}.")


def _asked(one: Asked) -> dict[str, Any]:
    mark = one.mark
    return {
        "sink": one.sink,
        "table": one.table,
        "partition": one.partition,
        "watermark": None if mark is None else mark.seq,
        "epoch": None if mark is None else mark.epoch,
        "error": one.error,
    }


def _said(one: Asked) -> str:
    where = f"{one.sink}: {one.table}/{one.partition}" if one.table else one.sink
    if one.mark is None:
        return f"{where} can't be asked now, and gets nothing until a tick has asked it: {one.error}"
    return f"{where} goes on behind seq {one.mark.seq:,}, in epoch {one.mark.epoch}"
