"""Mark objects of blobs: how far a stream has come by its prefix's own account, on a disk and in a bucket.

Units are made of a file that looks like a log's, and written in this process: no Spark is needed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline import failpoints
from strandline.config import Store
from strandline.engines import objects
from strandline.engines.duck.ranges import Select, SeqRange
from strandline.engines.duck.sandbox import quote_name
from strandline.engines.objects import ObjectPlace
from strandline.errors import Conflict, Damaged, NewerFormat
from strandline.model.delivery.sinks import Delivery, Mark, SentChunk, Stream
from strandline.model.schema.schema import parse_mapping
from strandline.model.values.arrow import column_from_arrow
from strandline.sinks.blob import Blob, Remembered
from strandline.sinks.destination import Resume, Unit
from tests.s3 import S3

STREAM = Stream("main", "table1", "all")
FOLDER = "messages/all"
MARK = f"{FOLDER}/_mark.json"
ACKED = Remembered(mark=True, acked=True)


class Here:
    """What `export` needs of a Spark session, in this process."""

    def __init__(self) -> None:
        self.sparkContext = self

    def parallelize(self, items: Iterable[Any], _slices: int) -> Here:
        self._items = list(items)
        return self

    def map(self, work: Callable[[Any], Any]) -> Here:
        self._items = [work(item) for item in self._items]
        return self

    def collect(self) -> list[Any]:
        return self._items


@dataclass
class Archive:
    """A prefix, and the log that its units are read from."""

    place: ObjectPlace
    log: Path
    settings: dict[str, Any] = field(default_factory=dict)

    def write_log(self, bodies: dict[int, str], **more: Any) -> None:
        """Rows by their seqs, as a flushed file has them, with more columns."""
        seqs = sorted(bodies)
        table = pa.table(
            {
                "body": [bodies[seq] for seq in seqs],
                "at": pa.array([seq * 1_000_000 for seq in seqs], pa.timestamp("us", "UTC")),
                "_seq": pa.array(seqs, pa.int64()),
                **more,
            }
        )
        pq.write_table(table, self.log)

    def blob(self, remembered: Remembered = ACKED, **more: Any) -> Blob:
        """The sink's destination; by default its ledger remembers that it has written marks here."""
        given: dict[str, Any] = {"lake_id": "lake1", "sink_id": "sink1", **more}
        settings = {"uri": self.place.uri, "endpoint": self.place.store.endpoint, **self.settings}
        return Blob(settings, spark=Here, remember=lambda stream: remembered, **given)  # type: ignore[arg-type]

    def unit(self, since: int, until: int, *, epoch: int = 1, where: str | None = None, lacking_upto: int = 0) -> Unit:
        """One unit of the log."""
        schema = pq.read_schema(self.log)
        rows = SeqRange(
            runs=((str(self.log),),),
            stored=tuple(column_from_arrow(column) for column in schema),
            since=since,
            until=until,
            select=Select(tuple((name, quote_name(name)) for name in schema.names), where),
            schema=schema,
        )
        settings = {"format": "parquet", "compression": "zstd", **self.settings}
        delivery = Delivery(
            "d1", "sink1", STREAM, "messages", epoch, since, until, 1, 1, 1, settings, 0, 0, 0, None, None
        )
        return Unit(delivery, rows, parse_mapping({"body": "string"}), (), lacking_upto=lacking_upto)

    def ship(self, *ranges: tuple[int, int], epoch: int = 1) -> None:
        """Deliver these units one after another."""
        for since, until in ranges:
            self.blob().ship(self.unit(since, until, epoch=epoch))

    def standing(self, remembered: Remembered = ACKED, **more: Any) -> Any:
        """What the prefix says of the stream."""
        return self.blob(remembered, **more).standing(STREAM, "messages", ())

    def noted(self) -> dict[str, Any]:
        """The mark object."""
        content = objects.read_bytes(self.place, MARK)
        assert content is not None
        return dict(json.loads(content))

    def names(self) -> list[str]:
        """The units' objects, below the stream's folder."""
        there = objects.listing(self.place, FOLDER, recursive=True)
        return [entry.name for entry in there if entry.name.endswith((".parquet", ".zst", ".gz"))]

    def copy(self) -> dict[str, bytes]:
        """Every object of the prefix, to be put back later."""
        there = [entry.name for entry in objects.listing(self.place, "", recursive=True) if not entry.is_folder]
        return {name: objects.read_bytes(self.place, name) or b"" for name in there}

    def put_back(self, copy: dict[str, bytes]) -> None:
        """The prefix as it was when it was copied."""
        for name in self.copy():
            objects.remove(self.place, name)
        for name, content in copy.items():
            objects.put_bytes(self.place, name, content)


