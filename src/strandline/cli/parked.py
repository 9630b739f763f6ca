"""`strand sink retry` and `strand sink continue`: let what is parked go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.params import Actor
from strandline.cli.session import session_of
from strandline.errors import Busy
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.sinks.continuing import Continued

Name = Annotated[str, typer.Argument(metavar="NAME", help="A sink's name.")]


def retry(
    context: typer.Context,
    name: Name,
    accept_receiver: Annotated[
        bool,
        typer.Option(
            "--accept-receiver", help="Take the lake that answers now; what it knows nothing of is sent from the start."
        ),
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Begin anew where the place has lost its marker; take another's.")
    ] = False,
    actor: Actor = "",
) -> None:
    """Let parked deliveries be tried again, with all their attempts, from the next tick on.

    A blob or iceberg sink whose place has lost its marker begins anew there with --take-over. A forward sink delivers
    to one lake, which it knows by its id; --accept-receiver says that another has its place.

    \b
    Example: strand sink retry central && strand sink tick central
    """
    from strandline.ledger.deliveries import unpark
    from strandline.ledger.sinks import find_sink
    from strandline.sinks.continuing import accept_receiver as accept
    from strandline.sinks.instances import destination
    from strandline.sinks.repair import begin_anew

    session = session_of(context)
    with session.open() as lake:
        with lake.ledger.read() as conn:
            sink = find_sink(conn, name)
        accepted = accept(lake.context, sink, actor=actor) if accept_receiver else 0
        begun = 0
        if take_over:
            place = destination(lake.surroundings, sink, take_over=True)
            try:
                begun = begin_anew(lake.context, sink, place, actor=actor)
            finally:
                place.close()
        freed = lake.ledger.run(lambda txn: unpark(txn, sink.sink_id))

    def human() -> None:
        if accept_receiver:
            verb = "asks" if accepted == 1 else "ask"
            output.say(
                f"{counted(accepted, 'stream')} {verb} the receiver at the next tick; "
                "one that it knows nothing of begins anew."
            )
        elif freed:
            output.say(f"{counted(freed, 'parked delivery', 'parked deliveries')} will be tried again.")
        elif not take_over:
            output.say("No delivery of it is parked.")
        if take_over:
            verb = "begins" if begun == 1 else "begin"
            output.say(f"{counted(begun, 'stream')} {verb} anew, with every row.")

    document = {"sink": name, "retried": freed, "receiver_accepted": accept_receiver, "begun_anew": begun}
    session.emit(document, human)


def continue_(
    context: typer.Context,
    name: Name,
    stream: Annotated[
        str | None, typer.Option(metavar="TABLE[/PARTITION]", help="One stream; all that are parked if not given.")
    ] = None,
    past_hole: Annotated[
        bool, typer.Option("--past-hole", help="Go on without rows that retention has removed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Yes, although rows may arrive twice.")] = False,
    actor: Actor = "",
) -> None:
    """Let a stream go on that is parked because one side was put back from an older copy.

    A new epoch begins at this lake's own watermark. Of the rows up to the destination's mark only those are sent that
    it lacks; one that can't say what it has gets all of them, which needs --yes. A stream that is parked for another
    reason is tried again, as by `sink retry`.

    \b
    Example: strand sink continue central --stream messages
    """
    from dataclasses import asdict

    from strandline.ledger.sinks import find_sink
    from strandline.sinks.continuing import continue_streams
    from strandline.sinks.destination import Later, Park
    from strandline.sinks.instances import destination

    session = session_of(context)
    with session.open() as lake:
        with lake.ledger.read() as conn:
            sink = find_sink(conn, name)
        place = destination(lake.surroundings, sink)
        try:
            done = continue_streams(lake.context, sink, place, stream, past_hole=past_hole, yes=yes, actor=actor)
        except (Later, Park) as error:
            raise Busy(str(error), hint="Nothing was changed.", reason="destination") from error
        finally:
            place.close()
    session.emit([asdict(one) for one in done], lambda: _print(done))


def _print(done: list[Continued]) -> None:
    for one in done:
        where = f"{one.table}/{one.partition}"
        if one.outcome == "retried":
            output.say(f"{where} will be tried again.")
        elif one.kind == "hole":
            output.say(f"{where} goes on behind {one.since}, as epoch {one.epoch}, without what was removed.")
        else:
            which = "those that the destination lacks" if one.compared else "all of them; some may arrive twice"
            output.say(f"{where}: of {counted(one.rows, 'row')} in ({one.since}, {one.upto}] will be sent: {which}.")
    if not done:
        output.say("No stream of it is parked.")
