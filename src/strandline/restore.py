"""Restoring a backup, so that nothing is delivered twice and no old number is given again.

The lost ledger went on after the backup: it gave out seqs, and its destinations have rows under them. So the counter
jumps above all of that, the jump is written down beside the backup before any writer can append, and every destination
is asked where it is; one that can't be asked now is asked by its next tick, and gets nothing until then. Restoring the
same backup twice jumps twice.

The new ledger is prepared in a folder of its own. A lake that is in the way is closed for good and put aside, never
deleted: a process that still has it open is refused at its next write. That holds for the ledger that its config names,
also when the restored one goes elsewhere. The config is put in its place last, so a restore that was killed leaves no
lake, and is simply run again.

Iceberg's metadata names files by their full address. Where the warehouse is not where it was, the metadata is written
again for its new place, and the data files are copied there; nothing in the old place is touched.

The warehouse's marker gets the restored ledger's generation when the old lake is closed, and before there is a new one:
from then on every other copy of this lake is refused.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import orjson

from strandline import config as configuration
from strandline import private
from strandline.config import FILE_NAME, PASSWORD_FILE, LakeConfig
from strandline.config_keys import DEFAULT_LEDGER, DEFAULT_WAREHOUSE
from strandline.engines.disk import sync
from strandline.engines.metadata import UNREADABLE, read_metadata, refs, size_of
from strandline.engines.moving import Move, OldFiles, at, is_inside, write_from
from strandline.engines.storage import know
from strandline.engines.warehouse import (
    Marker,
    ObjectPlace,
    canonical,
    is_same_place,
    owner_of,
    read_marker,
    refuse_nested,
    refuse_other,
    swap_marker,
)
from strandline.errors import Conflict, Damaged, NotFound, StrandError
from strandline.failpoints import fail
from strandline.lake import Lake
from strandline.ledger.database import copying
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.place import restores
from strandline.ledger.place.iceberg_catalog import forget, metadata_locations
from strandline.ledger.place.moving import be_another_lake, be_at_home
from strandline.ledger.place.places import Home, read_home
from strandline.ledger.place.restores import Restored
from strandline.ledger.sinks.sinks import list_sinks
from strandline.model.backups import CATALOG, CONFIG, LEDGER, RESTORES, Manifest, StoredFile
from strandline.model.times import text_of
from strandline.operations.change.moving import copy_tables
from strandline.operations.core.context import Report, silent
from strandline.sinks.destination import let_go
from strandline.sinks.instances import destination
from strandline.sinks.marks import StreamAnswer, ask
from strandline.trust import ADOPTING, read_manifest, refuse_unnamed, verify

T = TypeVar("T")

STAGING = ".restoring"
REPLACE = "Stop everything that uses it, then add --replace: it is put aside, and nothing of it is deleted."
STAGED_CONFIG = ".restoring.toml"
ASIDE = "replaced-"
ICEBERG = "strand"
SQLITE = "sqlite:///"
_BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps in files of their own."""


@dataclass(frozen=True)
class Restoration:
    """What a restore did: where the counter was and is, what was put aside, and what the destinations said."""

    manifest: Manifest
    restored: Restored
    aside: Path | None
    answers: tuple[StreamAnswer, ...]


def restore(
    folder: Path,
    to: Path,
    *,
    replace: bool = False,
    ledger: str | None = None,
    warehouse: str | None = None,
    report: Report = silent,
) -> Restoration:
    """Put a backup in the place of a lost lake, or elsewhere.

    `ledger` and `warehouse` are others than the config's; a path starts at the lake's folder.
    """
    configuration.refuse_secret_places(ledger, warehouse)
    folder, root = folder.expanduser().resolve(), to.expanduser().resolve()
    manifest = read_manifest(folder)
    verify(folder, manifest, report)
    _refuse_occupied(root, replace=replace)
    made = not root.exists()
    try:
        text, is_own = _config_text(folder, root)
        config = _stage(folder, manifest, root, text, ledger, warehouse)
        named = _named(text if is_own else "", ledger, warehouse)
        refuse_unnamed(root, manifest, _placed(config.ledger, root), _warehouse_of(root, config), named)
        restored = _prepare(folder, manifest, root, config, report)
    except Exception:
        _tidy(root, made)
        raise
    aside = _put_aside(root, config, restored)
    _take_over(root, config, restored.restore_id, manifest.backup_id)
    _put_in_place(root, config)
    fail("restore.after_config")
    answers = _ask(root, report)
    _record_again(folder, manifest, root)
    return Restoration(manifest, restored, aside, answers)


