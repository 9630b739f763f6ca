"""A lake knows its place: a copy, a moved folder, another warehouse, a warehouse that is not mounted."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline import create
from strandline.errors import Conflict, Displaced
from strandline.lake import Lake
from strandline.ledger.place.places import read_home
from strandline.operations.core.placing import DisplacedWarning
from tests.kit import call, in_ledger, make_table, message, messages, part_ids
from tests.postgres import Server
from tests.s3 import S3

pytestmark = pytest.mark.sqlite_only


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """The folder of a closed lake with rows in its tail, at an address of its own."""
    with create.create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
    return tmp_path / "lake"


def copied(lake: Path, to: Path) -> Path:
    """What `cp -a` makes of a lake's folder."""
    subprocess.run(["cp", "-a", str(lake), str(to)], check=True)
    return to


def kind_of(error: pytest.ExceptionInfo[Displaced]) -> object:
    return error.value.detail["kind"]


# -- the place ---------------------------------------------------------------------------------------------------------


def test_f69_a_copied_folder_refuses_to_write_and_says_where_it_comes_from(original: Path, tmp_path: Path) -> None:
    """`cp -a lake copy`: the copy writes nothing, names the original, and can be read."""
    copy = copied(original, tmp_path / "copy")
    with pytest.raises(Displaced, match="copied \\(or moved\\) from") as refused:
        Lake(copy)
    assert kind_of(refused) == "copied"
    assert str(original / "ledger.db") in str(refused.value) and "strand clone" in refused.value.hint
    with pytest.warns(DisplacedWarning, match=str(original)), Lake(copy, read_only=True) as reading:
        assert len(part_ids(reading)) == 5
    answer = call("--lake", copy, "--json", "append", "messages", "-", stdin=b'{"part_id":"x","source":"y","n":1}')
    assert (answer.code, answer.error["code"]) == (6, "displaced")
    with Lake(original) as lake:
        lake.append("messages", [message(5)])
        assert len(part_ids(lake)) == 6


def test_f69_a_moved_folder_says_so_and_not_that_it_is_damaged(original: Path, tmp_path: Path) -> None:
    """`mv lake moved`: refused with the place it came from, in status and doctor too."""
    moved = tmp_path / "moved"
    original.rename(moved)
    with pytest.raises(Displaced, match=str(original)):
        Lake(moved)
    status = call("--lake", moved, "--json", "status")
    assert status.code == 0 and str(original) in status.json["displaced"]
    doctor = call("--lake", moved, "--json", "doctor")
    assert "displaced" in {finding["kind"] for finding in doctor.json["findings"]}


def test_f69_a_symlink_to_the_same_place_is_the_same_lake(original: Path, tmp_path: Path) -> None:
    """By a link in the path, and by a warehouse that the config names by a link."""
    link = tmp_path / "link"
    link.symlink_to(original)
    with Lake(link) as lake:
        lake.append("messages", [message(5)])
    (tmp_path / "files").symlink_to(original / "warehouse")
    config = original / "strand.toml"
    config.write_text(config.read_text().replace('"warehouse"', f'"{tmp_path / "files"}"'))
    with Lake(original) as lake:
        assert lake.config.warehouse == f"file://{original}/warehouse", "files keep one kind of name"
        assert len(part_ids(lake)) == 6


@contextmanager
def bind_mount(source: Path, target: Path) -> Iterator[None]:
    target.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "--bind", str(source), str(target)], check=False, capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no bind mounts here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_f69_a_bind_mount_of_the_same_place_is_the_same_lake(original: Path, tmp_path: Path) -> None:
    """Its path differs, and its files are the very same; they keep the names of the first place."""
    with bind_mount(original, tmp_path / "mounted"), Lake(tmp_path / "mounted") as lake:
        lake.append("messages", [message(5)])
        lake.context.fence.raise_()
        assert lake.config.warehouse == f"file://{original}/warehouse"
    with Lake(original) as lake:
        assert len(part_ids(lake)) == 6
        lake.context.fence.compare()


def test_f69_a_hard_link_of_a_ledger_is_a_copy(original: Path, tmp_path: Path) -> None:
    """`cp -al`: one file with two names, and a journal beside each of them; also where the warehouse is the same."""
    config = original / "strand.toml"
    config.write_text(config.read_text().replace('warehouse = "warehouse"', f'warehouse = "{original}/warehouse"'))
    subprocess.run(["cp", "-al", str(original), str(tmp_path / "linked")], check=True)
    with pytest.raises(Displaced):
        Lake(tmp_path / "linked")


