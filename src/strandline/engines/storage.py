"""Files on a local disk or in an object store, behind one kind of address.

PyArrow reaches both, here and on Spark's workers; the JVM has file systems of its own, which are told the same. Where a
bucket answers is known by its name for the whole process, as a host's address is: an address of a file then says all
there is to say, wherever it turns up.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.config import Store
from strandline.errors import BadRequest

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem, S3FileSystem

S3 = "s3://"
CONNECT_TIMEOUT_S = 10
REQUEST_TIMEOUT_S = 60
DEFAULT_REGION = "us-east-1"

_stores: dict[str, Store] = {}


def know(uri: str, store: Store) -> None:
    """From here on, files of this address's bucket are looked for in this store; an address on a disk needs none."""
    if not uri.startswith(S3):
        return
    bucket = bucket_of(uri)
    if _stores.setdefault(bucket, store) != store:
        raise BadRequest(
            f"the bucket {bucket!r} is at {endpoint_of(_stores[bucket])} for this process, and can't be at "
            f"{endpoint_of(store)} too",
            hint="Open the other lake in a process of its own.",
        )


def store_of(uri: str) -> Store:
    """The store of an address's bucket; for one that no setting names, what the environment says."""
    return _stores.get(bucket_of(uri), Store())


def any_store() -> bool:
    """Whether this process has to do with a store at all."""
    return bool(_stores)


def open_uri(uri: str) -> tuple[FileSystem, str]:
    """The file system and path behind a URI or an absolute path."""
    from pyarrow.fs import FileSystem, LocalFileSystem

    if uri.startswith("file:"):
        # Not decoded: Hadoop and Iceberg write such addresses as they are, percent signs included.
        return LocalFileSystem(), uri.removeprefix("file://").removeprefix("file:")
    if uri.startswith(S3):
        return bucket_system(bucket_of(uri), store_of(uri)), uri.removeprefix(S3)
    system, path = FileSystem.from_uri(uri)
    return system, path


def entries(uri: str) -> dict[str, FileInfo]:
    """Every file and folder below an address, by the path of a file on a disk or the address of an object.

    A bucket gives a thousand of them at a time, with their sizes and times: much cheaper than to ask for each.
    """
    from pyarrow.fs import FileSelector

    system, path = open_uri(uri)
    scheme = S3 if uri.startswith(S3) else ""
    infos = system.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return {f"{scheme}{info.path}": info for info in infos}


def remove_folder(system: FileSystem, path: str) -> None:
    """Remove a folder and all that is in it; it may be gone already.

    Where a server keeps versions on a file system of its own, the folder is not empty then, though no object is left.
    """
    try:
        system.delete_dir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        if "ErrDirectoryNotEmpty" not in str(error):
            raise


def bucket_of(uri: str) -> str:
    """The bucket of an address in an object store."""
    return uri.removeprefix(S3).partition("/")[0]


def bucket_system(bucket: str, store: Store) -> S3FileSystem:
    """What lists, reads and writes a bucket."""
    return _bucket_system(bucket, store, credentials_stamp())


def credentials_stamp() -> tuple[object, ...]:
    """What tells the keys of this process from earlier ones: a client that was made with those is not used again.

    Roles and tokens are renewed by the libraries themselves. Keys in the environment and in AWS's files are read by
    some of them once, when a client is made.
    """
    return *(os.environ.get(name) for name in _KEYS), *(_changed_ns(path) for path in credential_files())


_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


def credential_files() -> tuple[Path, Path]:
    """AWS's files of keys and of profiles."""
    named = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
    keys, profiles = (Path(os.environ.get(name, default)).expanduser() for name, default in named)
    return keys, profiles


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=32)
def _bucket_system(bucket: str, store: Store, _stamp: tuple[object, ...]) -> S3FileSystem:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(
        region=region_for(bucket, store),
        endpoint_override=endpoint_of(store),
        connect_timeout=CONNECT_TIMEOUT_S,
        request_timeout=REQUEST_TIMEOUT_S,
        force_virtual_addressing=not is_path_style(store),
    )


def endpoint_of(store: Store) -> str | None:
    """Where the store answers; None: where AWS does."""
    return store.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None


def region_of(store: Store) -> str | None:
    """The region, if one is set; a store that is not AWS takes any."""
    named = store.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return named or (DEFAULT_REGION if endpoint_of(store) else None)


def region_for(bucket: str, store: Store) -> str:
    """The region of a bucket; where none is set, AWS is asked."""
    from pyarrow.fs import resolve_s3_region

    return region_of(store) or str(resolve_s3_region(bucket))


def is_path_style(store: Store) -> bool:
    """Whether a bucket's name goes into the path of a request, and not into the host's name."""
    return store.path_style if store.path_style is not None else endpoint_of(store) is not None


def hadoop_settings(store: Store) -> dict[str, str]:
    """What Hadoop must be told to read and write files at `s3://`; credentials come from its usual chain."""
    settings = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.path.style.access": str(is_path_style(store)).lower(),
        "fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    }
    named = {"fs.s3a.endpoint": endpoint_of(store), "fs.s3a.endpoint.region": region_of(store)}
    return settings | {key: value for key, value in named.items() if value}


def iceberg_settings(store: Store) -> dict[str, str]:
    """What an Iceberg catalog must be told whose warehouse is in the store."""
    settings = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.path-style-access": str(is_path_style(store)).lower(),
    }
    named = {"s3.endpoint": endpoint_of(store), "client.region": region_of(store)}
    return settings | {key: value for key, value in named.items() if value}
