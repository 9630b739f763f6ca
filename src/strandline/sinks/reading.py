"""What a unit consists of: where it ends, which files hold it, and what of each row is sent.

All of this follows from the delivery alone: the range, the pinned version of the log, and the settings it was opened
under. So a unit that is read again, by whichever worker and whenever, is the same unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from strandline.engines.duck.predicates import check_predicate
from strandline.engines.duck.ranges import Select, SeqRange, seq_at
from strandline.engines.duck.relations import duck_type
from strandline.engines.duck.sandbox import quote_name
from strandline.engines.storage import store_of
from strandline.errors import BadRequest, nearest
from strandline.ledger.ledger import Connection
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.tables import branch_name, read_branch_tables
from strandline.model.delivery.sinks import Delivery, FollowedStream, Mark, SinkSettings
from strandline.model.schema.types import REMOVED, SEQ, Column, Primitive
from strandline.model.tables import BranchTable, DataFile, disjoint_runs
from strandline.model.values.arrow import arrow_field
from strandline.views.view import stored_columns

INBOUND = "inbound"
"""Among a delivery's settings: whether its table had the columns of forwarded rows when it was opened."""
UNASKED = "unasked"
"""Among a delivery's settings: its destination has yet to be asked where it is, so it can have nothing of the unit."""


@dataclass(frozen=True)
class UnitPlan:
    """Where the next unit of a stream ends, and the version of the log that holds it."""

    until: int
    version: int
    snapshot: int
    schema_version: int


def plan_unit(
    conn: Connection, table: BranchTable, followed: FollowedStream, mark: Mark, settings: SinkSettings
) -> UnitPlan | None:
    """The next unit behind a mark, as large as the settings allow; None when nothing of the stream is stable there.

    A unit ends at a file's end where that fits, so that most units open no file to be planned.
    """
    stream, head = followed.stream, table.head
    end = min(followed.head_seq, table.stable_seq)
    if end <= mark.seq or head.log_snapshot is None:
        return None
    files = read_files(
        conn,
        stream.branch_id,
        stream.table_id,
        head.version,
        since=mark.seq,
        until=end,
        partitions=[stream.partition],
    )
    until = _end_of_unit(files, mark.seq, end, settings["unit_rows"], settings["unit_bytes"])
    return UnitPlan(until, head.version, head.log_snapshot, head.schema_version)


def _end_of_unit(files: list[DataFile], since: int, end: int, rows: int, size_bytes: int) -> int:
    """Whole runs of files as long as they fit; when the first alone is too large, a place inside it."""
    reached = since
    left_rows, left_bytes = rows, size_bytes
    for run in disjoint_runs(files):
        run_rows, run_bytes = sum(file.rows for file in run), sum(file.size_bytes for file in run)
        last = max(file.last_seq for file in run)
        if run_rows <= left_rows and run_bytes <= left_bytes:
            left_rows, left_bytes, reached = left_rows - run_rows, left_bytes - run_bytes, last
            continue
        if reached > since:
            return reached
        place = max(1, min(left_rows, left_bytes * run_rows // max(1, run_bytes)))
        inside = seq_at(tuple(file.path for file in run), since, place)
        return min(end, inside if inside is not None else last)
    return end


def read_unit(conn: Connection, delivery: Delivery) -> tuple[SeqRange, BranchTable]:
    """How a delivery's rows are read: only the files that can hold some, of the version and schema that it pins."""
    stream = delivery.stream
    (now,) = read_branch_tables(conn, branch_name(conn, stream.branch_id), [delivery.table])
    schema = now.schemas[delivery.schema_version]
    table = replace(now.table, inbound=bool(delivery.settings.get(INBOUND)))
    branch_table = replace(now, table=table, schema=schema)
    files = read_files(
        conn,
        stream.branch_id,
        stream.table_id,
        delivery.version,
        since=delivery.since,
        until=delivery.until,
        partitions=[stream.partition],
    )
    stored = stored_columns(branch_table)
    rows = SeqRange(
        runs=tuple(tuple(file.path for file in run) for run in disjoint_runs(files)),
        stored=tuple(stored),
        since=delivery.since,
        until=delivery.until,
        select=_select(stored, delivery.settings, versions=bool(table.key)),
        schema=pa.schema([arrow_field(column, stored=True) for column in _sent(stored, delivery.settings)]),
        shapes=branch_table.shapes(files),
        store=store_of(files[0].path) if files else None,
    )
    return rows, branch_table


def _sent(stored: Sequence[Column], settings: SinkSettings) -> list[Column]:
    dropped = set(settings.get("drop_columns") or ())
    return [column for column in stored if column.name not in dropped]


def _select(stored: Sequence[Column], settings: SinkSettings, *, versions: bool) -> Select:
    """A version that says that a row is gone is always sent: it has no values that a condition could judge."""
    redact: Mapping[str, str] = settings.get("redact") or {}
    columns = tuple((column.name, _expression(column, redact.get(column.name))) for column in _sent(stored, settings))
    where = settings.get("where")
    return Select(columns, f"({where}) OR {REMOVED}" if where and versions else where)


def _expression(column: Column, how: str | None) -> str:
    name = quote_name(column.name)
    if how == "hash" and column.type == Primitive("json"):
        return f"concat('\"', sha256({name}), '\"')"
    if how == "hash":
        return f"sha256({name})"
    if how == "blank":
        blank = "NULL" if column.nullable else "''"
        return f"{blank}::{duck_type(column.type)}"
    return name


def check_routing(settings: SinkSettings, branch_tables: Sequence[BranchTable]) -> None:
    """BadRequest unless the predicate, the dropped and the redacted columns fit every table that is followed."""
    for branch_table in branch_tables:
        stored = stored_columns(branch_table)
        columns = {column.name: column for column in stored}
        redact: Mapping[str, str] = settings.get("redact") or {}
        for name in [*(settings.get("drop_columns") or ()), *redact]:
            if name in branch_table.table.partition_by:
                raise BadRequest(
                    f"table {branch_table.table.name!r} is partitioned by {name!r}, which names its streams",
                    hint="A partition's value is in paths and headers; it can be neither dropped nor redacted.",
                )
            if name not in columns:
                raise BadRequest(
                    f"table {branch_table.table.name!r} has no column {name!r}", hint=nearest(name, columns)
                )
            if name == REMOVED:
                raise BadRequest(
                    f"{REMOVED} of table {branch_table.table.name!r} can be neither dropped nor redacted",
                    hint="Without it, a deleted row looks like one that is there and has no values.",
                )
        for name, how in redact.items():
            _check_redaction(columns[name], how)
        if settings.get("where"):
            advice = " Name the tables it is for with `tables`."
            check_predicate(settings["where"], stored, branch_table.table.name, advice)


def _check_redaction(column: Column, how: str) -> None:
    text = isinstance(column.type, Primitive) and column.type.name in ("string", "json")
    if column.name == SEQ or (not text and (how == "hash" or not column.nullable)):
        raise BadRequest(
            f"column {column.name!r} can't be redacted by {how}",
            hint="Texts are hashed or blanked, other nullable columns blanked; or drop the column.",
        )
