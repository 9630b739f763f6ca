"""Blobs in a bucket: whole or not there, found again by their names, and clear words about what is wrong."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow.fs import FileSelector, FileType

from strandline import create
from strandline.engines import conditional, objects
from strandline.engines.objects import ObjectPlace
from strandline.errors import Busy, Conflict, Environment, NotFound
from strandline.lake import Lake
from strandline.model.delivery.sinks import Mark
from strandline.sinks import blob as blobs
from strandline.sinks.blob import Blob
from tests.kit import environment, kill, make_table, messages, python_process
from tests.s3 import S3, open_uploads
from tests.sinks.units import SINK, rows_of, unit_of

NAME = "messages/all/0000000000000000000-0000000000000000021.parquet"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """20 rows, seqs 2 to 21."""
    with create.create(tmp_path_factory.mktemp("filled") / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 20))
        lake.flush("messages")
        yield lake


def settings_for(s3: S3, **more: Any) -> dict[str, Any]:
    return {"uri": f"s3://{s3.bucket}/some/prefix", "format": "parquet", "compression": "zstd", "manifest": False,
            "endpoint": s3.endpoint, "region": None, **more}  # fmt: skip


def blob_for(lake: Lake, settings: dict[str, Any], **more: Any) -> Blob:
    options: dict[str, Any] = {"lake_id": lake.ledger.lake_id(), "sink_id": SINK, **more}
    return Blob(settings, spark=lambda: lake.spark, **options)


def objects_in(s3: S3) -> list[str]:
    """Every object below the prefix, marker and marks aside."""
    base = f"{s3.bucket}/some/prefix"
    found = s3.system.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    names = sorted(info.path.removeprefix(f"{base}/") for info in found if info.type == FileType.File)
    return [name for name in names if not name.endswith(("_strandline.json", "_mark.json"))]


def raw(s3: S3, path: str) -> bytes:
    """An object's bytes as they are: by its name, PyArrow would unpack them."""
    return bytes(s3.system.open_input_stream(path, compression=None).read())


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_unit_becomes_an_object_and_is_found_again(filled: Lake, s3: S3, form: str) -> None:
    settings = settings_for(s3, format=form, manifest=True)
    blob = blob_for(filled, settings)
    blob.probe()
    assert objects_in(s3) == [], "a probe leaves nothing behind"
    unit = unit_of(filled, settings, until=21)
    assert blob.standing(unit.delivery.stream, "messages", ()).mark is None
    shipped = blob.ship(unit)
    assert objects_in(s3) == [shipped.key, "messages/all/_manifest.jsonl"]
    path = f"{s3.bucket}/some/prefix/{shipped.key}"
    first = raw(s3, path)
    assert len(first) == shipped.size_bytes
    if form == "parquet":
        assert pq.read_table(io.BytesIO(first)).to_pylist() == rows_of(unit)
    else:
        lines = zstandard.ZstdDecompressor().stream_reader(first).read().splitlines()
        assert [json.loads(line)["_seq"] for line in lines] == [row["_seq"] for row in rows_of(unit)]
    blob.ship(unit)
    assert raw(s3, path) == first
    assert blob.standing(unit.delivery.stream, "messages", ()).mark == Mark(1, 21)
    manifest = s3.system.open_input_stream(f"{s3.bucket}/some/prefix/messages/all/_manifest.jsonl").read()
    assert len(manifest.splitlines()) == 1


def test_an_empty_unit_writes_no_object(filled: Lake, s3: S3) -> None:
    settings = settings_for(s3)
    assert blob_for(filled, settings).ship(unit_of(filled, settings, until=21, where="false")).withheld == 20
    assert objects_in(s3) == []


def test_odd_values_make_keys_that_are_found_again(filled: Lake, s3: S3) -> None:
    """A key is text to S3; whoever decodes a percent sign on the way looks in another folder."""
    settings = settings_for(s3)
    blob, unit = blob_for(filled, settings), unit_of(filled, settings, until=21)
    keys = set()
    for partition in ('["A b/../%41+"]', '["é"]', "[null]", '[""]', f'["{"x" * 400}"]', f'["{"Y" * 900}"]'):
        stream = replace(unit.delivery.stream, partition=partition)
        shipped = blob.ship(replace(unit, delivery=replace(unit.delivery, stream=stream), partition_by=("source",)))
        keys.add(str(shipped.key))
        assert blob.standing(stream, "messages", ("source",)).mark == Mark(1, 21)
    assert {name for name in objects_in(s3) if name.endswith(".parquet")} == keys and len(keys) == 6


