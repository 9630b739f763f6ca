"""Sinks as people make them: checked before they are written down, by the command line or by `strand.toml`.

A section `[sinks.NAME]` and `strand sink add NAME` lead to the same thing: a sink in the ledger with an id of its own.
What is secret never goes there: a token is put into a file of the lake that only its owner can read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from strandline import private
from strandline.errors import BadRequest, Busy, Environment, OwnedByAnother
from strandline.ledger.history.branches import living_branch
from strandline.ledger.ledger import MAIN, Connection, Ledger, Txn
from strandline.ledger.sinks import deliveries, sinks
from strandline.ledger.tables.tables import (
    branch_id,
    branch_name,
    find_table,
    list_tables,
    read_branch_tables,
    read_shown,
)
from strandline.model.delivery.sinks import Noted, Setting, Sink, SinkSettings, Stream
from strandline.model.ids import new_id
from strandline.redaction import remember_within
from strandline.sinks.decisions import decided
from strandline.sinks.destination import Destination, Later, Park, Resume, closing_after
from strandline.sinks.keys import SECRET_FILE
from strandline.sinks.kind import Sender, SinkType
from strandline.sinks.reading import check_routing
from strandline.sinks.registry import OURS, sink_type
from strandline.sinks.seam import Called, code_of, words_of
from strandline.sinks.settings import BRANCH_GONE, in_clear, is_secret, parse, resolved

if TYPE_CHECKING:
    from strandline.engines.spark.iceberg import Iceberg

SECRETS = "secrets"
_APART = ("tables", "branch", "hold_until")
"""Settings that have a place of their own in the ledger."""


@dataclass(frozen=True)
class Surroundings:
    """What a sink needs to know of its lake."""

    ledger: Ledger
    root: Path
    warehouse: str
    lake_id: str
    iceberg: Callable[[], Iceberg]


@dataclass(frozen=True)
class CheckedSink:
    """A sink that is to be, or to be changed: its settings are read and checked."""

    name: str
    type: str
    settings: SinkSettings
    branch: str
    tables: tuple[str, ...] | None
    hold_until_us: int | None


def check_name(name: str) -> None:
    """A sink's name is a plain word: it stands in commands, paths and logs."""
    if not (name and name.isascii() and name.replace("_", "a").replace("-", "a").isalnum() and len(name) <= 64):
        raise BadRequest(f"{name!r} can't be a sink's name", hint="Use letters, digits, - and _, at most 64.")


def checked_sink(name: str, type_: str, settings: Mapping[str, object], *, where: str) -> CheckedSink:
    """Read what a sink is to be; BadRequest says what is wrong with it, and where it was written."""
    check_name(name)
    parsed = parse(type_, settings, where)
    hold = parsed.get("hold_until")
    return CheckedSink(
        name=name,
        type=type_,
        settings={key: value for key, value in parsed.items() if key not in _APART},
        branch=parsed.get("branch", MAIN),
        tables=tuple(parsed["tables"]) if "tables" in parsed else None,
        hold_until_us=None if hold is None else int(dt.datetime.fromisoformat(hold).timestamp() * 1e6),
    )


def add(
    around: Surroundings,
    checked: CheckedSink,
    *,
    start: int | Literal["now"],
    check: bool,
    take_over: bool = False,
    actor: str = "",
    allowed: Callable[[Txn], object] | None = None,
) -> Sink:
    """Make a sink. `start` is the seq it begins behind; `check` asks its destination first.

    `allowed` is what a section of `strand.toml` hands over that makes it: it raises where that may not be any more.
    """
    with around.ledger.read() as conn:
        _check(conn, checked)
        read_shown(conn, checked.branch, checked.tables, tails=False)  # a dropped table gets no new followers
        now_seq = around.ledger.last_seq(conn)
    if start != "now" and not 0 <= start <= now_seq:
        raise BadRequest(f"a sink can't begin at seq {start}", hint=f"From 0 to {now_seq}, or now.")
    sink_id = new_id()
    if check:
        _probe(around, checked, sink_id, take_over)
    with around.ledger.write() as txn:
        if allowed is not None:
            allowed(txn)
        begins = txn.last_seq if start == "now" else start
        sink = _insert(around, txn, checked, sink_id, begins, from_config=allowed is not None)
        if take_over:
            decided(txn, sink, "taken_over", "its place is its own from here on, whosesoever it was", actor)
        return sink


