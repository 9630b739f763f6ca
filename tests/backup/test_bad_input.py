"""What can't be backed up or restored is refused with a reason, and nothing is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline import create, private
from strandline.backup import backup
from strandline.clean_config import HEAD, without_secrets
from strandline.errors import BadRequest, RecoveryRequired, StrandError
from strandline.lake import Lake
from strandline.restore import restore
from tests.backup.conftest import Ledgers
from tests.kit import call, make_table, messages, part_ids, read_only_fingerprint
from tests.postgres import PASSWORD, Server


def refused(folder: Path, root: Path, *arguments: str) -> str:
    """The code of a restore that is refused and changes nothing."""
    before = read_only_fingerprint(root) if root.exists() else {}
    done = call("--json", "restore", folder, root, *arguments)
    assert done.code != 0
    assert (read_only_fingerprint(root) if root.exists() else {}) == before
    return str(done.error["code"])


@pytest.fixture
def kept(lake: Lake, tmp_path: Path) -> Path:
    """A backup of a lake with rows in its tail."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    backup(lake, tmp_path / "backup")
    return tmp_path / "backup"


def test_a_backup_never_writes_into_what_is_there(lake: Lake, kept: Path) -> None:
    done = call("--lake", lake.root, "--json", "backup", kept)
    assert (done.code, done.error["code"]) == (4, "conflict")


def test_a_lake_is_replaced_only_when_asked(lake: Lake, kept: Path) -> None:
    assert refused(kept, lake.root) == "conflict"


def test_another_lake_is_never_replaced(kept: Path, ledgers: Ledgers, tmp_path: Path) -> None:
    create.create(tmp_path / "other").close()
    assert refused(kept, tmp_path / "other", "--replace", *ledgers.named()) == "conflict"


