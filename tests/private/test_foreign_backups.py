"""A backup that somebody else wrote: it is put below its target, or refused before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.backup import backup
from strandline.create import create
from strandline.engines.avro import read_container, write_container
from strandline.errors import Damaged
from strandline.trust import read_manifest
from tests.kit import call, make_table, messages

pytestmark = pytest.mark.sqlite_only


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A backup of a small lake, which is gone."""
    with create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 3))
        backup(lake, tmp_path / "backup")
    shutil.rmtree(tmp_path / "lake")
    return tmp_path / "backup"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup with Iceberg tables and all their files, of a lake whose place is then empty."""
    base = tmp_path_factory.mktemp("whole")
    with create(base / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 3))
        lake.flush("messages")
        backup(lake, base / "backup", with_data=True)
    shutil.rmtree(base / "lake")
    return base / "backup"


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a backup's manifest."""
    path = folder / "backup.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def stored_anew(folder: Path) -> None:
    """Let the manifest agree with the files that it names, as its author can."""

    def agree(document: dict[str, Any]) -> None:
        for file in document["files"]:
            content = (folder / file["name"]).read_bytes()
            file |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    changed(folder, agree)


def entry(name: str, content: bytes, location: str) -> dict[str, Any]:
    """A file of a manifest."""
    return {
        "name": name,
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "location": location,
    }


def everything_in(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "backup" not in path.parts}


def refused(tmp_path: Path, folder: Path, *options: str, to: str = "target") -> str:
    """The code by which restore and clone refuse a backup, both having written nothing anywhere."""
    before = everything_in(tmp_path)
    codes = []
    for command in ("restore", "clone"):
        done = call("--json", command, folder, tmp_path / to, *(options if command == "restore" else ()))
        codes.append(done.error["code"] if done.code else "")
        assert everything_in(tmp_path) == before
    assert codes[0] == codes[1]
    return codes[0]


LOCATIONS = {
    "another folder": "file://{base}/elsewhere/evil",
    "a way up": "file://{base}/lake/warehouse/../../elsewhere/evil",
    "a bare path": "{base}/elsewhere/evil",
    "another scheme": "s3://bucket/evil",
    "beside its name": "file://{base}/lake/warehouse-2/evil",
    "the warehouse itself": "file://{base}/lake/warehouse",
}


@pytest.mark.parametrize("location", LOCATIONS.values(), ids=list(LOCATIONS))
def test_f89_a_manifest_puts_files_below_its_warehouse_alone(kept: Path, tmp_path: Path, location: str) -> None:
    """It said anything, and that is where the file was written."""
    (kept / "files").mkdir()
    (kept / "files" / "evil").write_bytes(b"evil")
    place = location.format(base=tmp_path)
    changed(kept, lambda document: document["files"].append(entry("files/evil", b"evil", place)))
    assert refused(tmp_path, kept) == "damaged"
    assert refused(tmp_path, kept, to="lake") == "damaged"


NAMES = [
    "../outside",
    "/etc/hostname",
    "files/../../outside",
    "files//x",
    "./files/x",
    "files/x/.",
    "",
    "files\\x",
    "files/\0x",
    "x",
]


@pytest.mark.parametrize("name", ["ledger.db", "catalog.db", "strand.toml", "restores.jsonl"])
@pytest.mark.parametrize("instead", ["link", "pipe", "folder"])
def test_f89_what_is_opened_in_a_backup_is_a_file_of_its_own(
    kept: Path, tmp_path: Path, name: str, instead: str
) -> None:
    """Restores write beside the manifest: through a link to anywhere. A pipe was waited for."""
    (kept / name).unlink(missing_ok=True)
    match instead:
        case "link":
            (kept / name).symlink_to(tmp_path / "elsewhere")
        case "pipe":
            os.mkfifo(kept / name)
        case _:
            (kept / name).mkdir()
    assert refused(tmp_path, kept) == "damaged"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", NAMES)
def test_f89_the_files_of_a_manifest_are_inside_the_backup(kept: Path, tmp_path: Path, name: str) -> None:
    """A name that leads elsewhere would bring any file of this machine into the lake."""
    (tmp_path / "outside").write_bytes(b"x")
    place = f"file://{tmp_path}/lake/warehouse/x"
    changed(kept, lambda document: document["files"].append(entry(name, b"x", place)))
    with pytest.raises(Damaged, match="can't be read"):
        read_manifest(kept)  # before anything is looked for under that name
    assert refused(tmp_path, kept) == "damaged"


@pytest.mark.parametrize("twice", ["name", "location", "ledger.db"])
def test_f89_a_manifest_names_nothing_twice(kept: Path, tmp_path: Path, twice: str) -> None:
    (kept / "files").mkdir()
    files = [entry(f"files/{n}", b"x", f"file://{tmp_path}/lake/warehouse/{n}") for n in range(2)]
    for file in files:
        (kept / file["name"]).write_bytes(b"x")
    if twice == "ledger.db":
        files[1]["name"] = twice
    else:
        files[1][twice] = files[0][twice]
    changed(kept, lambda document: document["files"].extend(files))
    assert refused(tmp_path, kept) == "damaged"


