"""Commands that put rows into the lake, and move them into Iceberg."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.params import Actor, All, Branch, Dedupe, InThisProcess, TableName, TableNames, listed
from strandline.cli.session import Session, session_of
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.model.operations import Flushed, Loaded
    from strandline.model.tables import Ack
    from strandline.worker.delegated import Loading


class Mode(StrEnum):
    """What a load does to rows that are there; log tables only ever grow."""

    append = "append"
    merge = "merge"
    overwrite = "overwrite"


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command("append")(append)
    app.command("load")(load)
    app.command("adopt")(adopt)
    app.command("flush")(flush)


def append(
    context: typer.Context,
    table: TableName,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON lines, Parquet or Arrow; - is stdin.")] = "-",
    actor: Actor = "",
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key and rows again store nothing more.")
    ] = None,
    branch: Branch = "main",
    every: All = False,
) -> None:
    """Store rows durably: when it returns they survive any crash. All of them are stored, or none.

    JSON lines may be compressed with gzip or zstd.

    \b
    Example: echo '{"id": "1", "body": "hello"}' | strand append messages
    """
    from strandline.cli.inputs import append_file

    session = session_of(context)
    with session.without_pandas(), session.open() as lake:
        lake.view(branch).branch_table(table)  # an unknown table is said before a person types rows
        if file == "-" and sys.stdin.isatty():
            session.note("Reading JSON lines from the terminal; end with Ctrl-D.")
        ack = append_file(lake, table, file, actor=actor, idempotency_key=idempotency_key, branch=branch)
    session.emit(ack, lambda: output.say(_appended(table, ack)))


def _appended(table: str, ack: Ack) -> str:
    if ack.rows == 0 and ack.too_old == 0:
        return f"No rows to append to {table}."
    seqs = f", seqs {ack.first_seq}..{ack.last_seq}" if ack.rows else ""
    what = f"{counted(ack.rows, 'row')} in {table}{seqs}{_left_out(ack.too_old)}"
    return f"Already stored: {what}." if ack.repeated else f"Stored {what}."


def _left_out(too_old: int) -> str:
    return f"; {counted(too_old, 'row')} past the retention left out" if too_old else ""


def load(
    context: typer.Context,
    table: TableName,
    files: Annotated[list[str], typer.Argument(metavar="FILES...", help="Files, folders, globs or s3:// addresses.")],
    branch: Branch = "main",
    again: Annotated[bool, typer.Option("--again", help="Load although the same files were loaded before.")] = False,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="A name to remember this load by.")] = None,
    mode: Annotated[Mode, typer.Option(help="See above; log tables take append.")] = Mode.append,
    actor: Actor = "",
    in_this_process: InThisProcess = False,
    every: All = False,
) -> None:
    """Load files of any size, once.

    Parquet, JSON lines or CSV. The same files again load nothing more; after a crash the same command goes on where it
    stopped. Of keyed tables it is one commit, of any size; with - for the table, every line names its own: `_table`.

    \b
    append     new rows alone: if keys are there already, nothing is loaded
    merge      rows replace those with their keys; the last line of a key wins
    overwrite  the table becomes exactly the input

    \b
    Example: strand load messages 'archive/*.parquet'
    """
    from strandline.worker import delegated

    session = session_of(context)
    how: Loading = {"branch": branch, "again": again, "key": key, "mode": mode.value, "actor": actor}
    alone = in_this_process or every  # with --all: a worker's answer lists the first bad rows alone
    with session.open() as lake, session.delegating():
        loaded = delegated.load(lake, table, files, in_this_process=alone, **how)
    _emit_loaded(session, loaded)


def adopt(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new table's name.")],
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A Parquet folder, or an Iceberg table.")],
    row_key: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help="What makes rows duplicates.")] = None,
    partition_by: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help="How files are laid out.")] = None,
    dedupe: Dedupe = "table",
    actor: Actor = "",
    in_this_process: InThisProcess = False,
) -> None:
    """Take in an Iceberg table or a Parquet folder.

    It becomes a new table; the source is only read.

    \b
    Example: strand adopt events /data/events
    """
    from strandline.worker import delegated

    session = session_of(context)
    with session.open() as lake, session.delegating():
        loaded = delegated.adopt(
            lake,
            name,
            source,
            row_key=listed(row_key),
            partition_by=listed(partition_by),
            dedupe=dedupe,
            actor=actor,
            in_this_process=in_this_process,
        )
    _emit_loaded(session, loaded)


def _emit_loaded(session: Session, loaded: Loaded) -> None:
    for text in loaded.warnings:
        session.warn(text)

    def human() -> None:
        if loaded.already_loaded:
            output.say(f"Already loaded into {loaded.table}: nothing to do. --again loads it once more.")
            return
        seqs = f", seqs {loaded.first_seq}..{loaded.last_seq}" if loaded.first_seq is not None else ""
        into = ", ".join(loaded.tables) or loaded.table
        gone = f", {counted(loaded.deleted, 'row')} deleted" if loaded.deleted else ""
        less = f"{_dropped(loaded)}{_left_out(loaded.too_old)}"
        output.say(f"Loaded {counted(loaded.rows, 'row')} into {into}{seqs}{gone}{less}.")

    session.emit(replace(loaded, warnings=()), human)  # they are among the session's


def flush(
    context: typer.Context,
    tables: TableNames = None,
    branch: Branch = "main",
    actor: Actor = "",
    in_this_process: InThisProcess = False,
) -> None:
    """Move what was appended from the ledger into Iceberg, now.

    A worker does it if one lives, and this command waits for it.

    \b
    Example: strand flush messages
    """
    from strandline.worker import delegated

    session = session_of(context)
    with session.open() as lake, session.delegating():
        done = delegated.flush(lake, tables or (), branch=branch, actor=actor, in_this_process=in_this_process)
    for flushed in done:
        for text in flushed.warnings:
            session.warn(text)
    session.emit(done, lambda: _flushed(done))


def _flushed(done: list[Flushed]) -> None:
    for flushed in done:
        if flushed.operation is None:
            output.say(f"{flushed.table}: nothing to flush.")
        else:
            output.say(
                f"{flushed.table}: flushed {counted(flushed.rows, 'row')}{_dropped(flushed)}; "
                f"up to seq {flushed.flushed_seq:,} in Iceberg."
            )
    if not done:
        output.say("There are no tables yet.")


def _dropped(done: Flushed | Loaded) -> str:
    counts = [counted(done.duplicates_dropped, "duplicate")] if done.duplicates_dropped else []
    return f" ({' and '.join(counts)} dropped)" if counts else ""
