"""`strand sink dead`: rows that a destination refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.maintenance import ask_first
from strandline.cli.params import Actor
from strandline.cli.parked import Name
from strandline.cli.session import Session, session_of
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake import Lake

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
    from strandline.ledger.sinks import find_sink
    from strandline.sinks import repair
    from strandline.sinks.instances import destination

    if replay and discard:
        raise typer.BadParameter("give either --replay or --discard", ctx=context)
    session = session_of(context)
    with session.open(read_only=not (replay or discard)) as lake:
        with lake.ledger.read() as conn:
            sink = find_sink(conn, name)
        if not (replay or discard):
            _list_dead(session, lake, sink.sink_id)
            return
        if replay:
            place = destination(lake.surroundings, sink)
            done = repair.replay(lake.ledger, sink, place, ids or [])
            place.close()
        else:
            chosen = repair.chosen(lake.ledger, sink, ids or [])
            if chosen:
                letters = counted(len(chosen), "dead letter")
                ask_first(session, f"{letters} of {name} would be given up: the destination never gets them", yes=yes)
            done = repair.discard(lake.ledger, sink, [letter.letter_id for letter in chosen], actor=actor)
    heads = ["id", "seq", "outcome", "error"]

    def human() -> None:
        if done:
            output.table(heads, [["" if letter[head] is None else letter[head] for head in heads] for letter in done])
        else:
            output.say("There are no dead letters.")

    session.emit(done, human)
    if any(letter["outcome"] == "refused" for letter in done):
        raise typer.Exit(PARKED)


def _list_dead(session: Session, lake: Lake, sink_id: str) -> None:
    from strandline.ledger.dead_letters import list_letters
    from strandline.model.moments import text_of
    from strandline.model.wire import decode, to_json_lines

    with lake.ledger.read() as conn:
        letters = list_letters(conn, sink_id)
    documents = [
        {
            "id": letter.letter_id,
            "table": letter.table,
            "partition": letter.stream.partition,
            "seq": letter.seq,
            "epoch": letter.epoch,
            "at": text_of(letter.at_us),
            "answer": dict(letter.answer),
            "row": b"".join(to_json_lines(decode(letter.payload))).decode().strip(),
        }
        for letter in letters
    ]

    def human() -> None:
        if not documents:
            output.say("There are no dead letters.")
            return
        heads = ["id", "table", "seq", "at", "answer", "row"]
        output.table(heads, [[document[head] for head in heads] for document in documents])

    session.emit(documents, human)