def name_of(since: int, until: int, extension: str = "parquet") -> str:
    return f"{since:019d}-{until:019d}.{extension}"


@pytest.fixture(params=["disk", "bucket"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    """A prefix without anything in it, and a log of 30 rows."""
    if request.param == "disk":
        place = ObjectPlace(f"file://{tmp_path}/archive", Store())
    else:
        s3: S3 = request.getfixturevalue("s3")
        place = ObjectPlace(f"s3://{s3.bucket}/archive", s3.store)
    made = Archive(place, tmp_path / "log.parquet")
    made.write_log({seq: f"row {seq}" for seq in range(1, 31)})
    return made


def test_a_mark_says_how_far_the_stream_is_and_what_the_last_rows_were(archive: Archive) -> None:
    assert archive.standing(Remembered()).mark is None
    unit = archive.unit(0, 10)
    shipped = archive.blob(generation="g7").ship(unit)
    chunk = SentChunk(0, 10, unit.digest_in(0, 10))
    assert shipped.chunk == chunk
    standing = archive.standing()
    assert (standing.mark, standing.chunk, standing.exact) == (Mark(1, 10), chunk, True)
    assert archive.noted() == {
        "version": 1, "lake": "lake1", "stream": STREAM.text(), "epoch": 1, "seq": 10, "since": 0, "until": 10,
        "digest": chunk.digest, "object": name_of(0, 10), "rows": 10, "withheld": 0, "bytes": shipped.size_bytes,
        "generation": "g7",
    }  # fmt: skip
    assert standing.sender == "g7"


def test_a_unit_without_kept_rows_makes_no_object_and_moves_the_mark(archive: Archive) -> None:
    """Else a mark behind the watermark would prove nothing. The last rows stay what they were."""
    archive.ship((0, 10))
    shipped = archive.blob().ship(archive.unit(10, 20, where="false"))
    assert (shipped.rows, shipped.withheld, shipped.key, shipped.chunk) == (0, 10, None, None)
    standing = archive.standing()
    assert standing.mark == Mark(1, 20) and (standing.chunk.since, standing.chunk.until) == (0, 10)
    assert archive.names() == [name_of(0, 10)]


def test_a_unit_that_the_prefix_has_said_to_have_is_not_written_again(archive: Archive) -> None:
    """A reader may have taken its object away meanwhile, and would get it twice."""
    first = archive.blob().ship(archive.unit(0, 10))
    objects.remove(archive.place, f"{FOLDER}/{name_of(0, 10)}")
    again = archive.blob().ship(replace(archive.unit(0, 10), confirmed=10))
    assert (again, archive.names()) == (replace(first, files_opened=0), [])
    archive.blob().ship(replace(archive.unit(10, 20), confirmed=10))
    assert archive.names() == [name_of(10, 20)]


@pytest.mark.parametrize("point", ["blob.before_mark", "blob.after_mark"])
def test_a_writer_that_dies_around_the_mark_is_repeated_exactly(archive: Archive, point: str) -> None:
    archive.ship((0, 10))
    failpoints.arm(f"{point}=raise")
    with pytest.raises(failpoints.FailpointReached):
        archive.ship((10, 20))
    failpoints.arm(None)
    assert archive.standing().mark == Mark(1, 10 if point == "blob.before_mark" else 20)
    before = archive.copy()
    archive.ship((10, 20))
    assert archive.standing().mark == Mark(1, 20)
    assert {name: content for name, content in archive.copy().items() if name in before and name != MARK} == {
        name: content for name, content in before.items() if name != MARK
    }


def test_f16_an_object_whose_writer_died_before_the_mark_counts_for_a_ledger_without_marks(archive: Archive) -> None:
    """The object is there whole. Only a ledger that knows its own mark need not look: it writes the same one again."""
    archive.ship((0, 10))
    failpoints.arm("blob.before_mark=raise")
    with pytest.raises(failpoints.FailpointReached):
        archive.ship((10, 20))
    failpoints.arm(None)
    assert archive.standing(Remembered()).mark == Mark(1, 20)
    assert archive.standing(Remembered(mark=False, acked=True)).mark == Mark(1, 20), "restored from a backup"


def test_f65_a_writer_that_comes_late_takes_no_mark_back(archive: Archive) -> None:
    archive.ship((0, 10), (10, 20), (0, 10))
    assert archive.standing().mark == Mark(1, 20)
    archive.ship((0, 5), epoch=2)
    archive.ship((20, 30))
    assert archive.standing().mark == Mark(2, 5), "a rewind is later than every unit of the first epoch"


def test_f68_a_prefix_restored_from_an_older_copy_says_that_it_is_behind(archive: Archive) -> None:
    """Its mark object went back with the objects; also to before the stream's first unit."""
    empty = archive.copy()
    archive.ship((0, 10))
    older = archive.copy()
    archive.ship((10, 20))
    archive.put_back(older)
    assert (archive.standing().mark, archive.standing().exact) == (Mark(1, 10), True)
    assert archive.standing().chunk.until == 10
    archive.put_back({**empty, "_strandline.json": older["_strandline.json"]})
    assert (archive.standing().mark, archive.standing().exact) == (None, True)


def test_f68_a_prefix_without_mark_objects_is_taken_at_its_word_by_a_sink_that_wrote_some(archive: Archive) -> None:
    """A copy that an older version wrote. For a sink that never wrote a mark object the names prove nothing."""
    archive.ship((0, 10), (10, 20))
    objects.remove(archive.place, MARK)
    standing = archive.standing()
    assert (standing.mark, standing.chunk, standing.exact) == (Mark(1, 20), None, True)
    assert archive.standing(Remembered(mark=True, acked=False)).exact is False
    objects.remove(archive.place, f"{FOLDER}/{name_of(10, 20)}")
    assert archive.standing().mark == Mark(1, 10)


def test_f68_objects_that_are_gone_while_their_mark_is_there_are_missed(archive: Archive) -> None:
    """The prefix is as far as the objects that are left. With none left a person decides: a reader may take them."""
    archive.ship((0, 10), (10, 20))
    objects.remove(archive.place, f"{FOLDER}/{name_of(10, 20)}")
    assert (archive.standing().mark, archive.standing().exact) == (Mark(1, 10), True)
    objects.remove(archive.place, f"{FOLDER}/{name_of(0, 10)}")
    with pytest.raises(Conflict) as gone:
        archive.standing(name="cold")
    assert gone.value.detail["kind"] == "objects_gone" and "retry cold" in gone.value.hint
    assert archive.blob().has_lost(STREAM, "messages", ())
    archive.settings["taken_away"] = True
    assert archive.standing().mark == Mark(1, 20)


def test_f68_a_prefix_that_goes_back_while_a_unit_is_written_gets_no_mark_above_the_gap(archive: Archive) -> None:
    archive.ship((0, 10))
    older = archive.copy()
    archive.ship((10, 20))
    unit = archive.unit(20, 30)
    archive.put_back(older)
    with pytest.raises(Resume) as behind:
        archive.blob().ship(unit)
    assert behind.value.mark == Mark(1, 10) and archive.standing().mark == Mark(1, 10)


def test_f80_a_prefix_that_lost_its_marker_is_not_written_unless_a_person_takes_it_over(archive: Archive) -> None:
    """A disk that is not mounted looks like a new one; a sink that has delivered there is asked whether it has."""
    archive.ship((0, 10))
    archive.put_back({})
    there: dict[str, Any] = {"delivered": lambda: True, "name": "cold"}
    for act in (lambda: archive.standing(**there), lambda: archive.blob(**there).ship(archive.unit(10, 20))):
        with pytest.raises(Conflict) as gone:
            act()
        assert gone.value.detail["kind"] == "marker_gone" and "retry cold --take-over" in gone.value.hint
    assert archive.copy() == {}, "something was written"
    archive.blob(take_over=True, **there).probe()
    archive.blob(take_over=True, **there).ship(archive.unit(0, 20, epoch=2))
    assert archive.standing(**there).mark == Mark(2, 20)


def test_marks_of_another_lake_or_stream_do_not_count(archive: Archive) -> None:
    """A prefix that was taken over, or a table of the same name: the seqs there are not ours."""
    archive.ship((0, 10))
    other = archive.blob(Remembered(), lake_id="lake2", take_over=True)
    other.probe()
    assert other.standing(STREAM, "messages", ()).mark == Mark(2, 0)
    other.ship(archive.unit(0, 5, epoch=2))
    assert other.standing(STREAM, "messages", ()).mark == Mark(2, 5)


@pytest.mark.parametrize(
    ("content", "kind"), [(b"{", Damaged), (b'{"version": 1}', Damaged), (b'{"version": 2}', NewerFormat)]
)
def test_a_mark_that_cannot_be_read_is_said(archive: Archive, content: bytes, kind: type[Exception]) -> None:
    archive.ship((0, 10))
    objects.put_bytes(archive.place, MARK, content)
    with pytest.raises(kind):
        archive.standing()


@pytest.mark.parametrize(
    ("form", "compression", "extension"),
    [("parquet", "zstd", "parquet"), ("jsonl", "zstd", "jsonl.zst"), ("jsonl", "gzip", "jsonl.gz")],
)
def test_f72_only_rows_that_the_prefix_lacks_are_written(
    archive: Archive, form: str, compression: str, extension: str
) -> None:
    """By seq and content: a ledger that was put back by hand has given old seqs to new rows."""
    archive.settings.update(format=form, compression=compression)
    archive.ship((0, 10), (10, 20), (20, 30))
    archive.write_log({seq: f"row {seq}" if seq <= 15 else f"new row {seq}" for seq in range(1, 25)})
    unit = archive.unit(10, 24, epoch=2, lacking_upto=30)
    for _ in range(2):  # repeated after a crash, it finds its own object, which does not count
        shipped = archive.blob().ship(unit)
        assert (shipped.rows, shipped.chunk) == (9, SentChunk(10, 24, unit.digest_in(10, 24)))
    assert archive.names()[-1] == f"e2/{name_of(10, 24, extension)}"
    assert archive.standing().mark == Mark(2, 24)
    if form == "parquet":
        content = objects.read_bytes(archive.place, f"{FOLDER}/{archive.names()[-1]}")
        assert pq.read_table(pa.py_buffer(content)).column("body").to_pylist() == [
            f"new row {n}" for n in range(16, 25)
        ]


def test_f72_a_unit_of_which_the_prefix_has_everything_moves_the_mark_alone(archive: Archive) -> None:
    archive.ship((0, 10), (10, 20))
    unit = archive.unit(10, 20, epoch=2, lacking_upto=20)
    shipped = archive.blob().ship(unit)
    assert (shipped.rows, shipped.key, shipped.chunk) == (0, None, SentChunk(10, 20, unit.digest_in(10, 20)))
    assert archive.names() == [name_of(0, 10), name_of(10, 20)]
    standing = archive.standing()
    assert (standing.mark, standing.chunk) == (Mark(2, 20), shipped.chunk)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_f72_a_column_that_came_since_with_a_default_makes_no_other_row(archive: Archive, form: str) -> None:
    """What an object and the rows have in common is compared, where both say when a row was appended."""
    archive.settings["format"] = form
    times = pa.array([seq * 10 for seq in range(1, 21)], pa.timestamp("us", "UTC"))
    archive.write_log({seq: f"row {seq}" for seq in range(1, 21)}, _at=times, name=["x"] * 20)
    archive.ship((0, 10), (10, 20))
    bodies = {seq: f"row {seq}" if seq != 15 else "another" for seq in range(1, 21)}
    archive.write_log(bodies, _at=times, called=["x"] * 20, grade=[7] * 20)
    assert archive.blob().ship(archive.unit(0, 20, epoch=2, lacking_upto=20)).rows == 1


def test_f72_rows_without_seqs_and_objects_that_readers_take_away_cannot_be_told_apart(archive: Archive) -> None:
    for setting in ({"drop_columns": ["_seq"]}, {"taken_away": True}):
        archive.settings.update(setting)
        assert archive.standing().reads_back is False
        archive.settings.clear()
    assert archive.standing().reads_back is True


def test_the_way_back_from_a_lost_disk_ends_in_an_epoch_of_its_own(tmp_path: Path) -> None:
    """Both places belong to the sink: whichever is mounted says how far it is."""
    archive = Archive(ObjectPlace(f"file://{tmp_path}/archive", Store()), tmp_path / "log.parquet")
    archive.write_log({seq: f"row {seq}" for seq in range(1, 31)})
    archive.ship((0, 10))
    shutil.move(tmp_path / "archive", tmp_path / "shelf")
    archive.ship((0, 20), epoch=2)
    assert archive.standing().mark == Mark(2, 20)
    shutil.rmtree(tmp_path / "archive")
    shutil.move(tmp_path / "shelf", tmp_path / "archive")
    assert archive.standing().mark == Mark(1, 10)


def test_a_copy_of_a_unit_is_not_a_mark_of_another_delivery(archive: Archive) -> None:
    """The digest is of the rows alone: another delivery, format or compression of the same rows has the same one."""
    unit = archive.unit(0, 10)
    first = archive.blob().ship(unit).chunk
    archive.settings.update(format="jsonl", compression="gzip")
    other = archive.blob().ship(replace(archive.unit(0, 10), delivery=replace(unit.delivery, epoch=2))).chunk
    assert first == other
