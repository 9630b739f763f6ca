"""`strand sink dead`: rows that a destination refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.maintenance import ask_first
from strandline.cli.params import Actor
from strandline.cli.parked import Name
from strandline.cli.session import session_of
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake.dead_letters import OpenLetter
    from strandline.sinks.repair import SettledLetter

PARKED = 6


def dead(
    context: typer.Context,
    name: Name,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Some; all if none is named.")] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Send them again.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Give them up.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Give them up without asking.")] = False,
    actor: Actor = "",
) -> None:
    """Rows that the destination refused: list them, send them again, or give them up.

    \b
    Example: strand sink dead central --replay
    """
    if replay and discard:
        raise typer.BadParameter("give either --replay or --discard", ctx=context)
    session = session_of(context)
    with session.open(read_only=not (replay or discard)) as lake:
        if not (replay or discard):
            letters = lake.sinks.dead_letters.list(name)
            session.emit(letters, lambda: _print_letters(letters))
            return
        if replay:
            settled = lake.sinks.dead_letters.replay(name, ids or None)
        else:
            chosen = lake.sinks.dead_letters.ids(name, ids or None)
            if chosen:
                count = counted(len(chosen), "dead letter")
                ask_first(session, f"{count} of {name} would be given up: the destination never gets them", yes=yes)
            settled = lake.sinks.dead_letters.discard(name, chosen, actor=actor)
    session.emit(settled, lambda: _print_settled(settled))
    if any(letter.outcome == "refused" for letter in settled):
        raise typer.Exit(PARKED)


def _print_settled(letters: list[SettledLetter]) -> None:
    if not letters:
        output.say("There are no dead letters.")
        return
    rows = [[letter.id, letter.seq, letter.outcome, letter.error or ""] for letter in letters]
    output.table(["id", "seq", "outcome", "error"], rows)


def _print_letters(letters: list[OpenLetter]) -> None:
    if not letters:
        output.say("There are no dead letters.")
        return
    rows = [[letter.id, letter.table, letter.seq, letter.at, letter.answer, letter.row] for letter in letters]
    output.table(["id", "table", "seq", "at", "answer", "row"], rows)