def test_f69_an_older_lake_is_placed_by_what_its_ledger_says(original: Path, tmp_path: Path) -> None:
    """A ledger of format 1 knows its warehouse alone: at home it is placed by its first open, elsewhere refused."""
    copy = copied(original, tmp_path / "copy")
    for root in (original, copy):
        in_ledger(root, "UPDATE counter SET place = '', fence = 0, raising = NULL")
    ((lake_id,),) = in_ledger(original, "SELECT lake_id FROM counter")
    (original / "warehouse" / "_strand.json").write_text(json.dumps({"lake": lake_id}))
    with pytest.raises(Displaced, match="copied \\(or moved\\) from"):
        Lake(copy)
    with Lake(original) as lake, lake.ledger.read() as conn:
        assert read_home(conn).place == str(original / "ledger.db")
        lake.context.fence.raise_()
    with Lake(original) as lake:
        lake.context.fence.compare()


# -- another warehouse (F101) ------------------------------------------------------------------------------------------


def test_f101_a_second_host_with_another_warehouse_is_refused_at_every_open(postgres: Server, tmp_path: Path) -> None:
    """Two configs on one Postgres ledger: the one that names another folder is refused, with both addresses."""
    url = postgres.new_database()
    with create.create(tmp_path / "one", ledger=url) as lake:
        make_table(lake)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with pytest.raises(Displaced) as refused:
        Lake(tmp_path / "two")
    assert kind_of(refused) == "other_warehouse"
    assert all(f"file://{tmp_path}/{name}/warehouse" in str(refused.value) for name in ("one", "two"))
    with pytest.warns(DisplacedWarning):
        Lake(tmp_path / "two", read_only=True).close()
    text = (tmp_path / "two" / "strand.toml").read_text()
    text = text.replace('warehouse = "warehouse"', f'warehouse = "{tmp_path}/one/warehouse"')
    (tmp_path / "two" / "strand.toml").write_text(text)
    with Lake(tmp_path / "two") as lake:
        lake.context.fence.raise_()
    with Lake(tmp_path / "one") as lake:
        lake.context.fence.compare()


@pytest.mark.parametrize("inside", [True, False])
def test_f101_init_refuses_a_folder_inside_or_above_a_warehouse(original: Path, tmp_path: Path, inside: bool) -> None:
    warehouse = original / "warehouse" / "deeper" / "still" if inside else original.parent
    with pytest.raises(Conflict, match="inside" if inside else "above"):
        create.create(tmp_path.parent / f"{tmp_path.name}-other", warehouse=str(warehouse))


@pytest.mark.parametrize("inside", [True, False])
def test_f101_init_refuses_a_prefix_inside_or_above_a_warehouse(s3: S3, tmp_path: Path, inside: bool) -> None:
    create.create(tmp_path / "one", warehouse=f"{s3.uri}/a/b", store=s3.store).close()
    with pytest.raises(Conflict, match="inside" if inside else "above"):
        create.create(tmp_path / "two", warehouse=f"{s3.uri}/a/b/c" if inside else s3.uri, store=s3.store)
    create.create(tmp_path / "three", warehouse=f"{s3.uri}/a/bc", store=s3.store).close()
    assert not (tmp_path / "two" / "strand.toml").exists()


# -- a warehouse without its marker (F100) -----------------------------------------------------------------------------


def test_f100_a_warehouse_that_was_claimed_and_has_no_marker_refuses_whatever_writes_there(original: Path) -> None:
    """An unmounted disk: appends are kept in the ledger, nothing is made under the mount point, doctor says why."""
    shutil.move(original / "warehouse", original / "unmounted")
    (original / "warehouse").mkdir()
    with Lake(original) as lake:
        lake.append("messages", [message(5)])
        for write in (lambda: lake.flush("messages"), lake.sweep, lake.context.fence.raise_):
            with pytest.raises(Displaced, match="no marker") as refused:
                write()
            assert kind_of(refused) == "no_marker"
    assert list((original / "warehouse").iterdir()) == []
    answer = call("--lake", original, "--json", "doctor")
    assert answer.code == 6 and [finding["kind"] for finding in answer.json["findings"]] == ["no_marker"]
    (original / "warehouse").rmdir()
    shutil.move(original / "unmounted", original / "warehouse")
    with Lake(original) as lake:
        lake.context.fence.raise_()
        assert len(part_ids(lake)) == 6


def test_f100_a_marker_is_put_back_by_a_person_s_word_alone(original: Path) -> None:
    """`doctor --fix` leaves it alone; with `--claim-warehouse` the lake writes again."""
    (original / "warehouse" / "_strand.json").unlink()
    answer = call("--lake", original, "--json", "doctor", "--fix")
    assert "no_marker" in {finding["kind"] for finding in answer.json["findings"]}
    answer = call("--lake", original, "--json", "doctor", "--fix", "--claim-warehouse")
    assert answer.json["findings"] == [] and "claimed" in answer.json["fixed"][0]
    with Lake(original) as lake:
        lake.context.fence.raise_()
