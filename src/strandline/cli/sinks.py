"""`strand sink`: let destinations follow the lake, and look after them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import dead_letters, output, parked
from strandline.cli.maintenance import ask_first
from strandline.cli.params import Actor, InThisProcess, listed
from strandline.cli.session import session_of
from strandline.errors import BadRequest
from strandline.model.wording import counted
from strandline.sinks.registry import in_words

if TYPE_CHECKING:
    from strandline.lake.sinks import Adding, Start, TickedStream
    from strandline.reports.sinks import SinkStatus, StreamStatus
    from strandline.sinks.repair import PreviewedStream

PARKED, NOT_NOW = 6, 5

Name = Annotated[str, typer.Argument(metavar="NAME", help="A sink's name.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting; as often as you like.")
]


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    group = typer.Typer(help="Deliver rows elsewhere, once each.", no_args_is_help=True, rich_markup_mode=None)
    group.command("add")(add)
    group.command("list")(list_)
    group.command("show", short_help="One sink: its settings, and how far each stream is.")(show)
    group.command("set")(set_)
    group.command("rename")(rename)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("remove")(remove)
    group.command("tick")(tick)
    group.command("preview", short_help="What the next tick would send; nothing is sent.")(preview)
    group.command("retry", short_help="Let parked deliveries be tried again.")(parked.retry)
    group.command("continue", short_help="Let a stream go on after one side was put back.")(parked.continue_)
    group.command("rewind", short_help="Send rows again, in a new epoch.")(rewind)
    group.command("dead", short_help="Rows that the destination refused: list, replay, discard.")(dead_letters.dead)
    app.add_typer(group, name="sink")


def add(
    context: typer.Context,
    name: Name,
    type_: Annotated[str, typer.Option("--type", metavar="TYPE", help=f"{in_words()}.")],
    settings: Settings = None,
    tables: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Which tables; all if not given.")] = None,
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="Which branch; main if not given.")] = None,
    from_: Annotated[str, typer.Option("--from", metavar="now|SEQ", help="Where it begins; 0 is everything.")] = "0",
    unit_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="Rows in one delivery at most.")] = None,
    unit_bytes: Annotated[str | None, typer.Option(metavar="SIZE", help="Bytes in one delivery at most.")] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Don't ask the destination first.")] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take a place that another sink has used.")] = False,
    actor: Actor = "",
) -> None:
    """Let a destination follow the lake's tables. Nothing is sent before the first tick.

    \b
    Example: strand sink add archive --type blob --tables messages \\
                 --set uri=file:///var/archive
             strand sink add central --type forward --set gateway=laptop \\
                 --set url=http://central:8400 --set token_file=token
    """
    given_settings: dict[str, object] = {**_settings(settings)}
    if tables:
        given_settings["tables"] = listed(tables)
    if branch is not None:
        given_settings["branch"] = branch
    if unit_rows is not None:
        given_settings["unit_rows"] = unit_rows
    if unit_bytes is not None:
        given_settings["unit_bytes"] = unit_bytes
    session = session_of(context)
    with session.open() as lake:
        how: Adding = {"start": _start(from_), "check": not no_check, "take_over": take_over, "actor": actor}
        added = lake.sinks.add(name, type_, given_settings, **how)
    if added.shared is not None:
        session.warn(added.shared)
    begins = added.status.start_seq
    session.emit(
        added.status, lambda: output.say(f"Sink {name} follows from seq {begins} on. `strand sink tick` sends.")
    )


def _settings(pairs: list[str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise BadRequest(f"--set {pair!r} is no KEY=VALUE", hint="For example --set format=jsonl")
        settings[key.strip()] = value
    return settings


def _start(text: str) -> Start:
    if text == "now":
        return "now"
    if not text.lstrip("-").isdigit():
        raise BadRequest(f"--from {text!r} is neither now nor a seq", hint="0 is from the beginning.")
    return int(text)


LIST_HEADS = ["sink", "type", "tables", "branch", "lag rows", "lag age", "parked", "dead letters", "last delivery"]


def list_row(sink: SinkStatus) -> list[object]:
    """A sink as a row of a table for people."""
    return [
        sink.sink,
        sink.type,
        "all" if sink.tables is None else ", ".join(sink.tables),
        sink.branch or "DELETED",
        sink.lag.rows,
        output.age(sink.lag.age_s),
        sink.parked,
        sink.dead_letters,
        output.when(sink.last_delivery) if sink.last_delivery else "never",
    ]


def list_(context: typer.Context) -> None:
    """List the sinks.

    \b
    Example: strand sink list
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        sinks = lake.sinks.list()

    def human() -> None:
        if sinks:
            output.table(LIST_HEADS, [list_row(sink) for sink in sinks])
            say_paused(sinks)
        else:
            output.say("There are no sinks yet. `strand sink add` makes one.")

    session.emit(sinks, human)


def say_paused(sinks: Iterable[SinkStatus]) -> None:
    """Which of these sinks send nothing for now, and why."""
    for sink in sinks:
        if sink.paused:
            output.say(f"{sink.sink} is PAUSED: {output.cell(sink.paused)}")


