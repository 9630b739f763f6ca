"""`strand sink retry` and `strand sink continue`: let what is parked go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.params import Actor
from strandline.cli.session import session_of
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake.sinks import RetriedSink
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
    session = session_of(context)
    with session.open() as lake:
        retried = lake.sinks.retry(name, accept_receiver=accept_receiver, take_over=take_over, actor=actor)
    session.emit(retried.deliveries, lambda: _print_retried(retried, take_over=take_over))


def _print_retried(retried: RetriedSink, *, take_over: bool) -> None:
    deliveries = retried.deliveries
    if deliveries.receiver_accepted:
        verb = "asks" if retried.asking == 1 else "ask"
        output.say(
            f"{counted(retried.asking, 'stream')} {verb} the receiver at the next tick; "
            "one that it knows nothing of begins anew."
        )
    elif deliveries.retried:
        output.say(f"{counted(deliveries.retried, 'parked delivery', 'parked deliveries')} will be tried again.")
    elif not take_over:
        output.say("No delivery of it is parked.")
    if take_over:
        verb = "begins" if deliveries.begun_anew == 1 else "begin"
        output.say(f"{counted(deliveries.begun_anew, 'stream')} {verb} anew, with every row.")


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
    session = session_of(context)
    with session.open() as lake:
        streams = lake.sinks.continue_(name, stream, past_hole=past_hole, yes=yes, actor=actor)
    session.emit(streams, lambda: _print_continued(streams))


def _print_continued(streams: list[Continued]) -> None:
    for stream in streams:
        where = f"{stream.table}/{stream.partition}"
        if stream.outcome == "retried":
            output.say(f"{where} will be tried again.")
        elif stream.kind == "hole":
            output.say(f"{where} goes on behind {stream.since}, as epoch {stream.epoch}, without what was removed.")
        else:
            which = "those that the destination lacks" if stream.compared else "all of them; some may arrive twice"
            rows = f"{counted(stream.rows, 'row')} in ({stream.since}, {stream.upto}]"
            output.say(f"{where}: of {rows} will be sent: {which}.")
    if not streams:
        output.say("No stream of it is parked.")
