"""Sinks as people make them: checked before they are written down, by the command line or by `strand.toml`.

A section `[sinks.NAME]` and `strand sink add NAME` lead to the same thing: a sink in the ledger with an id of its own.
What is secret never goes there: a token is put into a file of the lake that only its owner can read.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.errors import BadRequest, Busy, nearest
from strandline.ledger import sinks
from strandline.ledger.ledger import MAIN, Connection, Ledger, Txn
from strandline.ledger.tables import branch_id, branch_name, find_table, list_tables, read_states
from strandline.model.ids import new_id
from strandline.model.sinks import Sink
from strandline.sinks.destination import Destination, Later, Park
from strandline.sinks.reading import check_routing
from strandline.sinks.settings import parse, resolved

if TYPE_CHECKING:
    from strandline.engines.spark.iceberg import Iceberg

SECRETS = "secrets"
COPIES = "_copies"
"""Where rows on their way to another catalog lie, in the warehouse, which Spark's workers can reach."""
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
class Wanted:
    """A sink as it was asked for, checked."""

    name: str
    type: str
    settings: Mapping[str, Any]
    branch: str
    tables: tuple[str, ...] | None
    hold_until_us: int | None


def check_name(name: str) -> None:
    """A sink's name is a plain word: it stands in commands, paths and logs."""
    if not (name and name.isascii() and name.replace("_", "a").replace("-", "a").isalnum() and len(name) <= 64):
        raise BadRequest(f"{name!r} can't be a sink's name", hint="Use letters, digits, - and _, at most 64.")


def wanted(name: str, type_: str, given: Mapping[str, object], *, where: str) -> Wanted:
    """Read what was asked for; BadRequest says what is wrong with it, and where it was written."""
    check_name(name)
    found = parse(type_, given, where)
    hold = found.get("hold_until")
    return Wanted(
        name=name,
        type=type_,
        settings={key: value for key, value in found.items() if key not in _APART},
        branch=found.get("branch", MAIN),
        tables=tuple(found["tables"]) if "tables" in found else None,
        hold_until_us=None if hold is None else int(dt.datetime.fromisoformat(hold).timestamp() * 1e6),
    )


def add(around: Surroundings, asked: Wanted, *, start: int | None, check: bool, take_over: bool = False) -> Sink:
    """Make a sink. `start` is the seq it begins behind, None for now; `check` asks its destination first."""
    with around.ledger.read() as conn:
        _check(conn, asked)
        now_seq = around.ledger.last_seq(conn)
    if start is not None and not 0 <= start <= now_seq:
        raise BadRequest(f"a sink can't begin at seq {start}", hint=f"From 0 to {now_seq}, or now.")
    sink_id = new_id()
    if check:
        _probe(around, asked, sink_id, take_over)
    with around.ledger.write() as txn:
        sink = _insert(around, txn, asked, sink_id, txn.last_seq if start is None else start)
    return sink


def _insert(around: Surroundings, txn: Txn, asked: Wanted, sink_id: str, start: int) -> Sink:
    return sinks.add_sink(
        txn,
        sink_id,
        asked.name,
        asked.type,
        branch_id=branch_id(txn.conn, asked.branch),
        tables=_table_ids(txn.conn, asked),
        settings=_put_away(around.root, asked.name, asked.settings),
        start_seq=start,
        hold_until_us=asked.hold_until_us,
    )


def change(around: Surroundings, sink: Sink, asked: Wanted) -> None:
    """Give a sink other settings. Its marks stay; what is being delivered is finished under the old ones."""
    with around.ledger.write() as txn:
        _check(txn.conn, asked)
        sinks.change_sink(
            txn,
            sink.sink_id,
            tables=_table_ids(txn.conn, asked),
            settings=_put_away(around.root, asked.name, asked.settings),
            hold_until_us=asked.hold_until_us,
        )


