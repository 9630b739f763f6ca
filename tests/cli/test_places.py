"""Where a new user points a sink: at a place of another, of two at once, or where nothing can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.lake import Lake
from strandline.ledger.sinks.sinks import find_sink
from strandline.model.delivery import object_names
from strandline.sinks.instances import destination
from tests.cli.conftest import Strand
from tests.cli.test_messages import commands_of


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder that sinks write to."""
    (tmp_path / "archive").mkdir()
    return tmp_path / "archive"


def add(name: str, archive: Path, *more: str) -> list[str]:
    return ["sink", "add", name, "--type", "blob", "--set", f"uri=file://{archive}", *more]


def mark(archive: Path, **marker: object) -> None:
    """Leave a marker there, as a sink that has delivered does."""
    (archive / object_names.OWNER).write_text(json.dumps({"epoch": 1, **marker}))


def test_a_place_of_another_sink_names_it_and_the_hint_works(strand: Strand, root: Path, archive: Path) -> None:
    """A sink of this lake is named, also by a marker of an older version, which has ids alone."""
    strand(*add("first", archive))
    shown = strand("sink", "show", "first", "--json").json
    lake_id = strand("status", "--json").json["lake_id"]
    mark(archive, lake=lake_id, sink=shown["sink_id"])
    refused = strand(*add("second", archive))
    assert refused.code == 4
    assert f"file://{archive}/ belongs to the sink 'first' of this lake" in refused.err
    assert "run the same command with --take-over" in refused.err
    assert strand(*add("second", archive, "--take-over")).code == 0
    with Lake(root) as lake:  # the first has lost its place: what it is told now works too
        with lake.ledger.read() as conn:
            first = find_sink(conn, "first")
        with pytest.raises(Exception, match="belongs to the sink 'second' of this lake") as lost:
            destination(lake.surroundings, first).look()
    (retry,) = commands_of(lost.value.hint)  # type: ignore[attr-defined]
    assert strand(*retry).code == 0
    assert json.loads((archive / object_names.OWNER).read_text())["name"] == "first"


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ({"lake": "L2", "sink": "S2", "name": "cold"}, "belongs to the sink 'cold' of another lake (id L2)"),
        ({"lake": "L2", "sink": "S2"}, "belongs to a sink (id S2) of another lake (id L2)"),
        ({"sink": "S2", "name": "cold"}, "belongs to the sink 'cold' of this lake, which was removed"),
    ],
)
def test_an_owner_is_named_as_well_as_can_be_known(
    strand: Strand, archive: Path, marker: dict[str, str], text: str
) -> None:
    mark(archive, **{"lake": strand("status", "--json").json["lake_id"], **marker})
    refused = strand(*add("second", archive))
    assert (refused.code, text in refused.err) == (4, True), refused.err


@pytest.mark.parametrize(
    ("type_", "settings"),
    [
        ("blob", "uri=file:///{tmp}/new"),
        ("forward", "url=http://127.0.0.1:9/"),
        ("iceberg", "uri=jdbc:sqlite:/{tmp}/c.db,warehouse=file:///{tmp}/w"),
    ],
)
def test_two_sinks_to_one_address_are_remarked_upon(strand: Strand, tmp_path: Path, type_: str, settings: str) -> None:
    """It is legal, and mostly a mistake: the second is added, and what will come of it is said."""
    pairs = [f"--set={pair}" for pair in settings.replace("{tmp}", str(tmp_path)[1:]).split(",")]
    first = strand("sink", "add", "a", "--type", type_, *pairs, "--no-check")
    assert (first.code, "warning" in first.err) == (0, False)
    second = strand("sink", "add", "b", "--type", type_, *pairs, "--no-check", "--json")
    assert second.code == 0
    (warning,) = second.json["warnings"]
    assert warning.startswith("sink 'a' of this lake delivers there too: ")


def test_a_place_where_no_folder_can_be_needs_a_person(strand: Strand) -> None:
    """/proc takes no folder: that is the machine's doing, and no failed disk that gets well by itself."""
    refused = strand("sink", "add", "a", "--type", "blob", "--set", "uri=file:///proc/nope")
    assert (refused.code, refused.err.splitlines()[0]) == (
        6,
        "error[environment]: file:///proc/nope/: can't be written: no folder can be made there: /proc/nope",
    )
    assert "failed" not in refused.err