def _insert(
    around: Surroundings, txn: Txn, checked: CheckedSink, sink_id: str, start: int, *, from_config: bool
) -> Sink:
    return sinks.add_sink(
        txn,
        sink_id,
        checked.name,
        checked.type,
        branch_id=branch_id(txn.conn, checked.branch),
        tables=_table_ids(txn.conn, checked),
        settings=put_away(around.root, sink_id, checked.type, checked.settings),
        start_seq=start,
        hold_until_us=checked.hold_until_us,
        from_config=from_config,
    )


def change(around: Surroundings, sink: Sink, checked: CheckedSink) -> None:
    """Give a sink other settings. Its marks stay; what is being delivered is finished under the old ones."""
    with around.ledger.write() as txn:
        change_in(txn, around, sink, checked)


def change_in(txn: Txn, around: Surroundings, sink: Sink, checked: CheckedSink) -> None:
    """The same in a transaction that has read what is changed."""
    _same_branch(txn.conn, sink, checked)
    _check(txn.conn, checked)
    sinks.change_sink(
        txn,
        sink.sink_id,
        tables=_table_ids(txn.conn, checked),
        settings=put_away(around.root, sink.sink_id, checked.type, checked.settings),
        hold_until_us=checked.hold_until_us,
    )


def _same_branch(conn: Connection, sink: Sink, checked: CheckedSink) -> None:
    """A sink's marks are of one branch: it can't go over to another."""
    follows = living_branch(conn, sink.branch_id)
    if follows is None:
        raise BadRequest(f"sink {sink.name!r} can't be changed: {BRANCH_GONE}")
    if follows != checked.branch:
        raise BadRequest(
            f"sink {sink.name!r} follows the branch {follows!r}, and can't go over to {checked.branch!r}",
            hint="Add another sink for that branch.",
        )


def as_given(around: Surroundings, conn: Connection, sink: Sink) -> SinkSettings:
    """A sink's settings as they were given, those with a place of their own included, and secrets that are there."""
    names = {table.table_id: table.name for table in list_tables(conn)}
    settings: dict[str, Setting] = {
        **_with_secrets_left(around.root, sink),
        "branch": branch_name(conn, sink.branch_id),
    }
    settings.pop(SECRET_FILE, None)
    if sink.tables is not None:
        settings["tables"] = [names[table_id] for table_id in sink.tables if table_id in names]
    if sink.hold_until_us is not None:
        settings["hold_until"] = dt.datetime.fromtimestamp(sink.hold_until_us / 1e6, dt.UTC).isoformat()
    return settings


def is_as_written(around: Surroundings, conn: Connection, sink: Sink, checked: CheckedSink) -> bool:
    """Whether a sink is as it is written, its secrets included."""
    follows = living_branch(conn, sink.branch_id)
    if follows is None:  # every tick says so
        return True
    stored = {key: value for key, value in _with_secrets_left(around.root, sink).items() if key != SECRET_FILE}
    return follows == checked.branch and (stored, sink.tables, sink.hold_until_us) == (
        dict(checked.settings),
        _table_ids(conn, checked),
        checked.hold_until_us,
    )


def _check(conn: Connection, checked: CheckedSink) -> None:
    if checked.tables is not None:
        for table in checked.tables:
            find_table(conn, table)
    read = read_shown if checked.tables is None else read_branch_tables  # one that it names may have been dropped since
    branch_tables = read(conn, checked.branch, checked.tables)
    shared = [
        branch_table.table.name
        for branch_table in branch_tables
        if checked.branch != MAIN and not branch_table.table.key
    ]
    if checked.tables is not None and shared:
        raise BadRequest(
            f"{', '.join(shared)} can't be delivered from branch {checked.branch!r}: log tables are the same on all",
            hint="Name keyed tables alone, and let a sink on main deliver the others.",
        )
    check_routing(
        checked.settings, [branch_table for branch_table in branch_tables if branch_table.table.name not in shared]
    )


def _table_ids(conn: Connection, checked: CheckedSink) -> tuple[str, ...] | None:
    return None if checked.tables is None else tuple(find_table(conn, name).table_id for name in checked.tables)


def _probe(around: Surroundings, checked: CheckedSink, sink_id: str, take_over: bool) -> None:
    """Ask the destination as the sink that is about to be made."""
    sink = Sink(sink_id, checked.name, checked.type, "", None, checked.settings, 0, 0, None, None)
    place = destination(around, sink, take_over=take_over)
    try:
        with closing_after(place):
            place.probe()
    except OwnedByAnother as error:
        error.hint = (  # there is no sink yet that could be retried
            "Give this sink a place of its own. If the other one is gone for good, run the same command with "
            "--take-over."
        )
        raise
    except (Later, Park) as error:
        raise _not_now(error) from error


