"""Sinks in the ledger: what each follows, and from where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, Row, delete, insert, select, update

from strandline.errors import Conflict, NotFound, nearest
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.model.delivery.sinks import Sink, SinkSettings


def add_sink(
    txn: Txn,
    sink_id: str,
    name: str,
    type_: str,
    *,
    branch_id: str,
    tables: Sequence[str] | None,
    settings: SinkSettings,
    start_seq: int,
    hold_until_us: int | None,
    from_config: bool,
) -> Sink:
    """Write a new sink down. One that was removed and is made again is another one: it has another id."""
    if txn.conn.execute(select(db.sinks.c.sink_id).where(db.sinks.c.name == name)).scalar() is not None:
        raise _exists(name)
    sink = Sink(
        sink_id=sink_id,
        name=name,
        type=type_,
        branch_id=branch_id,
        tables=None if tables is None else tuple(tables),
        settings=settings,
        start_seq=start_seq,
        created_at_us=txn.at_us,
        hold_until_us=hold_until_us,
        ticked_at_us=None,
        from_config=from_config,
    )
    txn.conn.execute(
        insert(db.sinks).values(
            sink_id=sink.sink_id,
            name=name,
            type=type_,
            branch_id=branch_id,
            tables=None if tables is None else _json(list(tables)),
            settings=_json(dict(settings)),
            start_seq=start_seq,
            created_at_us=txn.at_us,
            hold_until_us=hold_until_us,
            from_config=int(from_config),
        )
    )
    return sink


def change_sink(
    txn: Txn,
    sink_id: str,
    *,
    tables: Sequence[str] | None,
    settings: SinkSettings,
    hold_until_us: int | None,
) -> None:
    """Give a sink other settings; an open delivery keeps those it was opened under."""
    txn.conn.execute(
        update(db.sinks)
        .where(db.sinks.c.sink_id == sink_id)
        .values(
            tables=None if tables is None else _json(list(tables)),
            settings=_json(dict(settings)),
            hold_until_us=hold_until_us,
        )
    )


def govern_sink(txn: Txn, sink_id: str, *, from_config: bool | None, paused: str | None) -> None:
    """Write down whether a section made a sink, and why it sends nothing for now; None lets it send."""
    made = None if from_config is None else int(from_config)
    txn.conn.execute(update(db.sinks).where(db.sinks.c.sink_id == sink_id).values(from_config=made, paused=paused))


def rename_sink(txn: Txn, sink_id: str, name: str) -> None:
    """Give a sink another name; its marks are its id's, and stay."""
    if txn.conn.execute(select(db.sinks.c.sink_id).where(db.sinks.c.name == name)).scalar() is not None:
        raise _exists(name)
    txn.conn.execute(update(db.sinks).where(db.sinks.c.sink_id == sink_id).values(name=name))


def remove_sink(txn: Txn, sink_id: str) -> None:
    """Forget a sink with its marks, its delivery and its dead letters."""
    for table in (db.dead_letters, db.deliveries, db.watermarks, db.sinks):
        txn.conn.execute(delete(table).where(table.c.sink_id == sink_id))


def pin_receiver(txn: Txn, sink_id: str, lake_id: str | None) -> None:
    """Remember which lake a sink delivers to, at the first contact; None forgets it, by a person's word."""
    pinned = update(db.sinks).where(db.sinks.c.sink_id == sink_id).values(receiver=lake_id)
    txn.conn.execute(pinned if lake_id is None else pinned.where(db.sinks.c.receiver.is_(None)))


def note_tick(txn: Txn, sink_id: str) -> None:
    """Remember when a sink was ticked, so that a schedule survives a restart."""
    txn.conn.execute(update(db.sinks).where(db.sinks.c.sink_id == sink_id).values(ticked_at_us=txn.at_us))


def find_sink(conn: Connection, name: str) -> Sink:
    """The sink behind a name; an unknown one is an error that suggests the nearest."""
    row = conn.execute(select(db.sinks).where(db.sinks.c.name == name)).one_or_none()
    if row is None:
        names = conn.execute(select(db.sinks.c.name)).scalars()
        raise NotFound(f"there is no sink {name!r}", hint=nearest(name, names), sink=name)
    return _sink(row)


def sink_by_id(conn: Connection, sink_id: str) -> Sink | None:
    """A sink as it is now; None when it was removed."""
    row = conn.execute(select(db.sinks).where(db.sinks.c.sink_id == sink_id)).one_or_none()
    return None if row is None else _sink(row)


def list_sinks(conn: Connection) -> list[Sink]:
    """Every sink, by name."""
    return [_sink(row) for row in conn.execute(select(db.sinks).order_by(db.sinks.c.name))]


def _sink(row: Row[Any]) -> Sink:
    values = row._mapping
    return Sink(
        sink_id=values["sink_id"],
        name=values["name"],
        type=values["type"],
        branch_id=values["branch_id"],
        tables=None if values["tables"] is None else tuple(orjson.loads(values["tables"])),
        settings=orjson.loads(values["settings"]),
        start_seq=values["start_seq"],
        created_at_us=values["created_at_us"],
        hold_until_us=values["hold_until_us"],
        ticked_at_us=values["ticked_at_us"],
        receiver=values["receiver"],
        from_config=None if values["from_config"] is None else bool(values["from_config"]),
        paused=values["paused"],
    )


def _exists(name: str) -> Conflict:
    return Conflict(
        f"there is a sink {name!r} already",
        kind="sink_exists",
        hint="Pick another name, or change it with `strand sink set`.",
        expected=None,
        actual=name,
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def why_paused(conn: Connection, sink_id: str) -> str | None:
    """Why a sink does not deliver until a person lets it go on; None when it does."""
    reason: str | None = conn.execute(select(db.sinks.c.paused).where(db.sinks.c.sink_id == sink_id)).scalar()
    return reason