def test_a_prefix_belongs_to_one_sink(filled: Lake, s3: S3) -> None:
    settings = settings_for(s3)
    unit = unit_of(filled, settings, until=21)
    blob_for(filled, settings).ship(unit)
    with pytest.raises(Conflict):
        blob_for(filled, settings, sink_id="other").probe()
    other = blob_for(filled, settings, lake_id="another", take_over=True)
    other.probe()
    assert other.standing(unit.delivery.stream, "messages", ()).mark == Mark(2, 0)


def test_two_sinks_added_at_the_same_moment_do_not_share_a_prefix(
    filled: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has seen that the prefix is nobody's; the other claims it and ships; the first is refused."""
    settings = settings_for(s3)
    late, other = blob_for(filled, settings, sink_id="late"), blob_for(filled, settings)
    unit = unit_of(filled, settings, until=21)
    create_bytes = conditional.create_bytes

    def overtaken(place: ObjectPlace, name: str, content: bytes) -> bool:
        monkeypatch.setattr(blobs, "create_bytes", create_bytes)
        other.ship(unit)
        return create_bytes(place, name, content)

    monkeypatch.setattr(blobs, "create_bytes", overtaken)
    with pytest.raises(Conflict):
        late.ship(unit)
    other.ship(unit)


def test_what_is_wrong_with_a_store_is_said(filled: Lake, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound) as missing:
        blob_for(filled, settings_for(s3, uri="s3://no-such-bucket-here/x")).probe()
    assert missing.value.hint
    with pytest.raises(Busy) as unreachable:
        blob_for(filled, settings_for(s3, endpoint="http://127.0.0.1:9")).probe()
    assert "endpoint" in unreachable.value.hint
    with pytest.raises(NotFound):
        conditional.create_bytes(ObjectPlace("s3://no-such-bucket-here/x", s3.store), "y", b"")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Environment) as refused:
        blob_for(filled, settings_for(s3)).probe()
    assert "AWS_SECRET_ACCESS_KEY" in refused.value.hint
    with pytest.raises(Environment) as refused:
        conditional.create_bytes(ObjectPlace(f"s3://{s3.bucket}/x", s3.store), "y", b"")
    assert "AWS_SECRET_ACCESS_KEY" in refused.value.hint


class _Breaking(io.BytesIO):
    """A file whose disk fails after 20 MiB."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= 20 << 20:
            raise OSError(5, "the disk failed")
        return super().read(size)


def test_an_upload_that_fails_in_the_middle_leaves_no_object(s3: S3) -> None:
    """PyArrow completes an upload whose stream is closed or collected; this one must be neither."""
    place = ObjectPlace(f"s3://{s3.bucket}/some/prefix", s3.store)
    with pytest.raises(OSError, match="the disk failed"):
        objects.upload(place, NAME, _Breaking(bytes(40 << 20)))
    gc.collect()
    assert objects_in(s3) == []
    assert open_uploads(s3) == [f"some/prefix/{NAME}"], "what docs/operations.md says a lifecycle rule is for"


UPLOAD = """
import io, sys, time
from strandline.engines import conditional, objects
from strandline.engines.objects import ObjectPlace
from strandline.config import Store

class Content(io.BytesIO):
    def read(self, size=-1):
        if self.tell() >= 20 << 20:
            if sys.argv[4] == "raise":
                raise OSError(5, "the disk failed")
            print("in the middle", flush=True)
            time.sleep(600)
        return super().read(size)

objects.upload(ObjectPlace(sys.argv[1], Store(sys.argv[2])), sys.argv[3], Content(bytes(40 << 20)))
"""


def test_a_process_that_ends_in_the_middle_of_an_upload_leaves_no_object(s3: S3) -> None:
    """By kill -9, or by an error and an orderly end, in which everything is collected."""
    place = f"s3://{s3.bucket}/some/prefix"
    killed = python_process(UPLOAD, place, s3.endpoint, NAME, "hang", env=environment())
    assert killed.stdout is not None
    try:
        assert killed.stdout.readline() == "in the middle\n"
    finally:
        kill(killed)
    failed = python_process(UPLOAD, place, s3.endpoint, NAME, "raise", env=environment())
    try:
        _, said = failed.communicate(timeout=60)
    finally:
        kill(failed)
    assert failed.returncode == 1 and "the disk failed" in said
    assert objects_in(s3) == []
