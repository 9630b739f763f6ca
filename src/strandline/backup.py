"""Backups, taken while everything runs.

The ledger is copied before the catalog: what a ledger pins is then in the catalog's copy, whatever was committed in
between. Data files are immutable, so they are copied too or merely held: a hold keeps maintenance from removing what
the copied ledger names. Everything is written under a temporary name, the manifest last, and renamed when it is on the
disk; so a backup that was killed is no backup, and the next one to the same place removes what it left.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import orjson

from strandline import logs, private
from strandline.clean_config import PASSWORD_OF_LEDGER, without_secrets
from strandline.config import FILE_NAME, PASSWORD_FILE
from strandline.engines.disk import digest, sync
from strandline.engines.metadata import UNREADABLE, reachable, read_metadata, refs
from strandline.engines.storage import open_uri
from strandline.engines.warehouse import canonical
from strandline.errors import BadRequest, Conflict, Damaged, Environment, StrandError
from strandline.failpoints import fail
from strandline.ledger.checks import counter_at_us
from strandline.ledger.database.copying import clean_copy, copy_catalog, copy_ledger
from strandline.ledger.ledger import Ledger
from strandline.ledger.place.iceberg_catalog import metadata_locations
from strandline.ledger.place.restores import pins
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.sinks.sinks import list_sinks
from strandline.ledger.tables import holds
from strandline.ledger.tables.tables import list_tables
from strandline.model.backups import CATALOG, CONFIG, FILES, LEDGER, MANIFEST, Manifest, StoredFile
from strandline.model.ids import new_id
from strandline.operations.core.partial import OWNER, begin
from strandline.reports.open_lake import OpenLake
from strandline.sinks.keys import SECRET_FILE
from strandline.sinks.settings import in_clear

log = logs.Logger("strandline.backup")

ATTEMPTS = 4
"""How often the two copies are taken anew when an operation was published between them."""
KEEP_S = 30 * 24 * 3600.0
COPYING_S = 600.0
"""How long a hold lasts that is renewed while files are copied: if the backup is killed, no longer than this."""
CHUNK_BYTES = 4 << 20


def backup(
    lake: OpenLake, to: Path, *, with_data: bool = False, link: bool = False, keep_s: float = KEEP_S
) -> Manifest:
    """Make a backup in a new folder. `link` makes hard links of data files where the disk is the same.

    Without data, the lake keeps the files that the backup names for `keep_s`.
    """
    to = to.expanduser().resolve()
    if to.exists():
        raise Conflict(
            f"there is something at {to} already",
            kind="folder_not_empty",
            hint="A backup makes its own folder; name one that does not exist.",
            expected=None,
            actual=str(to),
        )
    if f"file://{to}".startswith(f"{canonical(lake.config.warehouse)}/"):
        raise BadRequest(f"{to} is inside the lake's own warehouse", hint="A sweep could remove it: name another.")
    backup_id = new_id()
    try:
        partial = begin(to, "partial", lake.context.owner)
    except (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        message = f"can't make a folder beside {to}: {error.strerror}"
        raise Environment(message, hint="Pick a folder you may write to.") from error
    try:
        with _held(lake, backup_id, None if with_data else keep_s) as held_until_us:
            manifest = _fill(lake, partial, backup_id, held_until_us, link=link)
        fail("backup.before_rename")
        partial.rename(to)
        (to / OWNER).unlink()  # not before: without an owner and a final name it would be no process's
        sync(to.parent)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    fail("backup.after_rename")
    return manifest


@contextmanager
def _held(lake: OpenLake, backup_id: str, keep_s: float | None) -> Iterator[int | None]:
    """Keep whatever is current from now on: for `keep_s`, or while the block copies it when that is None."""
    name = f"backup:{backup_id}"
    since_us = _hold(lake, name, None, keep_s or COPYING_S)
    fail("backup.after_hold")
    try:
        with nullcontext() if keep_s is not None else _renewing(lake, name, since_us):
            yield None if keep_s is None else since_us + int(keep_s * 1e6)
    except Exception:
        _release(lake, name)
        raise
    if keep_s is None:
        _release(lake, name)


def _hold(lake: OpenLake, name: str, since_us: int | None, keep_s: float) -> int:
    with lake.ledger.write() as txn:
        since_us = since_us or txn.at_us
        holds.hold(txn, name, since_us=since_us, keep_s=keep_s, purpose="backup")
    return since_us


def _release(lake: OpenLake, name: str) -> None:
    with lake.ledger.write() as txn:
        holds.release(txn, name)


@contextmanager
def _renewing(lake: OpenLake, name: str, since_us: int) -> Iterator[None]:
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(COPYING_S / 4):
            try:
                _hold(lake, name, since_us, COPYING_S)
            except StrandError as error:
                log.warning("hold not renewed", hold=name, error=str(error))

    thread = threading.Thread(target=renew, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _fill(lake: OpenLake, folder: Path, backup_id: str, held_until_us: int | None, *, link: bool) -> Manifest:
    with_data = held_until_us is None
    text, left_out = _config_without_secrets(lake)
    private.write_text(folder / CONFIG, text)
    copied, kept = _copy_all(lake, folder, with_data=with_data, link=link)
    files = [_stored(folder, name) for name in (LEDGER, CATALOG, CONFIG) if (folder / name).exists()] + kept
    manifest = Manifest(
        backup_id=backup_id,
        lake_id=lake.ledger.lake_id(),
        at_us=copied.at_us,
        seq=copied.seq,
        root=str(lake.root),
        warehouse=lake.config.warehouse,
        with_data=with_data,
        held_until_us=held_until_us,
        left_out=tuple(left_out),
        files=tuple(files),
    )
    fail("backup.before_manifest")
    private.write_bytes(folder / MANIFEST, orjson.dumps(manifest.document(), option=orjson.OPT_INDENT_2))
    for place, _, names in os.walk(folder):
        for name in [*names, ""]:
            sync(Path(place, name))
    return manifest


def _copy_all(lake: OpenLake, folder: Path, *, with_data: bool, link: bool) -> tuple[Copied, list[StoredFile]]:
    """The two databases and the files that they lead to.

    Held is what was current when the backup began. Tables name older snapshots too, which an expiry may remove
    meanwhile; then all is copied again from databases that name them no more.
    """
    for attempt in range(ATTEMPTS):
        lake.context.report("copying the ledger", 0, None)
        copied = _copies(lake, folder)
        try:
            return copied, _copy_files(lake, folder, copied, with_data=with_data, link=link)
        except FileNotFoundError as error:
            if attempt == ATTEMPTS - 1 or _metadata(lake.config.catalog_database) == copied.metadata:
                raise Damaged(
                    f"a file is gone, and the lake needs it: {error}", hint="`strand doctor` says what else is damaged."
                ) from error
            shutil.rmtree(folder / FILES, ignore_errors=True)
    raise AssertionError("the last attempt returns or raises")


def _copy_files(lake: OpenLake, folder: Path, copied: Copied, *, with_data: bool, link: bool) -> list[StoredFile]:
    locations = dict.fromkeys(copied.metadata.values())
    if with_data:
        locations |= dict.fromkeys(
            path for place in copied.metadata.values() for path in reachable(read_metadata(place))
        )
    kept: list[StoredFile] = []
    for number, location in enumerate(locations):
        lake.context.report("copying files", number, len(locations))
        kept.append(_keep(lake.config.warehouse, location, folder, link=link and location not in copied.metadata))
    return kept


# -- the two databases -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copied:
    """What was copied: the ledger's counter and time, and where each table's metadata was then."""

    seq: int
    at_us: int
    metadata: Mapping[str, str]


def _copies(lake: OpenLake, folder: Path) -> Copied:
    """Copy the ledger, then the catalog. A table that was published in between would seem to be changed from outside
    after a restore, so both are taken again a few times; then a restore has to move that table's ref back.
    """
    for attempt in range(ATTEMPTS):
        for name in (LEDGER, CATALOG):
            (folder / name).unlink(missing_ok=True)
        fail("backup.before_ledger")
        copy_ledger(lake.ledger.database, folder / LEDGER)
        clean_copy(folder / LEDGER, in_clear)
        fail("backup.after_ledger")
        copy_catalog(lake.config.catalog_database, folder / CATALOG)
        fail("backup.after_catalog")
        locations = _metadata(f"sqlite:///{folder / CATALOG}")
        copied = Ledger.open(f"sqlite:///{folder / LEDGER}", read_only=True)
        try:
            if attempt == ATTEMPTS - 1 or _agree(copied, locations):
                with copied.read() as conn:
                    return Copied(copied.last_seq(conn), counter_at_us(conn), locations)
        finally:
            copied.close()
    raise AssertionError("the last attempt is taken as it is")


def _metadata(catalog: str) -> dict[str, str]:
    return {name: location.current for name, location in metadata_locations(catalog, "strand").items()}


def _agree(ledger: Ledger, locations: Mapping[str, str]) -> bool:
    """Whether every table's ref is where the ledger's pin is, or an operation explains why it is not."""
    with ledger.read() as conn:
        pinned = pins(conn)
        scopes = [intent.scopes for intent in read_intents(conn) if isinstance(intent, Intent)]
        names = {table.table_id: table.iceberg_name for table in list_tables(conn)}
    unsettled = {names.get(scope.table_id) for intent_scopes in scopes for scope in intent_scopes}
    try:
        return all(
            name in unsettled or refs(read_metadata(location)).get("main") == pinned.get(name)
            for name, location in locations.items()
        )
    except UNREADABLE:
        return True  # taking the copies again would not help; doctor says what is wrong there


# -- files -------------------------------------------------------------------------------------------------------------


def _keep(warehouse: str, location: str, folder: Path, *, link: bool) -> StoredFile:
    """Copy a file of the warehouse into a backup, or link it."""
    inside = location.removeprefix("file:").lstrip("/").removeprefix(warehouse.removeprefix("file:").lstrip("/"))
    name = f"{FILES}/{inside.lstrip('/')}"
    target = folder / name
    private.make_folder(target.parent)
    system, path = open_uri(location)
    if not (link and system.type_name == "local" and _linked(path, target)):
        with system.open_input_stream(path) as source, open(target, "wb", opener=private.opener) as copy:
            shutil.copyfileobj(source, copy, CHUNK_BYTES)
    return _stored(folder, name, location)


def _linked(path: str, target: Path) -> bool:
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without links
        return False
    return True


def _stored(folder: Path, name: str, location: str | None = None) -> StoredFile:
    path = folder / name
    return StoredFile(name, path.stat().st_size, digest(path), location)


# -- the config --------------------------------------------------------------------------------------------------------


def _config_without_secrets(lake: OpenLake) -> tuple[str, list[str]]:
    """`strand.toml` without what is secret, and what was left out; secrets that sinks put away are left out too."""
    text = (lake.root / FILE_NAME).read_text(encoding="utf-8-sig")
    with lake.ledger.read() as conn:
        sinks = list_sinks(conn)
    put_away = [sink.name for sink in sinks if SECRET_FILE in sink.settings or in_clear(sink.type, sink.settings)]
    kept, dropped = without_secrets(text)
    if (lake.root / PASSWORD_FILE).exists():
        dropped.append(PASSWORD_OF_LEDGER)
    return kept, sorted({*(f"the secrets of sink {name}" for name in put_away), *dropped})
