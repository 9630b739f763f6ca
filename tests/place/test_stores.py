"""Copies, clones and moved ledgers of lakes on a Postgres server and in a bucket."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from strandline import create
from strandline.clone import clone
from strandline.errors import Displaced
from strandline.lake import Lake
from strandline.ledger.database import copying
from strandline.relocate import relocate
from tests.kit import log_part_ids, make_table, message, messages, part_ids, strand_json
from tests.postgres import Server
from tests.s3 import S3

pytestmark = pytest.mark.sqlite_only


def copied_database(lake: Lake, postgres: Server, folder: Path) -> str:
    """Another database with a copy of a lake's ledger and catalog, as a dump that was put back has them."""
    url = postgres.new_database()
    copying.copy_ledger(lake.ledger.database, folder / "ledger.copy")
    copying.copy_catalog(lake.config.catalog_database, folder / "catalog.copy")
    copying.put_ledger(folder / "ledger.copy", url)
    copying.put_catalog(folder / "catalog.copy", url)
    return url


def test_f69_of_two_copies_of_a_database_on_one_bucket_one_writes_and_the_other_is_refused(
    postgres: Server, s3: S3, tmp_path: Path
) -> None:
    """The copy flushes, compacts and expires: from its first flush on the other one writes nothing any more."""
    first, second = tmp_path / "one", tmp_path / "two"
    url = postgres.new_database()
    with create.create(first, ledger=url, warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        for n in range(2):
            lake.append("messages", messages(n * 5, n * 5 + 5))
            lake.flush("messages")
        other = copied_database(lake, postgres, tmp_path)
        shutil.copytree(first, second)
        config = second / "strand.toml"
        config.write_text(config.read_text().replace(url.rpartition("/")[2], other.rpartition("/")[2]))
        with Lake(second) as copy:
            copy.append("messages", [message(10)])
            copy.flush("messages")
            with pytest.raises(Displaced):  # before anything was deleted: Iceberg's own commits remove metadata
                lake.flush("messages")
            copy.compact("messages")
            copy.expire("messages", grace_s=0)
        lake.append("messages", [message(11)])
        for write in (lambda: lake.flush("messages"), lambda: lake.expire("messages", grace_s=0), lake.sweep):
            with pytest.raises(Displaced, match="another copy of this lake, or a newer ledger"):
                write()
    with Lake(first) as again, pytest.raises(Displaced):
        again.flush("messages")
    with Lake(second) as copy:
        assert part_ids(copy) == [f"p{n}" for n in range(11)]


def test_f69_a_lake_on_postgres_and_s3_is_cloned_to_others_and_to_files(
    postgres: Server, s3: S3, tmp_path: Path
) -> None:
    """From a database and a bucket to others of their kind, and from there to a folder."""
    with create.create(tmp_path / "one", ledger=postgres.new_database(), warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        lake.flush("messages")
        lake.append("messages", messages(5, 8))
    clone(tmp_path / "one", tmp_path / "two", ledger=postgres.new_database(), warehouse=f"s3://{s3.bucket}/clone")
    done = clone(tmp_path / "two", tmp_path / "three")
    assert done.rows == {"messages": 8}
    for root, place in ((tmp_path / "two", f"s3://{s3.bucket}/clone/"), (tmp_path / "three", str(tmp_path))):
        with Lake(root) as lake:
            assert part_ids(lake) == [f"p{n}" for n in range(8)] and log_part_ids(lake) == [f"p{n}" for n in range(5)]
            lake.flush("messages")
            assert all(place in file.path for file in lake.view().files("messages"))
            assert strand_json(root, "doctor", "--deep")["findings"] == []


def test_f69_a_ledger_that_was_moved_alone_is_at_home_again(s3: S3, tmp_path: Path) -> None:
    """A folder that was moved, with its warehouse in a bucket: only its place is written, and a copy left is fenced."""
    first, second = tmp_path / "one", tmp_path / "two"
    with create.create(first, warehouse=s3.uri, store=s3.store) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 3))
    subprocess.run(["cp", "-a", str(first), str(second)], check=True)
    first.rename(tmp_path / "hidden")
    assert relocate(second) == []
    with Lake(second) as lake:
        assert len(part_ids(lake)) == 3
    (tmp_path / "hidden").rename(first)
    with Lake(first) as behind, pytest.raises(Displaced, match="another copy"):
        behind.flush("messages")


def test_f69_a_moved_warehouse_of_a_lake_on_postgres_is_relocated(postgres: Server, tmp_path: Path) -> None:
    """The config names its new folder; the ledger learns it, and files are found there."""
    root = tmp_path / "lake"
    with create.create(root, ledger=postgres.new_database()) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        lake.flush("messages")
    (root / "warehouse").rename(tmp_path / "files")
    config = root / "strand.toml"
    config.write_text(config.read_text().replace('warehouse = "warehouse"', f'warehouse = "{tmp_path}/files"'))
    with pytest.raises(Displaced) as refused:
        Lake(root)
    assert refused.value.detail["kind"] == "other_warehouse"
    assert relocate(root) == ["lake.messages"]
    with Lake(root) as lake:
        assert part_ids(lake) == log_part_ids(lake) == [f"p{n}" for n in range(5)]
        lake.append("messages", [message(5)])
        lake.flush("messages")
        assert strand_json(root, "doctor", "--deep")["findings"] == []
