"""Copies: units are appended to a table in another Iceberg catalog, each once.

The rows go onto a private branch at the target's `main`, and then one commit moves `main` there together with the
stream's mark. A worker that ships the same unit again, a late one too, finds the mark or is refused and then finds it.
When `main` has moved meanwhile (another stream of the same table, an engine of the target's own) the rows are staged
anew on what is there now.

A mark is a property of the target table, so neither expiry nor compaction there can lose it. It belongs to the lake and
not to the sink: a sink that takes a table over from another of the same lake goes on where that one ended.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NotRequired, TypedDict
from uuid import uuid4

import orjson

from strandline.engines import objects
from strandline.engines.duck.ranges import read_range
from strandline.engines.objects import ObjectPlace
from strandline.engines.storage import store_of
from strandline.errors import BadRequest, Busy, Conflict, Damaged, StrandError
from strandline.failpoints import fail
from strandline.model.delivery.sinks import Delivery, Mark, SentChunk, Shipped, SinkSettings, Standing, Stream
from strandline.model.schema.types import AT, SEQ
from strandline.model.values.row_digest import are_among
from strandline.sinks.destination import Owned, Resume, Unit, marker_gone, refusal, unmarked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.engines.spark.copy import Copy, StagedSnapshot

OWNER = "strandline.owner"
MARKS = "strandline.mark"
CATALOG_NAME = "strand"
ATTEMPTS = 20
_OPTION = "catalog."


class IcebergCopy:
    """A namespace in another catalog, with a table for each that the sink follows."""

    def __init__(
        self,
        settings: SinkSettings,
        *,
        lake_id: str,
        sink_id: str,
        spark: Callable[[], SparkSession],
        staging: str,
        start_seq: int = 0,
        take_over: bool = False,
        name: str = "",
        delivered: Callable[[str], bool] = lambda table: False,
        name_of: Callable[[str], str | None] = lambda sink_id: None,
        generation: str | None = None,
    ) -> None:
        """`staging` is a folder, as a URI, that this process and Spark's workers can write to.

        `delivered` tells whether the sink of this `name` has delivered anything of a table: then there is a copy.
        `name_of` tells what the ledger calls a sink; `generation` is the ledger's.
        """
        self._name, self._properties = catalog_of(settings)
        self._namespace = str(settings["namespace"])
        self._lake_id = lake_id
        self._ours = Owned(lake_id, sink_id, name or sink_id)
        self._name_of = name_of
        self._spark = spark
        self._staging = ObjectPlace(staging, store_of(staging), is_own=True)
        self._start_seq = start_seq
        self._take_over = take_over
        self._reads_back = SEQ not in (settings.get("drop_columns") or ())
        self._name_of_sink = name or sink_id
        self._delivered = delivered
        self._generation = generation
        self._lock = threading.Lock()
        self._copy: Copy | None = None

    def probe(self) -> None:
        """Raise what is wrong with the catalog; the namespace is created if it is not there.

        Taking over is done here, where a person asked for it: every table in the namespace that a sink has marked.
        """
        target = self._target()
        target.reach(self._namespace)
        for table in target.tables(self._namespace) if self._take_over else []:
            if OWNER in (target.properties(table) or {}):
                target.set_properties(table, self._marker())

    def look(self) -> None:
        """Whether the catalog answers; whose its tables are is asked when one is written."""
        self._target().properties(f"{self._namespace}.strandline_probe")

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        """The highest mark that the target table has of this stream."""
        properties = self._target().properties(f"{self._namespace}.{table}")
        self._refuse_unmarked(table, properties)
        if properties is None:
            return Standing(None)
        self._check_owner(table, properties)
        last = highest(properties, self._prefix(stream))
        if last is None:
            return Standing(None, reads_back=self._reads_back)
        sender = last.record.get("generation")
        return Standing(last.mark, chunk=last.chunk, reads_back=self._reads_back, sender=sender)

    def ship(self, unit: Unit) -> Shipped:
        """Append the unit's rows and move the mark, in one commit; nothing if the mark is there already."""
        target, delivery = self._target(), unit.delivery
        table = f"{self._namespace}.{delivery.table}"
        last = self._prepare(target, table, unit)
        if last is not None and _covers(last, unit):
            return _shipped_before(last, unit, table)
        self._refuse_hole(last, delivery)
        rows = unit.rows
        if last is not None and last.mark.epoch == delivery.epoch and last.mark.seq > rows.since:
            rows = replace(rows, since=last.mark.seq)
        folder = f"copy-{self._ours.sink_id}-{stream_key(delivery.stream)}"
        objects.remove_folder(self._staging, folder)
        try:
            before = None if last is None else last.chunk
            return self._ship(target, table, replace(unit, rows=rows), f"{folder}/{uuid4().hex}.parquet", before)
        finally:
            objects.remove_folder(self._staging, folder)

    def _refuse_hole(self, last: StreamMark | None, delivery: Delivery) -> None:
        """Go back to where the copy is, when it is behind us: it was restored from an older one, or made anew."""
        if last is None and delivery.since > self._start_seq:
            raise Resume(None)
        if last is not None and last.mark.seq < delivery.since:  # in every epoch: a mark means all rows up to it
            raise Resume(last.mark)

    def close(self) -> None:
        """Nothing is kept open but Spark, which is not ours."""

    def _ship(self, target: Copy, table: str, unit: Unit, path: str, before: SentChunk | None) -> Shipped:
        from strandline.engines.spark.export import ObjectToWrite, export

        request = ObjectToWrite(unit.rows, unit.schema, "parquet", "snappy", self._staging, name=path, temporary=path)
        done = export(self._spark(), request)
        rows, present = unit.rows, self._there_already(target, table, unit)
        chunk = SentChunk(rows.since, rows.until, unit.digest_in(rows.since, rows.until)) if done.rows else before
        fresh = done.rows - len(present)
        for attempt in range(ATTEMPTS):
            staged = None
            try:
                if fresh:
                    staged = self._stage(target, table, unit, self._staging.shown(path), fresh, present)
                size_bytes, key = (0, None) if staged is None else (staged.size_bytes, table)
                shipped = Shipped(fresh, done.withheld, size_bytes, rows.files, key=key, chunk=chunk)
                fail("copy.before_commit")
                moved = self._commit(target, table, unit, staged, shipped)
            except _AlreadyThere as raced:
                if staged is not None:
                    target.drop_branches(table, staged.branch)
                return _shipped_before(raced.last, unit, table)
            if moved:
                fail("copy.after_commit")
                return shipped
            time.sleep(random.uniform(0, min(2.0, 0.05 * 2**attempt)))
        raise Busy(f"{table} was changed {ATTEMPTS} times while a unit was being appended", reason="contention")

    def _prepare(self, target: Copy, table: str, unit: Unit) -> StreamMark | None:
        """Make sure of the table, its owner and its columns; the stream's mark there."""
        owner, schema = self._marker(), unit.rows.schema
        properties = target.properties(table)
        self._refuse_unmarked(unit.delivery.table, properties)
        if properties is None:
            target.create(table, schema, [name for name in unit.partition_by if name in schema.names], owner)
            properties = target.properties(table) or {}
        self._check_owner(unit.delivery.table, properties)
        if OWNER not in properties and not self._take_over and not target.is_empty(table):
            raise unmarked(f"the table {table}", self._ours)
        if properties.get(OWNER) != owner[OWNER]:
            target.set_properties(table, owner)
        last = highest(properties, self._prefix(unit.delivery.stream))
        if last is None or not _covers(last, unit):
            target.evolve(table, schema)
        return last

    def _there_already(self, target: Copy, table: str, unit: Unit) -> list[int]:
        """The seqs of the rows that the copy has, where only those are to be sent that it lacks."""
        since, upto = unit.rows.since, min(unit.lacking_upto, unit.rows.until)
        if upto <= since:
            return []
        stored = target.rows_between(table, since, upto)
        return [
            seq
            for piece in read_range(replace(unit.rows, until=upto))
            for seq, is_there in zip(
                piece.rows.column(SEQ).to_pylist(), are_among(piece.rows, stored, seq=SEQ, at=AT), strict=True
            )
            if is_there
        ]

    def _stage(self, target: Copy, table: str, unit: Unit, path: str, rows: int, without: list[int]) -> StagedSnapshot:
        """Append the rows on a branch that no other writer knows: a late writer of the same unit has another."""
        delivery = unit.delivery
        mine = f"op_{stream_key(delivery.stream)}_"
        target.drop_branches(table, mine)
        branch = f"{mine}{delivery.delivery_id}_{uuid4().hex[:12]}"
        fail("copy.before_append")
        base = target.branch(table, branch)
        try:
            staged = target.append(table, path, unit.rows.schema, branch, base, delivery.delivery_id, without)
        except StrandError:
            # The worker that took over removes the branch and the file of a late writer, and may have shipped the unit.
            last = highest(target.properties(table) or {}, self._prefix(delivery.stream))
            if last is not None and _covers(last, unit):
                raise _AlreadyThere(last) from None
            raise
        if staged.rows != rows:
            raise Damaged(f"{rows} rows were to be appended to {table}, and Spark wrote {staged.rows}")
        fail("copy.after_append")
        return staged

    def _commit(self, target: Copy, table: str, unit: Unit, staged: StagedSnapshot | None, shipped: Shipped) -> bool:
        from strandline.engines.spark.copy import PropertyChange

        delivery, prefix = unit.delivery, self._prefix(unit.delivery.stream)
        remove: list[str] = []

        def guard(properties: Mapping[str, str]) -> None:
            self._check_owner(delivery.table, properties)
            last = highest(properties, prefix)
            if last is not None and _covers(last, unit):
                raise _AlreadyThere(last)
            if last is not None and last.mark.epoch == delivery.epoch and last.mark.seq > unit.rows.since:
                raise Busy(f"the mark of a stream of {table} moved into the unit that is being appended")
            self._refuse_hole(last, delivery)
            remove.extend(key for key in properties if key.startswith(prefix))

        value: MarkRecord = {
            "stream": delivery.stream.text(),
            "since": delivery.since,
            "rows": shipped.rows,
            "withheld": shipped.withheld,
            "bytes": shipped.size_bytes,
            "generation": self._generation,
        }
        if shipped.chunk is not None:
            chunk = shipped.chunk
            value["chunk"] = {"since": chunk.since, "until": chunk.until, "digest": chunk.digest}
        if unit.hole_upto > delivery.since:
            value["hole_upto"] = unit.hole_upto
        key = f"{prefix}{delivery.epoch}.{delivery.until}"
        return target.commit(table, staged, PropertyChange({key: orjson.dumps(value).decode()}, remove, guard))

    def has_lost(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> bool:
        """Whether the copy of a table is gone, or has no marker."""
        return OWNER not in (self._target().properties(f"{self._namespace}.{table}") or {})

    def highest_epoch(self, table: str) -> int:
        """The highest epoch of any mark in the copy of a table."""
        properties = self._target().properties(f"{self._namespace}.{table}") or {}
        return max((int(key.split(".")[-2]) for key in properties if key.startswith(f"{MARKS}.")), default=0)

    def _refuse_unmarked(self, table: str, properties: Mapping[str, str] | None) -> None:
        """A catalog whose database is not mounted is made anew, and has no copy of a table that it had."""
        if OWNER not in (properties or {}) and not self._take_over and self._delivered(table):
            raise marker_gone(f"the table {self._namespace}.{table} with {OWNER}", self._name_of_sink)

    def _marker(self) -> dict[str, str]:
        ours = self._ours
        return {OWNER: orjson.dumps({"lake": ours.lake_id, "sink": ours.sink_id, "name": ours.name}).decode()}

    def _check_owner(self, table: str, properties: Mapping[str, str]) -> None:
        if OWNER not in properties or self._take_over:
            return
        marker = orjson.loads(properties[OWNER])
        owner = Owned(marker["lake"], marker["sink"], marker.get("name"))
        if owner.ids != self._ours.ids:
            raise refusal(f"the table {self._namespace}.{table}", owner, self._ours, self._name_of)

    def _prefix(self, stream: Stream) -> str:
        return f"{MARKS}.{self._lake_id}.{stream_key(stream)}."

    def _target(self) -> Copy:
        from strandline.engines.spark.copy import Copy

        with self._lock:
            if self._copy is None:
                self._copy = Copy(self._spark(), self._name, self._properties, self._staging.store)
            return self._copy


class _AlreadyThere(Exception):
    """The target has this unit: another process committed it while we staged it."""

    def __init__(self, last: StreamMark) -> None:
        super().__init__(last)
        self.last = last


class ChunkRecord(TypedDict):
    """A `SentChunk` as a mark keeps it."""

    since: int
    until: int
    digest: str


class MarkRecord(TypedDict):
    """What is kept with a mark: whose unit ended there, and what became of its rows."""

    stream: str
    since: int
    rows: int
    withheld: int
    bytes: int
    generation: NotRequired[str | None]
    chunk: NotRequired[ChunkRecord]
    hole_upto: NotRequired[int]


@dataclass(frozen=True)
class StreamMark:
    """A stream's mark as the target table has it, and what was said about the unit that ended there."""

    mark: Mark
    record: MarkRecord

    @property
    def chunk(self) -> SentChunk | None:
        """The last unit that had rows; one of an older version does not say."""
        chunk = self.record.get("chunk")
        return SentChunk(**chunk) if chunk is not None else None


def highest(properties: Mapping[str, str], prefix: str) -> StreamMark | None:
    """The highest mark among a table's properties: a late writer may have set a lower one beside it."""
    candidates = [
        StreamMark(Mark(int(epoch), int(seq)), orjson.loads(value))
        for key, value in properties.items()
        if key.startswith(prefix)
        for epoch, _, seq in [key.removeprefix(prefix).partition(".")]
    ]
    return max(candidates, key=lambda candidate: (candidate.mark.epoch, candidate.mark.seq), default=None)


def stream_key(stream: Stream) -> str:
    """A stream's text, short enough for a branch's name or a property's."""
    return hashlib.sha256(stream.text().encode()).hexdigest()[:20]


def catalog_of(settings: SinkSettings) -> tuple[str, dict[str, str]]:
    """A catalog's name and Iceberg's properties for it. The name is part of the key in a JDBC catalog."""
    kind, uri = str(settings["catalog"]), str(settings["uri"])
    options = {key.removeprefix(_OPTION): str(value) for key, value in settings.items() if key.startswith(_OPTION)}
    name = options.pop("name", CATALOG_NAME)
    if kind not in ("jdbc", "rest"):
        raise BadRequest(f"there is no catalog of the kind {kind!r}", hint="It is jdbc or rest.")
    if kind == "jdbc":
        if not uri.startswith("jdbc:"):
            raise BadRequest(f"{uri!r} is not the address of a JDBC catalog", hint="Such as jdbc:sqlite:/path/to.db")
        if uri.startswith("jdbc:sqlite:") and "busy_timeout" not in uri:
            # Without it a lock that is held for three seconds fails a Spark job.
            uri += f"{'&' if '?' in uri else '?'}busy_timeout=30000"
        options.setdefault("jdbc.schema-version", "V1")
    if settings.get("warehouse"):
        options.setdefault("warehouse", str(settings["warehouse"]))
    return name, {"type": kind, "uri": uri, "cache-enabled": "false", **options}


def _covers(last: StreamMark, unit: Unit) -> bool:
    """Whether the target has the unit. An older epoch's unit is refused: the stream was rewound since."""
    delivery = unit.delivery
    if last.mark.epoch > delivery.epoch:
        raise Conflict(
            f"the target of {delivery.table} is in epoch {last.mark.epoch} already, and this unit is of epoch "
            f"{delivery.epoch}",
            kind="epoch",
            hint="The stream was rewound, or restored from a backup, meanwhile. `strand sink show` tells its state.",
            expected=delivery.epoch,
            actual=last.mark.epoch,
        )
    return last.mark.epoch == delivery.epoch and last.mark.seq >= delivery.until


def _shipped_before(last: StreamMark, unit: Unit, table: str) -> Shipped:
    """What is told of a unit that is there already; the counts are known for the last one."""
    if last.mark.seq != unit.delivery.until:
        return Shipped(0, key=table)
    record, key = last.record, table if last.record["rows"] else None
    return Shipped(int(record["rows"]), int(record["withheld"]), int(record["bytes"]), key=key, chunk=last.chunk)
