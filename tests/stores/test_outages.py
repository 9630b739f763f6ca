"""Outages of a real S3 server, met by each way that this process has to a store, without Spark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.config import Store
from strandline.engines import conditional, objects, storage
from strandline.engines.duck.buckets import Buckets
from strandline.engines.objects import ObjectPlace
from strandline.errors import Busy, Environment, StrandError, may_pass
from strandline.views.result import typed
from tests import outage, s3
from tests.kit import free_port
from tests.outage import StoreProxy, store_before

REFUSALS = (outage.EXPIRED, outage.DENIED, outage.UNKNOWN_KEY)


def ways_to(place: ObjectPlace) -> dict[str, Callable[[], object]]:
    """What this process does with a store, by what it does it with."""

    def by_duckdb() -> object:
        with duckdb.connect() as connection, typed():
            connection.register_filesystem(Buckets())
            return connection.sql(f"SELECT a FROM read_parquet('{place.shown('a.parquet')}')").fetchall()

    return {
        "pyarrow reads": lambda: objects.read_bytes(place, "a.parquet"),
        "pyarrow writes": lambda: objects.put_bytes(place, "b", b"x"),
        "pyarrow lists": lambda: objects.listing(place, ""),
        "obstore": lambda: conditional.change_bytes(place, "c", lambda _: b"x"),
        "duckdb": by_duckdb,
    }


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "REQUEST_TIMEOUT_S", 1)


def test_f103_every_outage_is_one_kind_by_every_way_to_a_store(s3_endpoint: str, impatient: None) -> None:
    """500, 503, SlowDown, refusals, silence, a cut and nobody there; and all is well when it is over."""

    def met(illness: outage.Illness) -> list[str]:
        with store_before(s3_endpoint) as proxy:
            return _wrong(illness, proxy, new_place(s3_endpoint, proxy))

    with ThreadPoolExecutor(len(outage.EVERY)) as pool:
        assert [text for wrong in pool.map(met, outage.EVERY) for text in wrong] == []


def new_place(endpoint: str, proxy: StoreProxy) -> ObjectPlace:
    """A bucket of the server that is reached through the proxy, with a file in it."""
    bucket = s3.new_bucket(endpoint)
    place = ObjectPlace(f"s3://{bucket.bucket}/x", Store(proxy.endpoint))
    storage.know(place.uri, place.store)
    pq.write_table(pa.table({"a": [1]}), f"{bucket.bucket}/x/a.parquet", filesystem=bucket.system)
    return place


def _wrong(illness: outage.Illness, proxy: StoreProxy, place: ObjectPlace) -> list[str]:
    ways = ways_to(place)
    proxy.fall_ill(illness)
    with ThreadPoolExecutor(len(ways)) as pool:
        errors = dict(zip(ways, pool.map(_error_of, ways.values()), strict=True))
    proxy.recover()
    after = {way: _error_of(call) for way, call in ways.items()}
    wrong = [f"{illness.name}, {way}: {error!r}" for way, error in errors.items() if not _fits(illness, error, place)]
    return [*wrong, *(f"after {illness.name}, {way}: {error!r}" for way, error in after.items() if error is not None)]


def _error_of(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def _fits(illness: outage.Illness, error: Exception | None, place: ObjectPlace) -> bool:
    """Whether it is one of ours, tried again, and names the store."""
    if not isinstance(error, StrandError) or not may_pass(error) or place.uri not in error.message:
        return False
    is_refused = isinstance(error, Environment)
    return isinstance(error, Busy) or (is_refused and illness in REFUSALS)


def test_f105_keys_that_roll_over_are_taken_by_clients_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has new keys, the file of keys follows a moment later, and nobody starts anew."""
    keys, port = tmp_path / "credentials", free_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    folder = tmp_path / "buckets"
    folder.mkdir()

    def write_keys(secret: str) -> None:
        keys.write_text(f"[default]\naws_access_key_id = rolling\naws_secret_access_key = {secret}\n")

    write_keys("first")
    with s3.serving(folder, port=port, keys=("rolling", "first")) as endpoint:
        place = ObjectPlace("s3://rolled/x", Store(endpoint))
        s3.S3(endpoint, "rolled").system.create_dir("rolled")
        objects.put_bytes(place, "a", b"1")
        conditional.change_bytes(place, "b", lambda _: b"1")
    with s3.serving(folder, port=port, keys=("rolling", "second")):
        calls = (lambda: objects.read_bytes(place, "a"), lambda: conditional.change_bytes(place, "b", lambda _: b""))
        for refused in map(_error_of, calls):
            assert isinstance(refused, Environment) and may_pass(refused)
        write_keys("second")
        assert objects.read_bytes(place, "a") == b"1"
        conditional.change_bytes(place, "b", lambda content: content + b"2" if content else b"?")
        assert objects.read_bytes(place, "b") == b"12"


@pytest.fixture
def versioned() -> Iterator[s3.S3]:
    """A bucket that keeps what is overwritten and deleted."""
    # On disk: a folder in memory may lack the extended attributes that the server keeps versions with.
    folder = Path("/var/tmp") / f"strand-versions-{time.time_ns()}"
    (folder / "buckets").mkdir(parents=True)
    (folder / "versions").mkdir()
    try:
        with s3.serving(folder / "buckets", versions=folder / "versions") as endpoint:
            made = s3.new_bucket(endpoint)
            s3.keep_versions(made)
            yield made
    finally:
        shutil.rmtree(folder)


def test_a_bucket_that_keeps_versions_is_the_same_to_a_lake(versioned: s3.S3) -> None:
    """A deleted object is gone: it is neither listed nor read. Conditional writes compare with the newest version."""
    place = ObjectPlace(f"s3://{versioned.bucket}/x", versioned.store)
    assert conditional.create_bytes(place, "marker", b"1")
    assert not conditional.create_bytes(place, "marker", b"2")
    conditional.change_bytes(place, "marker", lambda content: (content or b"") + b"!")
    assert objects.read_bytes(place, "marker") == b"1!"
    objects.put_bytes(place, "folder/a", b"x")
    objects.remove(place, "marker")
    objects.remove_folder(place, "folder")
    assert objects.read_bytes(place, "marker") is None
    assert not [entry for entry in objects.listing(place, "", recursive=True) if not entry.is_folder]
    assert len(s3.kept_versions(versioned)) >= 3, "the bucket keeps no versions, and this says nothing"