def make_clone(
    folder: Path, to: Path, *, ledger: str | None = None, warehouse: str | None = None, report: Report = silent
) -> Manifest:
    """Make a lake of its own out of a backup: another id, no file in common, sinks that wait for a person."""
    configuration.refuse_secret_places(ledger, warehouse)
    folder, root = folder.expanduser().resolve(), to.expanduser().resolve()
    manifest = read_manifest(folder)
    verify(folder, manifest, report)
    _refuse_occupied(root, replace=False, way_out="Name a new or an empty folder.")
    made = not root.exists()
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8") or "[lake]\n"
        url, uri = ledger or DEFAULT_LEDGER, warehouse or DEFAULT_WAREHOUSE
        config = _stage(folder, manifest, root, text, url, uri)
        place = _warehouse_of(root, config)
        _refuse_shared(root, config, manifest, place)
        report("copying files", 0, None)
        _copy_elsewhere(folder, manifest, config, place, report)
        fail("clone.after_files")
        _change(config.root, lambda txn: be_another_lake(txn, f"it came with a clone of lake {manifest.lake_id}"))
        _forget_tables(config.root)
        _leave_out_sinks(config.root)
    except Exception:
        _tidy(root, made)
        raise
    _take_over(root, config, _clone_op(root))
    _put_in_place(root, config)
    fail("clone.after_config")
    return manifest


def _leave_out_sinks(staging: Path) -> None:
    """A section that has not become a sink yet would become one that sends from the clone: nothing pauses it."""
    file = staging / FILE_NAME
    names = _change(staging, lambda txn: {sink.name for sink in list_sinks(txn.conn)})
    private.write_text(file, configuration.without_sinks(file.read_text(encoding="utf-8"), names))


def _tidy(root: Path, made: bool) -> None:
    if made:
        shutil.rmtree(root)
    elif (root / FILE_NAME).exists():  # else the config is in there alone: a restore was killed before this one
        shutil.rmtree(root / STAGING)


def _prepare(folder: Path, manifest: Manifest, root: Path, config: LakeConfig, report: Report) -> Restored:
    """All that can be done while the old lake is still in its place."""
    staging = config.root
    place = _warehouse_of(root, config)
    refuse_other(place, owner_of(place), manifest.lake_id)
    know(manifest.warehouse, config.store)
    know(place.uri, config.store)
    is_elsewhere = not is_same_place(manifest.warehouse, place.uri)
    if is_elsewhere:
        refuse_nested(place)
    if not config.ledger.startswith(SQLITE):
        copying.refuse_used(config.ledger)
    olds = [_old_seq(url, root, manifest) for url in _in_the_way(root, config)]
    above = max([manifest.seq, *_jumps(folder), *(seq for seq in olds if seq is not None)])
    fail("restore.before_record")
    _record(folder, manifest, above + restores.JUMP, root)
    fail("restore.after_record")
    restored = _change(staging, lambda txn: restores.rebase(txn, manifest.backup_id, above))
    fail("restore.after_raise")
    if is_elsewhere:
        _copy_elsewhere(folder, manifest, config, place, report)
    else:
        _put_files(folder, manifest, report)
    _forget_tables(staging)
    fail("restore.after_files")
    return restored


# -- the backup --------------------------------------------------------------------------------------------------------


def _jumps(folder: Path) -> list[int]:
    """How far earlier restores of this backup have jumped."""
    path = folder / RESTORES
    if not path.exists():
        return []
    try:
        return [int(orjson.loads(line)["seq"]) for line in path.read_bytes().splitlines() if line]
    except (orjson.JSONDecodeError, KeyError, ValueError, TypeError) as error:
        raise Damaged(
            f"{path} can't be read: {error}",
            hint="It says how far earlier restores jumped. Remove its last line if that is cut.",
        ) from error


