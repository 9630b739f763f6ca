"""Blobs: each unit becomes one object, named by its stream and range.

The name is the idempotency key. A unit that is shipped again is written again, with the same rows in the same order,
under the same name. How far a stream has come is in its mark object (`blob_marks`), and can be read off a listing too.

A prefix belongs to one sink of one lake, which a marker in it says. When a sink of another lake takes a prefix over,
the seqs in the names that are there mean nothing to it; it begins with an epoch above all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import orjson

from strandline.config import Store
from strandline.engines import objects
from strandline.engines.conditional import change_bytes, create_bytes, read_version
from strandline.engines.objects import ObjectPlace
from strandline.errors import BadRequest, Conflict, Damaged, LeaseLost, StrandError
from strandline.failpoints import fail
from strandline.model.delivery import object_names as names
from strandline.model.delivery.sinks import Mark, SentChunk, Shipped, SinkSettings, Standing, Stream
from strandline.model.schema.types import SEQ
from strandline.sinks.blob_marks import BlobMark, move_mark, read_mark
from strandline.sinks.destination import Owned, Unit, marker_gone, refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.engines.spark.export import ObjectToWrite, WrittenObject


@dataclass(frozen=True)
class PrefixOwner:
    """What the marker says: whose prefix it is, and the first epoch whose objects are this lake's."""

    owned: Owned
    epoch: int = names.FIRST_EPOCH

    def document(self) -> bytes:
        """As it is stored."""
        owned = self.owned
        return (
            orjson.dumps({"lake": owned.lake_id, "sink": owned.sink_id, "name": owned.name, "epoch": self.epoch})
            + b"\n"
        )


@dataclass(frozen=True)
class Remembered:
    """What the ledger knows of a stream: whether its mark counts, and whether the destination has acked anything."""

    mark: bool = False
    acked: bool = False