def as_given(conn: Connection, sink: Sink) -> dict[str, Any]:
    """A sink's settings as they were given, those with a place of their own included."""
    names = {table.table_id: table.name for table in list_tables(conn)}
    found: dict[str, Any] = {**sink.settings, "branch": branch_name(conn, sink.branch_id)}
    if sink.tables is not None:
        found["tables"] = [names[table_id] for table_id in sink.tables if table_id in names]
    if sink.hold_until_us is not None:
        found["hold_until"] = dt.datetime.fromtimestamp(sink.hold_until_us / 1e6, dt.UTC).isoformat()
    return found


def follow_config(around: Surroundings, sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the sinks of `strand.toml` that are not there yet, and change those that are written differently."""
    for name, section in sections.items():
        where = f"[sinks.{name}]"
        if "type" not in section:
            raise BadRequest(f"{where} has no type", hint='Add type = "forward", "blob" or "iceberg".')
        asked = wanted(name, str(section["type"]), {k: v for k, v in section.items() if k != "type"}, where=where)
        with around.ledger.read() as conn:
            there = next((sink for sink in sinks.list_sinks(conn) if sink.name == name), None)
            same = there is not None and _same(conn, there, asked)
        if there is None:
            add(around, asked, start=0, check=False)
        elif there.type != asked.type:
            raise BadRequest(
                f"{where}: the sink {name!r} is of type {there.type}", hint="Pick another name, or remove it first."
            )
        elif not same:
            change(around, there, asked)


def _same(conn: Connection, there: Sink, asked: Wanted) -> bool:
    settings = {**asked.settings}
    if "token" in settings:
        settings["token_file"] = _secret_name(asked.name)
        del settings["token"]
    return (dict(there.settings), there.tables, there.hold_until_us) == (
        settings,
        _table_ids(conn, asked),
        asked.hold_until_us,
    )


def _check(conn: Connection, asked: Wanted) -> None:
    if asked.tables is not None:
        for table in asked.tables:
            find_table(conn, table)
    check_routing(asked.settings, read_states(conn, asked.branch, asked.tables))


def _table_ids(conn: Connection, asked: Wanted) -> tuple[str, ...] | None:
    return None if asked.tables is None else tuple(find_table(conn, name).table_id for name in asked.tables)


def _probe(around: Surroundings, asked: Wanted, sink_id: str, take_over: bool) -> None:
    """Ask the destination as the sink that is about to be made."""
    sink = Sink(sink_id, asked.name, asked.type, "", None, asked.settings, 0, 0, None, None)
    place = destination(around, sink, take_over=take_over)
    try:
        place.probe()
    except (Later, Park) as error:
        raise Busy(
            str(error),
            hint="Check the address and whether it is up; --no-check adds the sink without asking.",
            reason="destination",
        ) from error
    finally:
        place.close()


def _secret_name(name: str) -> str:
    return f"{SECRETS}/{name}.token"


def _put_away(root: Path, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without a token in clear: it goes into a file, and the settings say which."""
    kept = dict(settings)
    token = kept.pop("token", None)
    if token is not None:
        path = root / _secret_name(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(token)
        kept["token_file"] = _secret_name(name)
    return kept


def destination(around: Surroundings, sink: Sink, *, take_over: bool = False) -> Destination:
    """The place that a sink delivers to."""
    settings = resolved(sink.type, sink.settings)
    match sink.type:
        case "forward":
            from strandline.sinks.forward import Forward

            return Forward(
                settings, lake_id=around.lake_id, sink_id=sink.sink_id, start_seq=sink.start_seq, root=around.root
            )
        case "blob":
            from strandline.sinks.blob import Blob

            return Blob(
                settings,
                lake_id=around.lake_id,
                sink_id=sink.sink_id,
                spark=lambda: around.iceberg().session,
                take_over=take_over,
            )
        case "iceberg":
            from strandline.sinks.iceberg import IcebergCopy

            return IcebergCopy(
                settings,
                lake_id=around.lake_id,
                sink_id=sink.sink_id,
                spark=lambda: around.iceberg().session,
                staging=f"{around.warehouse}/{COPIES}",
                take_over=take_over,
            )
    raise BadRequest(f"there is no sink of type {sink.type!r}", hint=nearest(sink.type, ["forward", "blob", "iceberg"]))