def _record(folder: Path, manifest: Manifest, seq: int, root: Path) -> None:
    """Write down beside the backup how far a restore jumps, before any writer can append there."""
    line = {"backup": manifest.backup_id, "at": text_of(time.time_ns() // 1000), "seq": seq, "lake": str(root)}
    try:
        with open(folder / RESTORES, "ab", opener=private.opener) as file:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Conflict(
            f"can't write {folder / RESTORES}: {error.strerror}",
            kind="read_only",
            hint="A restore is recorded beside its backup, so that the next one jumps further. Copy the backup to a "
            "place that can be written.",
            expected="a folder that can be written",
            actual=str(folder),
        ) from error
    sync(folder)


def _record_again(folder: Path, manifest: Manifest, root: Path) -> None:
    """A destination may have been further than the backup knew, and the counter with it."""
    with Lake(root, read_only=True) as lake, lake.ledger.read() as conn:
        seq = lake.ledger.last_seq(conn)
    if seq > max(_jumps(folder)):
        _record(folder, manifest, seq, root)


# -- the place ---------------------------------------------------------------------------------------------------------


def _refuse_occupied(root: Path, *, replace: bool, way_out: str = REPLACE) -> None:
    if (root / STAGING).is_dir() or (root / STAGED_CONFIG).exists():
        return  # a restore was killed here
    if (root / FILE_NAME).exists():
        if not replace:
            raise Conflict(
                f"there is a lake in {root} already",
                kind="lake_exists",
                hint=way_out,
                expected=None,
                actual=str(root),
            )
        return
    ours = {"warehouse", "secrets"}
    if root.exists() and (not root.is_dir() or any(entry.name not in ours for entry in root.iterdir())):
        raise Conflict(
            f"{root} holds something that is no lake",
            kind="folder_not_empty",
            hint="Name a new or an empty folder, or the lake's own.",
            expected=None,
            actual=str(root),
        )


def _config_text(folder: Path, root: Path) -> tuple[str, bool]:
    """The config that is there, or that a killed restore has put aside, or the backup's; and whether it was there."""
    own = root / FILE_NAME
    places = (own, root / STAGING / FILE_NAME, root / STAGED_CONFIG, folder / CONFIG)
    source = next((path for path in places if path.exists()), None)
    text = source.read_text(encoding="utf-8") if source is not None else ""
    if not text.strip():
        raise NotFound(
            f"the backup has no {FILE_NAME}", hint=f"Write one to {own}; the backup says what was left out of it."
        )
    return text, source == own


def _named(own: str, ledger: str | None, warehouse: str | None) -> set[str]:
    """Which of the lake's two places a person named: by an option, a variable, or the config that is there."""
    section = tomllib.loads(own).get("lake", {})
    options = {"ledger": ledger, "warehouse": warehouse}
    return {key for key in options if options[key] or os.environ.get(f"STRAND_LAKE_{key.upper()}") or key in section}


def _stage(
    folder: Path, manifest: Manifest, root: Path, text: str, ledger: str | None, warehouse: str | None
) -> LakeConfig:
    """Copy the databases, the config and the ledger's password to where they are prepared."""
    staging, partial = root / STAGING, root / STAGED_CONFIG
    private.make_folder(root)
    private.write_text(partial, text)
    shutil.rmtree(staging, ignore_errors=True)
    private.make_folder(staging)
    partial.rename(staging / FILE_NAME)
    if ledger is not None:
        text = _with_setting(text, "ledger", configuration.put_password_away(staging, ledger))
    if warehouse is not None:
        text = _with_setting(text, "warehouse", warehouse)
    private.write_text(staging / FILE_NAME, text)
    if not (staging / PASSWORD_FILE).exists() and (root / PASSWORD_FILE).exists():
        private.make_folder((staging / PASSWORD_FILE).parent)
        private.write_bytes(staging / PASSWORD_FILE, (root / PASSWORD_FILE).read_bytes())
    for name in (LEDGER, CATALOG):
        if name == LEDGER or manifest.has_catalog:
            private.create_file(staging / name)
            shutil.copyfile(folder / name, staging / name)
            sync(staging / name)
    config = configuration.load(staging)
    _bring_up_to_date(staging)
    return config


def _bring_up_to_date(staging: Path) -> None:
    """A backup of an older format is migrated here."""
    Ledger.open(f"sqlite:///{staging / LEDGER}").close()


def _with_setting(text: str, key: str, value: str) -> str:
    """A config with another ledger or warehouse; sinks have keys of these names too, in sections of their own."""
    line = f"{key} = {orjson.dumps(value).decode()}"
    head, section, rest = text.partition("[lake]")
    if not section:
        return f"[lake]\n{line}\n\n{text}"
    inside, separator, others = re.split(r"(^\[|\Z)", rest, maxsplit=1, flags=re.MULTILINE)
    kept = re.sub(rf"^\s*{key}\s*=.*\n?", "", inside, flags=re.MULTILINE)
    return f"{head}[lake]\n{line}\n{kept.lstrip()}{separator}{others}"


def _placed(uri: str, root: Path) -> str:
    """An address of the staged config as it will be in its place."""
    return uri.replace(str(root / STAGING), str(root))


def _warehouse_of(root: Path, config: LakeConfig) -> ObjectPlace:
    """The warehouse of the lake that is being made."""
    return ObjectPlace(canonical(_placed(config.warehouse, root)), config.store)


def _clone_op(root: Path) -> str:
    """What the marker says of a clone, so that the next one to the same place knows what a killed one has left."""
    return f"clone:{root}"


def _refuse_shared(root: Path, config: LakeConfig, manifest: Manifest, place: ObjectPlace) -> None:
    """A clone has a ledger and a warehouse of its own."""
    marker = read_marker(place)
    if marker is not None and marker.op != _clone_op(root):
        refuse_other(place, marker.lake, None)
    refuse_nested(place)
    know(manifest.warehouse, config.store)
    know(place.uri, config.store)
    url = _placed(config.ledger, root)
    if not url.startswith(SQLITE):
        copying.refuse_used(url)
    elif Path(url.removeprefix(SQLITE)).exists() and root not in Path(url.removeprefix(SQLITE)).parents:
        raise Conflict(
            f"there is a file at {url.removeprefix(SQLITE)} already",
            kind="lake_exists",
            hint="Name another ledger; nothing was changed.",
            expected=None,
            actual=url,
        )


def _in_the_way(root: Path, config: LakeConfig) -> dict[str, Path | None]:
    """The ledgers that a restore replaces, each with its catalog's file: the one in use, and the one named."""
    catalog = config.catalog_path
    catalogs = {_placed(config.ledger, root): None if catalog is None else Path(_placed(str(catalog), root))}
    if (root / FILE_NAME).exists():
        old = configuration.load(root)
        catalogs[old.ledger] = old.catalog_path
    return catalogs


def _old_seq(url: str, root: Path, manifest: Manifest) -> int | None:
    """The counter of a ledger that is in the way; None when there is none, or none that can be read."""
    try:
        old = Ledger.open(url, read_only=True, older=True)
    except StrandError:
        return None  # it is what was lost
    try:
        with old.read() as conn:
            lake_id, seq = old.lake_id(), old.last_seq(conn)
    finally:
        old.close()
    if lake_id != manifest.lake_id:
        raise Conflict(
            f"the lake in {root} is another one than the backup's",
            kind="other_lake",
            hint="Restore to a folder of its own.",
            expected=manifest.lake_id,
            actual=lake_id,
        )
    return seq


# -- the ledger --------------------------------------------------------------------------------------------------------


def _change(staging: Path, work: Callable[[Txn], T]) -> T:
    """Change the copied ledger, so that it can go on."""
    ledger = Ledger.open(f"sqlite:///{staging / LEDGER}")
    try:
        with ledger.write() as txn:
            return work(txn)
    finally:
        ledger.close()


def _copy_elsewhere(folder: Path, manifest: Manifest, config: LakeConfig, place: ObjectPlace, report: Report) -> None:
    """Copy the files to another warehouse, and let the copied ledger and catalog name them there."""
    stored = {file.location: folder / file.name for file in manifest.files if file.location is not None}
    old_place = at(lambda address: address)
    has_old_place = not manifest.with_data and _is_of(manifest, config)

    def opened(address: str) -> IO[bytes]:
        if address in stored:
            return stored[address].open("rb")
        if not has_old_place or not is_inside(address, manifest.warehouse):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
        return old_place.open(address)

    move = Move(manifest.warehouse, place.uri)
    moved = copy_tables(f"{SQLITE}{config.root / CATALOG}", move, OldFiles(opened), report)
    _change(config.root, moved.write)


def _is_of(manifest: Manifest, config: LakeConfig) -> bool:
    """Whether the old warehouse is there, and the backup's: what was not copied is still in it, by a hold."""
    try:
        return owner_of(ObjectPlace(manifest.warehouse, config.store)) == manifest.lake_id
    except StrandError:
        return False


def _take_over(root: Path, config: LakeConfig, op: str, backup_id: str | None = None) -> None:
    """Make the copied ledger at home, and put its generation into the marker: other copies are refused from here on."""
    place = _warehouse_of(root, config)
    url = _placed(config.ledger, root)
    path = os.path.realpath(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else ""

    def settle_in(txn: Txn) -> Home:
        home, marker = read_home(txn.conn), read_marker(place)
        fence = max(home.fence, 0 if marker is None else marker.fence) + 1
        is_there = is_same_place(home.warehouse, place.uri)  # then its files are named by the address it has
        warehouse = home.warehouse if is_there else place.uri
        be_at_home(txn, place=path, warehouse=warehouse, fence=fence, backup_id=backup_id)
        return read_home(txn.conn)

    def taken(marker: Marker | None) -> Marker:
        if marker is not None and marker.op != op:
            refuse_other(place, marker.lake, home.lake_id)
        return Marker(home.lake_id, home.generation, home.fence, op)

    home = _change(config.root, settle_in)
    fail("restore.before_marker")
    swap_marker(place, taken)
    fail("restore.after_marker")


def _forget_tables(staging: Path) -> None:
    """Take tables out of the catalog that got their first rows after the ledger was copied: they begin anew."""
    if not (staging / CATALOG).exists():
        return
    url = f"sqlite:///{staging / CATALOG}"
    ledger = Ledger.open(f"sqlite:///{staging / LEDGER}", read_only=True)
    try:
        with ledger.read() as conn:
            pinned = restores.pinned(conn)
    finally:
        ledger.close()
    for name, location in metadata_locations(url, ICEBERG).items():
        if name.startswith(ADOPTING) or (name not in pinned and _has_rows(location.current)):
            forget(url, ICEBERG, name)


def _has_rows(location: str) -> bool:
    try:
        return "main" in refs(read_metadata(location))
    except UNREADABLE:
        return True


def _put_files(folder: Path, manifest: Manifest, report: Report) -> None:
    """Put back the files of the warehouse that are not there any more, or have another size."""
    files = [file for file in manifest.files if file.location is not None]
    for number, file in enumerate(files):
        report("putting files back", number, len(files))
        assert file.location is not None
        try:
            is_whole = size_of(file.location) == file.size_bytes
        except FileNotFoundError:
            is_whole = False
        if not is_whole:
            _put_file(folder, file, file.location)


def _put_file(folder: Path, file: StoredFile, location: str) -> None:
    """Put one file where it belongs, whole or not at all."""
    with (folder / file.name).open("rb") as source:
        write_from(location, source)


# -- the change --------------------------------------------------------------------------------------------------------


def _put_aside(root: Path, config: LakeConfig, restored: Restored) -> Path | None:
    """Close the lake that is in the way for good, and move it out of the way."""
    files = [root / FILE_NAME]
    for url, catalog in _in_the_way(root, config).items():
        _retire(url)
        if catalog is not None:
            databases = (Path(url.removeprefix(SQLITE)), catalog)
            files += [path.with_name(path.name + end) for path in databases for end in _BESIDE]
    fail("restore.after_retire")
    in_the_way = [path for path in files if path.exists()]
    if not in_the_way:
        return None
    aside = root / f"{ASIDE}{restored.restore_id}"
    private.make_folder(aside)
    for path in in_the_way:
        path.rename(aside / path.name)
    sync(aside)
    sync(root)
    fail("restore.after_aside")
    return aside


def _retire(url: str) -> None:
    try:
        old = Ledger.open(url)
    except StrandError:
        return  # there is none, or none that can be opened
    try:
        restores.retire(old)
    finally:
        old.close()


def _put_in_place(root: Path, config: LakeConfig) -> None:
    staging = config.root
    url, catalog = _placed(config.ledger, root), _placed(config.catalog_database, root)
    for name, where, put in ((LEDGER, url, copying.put_ledger), (CATALOG, catalog, copying.put_catalog)):
        source = staging / name
        if not source.exists():
            continue
        if where.startswith(SQLITE):
            path = Path(where.removeprefix(SQLITE))
            private.make_folder(path.parent)
            source.rename(path)
            sync(path.parent)
        else:
            put(source, where)
    fail("restore.after_databases")
    if (staging / PASSWORD_FILE).exists():
        private.make_folder((root / PASSWORD_FILE).parent)
        (staging / PASSWORD_FILE).replace(root / PASSWORD_FILE)
    (staging / FILE_NAME).rename(root / FILE_NAME)
    shutil.rmtree(staging, ignore_errors=True)
    sync(root)


def _ask(root: Path, report: Report) -> tuple[StreamAnswer, ...]:
    """Ask every destination where it is; a sink whose destination can't even be addressed is left to its tick."""
    answers: list[StreamAnswer] = []
    with Lake(root, report=report) as lake:
        for sink in lake.sinks():
            report(f"asking the destination of {sink.name}", 0, None)
            try:
                place = destination(lake.surroundings, sink)
            except StrandError as error:
                answers.append(StreamAnswer(sink.name, "", "", None, str(error)))
                continue
            try:
                answers += ask(lake.context, sink, place)
            finally:
                let_go(place)
    return tuple(answers)