def show(context: typer.Context, name: Name) -> None:
    """One sink: its settings, and every stream with its watermark, its lag and what is being delivered.

    \b
    Example: strand sink show archive
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        status = lake.sinks.show(name)
    session.emit(status, lambda: _show(status))


def _show(sink: SinkStatus) -> None:
    output.say(f"{sink.sink}  ({sink.type}, {sink.sink_id})  branch {sink.branch or 'DELETED'}")
    for key, value in sorted(sink.settings.items()):
        output.say(f"  {key} = {_setting_text(sink.type, key, value)}")
    if sink.receiver:
        output.say(f"  delivers to the lake {output.cell(sink.receiver)}")
    if sink.paused:
        output.say(f"  PAUSED: {output.cell(sink.paused)}")
    if sink.hold_until:
        output.say(f"  sends nothing before {output.when(sink.hold_until)}")
    output.say()
    if sink.branch is None:
        output.say("The branch that it follows was deleted. Remove the sink, or add one for another branch.")
        return
    if not sink.streams:
        output.say("Nothing to follow yet: its tables have no flushed rows.")
        return
    output.table(STREAM_HEADS, [_stream_row(stream) for stream in sink.streams])
    for stream in sink.streams:
        _show_trouble(sink.sink, stream)


def _setting_text(type_: str, key: str, value: object) -> str:
    """A setting as `--set` takes it: a length of time and a size with their units."""
    from strandline.sinks.settings import unit_of

    unit = unit_of(type_, key)
    if unit == "s" and isinstance(value, int | float):
        return output.span(value)
    if unit == "bytes" and isinstance(value, int):
        return output.exact_size(value)
    return output.cell(value)


STREAM_HEADS = [
    "table",
    "partition",
    "epoch",
    "watermark",
    "head",
    "lag rows",
    "lag age",
    "rows",
    "size",
    "units",
    "dead",
]


def _stream_row(stream: StreamStatus) -> list[object]:
    return [
        stream.table,
        stream.partition,
        stream.epoch or "",
        stream.watermark,
        stream.head,
        stream.lag.rows,
        output.age(stream.lag.age_s),
        stream.delivered.rows,
        output.size(stream.delivered.bytes),
        stream.delivered.units,
        stream.dead_letters,
    ]


def _show_trouble(sink: str, stream: StreamStatus) -> None:
    where = f"{stream.table}/{stream.partition}"
    delivery = stream.delivery
    if delivery is not None and delivery.parked:
        output.say(f"{where} is PARKED at {delivery.since}..{delivery.until}: {output.cell(delivery.parked)}")
        if "`strand sink" not in delivery.parked:  # else the reason names the command that helps
            output.say(f"  `strand sink retry {sink}` tries it again.")
    elif delivery is not None:
        error = f", last error: {output.cell(delivery.last_error)}" if delivery.last_error else ""
        attempts = counted(delivery.attempts, "failed attempt")
        output.say(f"{where}: {delivery.since}..{delivery.until} is open, {attempts}{error}")
    elif stream.last_error:
        output.say(f"{where}: last error {output.when(stream.last_error_at)}: {output.cell(stream.last_error)}")


def set_(context: typer.Context, name: Name, settings: Settings = None) -> None:
    """Change settings; an empty value takes one away. A delivery that is open is finished under the old ones.

    \b
    Example: strand sink set archive --set every=5m --set where=
    """
    if not settings:
        raise typer.BadParameter("give at least one --set KEY=VALUE", ctx=context)
    session = session_of(context)
    with session.open() as lake:
        status = lake.sinks.set(name, _settings(settings))
    session.emit(status, lambda: output.say(f"Sink {name} has its new settings from the next unit on."))


def rename(
    context: typer.Context, name: Name, new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")]
) -> None:
    """Give a sink another name; its marks stay. One of strand.toml has its section renamed first.

    \b
    Example: strand sink rename archive cold
    """
    session = session_of(context)
    with session.open() as lake:
        status = lake.sinks.rename(name, new)
    session.emit(status, lambda: _say_renamed(name, status))


def _say_renamed(name: str, sink: SinkStatus) -> None:
    output.say(f"Sink {name} is {sink.sink} now.")
    if sink.paused:
        output.say(f"It is paused: {sink.paused}.")


def pause(
    context: typer.Context,
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; people read it.")] = "",
    actor: Actor = "",
) -> None:
    """Let a sink send nothing until `sink resume`. It keeps its marks, and retention waits for it.

    \b
    Example: strand sink pause archive --reason "the disk is being replaced"
    """
    session = session_of(context)
    with session.open() as lake:
        status = lake.sinks.pause(name, reason, actor=actor)
    session.emit(status, lambda: output.say(f"Sink {name} sends nothing until `strand sink resume {name}`."))


def resume(context: typer.Context, name: Name) -> None:
    """Let a paused sink go on from where it is.

    \b
    Example: strand sink resume archive
    """
    session = session_of(context)
    with session.open() as lake:
        resumed = lake.sinks.resume(name)
    was = resumed.was
    text = f"Sink {name} was not paused." if was is None else f"Sink {name} goes on; it was paused: {was}."
    session.emit(resumed.status, lambda: output.say(text))


def remove(
    context: typer.Context,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also with its dead letters.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    actor: Actor = "",
) -> None:
    """Forget a sink and its marks. What it has delivered stays where it is.

    On a terminal it asks first: one that is added again under the same name sends everything again.

    \b
    Example: strand sink remove archive
    """
    session = session_of(context)
    with session.open() as lake:
        sink = lake.sinks.removable(name)
        ask_first(session, f"Sink {name} and its marks would be forgotten; what it has delivered stays", yes=yes)
        removed = lake.sinks.remove(name, sink_id=sink.sink_id, force=force, actor=actor)
    session.emit(removed, lambda: output.say(f"Removed {name}."))


def tick(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Sinks; all if none.")] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take a place that another sink has used.")] = False,
    actor: Actor = "",
    in_this_process: InThisProcess = False,
) -> None:
    """Deliver what is due, now. Exit code 6 when something is parked, 5 when something has to wait.

    \b
    Example: strand sink tick archive
    """
    from strandline.lake.sinks import ticked_streams
    from strandline.worker import delegated

    session = session_of(context)
    with session.open() as lake, session.delegating():
        has_sinks = bool(lake.sinks.named(*names or []))  # an unknown one is refused before a worker is asked
        ticked = delegated.tick(lake, names or (), actor=actor, take_over=take_over, in_this_process=in_this_process)
    streams = ticked_streams(ticked)
    session.emit(streams, lambda: _print_ticked(streams, has_sinks=has_sinks))
    _exit({stream.outcome for stream in streams})


TICK_HEADS = [
    "sink",
    "table",
    "partition",
    "since",
    "until",
    "rows",
    "bytes",
    "units",
    "withheld",
    "dead",
    "outcome",
]


def _print_ticked(streams: list[TickedStream], *, has_sinks: bool) -> None:
    if not streams:
        output.say("Nothing was due." if has_sinks else "There are no sinks yet. `strand sink add` makes one.")
        return
    output.table(TICK_HEADS, [_ticked_row(stream) for stream in streams])
    for stream in streams:
        if stream.error:
            where = f" {stream.table}/{stream.partition}" if stream.table else ""
            output.say(f"{stream.sink}{where} {stream.outcome}: {output.cell(stream.error)}")
        if stream.note:
            output.say(f"{stream.sink} {stream.table}/{stream.partition}: {output.cell(stream.note)}")


def _ticked_row(stream: TickedStream) -> list[object]:
    return [
        stream.sink,
        stream.table,
        stream.partition,
        stream.since,
        stream.until,
        stream.rows,
        output.size(stream.bytes),
        stream.units,
        stream.withheld,
        stream.dead_letters,
        stream.outcome,
    ]


def _exit(outcomes: set[str]) -> None:
    if "parked" in outcomes:
        raise typer.Exit(PARKED)
    if outcomes - {"delivered"}:
        raise typer.Exit(NOT_NOW)


def preview(context: typer.Context, name: Name) -> None:
    """What the next tick would send: rows, bytes, and the first few of them. Nothing is sent.

    \b
    Example: strand sink preview archive
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        streams = lake.sinks.preview(name)
    session.emit(streams, lambda: _print_preview(streams))


