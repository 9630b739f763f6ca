"""Whether a backup is what it says, and stays where it is put: asked before the first byte of it is written.

A backup may come from another hand. Its manifest could name files anywhere on the disk, its files could be links that
lead out of it, the metadata inside could name files of another lake, which the restored lake would then read and
delete, and its config could put the ledger or the warehouse over something that is not the lake's. So every address is
compared with the place it belongs to; and a place outside of the lake's folder is taken from a person alone: from an
option, the environment, or the config that is in the folder already. A warehouse whose marker names the backup's lake
is that lake's own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

import orjson

from strandline.config import FILE_NAME
from strandline.engines.disk import digest
from strandline.engines.enclosure import strays
from strandline.engines.metadata import UNREADABLE
from strandline.engines.moving import is_inside
from strandline.engines.warehouse import ObjectPlace, owner_of
from strandline.errors import BadRequest, Damaged, NotFound, StrandError
from strandline.ledger.database.dialect import Database
from strandline.ledger.place.iceberg_catalog import metadata_locations
from strandline.ledger.place.moving import named_files
from strandline.model.backups import CATALOG, CONFIG, LEDGER, MANIFEST, RESTORES, Manifest
from strandline.operations.core.context import Report, silent

OTHER_HAND = "Use another backup. If this one came from somebody else, it may be meant to do harm."
ADOPTING = "strand_adopt."
"""The namespace of tables that an adoption reads where they are; a restored catalog forgets them."""
SQLITE = "sqlite:///"


def read_manifest(folder: Path) -> Manifest:
    """What a backup says of itself."""
    path = folder / MANIFEST
    _refuse_odd_files(folder)
    try:
        manifest = Manifest.parse(orjson.loads(path.read_bytes()), str(path))
    except FileNotFoundError as error:
        raise NotFound(f"{folder} is no backup: it has no {MANIFEST}", hint="`strand backup DIR` makes one.") from error
    except orjson.JSONDecodeError as error:
        raise Damaged(f"the manifest {path} can't be read: {error}", hint="Use another backup.") from error
    for file in manifest.files:
        if file.location is not None and not is_inside(file.location, manifest.warehouse):
            raise Damaged(
                f"the manifest {path} puts a file at {file.location}, outside of the warehouse {manifest.warehouse}",
                hint=OTHER_HAND,
            )
    return manifest


def _refuse_odd_files(folder: Path) -> None:
    """Damaged when something else than a file has the name of one that is opened here: a link, a pipe, a folder.

    The manifest does not list all of them: what restores write beside it came later.
    """
    for name in (MANIFEST, LEDGER, CATALOG, CONFIG, RESTORES):
        path = folder / name
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise Damaged(f"{path} is no file of its own", hint=OTHER_HAND)


def verify(folder: Path, manifest: Manifest, report: Report = silent) -> None:
    """Every file of a backup is in there, as it was written, and leads nowhere else; Damaged names the first."""
    base = os.path.realpath(folder)
    for number, file in enumerate(manifest.files):
        report("verifying the backup", number, len(manifest.files))
        path = folder / file.name
        if os.path.realpath(path) != f"{base}/{file.name}":
            raise Damaged(f"{path} is a link that leads out of its place", hint=OTHER_HAND)
        try:
            whole = path.is_file() and path.stat().st_size == file.size_bytes and digest(path) == file.sha256
        except OSError as error:
            raise Damaged(f"{path} can't be read: {error.strerror}", hint="Use another backup.") from error
        if not whole:
            raise Damaged(f"{path} is not as the backup wrote it", hint="Use another backup.")
    _check_addresses(folder, manifest)


def _check_addresses(folder: Path, manifest: Manifest) -> None:
    """Damaged when the ledger, the catalog or a table's metadata names a file outside of the backup's warehouse."""
    brought = {file.location: folder / file.name for file in manifest.files if file.location is not None}

    def read(address: str) -> bytes | None:
        return brought[address].read_bytes() if address in brought else None

    try:
        outside = _files_outside(folder / LEDGER, manifest.warehouse)
        for name, location in metadata_locations(f"{SQLITE}{folder / CATALOG}", "strand").items():
            if not name.startswith(ADOPTING):
                before = [location.previous] if location.previous is not None else []
                outside += [address for address in before if not is_inside(address, manifest.warehouse)]
                outside += strays(location.current, manifest.warehouse, read)
    except (*UNREADABLE, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"the metadata of the backup {folder} can't be read: {error}", hint=OTHER_HAND) from error
    if outside:
        raise Damaged(
            f"the backup {folder} names a file outside of its warehouse {manifest.warehouse}: {outside[0]}",
            hint=OTHER_HAND,
        )


def _files_outside(ledger: Path, warehouse: str) -> list[str]:
    database = Database(f"{SQLITE}{ledger}", read_only=True)
    try:
        with database.read() as conn:
            return [address for address in named_files(conn) if not is_inside(address, warehouse)]
    finally:
        database.close()


def refuse_unnamed(root: Path, manifest: Manifest, ledger: str, place: ObjectPlace, named: Collection[str]) -> None:
    """BadRequest when the backup's own config puts the ledger or the warehouse outside of the lake's folder.

    `named` has "ledger" and "warehouse" where a person said so.
    """
    if "ledger" not in named and not (ledger.startswith(SQLITE) and _is_below(Path(ledger.removeprefix(SQLITE)), root)):
        shown = ledger.removeprefix(SQLITE) if ledger.startswith(SQLITE) else "a database"
        raise BadRequest(
            f"the backup's {FILE_NAME} puts the ledger outside of {root}: {shown}",
            hint="Name it, if it belongs there: --ledger URL. Or have it in the folder: --ledger sqlite:///ledger.db",
        )
    if "warehouse" in named or (place.local is not None and _is_below(place.local, root)):
        return
    try:
        is_own = owner_of(place) == manifest.lake_id
    except StrandError:
        is_own = False
    if not is_own:
        raise BadRequest(
            f"the backup's {FILE_NAME} puts the warehouse outside of {root}: {place.uri}",
            hint=f"Name it, if it belongs there: --warehouse {place.uri}. Or have it in the folder: "
            "--warehouse warehouse",
        )


def _is_below(path: Path, folder: Path) -> bool:
    return os.path.realpath(path).startswith(f"{os.path.realpath(folder)}/")
