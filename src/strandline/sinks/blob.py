"""Blobs: each unit becomes one object, named by its stream and range.

The name is the idempotency key. A unit that is shipped again is written again, with the same rows in the same order,
under the same name. What a sink has delivered can be read off a listing, so one that lost its marks finds them here.

A prefix belongs to one sink of one lake, which a marker in it says. When a sink of another lake takes a prefix over,
the seqs in the names that are there mean nothing to it; it begins with an epoch above all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from strandline.config import Store
from strandline.engines import objects
from strandline.engines.conditional import change_bytes, create_bytes
from strandline.engines.objects import Place
from strandline.errors import BadRequest, Damaged, LeaseLost, StrandError
from strandline.failpoints import fail
from strandline.model import object_names as names
from strandline.model.sinks import Mark, Shipped, Standing, Stream
from strandline.sinks.destination import Unit, refusal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Owner:
    """What the marker says: whose prefix it is, and the first epoch whose objects are this lake's."""

    lake_id: str
    sink_id: str
    epoch: int = names.FIRST_EPOCH

    def document(self) -> bytes:
        """As it is stored."""
        return orjson.dumps({"lake": self.lake_id, "sink": self.sink_id, "epoch": self.epoch}) + b"\n"


class Blob:
    """A folder or a bucket that units are written to. A unit without rows leaves nothing there."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        lake_id: str,
        sink_id: str,
        spark: Callable[[], SparkSession],
        take_over: bool = False,
    ) -> None:
        self._place = place_of(settings)
        self._lake_id = lake_id
        self._sink_id = sink_id
        self._spark = spark
        self._take_over = take_over

    def probe(self) -> None:
        """Raise what is wrong with the place; taking over is done here, where somebody asked for it."""
        if self._owner() is not None and self._take_over:
            self._claim(self._place)
        name = f"{names.TEMPORARY}probe-{uuid4().hex}"
        objects.put_bytes(self._place, name, b"strandline may write here\n")
        # A store that takes objects and lets nobody remove them is fine for an archive.
        with suppress(StrandError):
            objects.remove(self._place, name)

    def look(self) -> None:
        """Whose place it is, and whether it can be listed. A local folder is made by the first unit."""
        self._owner()
        objects.listing(self._place, "")

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        """What a listing says: units without rows leave nothing there."""
        return Standing(self.find_mark(stream, table, partition_by), exact=False)

    def find_mark(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Mark | None:
        """The end of the last object of the highest epoch. In a prefix taken over from another lake, a new epoch."""
        owner = self._owner()
        if owner is not None and not self._is_ours(owner):
            self._claim(self._place)  # before its objects are read: the seqs in their names are another lake's
            owner = self._owner()
        first = names.FIRST_EPOCH if owner is None else owner.epoch
        folder = names.stream_path(table, partition_by, stream.partition)
        entries = objects.listing(self._place, folder)
        epochs = {names.parse_epoch(entry.name) for entry in entries if entry.is_folder} | {names.FIRST_EPOCH}
        for epoch in sorted((epoch for epoch in epochs if epoch is not None and epoch >= first), reverse=True):
            inside = entries if epoch == names.FIRST_EPOCH else objects.listing(self._place, f"{folder}/e{epoch}")
            ranges = [names.parse_object_name(entry.name) for entry in inside if not entry.is_folder]
            ends = [found.until for found in ranges if found is not None]
            if ends:
                return Mark(epoch, max(ends))
        return Mark(first, 0) if first > names.FIRST_EPOCH else None

    def ship(self, unit: Unit) -> Shipped:
        """Write the unit's object, and its line in the manifest. A unit without kept rows writes nothing."""
        from strandline.engines.spark.export import EXTENSIONS, Export, export

        delivery, settings = unit.delivery, unit.delivery.settings
        place = place_of(settings)
        self._claim(place)
        kind = (settings.get("format") or "parquet", settings.get("compression") or "zstd")
        if kind not in EXTENSIONS:
            raise BadRequest(f"{kind[0]} with {kind[1]} is not written here", hint=_known(EXTENSIONS))
        stream = names.stream_path(delivery.table, unit.partition_by, delivery.stream.partition)
        epoch = names.epoch_folder(delivery.epoch)
        folder = f"{stream}/{epoch}" if epoch else stream
        name = f"{folder}/{names.object_name(delivery.since, delivery.until, EXTENSIONS[kind])}"
        temporary = f"{folder}/{names.TEMPORARY}{delivery.delivery_id}-{uuid4().hex[:12]}"
        sweep(place, folder)
        fail("blob.before_write")
        wanted = Export(
            unit.rows, unit.schema, *kind, place=place, name=name, temporary=temporary,
            digest=bool(settings.get("manifest")),
        )  # fmt: skip
        done = export(self._spark(), wanted)
        if done.rows == 0:
            return Shipped(0, done.withheld, files_opened=unit.rows.files)
        if place.local is not None:
            fail("blob.before_rename")
            _rename(place, temporary, name)
        fail("blob.after_write")
        if names.is_digest(stream.partition("/")[2]):
            objects.put_bytes(place, f"{stream}/{names.PARTITION}", delivery.stream.partition.encode() + b"\n")
        if done.sha256 is not None:
            line = Line(
                name[len(stream) + 1 :], delivery.since, delivery.until, done.rows, done.size_bytes, done.sha256
            )
            add_to_manifest(place, f"{stream}/{names.MANIFEST}", line)
        return Shipped(done.rows, done.withheld, done.size_bytes, unit.rows.files, key=name)

    def close(self) -> None:
        """Nothing is kept open."""

    def _owner(self) -> Owner | None:
        """Whose prefix it is; an error when it is somebody else's and we may not take it."""
        owner = read_owner(self._place)
        if owner is None or self._take_over or self._is_ours(owner):
            return owner
        raise refusal(self._place.shown(), (owner.lake_id, owner.sink_id), (self._lake_id, self._sink_id))

    def _is_ours(self, owner: Owner) -> bool:
        return (owner.lake_id, owner.sink_id) == (self._lake_id, self._sink_id)

    def _claim(self, place: Place) -> None:
        """Make sure that the prefix is ours. Asked before every unit: somebody may have taken it over."""
        owner = read_owner(place)
        if owner is None:
            if create_bytes(place, names.OWNER, Owner(self._lake_id, self._sink_id).document()):
                return
            owner = read_owner(place)
        assert owner is not None, f"{place.shown(names.OWNER)} was there, and is gone"
        if self._is_ours(owner):
            return
        if not self._take_over:
            raise refusal(place.shown(), (owner.lake_id, owner.sink_id), (self._lake_id, self._sink_id))
        epoch = owner.epoch if owner.lake_id == self._lake_id else highest_epoch(place) + 1
        objects.put_bytes(place, names.OWNER, Owner(self._lake_id, self._sink_id, epoch).document())


