"""Blobs on a local disk: names, formats, bytes that repeat, owners, and writers that are killed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from strandline import create, failpoints
from strandline.cli import output
from strandline.engines.spark import export
from strandline.errors import Busy, Conflict, Environment, HistoryGone, LeaseLost
from strandline.lake import Lake
from strandline.lake.documents import document
from strandline.lake.sinks import ticked_streams
from strandline.model.delivery.object_names import parse_partition_path
from strandline.model.delivery.sinks import Mark
from strandline.model.schema.partitions import partition_text
from strandline.sinks.blob import Blob
from strandline.sinks.destination import Unit
from tests.kit import environment, kill, make_table, messages, python_process, strand_json, wait_until
from tests.sinks.units import SINK, rows_of, unit_of

NAME = "messages/all/0000000000000000000-0000000000000000031.parquet"


def settings_for(folder: Path, **more: Any) -> dict[str, Any]:
    return {"uri": f"file://{folder}", "format": "parquet", "compression": "zstd", "manifest": False, "endpoint": None,
            "region": None, **more}  # fmt: skip


def blob_for(lake: Lake, settings: dict[str, Any], **more: Any) -> Blob:
    options: dict[str, Any] = {"lake_id": lake.ledger.lake_id(), "sink_id": SINK, "take_over": False, **more}
    return Blob(settings, spark=lambda: lake.spark, **options)


def files_in(folder: Path) -> list[str]:
    """Every object; marker, marks and locks aside."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [name for name in found if not name.endswith(("_strandline.json", "_mark.json", ".lock"))]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "archive" / "deep"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """30 rows, seqs 2 to 31, in three flushes: three files, and so three runs. Tests may append more behind them."""
    with create.create(tmp_path_factory.mktemp("filled") / "lake") as lake:
        make_table(lake)
        for start in (0, 10, 20):
            lake.append("messages", messages(start, start + 10))
            lake.flush("messages")
        yield lake


def whole(lake: Lake, settings: dict[str, Any], **more: Any) -> Unit:
    """The unit of those 30 rows."""
    return unit_of(lake, settings, until=31, **more)


def test_a_unit_becomes_one_parquet_object_with_its_rows_in_order(filled: Lake, out: Path) -> None:
    settings = settings_for(out)
    unit = whole(filled, settings)
    shipped = blob_for(filled, settings).ship(unit)
    assert files_in(out) == [NAME]
    assert (shipped.key, shipped.rows, shipped.withheld, shipped.files_opened) == (NAME, 30, 0, 3)
    assert shipped.size_bytes == (out / NAME).stat().st_size
    table = pq.read_table(out / NAME)
    assert table.to_pylist() == rows_of(unit)
    assert table.column_names[-3:] == ["_seq", "_at", "_actor"]
    assert pq.ParquetFile(out / NAME).metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(("compression", "extension"), [("zstd", "zst"), ("gzip", "gz")])
def test_json_lines_hold_the_same_rows(filled: Lake, out: Path, compression: str, extension: str) -> None:
    settings = settings_for(out, format="jsonl", compression=compression)
    unit = whole(filled, settings)
    shipped = blob_for(filled, settings).ship(unit)
    (name,) = files_in(out)
    assert name == shipped.key and name.endswith(f".jsonl.{extension}")
    packed = (out / name).read_bytes()
    text = (
        gzip.decompress(packed) if compression == "gzip" else zstandard.ZstdDecompressor().stream_reader(packed).read()
    )
    assert [json.loads(line)["part_id"] for line in text.splitlines()] == [row["part_id"] for row in rows_of(unit)]


@pytest.mark.parametrize(
    ("form", "compression"), [("parquet", "zstd"), ("parquet", "gzip"), ("jsonl", "zstd"), ("jsonl", "gzip")]
)
def test_a_unit_written_again_has_the_same_bytes(filled: Lake, out: Path, form: str, compression: str) -> None:
    """Also when the reader cuts its rows elsewhere, and later."""
    settings = settings_for(out, format=form, compression=compression)
    blob, unit = blob_for(filled, settings), whole(filled, settings)
    first = (out / str(blob.ship(unit).key)).read_bytes()
    os.utime(out / files_in(out)[0], (0, 0))
    assert (out / str(blob.ship(unit).key)).read_bytes() == first
    assert len(files_in(out)) == 1


@pytest.mark.parametrize("cut", [1, 7, 2048, 5000])
def test_row_groups_do_not_depend_on_how_the_reader_cut_its_batches(cut: int) -> None:
    """Or a unit that is written again would have other bytes."""
    numbers = range(5000)
    table = pa.table(
        {"n": numbers, "s": ["x" * (n % 50) for n in numbers], "l": [["y"] * (n % 3) or None for n in numbers]}
    )
    whole = list(export.row_groups(export.even_blocks(table.to_batches())))
    cut_up = list(export.row_groups(export.even_blocks(table.to_batches(max_chunksize=cut))))
    assert whole == cut_up and pa.concat_tables(whole).equals(table)


def test_row_groups_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory follows a row group, so rows of a megabyte must not be counted like rows of ten bytes."""
    monkeypatch.setattr(export, "GROUP_BYTES", 100_000)
    table = pa.table({"s": ["x" * 100] * 10_000, "m": [{"k": [b"1"]}] * 10_000})
    groups = [group.num_rows for group in export.row_groups(export.even_blocks(table.to_batches()))]
    assert groups == [2048] * 4 + [1808]


