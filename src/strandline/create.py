"""Making a lake: a folder, a config, a ledger. Nothing else exists until it is needed."""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from strandline import config as configuration
from strandline import private
from strandline.config import Store
from strandline.config_keys import DEFAULT_LEDGER, DEFAULT_WAREHOUSE
from strandline.engines.objects import ObjectPlace, reaching
from strandline.engines.storage import S3, bucket_of, bucket_system
from strandline.engines.warehouse import LEFT_BY_INIT, canonical, owner_of, refuse_nested, refuse_other
from strandline.errors import Conflict, Environment, NotFound, StrandError, in_our_words
from strandline.lake import Lake
from strandline.ledger.ledger import Ledger
from strandline.operations.core.fence import Fence
from strandline.redaction import shown_address


@dataclass(frozen=True)
class NewLake:
    """A lake that was just made, and where it keeps what; no address with its password."""

    lake: str
    ledger: str
    warehouse: str

    @classmethod
    def of(cls, lake: Lake) -> NewLake:
        """What was made."""
        return cls(str(lake.root), lake.config.ledger_shown, shown_address(lake.config.warehouse))


def create(root: Path, *, ledger: str | None = None, warehouse: str | None = None, store: Store | None = None) -> Lake:
    """Make a lake in a folder that is new or empty; `store` says where the buckets of `s3://` addresses are.

    The config is written last: a folder without one is no lake, so an init that was killed can simply be run again.
    """
    configuration.refuse_secret_places(ledger, warehouse, store)
    try:
        return _create(root.expanduser().resolve(), ledger, warehouse, store)
    except OSError as error:
        raise _impossible(root, error) from error


def _create(root: Path, ledger: str | None, warehouse: str | None, store: Store | None) -> Lake:
    _refuse_occupied(root)
    if warehouse is not None and configuration.warehouse_uri(root, warehouse).startswith(S3):
        _reach(warehouse, configuration.store_with_environment(store or Store()))
    is_new = not root.exists()
    try:
        private.make_folder(root)
        url = configuration.ledger_url(root, ledger or DEFAULT_LEDGER)
        uri = canonical(configuration.warehouse_uri(root, warehouse or DEFAULT_WAREHOUSE))
        place = ObjectPlace(uri, configuration.store_with_environment(store or Store()))
        refuse_nested(place)
        if place.local is not None:
            private.make_folder(place.local)
        owner = owner_of(place)
        made = Ledger.create(url, uri, lambda lake_id: refuse_other(place, owner, lake_id))
        try:
            Fence(made, place).raise_()
        finally:
            made.close()
        configuration.write_default(root, ledger or DEFAULT_LEDGER, warehouse or DEFAULT_WAREHOUSE, store or Store())
    except StrandError:
        if is_new:
            with suppress(OSError):
                root.rmdir()  # what was refused leaves no empty folder
        raise
    return Lake(root)


def _impossible(root: Path, error: OSError) -> StrandError:
    """What the machine says against a lake in a folder."""
    if error.errno in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
        return in_our_words(error)
    return Environment(
        f"can't make a lake in {root}: {error.strerror or error}",
        hint="Pick a folder on a disk that you may write to, or change its owner.",
    )


def _reach(warehouse: str, store: Store) -> None:
    """Say now what is wrong with a bucket or with the credentials, and not when the first flush fails."""
    from pyarrow.fs import FileType

    place = ObjectPlace(warehouse, store)
    with reaching(place):
        system = bucket_system(bucket_of(warehouse), store)
        kind = system.get_file_info(bucket_of(warehouse)).type
    if kind == FileType.NotFound:
        raise NotFound(f"there is no bucket {bucket_of(warehouse)!r}", hint="Create it, or correct the address.")


def _refuse_occupied(root: Path) -> None:
    if (root / configuration.FILE_NAME).exists():
        raise Conflict(
            f"there is a lake in {root} already",
            kind="lake_exists",
            hint="Use it as it is, or pick another folder.",
            expected=None,
            actual=str(root),
        )
    if root.is_file() or (root.is_dir() and any(not _is_ours(entry) for entry in root.iterdir())):
        raise Conflict(
            f"{root} is not empty",
            kind="folder_not_empty",
            hint="Pick a new or an empty folder.",
            expected=None,
            actual=str(root),
        )


def _is_ours(entry: Path) -> bool:
    """What an init that was killed may have left."""
    if entry.name == DEFAULT_WAREHOUSE and entry.is_dir():
        return {inner.name for inner in entry.iterdir()} <= LEFT_BY_INIT
    return entry.name in _OURS or entry.name.startswith(f".{configuration.FILE_NAME}.")


_OURS = ("ledger.db", "ledger.db-wal", "ledger.db-shm", Path(configuration.PASSWORD_FILE).parent.name)