def place_of(settings: Mapping[str, Any]) -> Place:
    """Where a sink with these settings writes."""
    uri = str(settings["uri"])
    if not uri.startswith(("file:///", "s3://")):
        raise BadRequest(f"can't write blobs to {uri!r}", hint="Write file:///path or s3://bucket/prefix.")
    return Place(uri, Store(settings.get("endpoint"), settings.get("region")))


def read_owner(place: Place) -> Owner | None:
    """What the marker of a prefix says; None where there is none."""
    content = objects.read_bytes(place, names.OWNER)
    if content is None:
        return None
    try:
        found = orjson.loads(content)
        return Owner(str(found["lake"]), str(found["sink"]), int(found["epoch"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(
            f"{place.shown(names.OWNER)} can't be read: {error}",
            hint="It says whose prefix this is. Remove it if you know that it is this sink's.",
        ) from error


def highest_epoch(place: Place) -> int:
    """The highest epoch that any stream below a prefix has reached."""
    parts = {part for entry in objects.listing(place, "", recursive=True) for part in entry.name.split("/")}
    return max([names.FIRST_EPOCH, *(epoch for part in parts if (epoch := names.parse_epoch(part)))])


def sweep(place: Place, folder: str) -> None:
    """Remove what killed writers of this stream left; nobody else writes here while we hold its lease."""
    if place.local is None:
        return
    for entry in objects.listing(place, folder):
        if entry.name.startswith(names.TEMPORARY) and not entry.is_folder:
            objects.remove(place, f"{folder}/{entry.name}")


def _rename(place: Place, temporary: str, name: str) -> None:
    assert place.local is not None
    with objects.reaching(place, name):
        try:
            objects.commit_file(place.local / temporary, place.local / name)
        except FileNotFoundError as error:
            raise LeaseLost(f"{place.shown(temporary)} is gone: another process has taken over this stream") from error


@dataclass(frozen=True)
class Line:
    """An object's line in its stream's manifest."""

    name: str
    since: int
    until: int
    rows: int
    bytes: int
    sha256: str


def add_to_manifest(place: Place, name: str, line: Line) -> None:
    """Write the manifest anew with this line in it, once, in the order of epochs and ranges.

    Whoever comes late adds to what is there by then, and takes no line of another's away.
    """

    def with_line(content: bytes | None) -> bytes:
        found = [Line(**orjson.loads(text)) for text in (content or b"").splitlines() if text]
        lines = {one.name: one for one in [*found, line]}
        ordered = sorted(lines.values(), key=lambda one: (_epoch(one.name), one.since))
        fail("blob.before_manifest")
        return b"".join(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in ordered)

    change_bytes(place, name, with_line)
    fail("blob.after_manifest")


def _epoch(name: str) -> int:
    return names.parse_epoch(name.partition("/")[0]) or names.FIRST_EPOCH


def _known(kinds: Mapping[tuple[str, str], str]) -> str:
    return f"Known: {', '.join(f'{form} with {compression}' for form, compression in kinds)}."