def _print_preview(streams: list[PreviewedStream]) -> None:
    if not streams:
        output.say("Nothing waits in the log for it. Rows that are not flushed yet are not counted here.")
        return
    output.table(
        ["table", "partition", "since", "until", "rows", "withheld", "bytes"],
        [
            [unit.table, unit.partition, unit.since, unit.until, unit.rows, unit.withheld, output.size(unit.bytes)]
            for unit in streams
        ],
    )
    for unit in streams:
        for row in unit.samples:
            output.say(output.cell(output.json_bytes(row).decode()))


def rewind(
    context: typer.Context,
    name: Name,
    stream: Annotated[str, typer.Option(metavar="TABLE[/PARTITION]", help="The stream, as `sink show` names it.")],
    to: Annotated[int, typer.Option(metavar="SEQ", help="Everything behind this seq is sent again.")],
    yes: Annotated[bool, typer.Option("--yes", help="Yes, send it again.")] = False,
    actor: Actor = "",
) -> None:
    """Send rows again: cancel what is open, begin a new epoch behind a seq, close the dead letters there.

    \b
    Example: strand sink rewind archive --stream messages --to 0 --yes
    """
    session = session_of(context)
    with session.open(read_only=not yes) as lake:
        rewound = lake.sinks.rewind(name, stream, to, yes=yes, actor=actor)
    again = f"({rewound.to}, {rewound.was}] will be sent again, as epoch {rewound.epoch}."
    session.emit(rewound, lambda: output.say(again))
