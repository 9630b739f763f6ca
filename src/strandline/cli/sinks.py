"""`strand sink`: let destinations follow the lake, and look after them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import dead_letters, output, parked
from strandline.cli.maintenance import ask_first
from strandline.cli.params import Actor, Here, listed, who
from strandline.cli.session import session_of
from strandline.errors import BadRequest
from strandline.model.wording import counted
from strandline.sinks.registry import in_words

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.reports.sinks import SinkStatus, StreamStatus
    from strandline.sinks.tick import Ticked

PARKED, NOT_NOW = 6, 5
DURATIONS = frozenset({"every", "timeout"})
SIZES = frozenset({"unit_bytes", "chunk_bytes"})
TOKENS = frozenset({"token", "token_env", "token_file"})
"""One token in place of another, however either was given."""

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
    from strandline.sinks.following import shared_place

    given: dict[str, object] = {**_settings(settings)}
    if tables:
        given["tables"] = listed(tables)
    if branch is not None:
        given["branch"] = branch
    if unit_rows is not None:
        given["unit_rows"] = unit_rows
    if unit_bytes is not None:
        given["unit_bytes"] = unit_bytes
    session = session_of(context)
    with session.open() as lake:
        start = _start(from_)
        sink = lake.add_sink(name, type_, given, start=start, check=not no_check, take_over=take_over, actor=actor)
        document = _describe(lake, sink.name)
        with lake.ledger.read() as conn:
            shared = shared_place(conn, sink)
    if shared is not None:
        session.warn(shared)
    session.emit(
        asdict(document),
        lambda: output.say(f"Sink {name} follows from seq {sink.start_seq} on. `strand sink tick` sends."),
    )


def _settings(pairs: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise BadRequest(f"--set {pair!r} is no KEY=VALUE", hint="For example --set format=jsonl")
        found[key.strip()] = value
    return found


def _start(text: str) -> Any:
    if text == "now":
        return "now"
    if not text.lstrip("-").isdigit():
        raise BadRequest(f"--from {text!r} is neither now nor a seq", hint="0 is from the beginning.")
    return int(text)


def _describe(lake: Lake, name: str) -> SinkStatus:
    from strandline.ledger.sinks import find_sink
    from strandline.reports.sinks import one_sink

    with lake.ledger.read() as conn:
        return one_sink(conn, find_sink(conn, name))


LIST_HEADS = ["sink", "type", "tables", "branch", "lag rows", "lag age", "parked", "dead letters", "last delivery"]


def list_row(sink: SinkStatus) -> list[Any]:
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
    from strandline.reports.sinks import sinks

    session = session_of(context)
    with session.open(read_only=True) as lake, lake.ledger.read() as conn:
        found = sinks(conn)

    def human() -> None:
        if found:
            output.table(LIST_HEADS, [list_row(sink) for sink in found])
            say_paused(found)
        else:
            output.say("There are no sinks yet. `strand sink add` makes one.")

    session.emit(found, human)


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
        document = _describe(lake, name)
    session.emit(document, lambda: _show(document))


def _show(sink: SinkStatus) -> None:
    output.say(f"{sink.sink}  ({sink.type}, {sink.sink_id})  branch {sink.branch or 'DELETED'}")
    for key, value in sorted(sink.settings.items()):
        output.say(f"  {key} = {_setting_text(key, value)}")
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


def _setting_text(key: str, value: object) -> str:
    """A setting as `--set` takes it: a length of time and a size with their units."""
    if key in DURATIONS and isinstance(value, int | float):
        return output.span(value)
    if key in SIZES and isinstance(value, int):
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


def _stream_row(stream: StreamStatus) -> list[Any]:
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
    from strandline.ledger.sinks import find_sink
    from strandline.sinks import instances

    if not settings:
        raise typer.BadParameter("give at least one --set KEY=VALUE", ctx=context)
    session = session_of(context)
    with session.open() as lake:
        with lake.ledger.read() as conn:
            sink = find_sink(conn, name)
            now = instances.as_given(lake.surroundings, conn, sink)
        changes = _settings(settings)
        replaced = TOKENS if TOKENS & changes.keys() else frozenset()
        kept = {key: value for key, value in now.items() if key not in replaced}
        merged = {key: value for key, value in {**kept, **changes}.items() if value != ""}
        asked = instances.wanted(name, sink.type, merged, where=f"sink {name!r}")
        instances.change(lake.surroundings, sink, asked)
        document = _describe(lake, name)
    session.emit(document, lambda: output.say(f"Sink {name} has its new settings from the next unit on."))


def rename(
    context: typer.Context, name: Name, new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")]
) -> None:
    """Give a sink another name; its marks stay. One of strand.toml has its section renamed first.

    \b
    Example: strand sink rename archive cold
    """
    from strandline.sinks import following
    from strandline.sinks.following import config_file
    from strandline.sinks.instances import check_name

    check_name(new)
    session = session_of(context)
    with session.open() as lake:
        sections = config_file(lake.root, lake.ledger).read()
        with lake.ledger.write() as txn:
            following.rename(txn, sections, name, new)
        lake.sinks()  # where a section has its new name, it goes on
        document = _describe(lake, new)
    session.emit(document, lambda: _say_renamed(name, document))


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
    from strandline.sinks import following

    session = session_of(context)
    with session.open() as lake:
        with lake.ledger.write() as txn:
            following.pause(txn, name, reason or f"{who(actor)} paused it")
        document = _describe(lake, name)
    session.emit(document, lambda: output.say(f"Sink {name} sends nothing until `strand sink resume {name}`."))


def resume(context: typer.Context, name: Name) -> None:
    """Let a paused sink go on from where it is.

    \b
    Example: strand sink resume archive
    """
    from strandline.sinks import following
    from strandline.sinks.following import config_file

    session = session_of(context)
    with session.open() as lake:
        sections = config_file(lake.root, lake.ledger).read()
        with lake.ledger.write() as txn:
            was = following.resume(txn, sections, name)
        document = _describe(lake, name)
    said = f"Sink {name} was not paused." if was is None else f"Sink {name} goes on; it was paused: {was}."
    session.emit(document, lambda: output.say(said))


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
    from strandline.ledger.sinks import find_sink
    from strandline.sinks.following import config_file, refuse_written
    from strandline.sinks.instances import forget_secrets
    from strandline.sinks.repair import remove as forget

    session = session_of(context)
    with session.open() as lake:
        with lake.ledger.read() as conn:
            sink = find_sink(conn, name)
        refuse_written(config_file(lake.root, lake.ledger).read(), sink)
        ask_first(session, f"Sink {name} and its marks would be forgotten; what it has delivered stays", yes=yes)
        forget(lake.ledger, sink, force=force, actor=actor)
        forget_secrets(lake.root, sink)
    session.emit({"removed": name, "sink_id": sink.sink_id}, lambda: output.say(f"Removed {name}."))


def tick(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Sinks; all if none.")] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take a place that another sink has used.")] = False,
    actor: Actor = "",
    here: Here = False,
) -> None:
    """Deliver what is due, now. Exit code 6 when something is parked, 5 when something has to wait.

    \b
    Example: strand sink tick archive
    """
    from strandline.ledger.sinks import find_sink
    from strandline.sinks.following import config_file, refused_sections
    from strandline.sinks.tick import Ticked

    session = session_of(context)
    with session.open() as lake:
        has_sinks = bool(lake.sinks())  # those of strand.toml are there from now on
        with lake.ledger.read() as conn:
            refused = refused_sections(conn, config_file(lake.root, lake.ledger).read()) if names else {}
            for name in names or []:
                if name in refused:
                    raise refused[name]
                find_sink(conn, name)  # an unknown one is said before a worker is asked
        asked = {"names": names or [], "actor": who(actor), "take_over": take_over}
        done = [Ticked(**one) for one in session.carry_out(lake, "tick", asked, here=here)]
    session.emit([_ticked(one) for one in done], lambda: _print_ticked(done, has_sinks=has_sinks))
    _exit(done)


def _ticked(one: Ticked) -> dict[str, Any]:
    return {
        "sink": one.sink,
        "table": one.table,
        "partition": one.partition,
        "since": one.since,
        "until": one.until,
        "rows": one.rows,
        "withheld": one.withheld,
        "bytes": one.size_bytes,
        "units": one.units,
        "files_opened": one.files_opened,
        "dead_letters": one.dead_letters,
        "outcome": one.outcome,
        "error": one.error,
        "note": one.note,
    }


def _print_ticked(done: list[Ticked], *, has_sinks: bool) -> None:
    if not done:
        output.say("Nothing was due." if has_sinks else "There are no sinks yet. `strand sink add` makes one.")
        return
    output.table(
        ["sink", "table", "partition", "since", "until", "rows", "bytes", "units", "withheld", "dead", "outcome"],
        [
            [
                one.sink,
                one.table,
                one.partition,
                one.since,
                one.until,
                one.rows,
                output.size(one.size_bytes),
                one.units,
                one.withheld,
                one.dead_letters,
                one.outcome,
            ]
            for one in done
        ],
    )
    for one in done:
        if one.error:
            where = f" {one.table}/{one.partition}" if one.table else ""
            output.say(f"{one.sink}{where} {one.outcome}: {output.cell(one.error)}")
        if one.note:
            output.say(f"{one.sink} {one.table}/{one.partition}: {output.cell(one.note)}")


def _exit(done: list[Ticked]) -> None:
    outcomes = {one.outcome for one in done}
    if "parked" in outcomes:
        raise typer.Exit(PARKED)
    if outcomes - {"delivered"}:
        raise typer.Exit(NOT_NOW)


def preview(context: typer.Context, name: Name) -> None:
    """What the next tick would send: rows, bytes, and the first few of them. Nothing is sent.

    \b
    Example: strand sink preview archive
    """
    from strandline.ledger.sinks import find_sink
    from strandline.sinks.repair import preview as look

    session = session_of(context)
    with session.open(read_only=True) as lake:
        with lake.ledger.read() as conn:
            sink = find_sink(conn, name)
        found = look(lake.context, sink)

    def human() -> None:
        if not found:
            output.say("Nothing waits in the log for it. Rows that are not flushed yet are not counted here.")
            return
        heads = ["table", "partition", "since", "until", "rows", "withheld", "bytes"]
        output.table(heads, [[*(one[head] for head in heads[:-1]), output.size(one["bytes"])] for one in found])
        for one in found:
            for row in one["samples"]:
                output.say(output.cell(output.json_bytes(row).decode()))

    session.emit(found, human)


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
    from strandline.ledger.sinks import find_sink
    from strandline.sinks.repair import find_stream
    from strandline.sinks.repair import rewind as go_back

    session = session_of(context)
    with session.open(read_only=not yes) as lake:
        with lake.ledger.read() as conn:
            sink = find_sink(conn, name)
        if not yes:
            state = find_stream(lake.ledger, sink, stream)
            mark = state.mark.seq if state.mark else sink.start_seq
            raise BadRequest(
                f"this sends everything of {state.table}/{state.stream.partition} in ({to}, {mark}] again",
                hint="Add --yes if that is what you want.",
            )
        done = go_back(lake.context, sink, stream, to, actor=actor)
    document = {
        "sink": name,
        "stream": done.stream,
        "was": done.was,
        "to": done.to,
        "epoch": done.epoch,
        "dead_letters_closed": done.letters_closed,
    }
    session.emit(document, lambda: output.say(f"({done.to}, {done.was}] will be sent again, as epoch {done.epoch}."))
