"""`strand recover`: finish or undo what dead processes left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.params import Actor, InThisProcess
from strandline.cli.session import Session, session_of

if TYPE_CHECKING:
    from strandline.model.operations import Recovered


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("recover")(recover)


def recover(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    discard: Annotated[
        str | None, typer.Option(metavar="OP", help="Give up an operation whose record can't be read.")
    ] = None,
    actor: Actor = "",
    in_this_process: InThisProcess = False,
) -> None:
    """Finish or undo what dead processes left.

    Of a process of another host only silence tells: it is waited for, for `[lease] ttl`. Spark is started only if
    there is something to settle in Iceberg.

    \b
    Example: strand recover --dry-run
    """
    from strandline.lake.recovery import RecoveredOperation
    from strandline.worker import delegated

    session = session_of(context)
    with session.open(read_only=dry_run) as lake, session.delegating():
        if discard is not None and not dry_run:
            recovered = [lake.recovery.discard(discard, actor=actor)]
        else:
            left = lake.recover(dry_run=True)
            if not dry_run:
                _note_silence(session, left)
                left = delegated.recover(lake, in_this_process=in_this_process or not left)
            recovered = list({operation.op_id: operation for operation in [*lake.recovered, *left]}.values())
    session.emit(
        [RecoveredOperation.of(operation) for operation in recovered], lambda: _print(recovered, dry_run=dry_run)
    )


def _note_silence(session: Session, left: Sequence[Recovered]) -> None:
    """Say for how long the command may listen, and to what."""
    for doubtful in left:
        if doubtful.wait_s:
            session.note(
                f"operation {doubtful.op_id} ({doubtful.kind}): whether its process lives shows within "
                f"{output.age(math.ceil(doubtful.wait_s))}; Ctrl-C leaves everything as it is"
            )


def _print(recovered: Sequence[Recovered], *, dry_run: bool) -> None:
    if not recovered:
        output.say("Nothing to recover.")
        return
    heads = ["operation", "kind", "would be" if dry_run else "was", "because", "settled in Iceberg"]
    output.table(
        heads,
        [
            [
                operation.op_id,
                operation.kind,
                operation.outcome.replace("_", " "),
                operation.reason,
                "yes" if operation.settled else "not yet",
            ]
            for operation in recovered
        ],
    )
    for doubtful in recovered:
        if doubtful.wait_s:
            silence = output.age(math.ceil(doubtful.wait_s))
            output.say(
                f"{doubtful.op_id}: only if its process stays silent for {silence}, which `strand recover` waits for"
            )