@pytest.mark.parametrize("linked", ["ledger.db", "files"])
def test_f89_a_link_in_a_backup_leads_nowhere(kept: Path, tmp_path: Path, linked: str) -> None:
    """The file that it leads to would be read, and its content put into the lake."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x").write_bytes(b"x")
    if linked == "files":
        (kept / "files").symlink_to(tmp_path / "secret")
        place = f"file://{tmp_path}/lake/warehouse/x"
        changed(kept, lambda document: document["files"].append(entry("files/x", b"x", place)))
    else:
        (kept / linked).rename(tmp_path / "secret" / linked)
        (kept / linked).symlink_to(tmp_path / "secret" / linked)
    assert refused(tmp_path, kept) == "damaged"


def test_f89_a_link_in_the_warehouse_leads_no_file_out_of_it(kept: Path, tmp_path: Path) -> None:
    """A folder of the warehouse that was replaced by a link: nothing is written behind it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lake" / "warehouse").mkdir(parents=True)
    (tmp_path / "lake" / "warehouse" / "data").symlink_to(tmp_path / "elsewhere")
    (kept / "files").mkdir()
    (kept / "files" / "x").write_bytes(b"x")
    place = f"file://{tmp_path}/lake/warehouse/data/x"
    changed(kept, lambda document: document["files"].append(entry("files/x", b"x", place)))
    assert refused(tmp_path, kept, to="lake") == "damaged"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(("key", "value"), [("ledger", "sqlite:///{base}/precious.db"), ("warehouse", "{base}/other")])
def test_f89_only_a_person_puts_a_part_of_a_lake_outside_of_its_folder(
    kept: Path, tmp_path: Path, key: str, value: str
) -> None:
    """The backup's config named another place, and what was there was moved away; an option may name the same."""
    (tmp_path / "precious.db").write_bytes(b"precious")
    place = value.format(base=tmp_path)
    (kept / "strand.toml").write_text(f'[lake]\n{key} = "{place}"\n')
    stored_anew(kept)
    before = everything_in(tmp_path)
    done = call("--json", "restore", kept, tmp_path / "target")
    assert (done.error["code"], everything_in(tmp_path)) == ("bad_request", before)
    assert f"--{key}" in done.error["hint"]
    (tmp_path / "precious.db").unlink()
    assert call("--json", "restore", kept, tmp_path / "target", f"--{key}", place).code == 0


def _in_ledger(folder: Path, outside: str) -> None:
    with sqlite3.connect(folder / "ledger.db") as ledger:
        ledger.execute("UPDATE files SET path = ?", [f"file://{outside}"])


def _in_catalog(folder: Path, outside: str) -> None:
    with sqlite3.connect(folder / "catalog.db") as catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", [f"file://{outside}"])


def _in_metadata(key: str) -> Callable[[Path, str], None]:
    def plant(folder: Path, outside: str) -> None:
        for path in folder.rglob("*.metadata.json"):
            document = json.loads(path.read_text())
            if key == "manifest-list":
                document["snapshots"][0][key] = f"file://{outside}"
            elif key == "metadata-file":
                document["metadata-log"] = [{"timestamp-ms": 1, key: f"file://{outside}"}]
            elif key == "location":
                document[key] = f"file://{Path(outside).parent}"
            else:
                document["properties"][key] = f"file://{Path(outside).parent}"
            path.write_text(json.dumps(document))

    return plant


def _in_avro(name: str, change: Callable[[dict[str, Any], str], object]) -> Callable[[Path, str], None]:
    def plant(folder: Path, outside: str) -> None:
        for path in folder.rglob(name):
            header, records = read_container(path.read_bytes())
            copies = [{**record, "data_file": dict(record.get("data_file", {}))} for record in records]
            for record in copies:
                change(record, outside)
            path.write_bytes(write_container(header, copies))

    return plant


def _gone_file(record: dict[str, Any], outside: str) -> None:
    record["status"] = 2
    record["data_file"]["file_path"] = f"file://{outside}"


PLANTS = {
    "a data file of the ledger": _in_ledger,
    "a table's metadata": _in_catalog,
    "a manifest list": _in_metadata("manifest-list"),
    "older metadata": _in_metadata("metadata-file"),
    "a table's folder": _in_metadata("location"),
    "where data goes": _in_metadata("write.data.path"),
    "a manifest": _in_avro("snap-*.avro", lambda record, outside: record.update(manifest_path=f"file://{outside}")),
    "a data file": _in_avro(
        "*-m0.avro", lambda record, outside: record["data_file"].update(file_path=f"file://{outside}")
    ),
    "a file that was removed": _in_avro("*-m0.avro", _gone_file),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=list(PLANTS))
def test_f89_nothing_in_a_backup_names_a_file_of_somebody_else(
    whole: Path, tmp_path: Path, plant: Callable[[Path, str], None]
) -> None:
    """A restored lake reads what its metadata names, and an expiry deletes it."""
    folder = tmp_path / "backup"
    shutil.copytree(whole, folder)
    outside = tmp_path / "elsewhere" / "precious.parquet"
    outside.parent.mkdir()
    outside.write_bytes(b"precious")
    plant(folder, str(outside))
    stored_anew(folder)
    assert (folder / "backup.json").read_bytes() != (whole / "backup.json").read_bytes()
    assert refused(tmp_path, folder) == "damaged"


def test_a_backup_that_nobody_has_changed_is_restored_and_cloned(whole: Path, tmp_path: Path) -> None:
    """What is refused above is refused for what was changed."""
    shutil.copytree(whole, tmp_path / "backup")
    stored_anew(tmp_path / "backup")
    for command in ("restore", "clone"):
        assert call("--json", command, tmp_path / "backup", tmp_path / command).code == 0
        assert any((tmp_path / command / "warehouse").rglob("*.parquet"))


def test_f89_files_that_a_backup_does_not_bring_are_taken_from_its_own_warehouse(kept: Path, tmp_path: Path) -> None:
    """An old place that is another lake's, or nobody's, is not read."""
    from strandline import config
    from strandline.restore import _is_of

    restored = call("--json", "restore", kept, tmp_path / "lake")
    assert restored.code == 0
    settings, manifest = config.load(tmp_path / "lake"), read_manifest(kept)
    assert _is_of(manifest, settings)
    (tmp_path / "lake" / "warehouse" / "_strand.json").unlink()
    assert not _is_of(manifest, settings)