def test_rows_that_a_predicate_withholds_are_counted_and_an_empty_unit_writes_nothing(filled: Lake, out: Path) -> None:
    settings = settings_for(out, manifest=True)
    blob = blob_for(filled, settings)
    some = blob.ship(whole(filled, settings, where="n < 4"))
    assert (some.rows, some.withheld) == (4, 26)
    none = blob.ship(unit_of(filled, settings, where="n < 0", since=11, until=21))
    assert (none.rows, none.withheld, none.size_bytes, none.key) == (0, 10, 0, None)
    all_withheld = blob.ship(whole(filled, settings, where="false", epoch=2))
    assert (all_withheld.rows, all_withheld.withheld, all_withheld.key) == (0, 30, None)
    assert files_in(out) == [NAME, "messages/all/_manifest.jsonl"]


def test_dropped_columns_are_not_written(filled: Lake, out: Path) -> None:
    settings = settings_for(out)
    blob_for(filled, settings).ship(whole(filled, settings, without=["body", "_actor"]))
    assert pq.read_table(out / NAME).column_names == ["part_id", "source", "n", "_seq", "_at"]


def test_a_json_column_is_embedded_unless_it_is_redacted(lake: Lake, out: Path) -> None:
    """A hash in place of a document is text: put in as it is, the line would be no JSON."""
    lake.create_table("events", {"doc": "json?", "other": "json?"})
    lake.append("events", [{"doc": {"a": 1}, "other": {"a": 2}}])
    lake.flush("events")
    settings = settings_for(out, format="jsonl", compression="gzip")
    unit = unit_of(lake, settings, table="events")
    columns = tuple((name, "'x' || 'y'" if name == "other" else text) for name, text in unit.rows.select.columns)
    object.__setattr__(unit.rows.select, "columns", columns)
    shipped = blob_for(lake, settings).ship(unit)
    (line,) = gzip.decompress((out / str(shipped.key)).read_bytes()).splitlines()
    assert {name: json.loads(line)[name] for name in ("doc", "other")} == {"doc": {"a": 1}, "other": "xy"}