def test_a_folder_of_something_else_is_refused(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    assert refused(kept, tmp_path / "home", "--replace") == "conflict"


def test_what_is_no_backup_is_not_found(lake: Lake, tmp_path: Path) -> None:
    assert refused(tmp_path, tmp_path / "new") == "not_found"


@pytest.mark.parametrize("name", ["ledger.db", "strand.toml", "backup.json"])
def test_a_damaged_backup_is_refused(kept: Path, tmp_path: Path, name: str) -> None:
    path = kept / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    assert refused(kept, tmp_path / "new") == "damaged"


def test_a_newer_backup_is_refused(kept: Path, tmp_path: Path) -> None:
    manifest = json.loads((kept / "backup.json").read_text())
    (kept / "backup.json").write_text(json.dumps({**manifest, "format": 99}))
    done = call("--json", "restore", kept, tmp_path / "new")
    assert done.code == 6
    assert "format 99" in done.error["message"]


def test_a_lake_without_iceberg_tables_may_be_restored_anywhere(kept: Path, ledgers: Ledgers, tmp_path: Path) -> None:
    """Only Iceberg's metadata has addresses in it."""
    restore(kept, tmp_path / "elsewhere", ledger=ledgers.next())
    with Lake(tmp_path / "elsewhere") as lake:
        assert part_ids(lake) == ["p0", "p1", "p2"]


def test_who_still_has_the_old_ledger_open_is_refused(lake: Lake, ledgers: Ledgers, kept: Path) -> None:
    """A server that nobody stopped must not ack rows into a ledger that was put aside."""
    restore(kept, lake.root, replace=True, ledger=ledgers.next())
    with pytest.raises(RecoveryRequired, match="closed for good"):
        lake.append("messages", messages(3, 4))


def test_a_ledger_that_is_lost_is_no_obstacle(lake: Lake, ledgers: Ledgers, kept: Path) -> None:
    lake.close()
    ledgers.lose(lake.root)
    done = restore(kept, lake.root, replace=True, ledger=ledgers.next())
    assert done.aside is not None
    aside = {path.name: path.read_bytes() for path in done.aside.iterdir()}
    assert aside.pop("strand.toml")
    assert aside == ({"ledger.db": b"lost"} if ledgers.server is None else {})


def test_a_restore_into_another_database_closes_the_ledger_that_was_used(
    postgres: Server, lake: Lake, kept: Path
) -> None:
    """From one kind to another too. The new one's password is for its owner alone, and what is used stays as it is."""
    databases = [postgres.new_database() for _ in range(2)]
    for url in databases:
        with Lake(lake.root) as old:
            old.append("messages", messages(3, 4))
            restore(kept, lake.root, replace=True, ledger=url)
            with pytest.raises(RecoveryRequired, match="closed for good"):
                old.append("messages", messages(4, 5))
        assert refused(kept, lake.root, "--replace") == "conflict"
        assert PASSWORD not in (lake.root / "strand.toml").read_text()
        secret = lake.root / "secrets" / "ledger.password"
        assert (secret.read_text(), secret.stat().st_mode & 0o777) == (PASSWORD, 0o600)
        with Lake(lake.root) as again:
            assert part_ids(again) == ["p0", "p1", "p2"]
    storage = "SELECT attstorage FROM pg_attribute WHERE attrelid = 'batches'::regclass AND attname = 'payload'"
    assert postgres.execute(storage, database=databases[0].rpartition("/")[2]) == [("e",)], "as `init` makes it"


def test_secrets_are_never_in_a_backup(lake: Lake, ledgers: Ledgers, tmp_path: Path) -> None:
    """Neither those of `strand.toml`, however they are written, nor those that a sink has put away."""
    with (lake.root / "strand.toml").open("a") as config:
        config.write('\n[sinks.a]\ntype = "forward"\nurl = "http://127.0.0.1:9"\ntoken = "hush-1"\n')
    lake.close()
    with Lake(lake.root) as again:
        again.add_sink("b", "forward", {"url": "http://127.0.0.1:9", "token": "hush-2"}, check=False)
        again.sinks()
        manifest = backup(again, tmp_path / "backup")
    expected = {"the secrets of sink a", "the secrets of sink b", "token in strand.toml"}
    expected |= set() if ledgers.server is None else {"the password of the ledger"}
    assert set(manifest.left_out) == expected
    everything = b"".join(path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file())
    assert b"hush" not in everything


@pytest.mark.parametrize(
    ("section", "line", "kept"),
    [
        ("lake", 'ledger = "postgresql://me:hush@host/db"', 'ledger = "postgresql://me@host/db"'),
        ("lake", 'ledger = "postgresql://me@host/db?password=hush"', ""),
        ("lake", 'ledger = "sqlite:///x.db"  # hush', 'ledger = "sqlite:///x.db"'),
        ("lake", '# it was "hush" before', ""),
        ("lake", 'x = { token = "hush" }', ""),
        ("lake", 'token = """\nhush"""', ""),
        ("s3", 'endpoint = "https://me:hush@store"', ""),
        ("spark", 'conf = { "spark.hadoop.fs.s3a.secret.key" = "hush" }', "conf = {  }"),
        ("spark", 'conf = { "spark.driver.memory" = "4g" }', 'conf = { "spark.driver.memory" = "4g" }'),
        ("sinks.a", '"catalog.jdbc.password" = "hush"', ""),
        ("sinks.a", 'catalog.header.X-Anything = "hush"', ""),
        ("sinks.a", '"catalog.s3.endpoint" = "http://store"', '"catalog.s3.endpoint" = "http://store"'),
        ("sinks.a", 'uri = "jdbc:postgresql://host/db?password=hush"', ""),
        ("sinks.a", 'token_file = "secrets/t"', 'token_file = "secrets/t"'),
        ("sinks.a", 'redact = { email = "hash" }', 'redact = { email = "hash" }'),
    ],
)
def test_f90_a_config_in_a_backup_is_written_anew_without_secrets(section: str, line: str, kept: str) -> None:
    """Whatever is not known to be harmless is left out, comments too, and what was left out is named."""
    cleaned, left_out = without_secrets(f"[{section}]\n{line}\n")
    assert cleaned == f"{HEAD}\n\n[{section}]\n" + (f"{kept}\n" if kept else "")
    assert bool(left_out) == (line.partition("  #")[0] != kept and not line.startswith("#"))


def test_a_backup_that_can_not_be_written_to_is_refused(
    lake: Lake, ledgers: Ledgers, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jump is recorded beside it: without that, a second restore would give out the same seqs."""
    original = private.opener

    def read_only(path: str, flags: int) -> int:
        if Path(path).name == "restores.jsonl":
            raise PermissionError(13, "Permission denied")
        return original(path, flags)

    monkeypatch.setattr(private, "opener", read_only)
    with pytest.raises(StrandError, match=r"restores\.jsonl"):
        restore(kept, lake.root, replace=True, ledger=ledgers.next())
    monkeypatch.undo()
    with Lake(lake.root) as still:
        assert part_ids(still) == ["p0", "p1", "p2"]


def test_a_backup_in_the_lakes_own_warehouse_is_refused(lake: Lake) -> None:
    """A sweep would take it for what a dead operation left."""
    inside = lake.root / "warehouse" / "_staging" / "backup"
    with pytest.raises(BadRequest, match="own warehouse"):
        backup(lake, inside)
    assert not inside.parent.exists()
    assert backup(lake, lake.root / "warehouse-backup")