class Blob:
    """A folder or a bucket that units are written to. A unit without rows makes no object."""

    def __init__(
        self,
        settings: SinkSettings,
        *,
        lake_id: str,
        sink_id: str,
        spark: Callable[[], SparkSession],
        start_seq: int = 0,
        take_over: bool = False,
        name: str = "",
        delivered: Callable[[], bool] = lambda: False,
        remember: Callable[[Stream], Remembered] = lambda stream: Remembered(),
        name_of: Callable[[str], str | None] = lambda sink_id: None,
        generation: str | None = None,
    ) -> None:
        """`delivered` tells whether the sink of this `name` has delivered anything: then there must be a marker.

        `remember` tells what the ledger knows of a stream, `name_of` what it calls a sink, by its id; `generation` is
        the ledger's.
        """
        self._settings = settings
        self._place = place_of(settings)
        self._lake_id = lake_id
        self._ours = Owned(lake_id, sink_id, name or sink_id)
        self._name_of = name_of
        self._spark = spark
        self._start_seq = start_seq
        self._take_over = take_over
        self._name = name or sink_id
        self._delivered = delivered
        self._remember = remember
        self._generation = generation
        # Which rows an object had can't be found out once a reader took it away.
        self._reads_back = SEQ not in (settings.get("drop_columns") or ()) and not settings.get("taken_away")

    def probe(self) -> None:
        """Raise what is wrong with the place; taking over is done here, where a person asked for it."""
        if self._owner() is not None and self._take_over:
            self._claim(self._place)
        name = f"{names.TEMPORARY}probe-{uuid4().hex}"
        with objects.without_new_folders(self._place):
            objects.put_bytes(self._place, name, b"strandline may write here\n")
        # A store that takes objects and never lets them be removed is fine for an archive.
        with suppress(StrandError):
            objects.remove(self._place, name)

    def look(self) -> None:
        """Whose place it is, and whether it can be listed. A local folder is made by the first unit."""
        self._owner()
        objects.listing(self._place, "")

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        """What the stream's mark object says, if the object that it names is there; else what a listing says.

        A prefix of an older version has no mark objects: units without rows left nothing there, so the names may only
        seem to be behind. They are taken at their word where this sink has written a mark object, and it is gone.
        """
        # Before its objects are read: the seqs in the names may be another lake's.
        first = self._claim(self._place).epoch
        folder = names.stream_path(table, partition_by, stream.partition)
        remembered = self._remember(stream)
        noted = self._noted(stream, folder, first)
        if noted is None:
            listed = self._listed(folder, first)
            return Standing(listed, exact=remembered.acked, reads_back=self._reads_back)
        if self._is_gone(folder, noted):
            listed = self._listed(folder, first)
            if remembered.acked and not objects_of(self._place, folder, first):
                raise self._objects_gone(folder, noted)
            mark = listed and min(listed, noted.mark, key=_order)
            return Standing(mark, exact=remembered.acked, reads_back=self._reads_back)
        if not remembered.mark:
            # A writer that died between the object and the mark has delivered the object.
            listed = self._listed(folder, first)
            if listed is not None and _order(listed) > _order(noted.mark):
                return Standing(listed, noted.chunk, reads_back=self._reads_back)
        return Standing(noted.mark, noted.chunk, reads_back=self._reads_back, sender=noted.generation)

    def _listed(self, folder: str, first: int) -> Mark | None:
        """How far the names go. In a prefix taken over from another lake the sink begins, in an epoch of its own."""
        return listed_mark(self._place, folder, first) or (
            Mark(first, self._start_seq) if first > names.FIRST_EPOCH else None
        )

    def _noted(self, stream: Stream, folder: str, first: int) -> BlobMark | None:
        """The stream's mark object; one that another lake or another stream of ours left does not count."""
        noted = read_mark(self._place, folder)
        if noted is None or noted.mark.epoch < first:
            return None
        return noted if (noted.lake_id, noted.stream) == (self._lake_id, stream.text()) else None

    def _is_gone(self, folder: str, noted: BlobMark) -> bool:
        """Whether the last object is missing. Where readers take objects away, the mark alone counts."""
        if noted.object is None or self._settings.get("taken_away"):
            return False
        return not objects.exists(self._place, f"{folder}/{noted.object}")

    def _objects_gone(self, folder: str, noted: BlobMark) -> Conflict:
        """With objects left, the rest is sent again. With none, a person is asked: a reader may have taken them."""
        return Conflict(
            f"{self._place.shown(f'{folder}/{noted.object}')} is gone, and every other object of its stream, although "
            f"{names.MARK} beside it says that it was written",
            kind="objects_gone",
            hint=f"Bring them back, then `strand sink retry {self._name}`. `strand sink retry {self._name} "
            "--take-over` sends everything again. If readers take objects away: `strand sink set "
            f"{self._name} --set taken_away=true`, then retry.",
            expected=noted.object,
            actual=None,
        )

    def ship(self, unit: Unit) -> Shipped:
        """Write the unit's object, its line in the manifest, and the stream's mark. Without kept rows, the mark alone.

        A mark that is read off the names has every row up to it because units are written in order, each whole.
        """
        from strandline.engines.spark.export import EXTENSIONS, ObjectToWrite, export

        delivery, settings = unit.delivery, unit.delivery.settings
        place = self._place  # as it is now: a delivery that was opened for a place that is gone could never be closed
        owner = self._claim(place)
        kind = (settings.get("format") or "parquet", settings.get("compression") or "zstd")
        if kind not in EXTENSIONS:
            raise BadRequest(f"{kind[0]} with {kind[1]} is not written here", hint=_kinds_hint(EXTENSIONS))
        stream = names.stream_path(delivery.table, unit.partition_by, delivery.stream.partition)
        epoch = names.epoch_folder(delivery.epoch)
        folder = f"{stream}/{epoch}" if epoch else stream
        name = f"{folder}/{names.object_name(delivery.since, delivery.until, EXTENSIONS[kind])}"
        temporary = f"{folder}/{names.TEMPORARY}{delivery.delivery_id}-{uuid4().hex[:12]}"
        shipped = self._shipped_before(unit, stream, owner.epoch)
        if shipped is not None:
            return shipped
        sweep(place, folder)
        fail("blob.before_write")
        request = ObjectToWrite(
            unit.rows, unit.schema, *kind, place=place, name=name, temporary=temporary,
            digest=bool(settings.get("manifest")), present=self._present(place, stream, unit, owner.epoch, name),
            lacking_upto=unit.lacking_upto,
        )  # fmt: skip
        done = export(self._spark(), request)
        if done.rows:
            self._put_in_place(place, unit, request, done, stream)
        chunk = None if done.rows_digest is None else SentChunk(delivery.since, delivery.until, done.rows_digest)
        moved = BlobMark(
            self._lake_id,
            delivery.stream.text(),
            Mark(delivery.epoch, delivery.until),
            chunk,
            name[len(stream) + 1 :] if done.rows else None,
            done.rows,
            done.withheld,
            done.size_bytes,
            self._generation,
        )
        move_mark(place, stream, moved, delivery.since)
        key = name if done.rows else None
        return Shipped(done.rows, done.withheld, done.size_bytes, unit.rows.files, key=key, chunk=chunk)

    def _shipped_before(self, unit: Unit, folder: str, first: int) -> Shipped | None:
        """A unit that the prefix has said to have is not written again: a reader may have taken its object away."""
        delivery = unit.delivery
        noted = self._noted(delivery.stream, folder, first) if unit.confirmed >= delivery.until else None
        if noted is None or noted.mark != Mark(delivery.epoch, delivery.until):
            return None
        key = f"{folder}/{noted.object}" if noted.rows else None
        return Shipped(noted.rows, noted.withheld, noted.size_bytes, key=key, chunk=noted.chunk)

    def _put_in_place(
        self, place: ObjectPlace, unit: Unit, request: ObjectToWrite, done: WrittenObject, stream: str
    ) -> None:
        delivery = unit.delivery
        if place.local is not None:
            fail("blob.before_rename")
            _rename(place, request.temporary, request.name)
        fail("blob.after_write")
        if names.is_digest(stream.partition("/")[2]):
            objects.put_bytes(place, f"{stream}/{names.PARTITION}", delivery.stream.partition.encode() + b"\n")
        if done.sha256 is not None:
            below = request.name[len(stream) + 1 :]
            line = ManifestLine(below, delivery.since, delivery.until, done.rows, done.size_bytes, done.sha256)
            add_to_manifest(place, f"{stream}/{names.MANIFEST}", line)

    def _present(self, place: ObjectPlace, stream: str, unit: Unit, first: int, name: str) -> tuple[str, ...]:
        """The other objects that may hold rows of the unit, where only those are sent that the prefix lacks."""
        since = unit.delivery.since
        if unit.lacking_upto <= since or not self._reads_back:
            return ()
        others = ((f"{stream}/{below}", covered) for _, below, covered in objects_of(place, stream, first))
        return tuple(
            other for other, covered in others
            if other != name and covered.until > since and covered.since < unit.lacking_upto
        )  # fmt: skip

    def close(self) -> None:
        """Nothing is kept open."""

    def has_lost(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> bool:
        """Whether the prefix has no marker of this lake, or a mark object of the stream and no other."""
        owner = read_owner(self._place)
        if owner is None or owner.owned.lake_id != self._lake_id:
            return True
        folder = names.stream_path(table, partition_by, stream.partition)
        noted = self._noted(stream, folder, owner.epoch)
        return noted is not None and self._is_gone(folder, noted) and not objects_of(self._place, folder, owner.epoch)

    def highest_epoch(self, table: str) -> int:
        """The highest epoch of any object below the prefix."""
        return highest_epoch(self._place)

    def _owner(self) -> PrefixOwner | None:
        """The prefix's owner; an error when it is another sink and we may not take over, or when its marker is gone."""
        owner = read_owner(self._place)
        if owner is None:
            self._refuse_unmarked(self._place)
        if owner is None or self._take_over or self._is_ours(owner):
            return owner
        raise refusal(self._place.shown(), owner.owned, self._ours, self._name_of)

    def _is_ours(self, owner: PrefixOwner) -> bool:
        return owner.owned.ids == self._ours.ids

    def _refuse_unmarked(self, place: ObjectPlace) -> None:
        if not self._take_over and self._delivered():
            raise marker_gone(place.shown(names.OWNER), self._name)

    def _claim(self, place: ObjectPlace) -> PrefixOwner:
        """Make sure before every unit that the prefix is ours: another sink may have it, or the marker is gone."""
        owner = read_owner(place)
        if owner is None:
            self._refuse_unmarked(place)
            ours = PrefixOwner(self._ours, highest_epoch(place) + 1)
            if create_bytes(place, names.OWNER, ours.document()):
                return ours
            owner = read_owner(place)
        assert owner is not None, f"{place.shown(names.OWNER)} was there, and is gone"
        if self._is_ours(owner):
            return owner
        if not self._take_over:
            raise refusal(place.shown(), owner.owned, self._ours, self._name_of)
        epoch = owner.epoch if owner.owned.lake_id == self._lake_id else highest_epoch(place) + 1
        ours = PrefixOwner(self._ours, epoch)
        objects.put_bytes(place, names.OWNER, ours.document())
        return ours


def place_of(settings: SinkSettings) -> ObjectPlace:
    """Where a sink with these settings writes."""
    uri = str(settings["uri"])
    if not uri.startswith(("file:///", "s3://")):
        raise BadRequest(f"can't write blobs to {uri!r}", hint="Write file:///path or s3://bucket/prefix.")
    return ObjectPlace(uri, Store(settings.get("endpoint"), settings.get("region")))


def read_owner(place: ObjectPlace) -> PrefixOwner | None:
    """What the marker of a prefix says; None where there is none."""
    content = read_version(place, names.OWNER)
    if content is None:
        return None
    try:
        doc = orjson.loads(content)
        return PrefixOwner(Owned(str(doc["lake"]), str(doc["sink"]), doc.get("name")), int(doc["epoch"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(
            f"{place.shown(names.OWNER)} can't be read: {error}",
            hint="It says whose prefix this is. Put it back as it was; a sink that lacks it sends everything anew.",
        ) from error


def highest_epoch(place: ObjectPlace) -> int:
    """The highest epoch that any stream below a prefix has reached; 0 where there is no object."""
    files = [entry.name.split("/") for entry in objects.listing(place, "", recursive=True) if not entry.is_folder]
    streams = [parts[:-1] for parts in files if names.parse_object_name(parts[-1]) is not None]
    return max(
        (names.parse_epoch(folders[-1] if folders else "") or names.FIRST_EPOCH for folders in streams), default=0
    )


def objects_of(place: ObjectPlace, folder: str, first: int) -> list[tuple[int, str, names.ObjectName]]:
    """The objects of a stream from an epoch on: each with its epoch, its name below the folder, and what it covers."""
    entries = objects.listing(place, folder)
    epochs = {names.parse_epoch(entry.name) for entry in entries if entry.is_folder} | {names.FIRST_EPOCH}
    listed = []
    for epoch in sorted(epoch for epoch in epochs if epoch is not None and epoch >= first):
        below = names.epoch_folder(epoch)
        inside = objects.listing(place, f"{folder}/{below}") if below else entries
        for entry in inside:
            covered = None if entry.is_folder else names.parse_object_name(entry.name)
            if covered is not None:
                listed.append((epoch, f"{below}/{entry.name}" if below else entry.name, covered))
    return listed


def listed_mark(place: ObjectPlace, folder: str, first: int) -> Mark | None:
    """The end of the last object of the highest epoch, from one on; None where there is none."""
    marks = [Mark(epoch, covered.until) for epoch, _, covered in objects_of(place, folder, first)]
    return max(marks, key=_order, default=None)


def _order(mark: Mark) -> tuple[int, int]:
    return mark.epoch, mark.seq


def sweep(place: ObjectPlace, folder: str) -> None:
    """Remove what killed writers of this stream left; no other writes here while we hold its lease."""
    if place.local is None:
        return
    for entry in objects.listing(place, folder):
        if entry.name.startswith(names.TEMPORARY) and not entry.is_folder:
            objects.remove(place, f"{folder}/{entry.name}")


def _rename(place: ObjectPlace, temporary: str, name: str) -> None:
    assert place.local is not None
    with objects.reaching(place, name):
        try:
            objects.commit_file(place.local / temporary, place.local / name)
        except FileNotFoundError as error:
            raise LeaseLost(f"{place.shown(temporary)} is gone: another process has taken over this stream") from error


@dataclass(frozen=True)
class ManifestLine:
    """An object's line in its stream's manifest."""

    name: str
    since: int
    until: int
    rows: int
    bytes: int
    sha256: str


def add_to_manifest(place: ObjectPlace, name: str, line: ManifestLine) -> None:
    """Write the manifest anew with this line in it, once, in the order of epochs and ranges.

    A late writer adds to what is there by then, and takes no line of another's away.
    """

    def with_line(content: bytes | None) -> bytes:
        records = [ManifestLine(**orjson.loads(text)) for text in (content or b"").splitlines() if text]
        lines = {record.name: record for record in [*records, line]}
        ordered = sorted(lines.values(), key=lambda record: (_epoch(record.name), record.since))
        fail("blob.before_manifest")
        return b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in ordered)

    change_bytes(place, name, with_line)
    fail("blob.after_manifest")


def _epoch(name: str) -> int:
    return names.parse_epoch(name.partition("/")[0]) or names.FIRST_EPOCH


def _kinds_hint(kinds: Mapping[tuple[str, str], str]) -> str:
    return f"Known: {', '.join(f'{form} with {compression}' for form, compression in kinds)}."