def test_the_manifest_has_one_line_per_object_in_order(filled: Lake, out: Path) -> None:
    settings = settings_for(out, manifest=True)
    blob = blob_for(filled, settings)
    for since, until, epoch in [(0, 11, 1), (11, 21, 1), (0, 21, 2), (11, 21, 1), (21, 31, 2)]:
        blob.ship(unit_of(filled, settings, since=since, until=until, epoch=epoch))
    lines = [json.loads(line) for line in (out / "messages/all/_manifest.jsonl").read_text().splitlines()]
    assert [(line["name"][:3], line["since"], line["until"], line["rows"]) for line in lines] == [
        ("000", 0, 11, 10), ("000", 11, 21, 10), ("e2/", 0, 21, 20), ("e2/", 21, 31, 10)
    ]  # fmt: skip
    for line in lines:
        content = (out / "messages/all" / line["name"]).read_bytes()
        assert (line["bytes"], line["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


# -- marks and owners --------------------------------------------------------------------------------------------------


def test_what_was_written_is_found_by_the_names(filled: Lake, out: Path) -> None:
    """A sink that lost its watermark resumes here; files of others are not taken for ours."""
    settings = settings_for(out)
    blob = blob_for(filled, settings)
    unit = unit_of(filled, settings, until=11)
    stream = unit.delivery.stream
    assert blob.standing(stream, "messages", ()).mark is None
    blob.ship(unit)
    blob.ship(unit_of(filled, settings, since=11, until=21))
    (out / "messages/all/notes.txt").write_text("x")
    (out / "messages/all/.tmp-0000000000000000000-0000000000000000099.parquet").write_text("x")
    assert blob.standing(stream, "messages", ()).mark == Mark(1, 21)
    blob.ship(unit_of(filled, settings, until=11, epoch=3))
    (out / "messages/all/e12").mkdir()
    assert blob.standing(stream, "messages", ()).mark == Mark(3, 11)


def test_a_prefix_belongs_to_one_sink(filled: Lake, out: Path) -> None:
    """Another sink is refused, also one of a lake made anew, and nothing of the first is touched."""
    settings = settings_for(out)
    unit = whole(filled, settings)
    blob_for(filled, settings).ship(unit)
    for other in (blob_for(filled, settings, sink_id="other"), blob_for(filled, settings, lake_id="other")):
        for attempt in (other.probe, lambda other=other: other.ship(unit)):
            with pytest.raises(Conflict) as refused:
                attempt()
            assert refused.value.detail["kind"] == "owner"
            assert "--take-over" in refused.value.hint and SINK in refused.value.message
        with pytest.raises(Conflict):
            other.standing(unit.delivery.stream, "messages", ())
    assert files_in(out) == [NAME]


def test_a_sink_of_the_same_lake_that_takes_over_goes_on_where_the_other_ended(filled: Lake, out: Path) -> None:
    settings = settings_for(out)
    unit = whole(filled, settings)
    old = blob_for(filled, settings)
    old.ship(unit)
    new = blob_for(filled, settings, sink_id="new", take_over=True)
    new.probe()
    assert new.standing(unit.delivery.stream, "messages", ()).mark == Mark(1, 31)
    with pytest.raises(Conflict):
        old.ship(unit)


def test_a_sink_of_another_lake_that_takes_over_begins_an_epoch_of_its_own(filled: Lake, out: Path) -> None:
    """The seqs in the names that are there are another lake's: resuming behind them would lose rows."""
    settings = settings_for(out)
    unit = whole(filled, settings)
    blob_for(filled, settings).ship(unit)
    new = blob_for(filled, settings, lake_id="another", take_over=True)
    new.probe()
    assert new.standing(unit.delivery.stream, "messages", ()).mark == Mark(2, 0)
    new.ship(unit_of(filled, settings, until=21, epoch=2))
    assert new.standing(unit.delivery.stream, "messages", ()).mark == Mark(2, 21)
    assert files_in(out) == [NAME, "messages/all/e2/0000000000000000000-0000000000000000021.parquet"]


def test_a_place_that_cannot_be_written_is_said_at_once(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Environment) as refused:
        blob_for(lake, settings_for(tmp_path / "file" / "below")).probe()
    assert refused.value.hint
    blob_for(lake, settings_for(tmp_path / "fine")).probe()
    assert files_in(tmp_path / "fine") == [], "a probe leaves nothing behind"


NASTY = [None, "", "..", ".", "/", "a/b", "=", "A", "a", "é", "日本", "x" * 200, "Y" * 70, "%41", " ", "e2"]


def test_every_partition_value_has_a_folder_of_its_own_inside_the_prefix(lake: Lake, out: Path) -> None:
    lake.create_table("parts", {"source": "string?", "n": "long"}, partition_by=["source"])
    lake.append("parts", [{"source": value, "n": place} for place, value in enumerate(NASTY)])
    lake.flush("parts")
    settings = settings_for(out)
    blob = blob_for(lake, settings)
    folders = {}
    for place, value in enumerate(NASTY):
        text = partition_text([value])
        unit = unit_of(lake, settings, table="parts", partition=text)
        key = str(blob.ship(unit).key)
        folder = str(Path(key).relative_to("parts").parent)
        folders[folder.lower()] = value
        assert pq.ParquetFile(out / key).read(["n"]).to_pylist() == [{"n": place}]
        assert parse_partition_path(folder, ["string"]) == text
        assert blob.standing(unit.delivery.stream, "parts", ("source",)).mark == Mark(1, unit.delivery.until)
    assert len(folders) == len(NASTY)
    assert {path.name for path in out.iterdir()} == {"parts", "_strandline.json"}


def test_a_partition_too_long_for_a_key_is_written_down_beside_its_objects(filled: Lake, out: Path) -> None:
    settings = settings_for(out)
    unit, text = whole(filled, settings), partition_text(["Y" * 3000])
    stream = replace(unit.delivery.stream, partition=text)
    unit = replace(unit, delivery=replace(unit.delivery, stream=stream), partition_by=("source",))
    blob = blob_for(filled, settings)
    key = str(blob.ship(unit).key)
    assert (out / key).parent.joinpath("_partition.json").read_text().strip() == text
    assert blob.standing(stream, "messages", ("source",)).mark == Mark(1, 31)


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "visible"),
    [
        ("blob.before_write", False),
        ("blob.before_rename", False),
        ("blob.after_write", True),
        ("blob.before_manifest", True),
        ("blob.after_manifest", True),
        ("blob.before_mark", True),
        ("blob.after_mark", True),
    ],
)
def test_a_unit_that_dies_anywhere_is_whole_or_not_there_and_is_repeated_exactly(
    filled: Lake, out: Path, point: str, visible: bool
) -> None:
    settings = settings_for(out, manifest=True)
    unit = whole(filled, settings)
    blob = blob_for(filled, settings)
    failpoints.arm(f"{point}=raise")
    with pytest.raises(failpoints.FailpointReached):
        blob.ship(unit)
    failpoints.arm(None)
    assert (out / NAME).exists() == visible
    before = (out / NAME).read_bytes() if visible else None
    filled.append("messages", messages(30, 40))
    filled.flush("messages")
    assert blob.ship(unit).rows == 30
    assert before in (None, (out / NAME).read_bytes())
    assert files_in(out) == [NAME, "messages/all/_manifest.jsonl"], "a temporary file is left"
    assert len((out / "messages/all/_manifest.jsonl").read_text().splitlines()) == 1