def put_away(root: Path, sink_id: str, type_: str, settings: SinkSettings) -> SinkSettings:
    """The settings without what is secret: that goes into a file of the lake, and the settings say which."""
    secret = {key: value for key, value in settings.items() if is_secret(type_, key, value)}
    kept = {key: value for key, value in settings.items() if key not in secret and key != SECRET_FILE}
    if not secret:
        return kept
    path = root / SECRETS / f"{sink_id}.json"
    private.make_folder(path.parent)
    private.write_bytes(path, orjson.dumps(secret))
    return {**kept, SECRET_FILE: f"{SECRETS}/{path.name}"}


def forget_secrets(root: Path, sink: Sink) -> None:
    """Remove what a removed sink had put away."""
    if SECRET_FILE in sink.settings:
        (root / sink.settings[SECRET_FILE]).unlink(missing_ok=True)


def _with_secrets_left(root: Path, sink: Sink) -> SinkSettings:
    """The same where secrets may be given anew: a clone, or a restore elsewhere, came without the files of the first.

    A tick checks that the file is there; here its absence would forbid to write it again.
    """
    file = sink.settings.get(SECRET_FILE)
    return dict(sink.settings) if file is not None and not (root / file).exists() else with_secrets(root, sink)


def with_secrets(root: Path, sink: Sink) -> SinkSettings:
    """A sink's settings with what was put away."""
    file = sink.settings.get(SECRET_FILE)
    for name in in_clear(sink.type, sink.settings):
        remember_within(sink.settings[name])
    if file is None:
        return dict(sink.settings)
    try:
        put_away = orjson.loads((root / file).read_bytes())
        for value in put_away.values():
            remember_within(value)
        return {**sink.settings, **put_away}
    except (OSError, orjson.JSONDecodeError) as error:
        raise Environment(
            f"the secrets of sink {sink.name!r} can't be read: {error}",
            hint=f"They are in {file}; `strand sink set {sink.name} --set token=…` writes them again.",
        ) from error


def destination(around: Surroundings, sink: Sink, *, take_over: bool = False) -> Destination:
    """The place that a sink delivers to; Environment where the package that brings its type can't be used."""
    kind = _type_of(sink)
    sender = Sender(
        sink=sink,
        settings=resolved(sink.type, with_secrets(around.root, sink)),
        lake_id=around.lake_id,
        root=around.root,
        warehouse=around.warehouse,
        generation=around.ledger.generation(),
        take_over=take_over,
        spark=lambda: around.iceberg().session,
        has_delivered=lambda table: _has_delivered(around.ledger, sink, table),
        noted=lambda stream: _noted(around.ledger, sink, stream),
        name_of=lambda sink_id: _name_of(around.ledger, sink_id),
    )
    is_ours = kind.name in OURS
    what = f"the sink type {kind.name!r} can't make the destination of sink {sink.name!r}"
    try:
        with code_of(what, Later, Park, is_ours=is_ours):
            place = kind.make(sender)
    except (Later, Park) as error:
        raise _not_now(error) from error
    return Called(place, sink.name, Later, Park, Resume, is_ours=is_ours)


def _not_now(error: Later | Park) -> Busy:
    return Busy(
        words_of(error),
        hint="Check the address and whether it is up; --no-check adds the sink without asking.",
        reason="destination",
    )


def _type_of(sink: Sink) -> SinkType:
    try:
        return sink_type(sink.type)
    except BadRequest as error:  # it was there when the sink was made
        raise Environment(
            f"sink {sink.name!r} is of type {sink.type!r}, which no installed package has",
            hint="Install the package that brings the type, where this command and the worker run.",
        ) from error


def _noted(ledger: Ledger, sink: Sink, stream: Stream) -> Noted | None:
    with ledger.read() as conn:
        return deliveries.read_noted(conn, sink.sink_id, stream)


def _name_of(ledger: Ledger, sink_id: str) -> str | None:
    with ledger.read() as conn:
        sink = sinks.sink_by_id(conn, sink_id)
    return None if sink is None else sink.name


def _has_delivered(ledger: Ledger, sink: Sink, table: str | None) -> bool:
    with ledger.read() as conn:
        return deliveries.has_delivered(conn, sink, table)
