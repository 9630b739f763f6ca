"""Small objects that several processes may write at once: created by one of them, or changed from what was read.

A process that holds a lease may be paused, lose it without noticing, and write when it wakes up. Where a name says all
of an object that is harmless; an object that many units share (the owner of a prefix, a stream's manifest) has to be
compared when it is written. A bucket does that itself (`If-None-Match`, `If-Match`), which PyArrow has no words for, so
these writes go through obstore. On a disk, a link refuses a name that is taken, and a lock holds off the others.
"""

from __future__ import annotations

import configparser
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from strandline.config import Store
from strandline.engines import objects, storage
from strandline.engines.objects import ObjectPlace, reaching
from strandline.errors import Busy, NoSpace

if TYPE_CHECKING:
    from obstore.store import S3Store

ATTEMPTS = 50
LOCK_WAIT_S = 10.0
LOCK_POLL_S = 0.02
BALLAST_BYTES = 16384


def create_bytes(place: ObjectPlace, name: str, content: bytes) -> bool:
    """Write a small object unless there is one; whether it is ours now. Of any number that try, one is."""
    if place.local is None:
        return _put(place, name, content, "create")
    with reaching(place, name):
        target = place.local / name
        temporary = objects.write_beside(place, target, content)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        objects.sync_folder(target.parent)
    return True


def change_bytes(place: ObjectPlace, name: str, change: Callable[[bytes | None], bytes]) -> None:
    """Write what `change` makes of a small object (None: there is none), though others may be changing it too.

    `change` may be called several times, and must only look at what it is given.
    """
    if place.local is not None:
        with _locked(place, name) as lock:
            _replace(place, name, change, lock)
        return
    for _ in range(ATTEMPTS):
        stored = _get(place, name)
        content, mode = (None, "create") if stored is None else (stored[0], stored[1])
        changed = change(content)
        if changed == content or _put(place, name, changed, mode):
            return
    raise Busy(f"{place.shown(name)} was changed {ATTEMPTS} times while it was being written", reason="contention")


def read_version(place: ObjectPlace, name: str) -> bytes | None:
    """A small object that others may be changing, as one of them left it; None when there is none.

    In one request: a reader that asks for the size first would cut short what has grown since.
    """
    if place.local is not None:
        return objects.read_bytes(place, name)
    import obstore

    bucket, key = _split(place, name)
    with _telling(place, name):
        try:
            return bytes(obstore.get(_store(bucket, place.store), key).bytes())
        except FileNotFoundError:
            return None


def _replace(place: ObjectPlace, name: str, change: Callable[[bytes | None], bytes], lock: int) -> None:
    content = objects.read_bytes(place, name)
    changed = change(content)
    if changed == content:
        return
    try:
        objects.put_bytes(place, name, changed)
    except NoSpace:
        os.ftruncate(lock, 0)
        objects.put_bytes(place, name, changed)
    _keep_ballast(lock)


def _keep_ballast(lock: int) -> None:
    """Let the file of a lock take some room, to be given up where a full disk has none for the object.

    A process that makes room on such a disk has to write its marker first.
    """
    if os.fstat(lock).st_size < BALLAST_BYTES:
        with suppress(OSError):
            os.pwrite(lock, bytes(BALLAST_BYTES), 0)


@contextmanager
def _locked(place: ObjectPlace, name: str) -> Iterator[int]:
    """No other process changes a local object meanwhile. The lock ends with its process, however that ends."""
    assert place.local is not None
    target = place.local / name
    with reaching(place, name):
        objects.make_folder(place, target.parent)
        handle = objects.open_inside(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT)
        try:
            _wait_for(handle, place.shown(name))
            yield handle
        finally:
            os.close(handle)


def _wait_for(handle: int, shown: str) -> None:
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise Busy(
                    f"{shown}: another process has been writing it for {LOCK_WAIT_S:g} s",
                    hint="It may be paused or stuck; let it go on, or end it. The same unit is tried again.",
                    reason="locked",
                ) from None
            time.sleep(LOCK_POLL_S)


# -- buckets -----------------------------------------------------------------------------------------------------------


def _get(place: ObjectPlace, name: str) -> tuple[bytes, Any] | None:
    """An object's content and what identifies exactly this version of it."""
    import obstore

    bucket, key = _split(place, name)
    with _telling(place, name):
        try:
            stored = obstore.get(_store(bucket, place.store), key)
            return bytes(stored.bytes()), {"e_tag": stored.meta["e_tag"]}
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise
            return None


def _put(place: ObjectPlace, name: str, content: bytes, mode: Any) -> bool:
    """Whether the store took it: `mode` is `create`, or the version that must still be there."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    bucket, key = _split(place, name)
    with _telling(place, name):
        try:
            obstore.put(_store(bucket, place.store), key, content, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return False
    return True


def _split(place: ObjectPlace, name: str) -> tuple[str, str]:
    bucket, _, key = place.path(name).partition("/")
    return bucket, key


@contextmanager
def _telling(place: ObjectPlace, name: str) -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError) as error:
        raise objects.store_error(error, place, name) from error


def _store(bucket: str, store: Store) -> S3Store:
    return _store_with(bucket, store, storage.credentials_stamp())


@lru_cache(maxsize=32)
def _store_with(bucket: str, store: Store, _stamp: tuple[object, ...]) -> S3Store:
    from obstore.store import S3Store

    options: dict[str, Any] = {
        **_shared_credentials(),
        "region": storage.region_for(bucket, store),
        "virtual_hosted_style_request": not storage.is_path_style(store),
    }
    if (endpoint := storage.endpoint_of(store)) is not None:
        options["endpoint"] = endpoint
    return S3Store(
        bucket,
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=storage.REQUEST_TIMEOUT_S)},
        client_options={
            "connect_timeout": f"{storage.CONNECT_TIMEOUT_S}s",
            "timeout": f"{storage.REQUEST_TIMEOUT_S}s",
            "allow_http": True,
        },
        **options,
    )


def _shared_credentials() -> dict[str, str]:
    """The keys of AWS's credentials file, which obstore does not read; it knows the environment, roles and tokens."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    sections = configparser.ConfigParser(interpolation=None)
    sections.read(storage.credential_files()[0])
    profile = os.environ.get("AWS_PROFILE", "default")
    keys = ("access_key_id", "secret_access_key", "session_token")
    return {key: sections[profile][f"aws_{key}"] for key in keys if sections.has_option(profile, f"aws_{key}")}
