"""Objects that several processes write at once: one claims a prefix, and no line of a manifest is lost."""

from __future__ import annotations

import fcntl
import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.config import Store
from strandline.engines import conditional, objects
from strandline.engines.objects import ObjectPlace
from strandline.engines.warehouse import Marker, read_marker
from strandline.errors import Busy
from strandline.model.delivery import object_names as names
from strandline.model.delivery.sinks import Mark
from strandline.sinks import blob as blobs
from strandline.sinks.blob_marks import BlobMark, read_mark
from tests.kit import environment, kill, python_process, wait_until
from tests.s3 import S3

ADD = """
import sys
from strandline.config import Store
from strandline.engines.objects import ObjectPlace
from strandline.sinks.blob import ManifestLine, add_to_manifest
add_to_manifest(ObjectPlace(sys.argv[1], Store()), "m.jsonl", ManifestLine("1.parquet", 1, 2, 1, 1, "0"))
"""


def line_of(number: int) -> blobs.ManifestLine:
    """A line as a unit adds it."""
    return blobs.ManifestLine(f"{number}.parquet", number, number + 1, 1, 1, "0")


def numbers_in(manifest: bytes) -> list[int]:
    return [json.loads(line)["since"] for line in manifest.splitlines()]


def test_a_late_writer_takes_no_line_out_of_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has read the manifest and is held up; another wants to add its line meanwhile: both are there, in order."""
    place = ObjectPlace(f"file://{tmp_path}", Store())
    blobs.add_to_manifest(place, "m.jsonl", line_of(1))
    other = threading.Thread(target=blobs.add_to_manifest, args=(place, "m.jsonl", line_of(3)))

    def overtake(name: str) -> None:
        if name == "blob.before_manifest" and not other.ident:
            other.start()
            other.join(0.3)  # without a lock it would be done by now, and its line lost

    monkeypatch.setattr(blobs, "fail", overtake)
    blobs.add_to_manifest(place, "m.jsonl", line_of(2))
    other.join(30)
    assert numbers_in((tmp_path / "m.jsonl").read_bytes()) == [1, 2, 3]


def test_a_writer_that_is_paused_with_the_manifest_keeps_nobody_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are told, and try again later; when it is killed, they go on."""
    monkeypatch.setattr(conditional, "LOCK_WAIT_S", 0.2)
    place = ObjectPlace(f"file://{tmp_path}", Store())
    paused = python_process(ADD, place.uri, env=environment(STRAND_FAILPOINTS="blob.before_manifest=hang"))
    try:
        wait_until(lambda: _is_locked(tmp_path / ".m.jsonl.lock"))
        with pytest.raises(Busy, match="another process"):
            blobs.add_to_manifest(place, "m.jsonl", line_of(2))
    finally:
        kill(paused)
    blobs.add_to_manifest(place, "m.jsonl", line_of(2))
    assert numbers_in((tmp_path / "m.jsonl").read_bytes()) == [2]


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_of_many_that_claim_an_empty_prefix_at_once_one_gets_it(s3: S3) -> None:
    """They all see that it is nobody's; the store lets one of them through."""
    for n in range(3):
        place = ObjectPlace(f"s3://{s3.bucket}/claim{n}", s3.store)
        together = threading.Barrier(6)

        def claim(who: int, place: ObjectPlace = place, together: threading.Barrier = together) -> bool:
            together.wait()
            return conditional.create_bytes(place, "_strandline.json", b"%d" % who)

        with ThreadPoolExecutor(6) as pool:
            got = list(pool.map(claim, range(6)))
        assert got.count(True) == 1
        assert objects.read_bytes(place, "_strandline.json") == b"%d" % got.index(True)


def test_a_late_writer_takes_no_line_out_of_a_manifest_in_a_bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the manifest and is held up while another adds a line; the store refuses what it read from."""
    place = ObjectPlace(f"s3://{s3.bucket}/some/prefix", s3.store)

    def overtake(name: str) -> None:
        if name == "blob.before_manifest":
            monkeypatch.undo()
            blobs.add_to_manifest(place, "m.jsonl", line_of(3))

    blobs.add_to_manifest(place, "m.jsonl", line_of(1))
    monkeypatch.setattr(blobs, "fail", overtake)
    blobs.add_to_manifest(place, "m.jsonl", line_of(2))
    assert numbers_in(objects.read_bytes(place, "m.jsonl") or b"") == [1, 2, 3]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: blobs.add_to_manifest(place, "m.jsonl", line_of(number)), range(4, 16)))
    assert numbers_in(objects.read_bytes(place, "m.jsonl") or b"") == list(range(1, 16))


def test_the_credentials_file_is_read_where_the_environment_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyArrow reads it too: both ways into a bucket must be let in by the same."""
    (tmp_path / "keys").write_text("[work]\naws_access_key_id = AK\naws_secret_access_key = x%y\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert conditional._shared_credentials() == {}, "the environment's keys come first"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert conditional._shared_credentials() == {"access_key_id": "AK", "secret_access_key": "x%y"}


MARKERS = [Marker("lake", "generation", 10**digits, "op") for digits in (0, 300)]
MARKS = [BlobMark("lake", "stream", Mark(1, 1), object=letters, generation="g") for letters in ("a", "b" * 300)]
OWNERS = [json.dumps({"lake": "l", "sink": "s", "epoch": 1, "name": "n" * letters}).encode() for letters in (1, 300)]


@pytest.mark.parametrize(
    ("name", "contents", "read"),
    [
        ("_strand.json", [marker.content() for marker in MARKERS], read_marker),
        (f"f/{names.MARK}", [mark.document() for mark in MARKS], lambda place: read_mark(place, "f")),
        (names.OWNER, OWNERS, blobs.read_owner),
    ],
    ids=["a warehouse's marker", "a stream's mark", "a prefix's owner"],
)
def test_what_grows_while_it_is_read_is_read_whole(
    s3: S3, name: str, contents: list[bytes], read: Callable[[ObjectPlace], object]
) -> None:
    """A few bytes become many, again and again: a reader sees one version or the other, and never a part."""
    place, stop = ObjectPlace(f"s3://{s3.bucket}/x", s3.store), threading.Event()
    objects.put_bytes(place, name, contents[0])

    def grow() -> None:
        for content in itertools.cycle(contents):
            if stop.is_set():
                return
            objects.put_bytes(place, name, content)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        assert all(read(place) is not None for _ in range(200)), "what is always there was not found"
    finally:
        stop.set()
        writer.join()