def test_a_writer_whose_temporary_file_was_swept_knows_that_it_lost_its_lease(
    filled: Lake, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(out)
    unit = whole(filled, settings)
    late, other = blob_for(filled, settings), blob_for(filled, settings)
    run = export.export

    def interrupted(session: Any, wanted: export.ObjectToWrite) -> export.WrittenObject:
        done = run(session, wanted)
        monkeypatch.setattr(export, "export", run)
        other.ship(unit)
        return done

    monkeypatch.setattr(export, "export", interrupted)
    with pytest.raises(LeaseLost):
        late.ship(unit)
    assert files_in(out) == [NAME]


def test_a_file_of_the_range_that_is_gone_is_an_error_and_nothing_is_written(filled: Lake, out: Path) -> None:
    settings = settings_for(out)
    unit = whole(filled, settings)
    gone = replace(unit.rows, runs=(*unit.rows.runs[:2], (f"{unit.rows.runs[2][0]}.gone",)))
    with pytest.raises(HistoryGone):
        blob_for(filled, settings).ship(replace(unit, rows=gone))
    assert not (out / NAME).exists()


WRITE = """
import os, pickle, sys
import pyarrow as pa
from strandline.engines.duck.ranges import Piece
from strandline.engines.spark import export
wanted = pickle.load(open(sys.argv[1], "rb"))
schema = wanted.rows.schema
def endless(rows):
    while True:
        random = [os.urandom(300).hex() for _ in range(2048)]
        yield Piece(pa.RecordBatch.from_arrays(
            [pa.array(random) if field.type == pa.string() else pa.nulls(2048, field.type) for field in schema],
            schema=schema), 0)
export.read_range = endless
print(export.write_object(wanted))
"""


def _start_endless(wanted: export.ObjectToWrite, tmp_path: Path, **env: str) -> Any:
    import pickle

    (tmp_path / "wanted.pickle").write_bytes(pickle.dumps(wanted))
    return python_process(WRITE, str(tmp_path / "wanted.pickle"), env=environment(**env))


def test_a_writer_killed_in_the_middle_leaves_nothing_under_the_final_name(
    filled: Lake, out: Path, tmp_path: Path
) -> None:
    """kill -9 while megabytes have been written; the next shipment removes them and writes the object."""
    settings = settings_for(out)
    unit = whole(filled, settings)
    temporary = "messages/all/.tmp-dead"
    wanted = export.ObjectToWrite(
        unit.rows, unit.schema, "parquet", "zstd", blob_for(filled, settings)._place, NAME, temporary
    )
    process = _start_endless(wanted, tmp_path)
    try:
        wait_until(lambda: (out / temporary).exists() and (out / temporary).stat().st_size > 1 << 20)
    finally:
        kill(process)
    assert files_in(out) == [temporary]
    blob_for(filled, settings).ship(unit)
    assert files_in(out) == [NAME]
    assert pq.read_table(out / NAME).num_rows == 30


def test_a_spark_worker_killed_in_the_middle_is_an_error_that_passes(
    filled: Lake, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task dies with its process; the driver is told, and the same unit works afterwards."""
    settings = settings_for(out)
    unit = whole(filled, settings)
    blob = blob_for(filled, settings)
    monkeypatch.setattr(export, "write_object", _die)
    with pytest.raises(Busy):
        blob.ship(unit)
    monkeypatch.undo()
    assert files_in(out) == []
    assert blob.ship(unit).rows == 30


def _die(wanted: export.ObjectToWrite) -> export.WrittenObject:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def test_a_preview_and_a_tick_are_the_documents_of_their_commands(filled: Lake, out: Path) -> None:
    """The next unit with its first rows, of which nothing is sent; then what a tick did, which a command prints too."""
    filled.add_sink("archive", "blob", {"uri": f"file://{out}", "unit_rows": 4, "format": "jsonl"})
    preview = filled.sinks.preview("archive")
    assert [(unit.since, unit.until, unit.rows) for unit in preview] == [(0, 5, 4)]
    assert [row["part_id"] for row in preview[0].samples] == ["p0", "p1", "p2", "p3"]
    printed = strand_json(filled, "sink", "preview", "archive")
    assert json.loads(output.json_bytes(document(preview))) == printed
    assert files_in(out) == []
    (ticked,) = ticked_streams(filled.tick("archive"))
    assert (ticked.outcome, ticked.since) == ("delivered", 0) and ticked.rows >= 30
    filled.sinks.rewind("archive", "messages", 0, yes=True)
    (again,) = strand_json(filled, "sink", "tick", "archive")
    assert list(again.items()) == list(document(ticked).items())
    filled.sinks.remove("archive")
