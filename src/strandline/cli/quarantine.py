"""`strand quarantine`: batches whose bytes were damaged, to repair or to give up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline import private
from strandline.cli import output
from strandline.cli.maintenance import Yes, ask_first
from strandline.cli.params import Actor
from strandline.cli.session import session_of
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.reports.quarantine import QuarantineEntry

QUARANTINE_HEADS = ["batch", "table", "rows", "seqs", "since", "reason"]

BatchId = Annotated[str, typer.Argument(metavar="ID", help="A batch, as `strand quarantine list` names it.")]


@dataclass(frozen=True)
class SavedBatch:
    """A file that a batch's bytes were written to."""

    batch: str
    file: str
    size_bytes: int


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    group = typer.Typer(
        help="Batches whose bytes were damaged, set aside.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("list", short_help="List the batches that were set aside.")(list_)
    group.command("save")(save)
    group.command("restore")(restore)
    group.command("discard")(discard)
    app.add_typer(group, name="quarantine")


def quarantine_cells(batch: QuarantineEntry) -> list[object]:
    """A batch as a row of a table for people."""
    seqs = f"{batch.first_seq}..{batch.last_seq}"
    return [batch.batch, batch.table, batch.rows, seqs, output.when(batch.at), batch.reason]


def list_(context: typer.Context) -> None:
    """List the batches that were set aside because their bytes can't be read.

    \b
    Example: strand quarantine list
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        batches = lake.quarantine.list()

    def human() -> None:
        if batches:
            output.table(QUARANTINE_HEADS, [quarantine_cells(batch) for batch in batches])
        else:
            output.say("Nothing is in quarantine.")

    session.emit(batches, human)


def save(
    context: typer.Context,
    batch: BatchId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where its bytes go; - is stdout.")],
) -> None:
    """Save a batch's bytes as they are, to repair them. A whole one is an Arrow IPC stream.

    \b
    Example: strand quarantine save ID batch.arrow
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        payload = lake.quarantine.payload(batch)
    if file == "-":
        output.write(payload)
        return
    private.write_bytes(Path(file), payload)
    session.emit(
        SavedBatch(batch, file, len(payload)), lambda: output.say(f"Saved {output.size(len(payload))} to {file}.")
    )


def restore(
    context: typer.Context,
    batch: BatchId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The repaired rows: Arrow, JSON lines or Parquet.")],
    actor: Actor = "",
) -> None:
    """Append repaired rows with new seqs, and forget the damaged batch.

    \b
    Example: strand quarantine restore ID batch.arrow
    """
    from strandline.cli.inputs import read_rows

    session = session_of(context)
    with session.open() as lake:
        damaged = lake.quarantine.show(batch)
        repaired = read_rows(
            file,
            lambda rows: lake.quarantine.repair(batch, rows, actor=actor),
            lambda lines: lake.quarantine.repair_json_lines(batch, lines, actor=actor),
        )
    rows = f"{repaired.rows:,} of {counted(damaged.rows, 'row')} to {repaired.table}"
    text = f"Restored {rows}, seqs {repaired.first_seq}..{repaired.last_seq}."
    session.emit(repaired, lambda: output.say(text))


def discard(context: typer.Context, batch: BatchId, yes: Yes = False, actor: Actor = "") -> None:
    """Give a batch up for good. Its rows are counted as pruned, and its bytes are deleted.

    On a terminal it asks first.

    \b
    Example: strand quarantine discard ID
    """
    session = session_of(context)
    with session.open() as lake:
        damaged = lake.quarantine.show(batch)
        ask_first(session, f"{counted(damaged.rows, 'row')} of {damaged.table} would be given up for good", yes=yes)
        given_up = lake.quarantine.discard(batch, actor=actor)
    session.emit(given_up, lambda: output.say(f"Gave up {counted(given_up.rows, 'row')} of batch {batch}."))
