"""Types of sinks: ours are there without a look at any package, and one that is broken breaks its own sinks alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import create
from strandline.errors import BadRequest, Environment
from strandline.lake import Lake
from strandline.ledger.sinks.sinks import find_sink
from strandline.redaction import MASK
from strandline.sinks import registry
from strandline.sinks.instances import SECRETS, destination
from strandline.sinks.settings import changed, in_clear, is_secret, parse, resolved, shown, unit_of
from tests.kit import call, environment, make_table
from tests.packages import blocks, install, install_shelf, look_anew

GIVEN = {"path": "shelf.db", "pin": "hunter-2-and-more"}


@pytest.fixture(autouse=True)
def _types_are_forgotten() -> Iterator[None]:
    yield
    look_anew()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of the page, installed; gives the folder with its metadata."""
    return install_shelf(monkeypatch, tmp_path / "site")


@pytest.fixture
def lake(tmp_path: Path, shelf: Path) -> Iterator[Lake]:
    """A lake with a sink of the package's type."""
    with create.create(tmp_path / "lake") as made:
        make_table(made)
        made.add_sink("mine", "shelf", GIVEN)
        yield made


def uninstall(shelf: Path) -> None:
    """Take the package away."""
    (shelf / "entry_points.txt").unlink()
    (shelf.parent / "strand_shelf.py").unlink()
    sys.modules.pop("strand_shelf", None)
    look_anew()


def break_it(shelf: Path, code: str) -> None:
    """Put something else in the package's place."""
    (shelf.parent / "strand_shelf.py").write_text(code)
    sys.modules.pop("strand_shelf", None)
    look_anew()


def test_our_types_need_no_look_at_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its time, and a broken one of them is nothing to a lake that uses none."""
    monkeypatch.setattr(registry, "_entries", lambda: pytest.fail("it looked"))
    assert [registry.sink_type(name).name for name in ("forward", "blob", "iceberg")] == list(registry.OURS)
    assert parse("blob", {"uri": "file:///x"}, "here") == {"uri": "file:///x"}


def test_our_types_import_nothing_that_they_deliver_with() -> None:
    """`strand --version` and a list of sinks don't wait for it."""
    code = (
        "import sys, strandline.sinks.settings as s\n"
        "s.parse('forward', {'url': 'http://x'}, 'x'), s.parse('iceberg', {'uri': 'jdbc:x', 'warehouse': '/x'}, 'x')\n"
        "heavy = 'httpx pyarrow duckdb pyspark sqlalchemy strandline.sinks.destination importlib.metadata'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_type_of_a_package_reads_its_settings_as_ours_do(shelf: Path) -> None:
    """With its own keys beside those of every sink, defaults, errors and secrets."""
    assert parse("shelf", {**GIVEN, "longest": "70", "every": "5m"}, "here") == {**GIVEN, "longest": 70, "every": 300.0}
    assert resolved("shelf", {"path": "x"})["longest"] == 100_000
    assert shown("shelf", GIVEN) == {"path": "shelf.db", "pin": MASK}
    assert is_secret("shelf", "unheard-of")
    for given, message, hint in (
        ({}, "sink 'x': the type shelf needs 'path'", "--set path="),
        ({**GIVEN, "longer": 5}, "sink 'x': the type shelf has no setting 'longer'", "longest"),
        ({**GIVEN, "longest": "0"}, "sink 'x': longest is '0', expected a whole number from 1 on", ""),
        ({**GIVEN, "pin": 5}, "sink 'x': pin is …, expected a text that is not empty", ""),
    ):
        with pytest.raises(BadRequest) as caught:
            parse("shelf", given, "sink 'x'")
        assert caught.value.message == message
        assert hint in caught.value.hint


def test_a_length_of_time_and_a_size_are_shown_with_their_units(lake: Lake) -> None:
    """Those that only the type has too; a count has none."""
    assert call("--lake", lake.root, "sink", "set", "mine", "--set", "every=90s", "--set", "unit_bytes=1MiB").code == 0
    lines = call("--lake", lake.root, "sink", "show", "mine").out.splitlines()
    assert {"  every = 90s", "  unit_bytes = 1MiB"} <= set(lines)
    assert (unit_of("forward", "timeout"), unit_of("forward", "chunk_bytes")) == ("s", "bytes")
    assert (unit_of("shelf", "longest"), unit_of("blub", "every"), unit_of("blub", "timeout")) == (None, "s", None)


def test_one_token_takes_the_place_of_another() -> None:
    """Whichever it is; an empty value takes a setting away, and what has no group stays."""
    settings = {"url": "http://x", "token": "a", "timeout": 5.0}
    assert changed("forward", settings, {"token_file": "f"}) == {"url": "http://x", "timeout": 5.0, "token_file": "f"}
    assert changed("forward", settings, {"timeout": ""}) == {"url": "http://x", "token": "a"}
    assert changed("blob", {"token": "a"}, {"token_file": "f"}) == {"token": "a", "token_file": "f"}


def test_a_misspelt_type_names_the_nearest_of_all(shelf: Path) -> None:
    with pytest.raises(BadRequest, match="sink 'x': there is no sink of type 'shelv'") as caught:
        parse("shelv", GIVEN, "sink 'x'")
    assert "'shelf'" in caught.value.hint


def test_a_secret_of_a_package_is_put_away(lake: Lake) -> None:
    """Not in the ledger, not in what is shown; the destination gets it."""
    with lake.ledger.read() as conn:
        sink = find_sink(conn, "mine")
    assert "pin" not in sink.settings and sink.settings["path"] == "shelf.db"
    assert "hunter-2" in (lake.root / SECRETS / f"{sink.sink_id}.json").read_text()
    assert "hunter-2" not in call("--lake", lake.root, "--json", "sink", "show", "mine").out
    assert destination(lake.surroundings, sink)._sender.settings["pin"] == GIVEN["pin"]  # type: ignore[attr-defined]


LOOKS = (
    ("sink", "list"),
    ("sink", "show", "mine"),
    ("status",),
    ("status", "--why"),
    ("table", "list"),
)
WRONG = {
    "raises": ("raise RuntimeError('no hardware')", "RuntimeError: no hardware"),
    "leaves": ("raise SystemExit(3)", "SystemExit: 3"),
    "lacks": ("TYPE = None", "is no SinkType"),
    "unreadable": ("def", "SyntaxError"),
    "renamed": (
        "from strandline.sinks.registry import OURS\nTYPE = OURS['blob']",
        "is no SinkType with that name",
    ),
    **{
        f"malformed {field} {number}": (
            "from strandline.settings_text import Key\nfrom strandline.sinks.kind import OpenKeys, SinkType\n"
            f"TYPE = SinkType(**{{'name': 'shelf', 'keys': {{}}, 'make': print, {field!r}: {value}}})",
            f"{field!r} of strand_shelf:TYPE is not what a SinkType has there",
        )
        for number, (field, value) in enumerate(
            (
                ("keys", "None"),
                ("keys", "{'path': None}"),
                ("keys", "{5: Key('', str, 'a number')}"),
                ("required", "('other',)"),
                ("place", "None"),
                ("in_place_of", "('other',)"),
                ("make", "None"),
                ("check", "'nothing'"),
                ("open_keys", "'option.'"),
                ("open_keys", "OpenKeys('', print)"),
                ("when_shared", "None"),
                ("has_receiver", "None"),
            )
        )
    },
    "clashing": (
        "from strandline.sinks.kind import SinkType\nTYPE = SinkType('shelf', {'every': None}, None)",
        "it has settings that every sink has: every",
    ),
}


def looked_at(lake: Lake) -> None:
    """Everything that only looks works, and hides what it does not know."""
    for command in LOOKS:
        done = call("--lake", lake.root, "--json", *command)
        assert done.code == 0, (command, done.out, done.err)
    shown_sink = call("--lake", lake.root, "--json", "sink", "show", "mine").json
    assert (shown_sink["type"], shown_sink["settings"]["path"]) == ("shelf", MASK)


def complaint(lake: Lake) -> str:
    """What `doctor` says about the sink's destination."""
    findings = call("--lake", lake.root, "--json", "doctor").json["findings"]
    (finding,) = [finding for finding in findings if finding["kind"] == "destination"]
    assert "secret_in_clear" not in {finding["kind"] for finding in findings}
    return str(finding["what"])


def test_a_package_that_is_missing_stops_its_sinks_alone(lake: Lake, shelf: Path, tmp_path: Path) -> None:
    """The lake opens and is looked at; a tick says what is wrong, and the other sink goes on."""
    uninstall(shelf)
    looked_at(lake)
    assert "is of type 'shelf', which no installed package has" in complaint(lake)
    lake.add_sink("other", "forward", {"url": "http://127.0.0.1:9", "token_file": "none"}, check=False)
    with Lake(lake.root) as again:
        ticked = {done.sink: done for done in again.tick("mine")}
        assert ticked["mine"].outcome == "failed"
        assert "is of type 'shelf', which no installed package has" in str(ticked["mine"].error)
        assert {done.sink for done in again.tick()} == {"mine", "other"}
    changed = call("--lake", lake.root, "--json", "sink", "set", "mine", "--set", "every=9m")
    assert (changed.code, changed.error["code"]) == (3, "bad_request")
    assert call("--lake", lake.root, "sink", "pause", "mine").code == 0
    backed_up = call("--lake", lake.root, "backup", tmp_path / "backup")
    assert backed_up.code == 0, backed_up.err
    assert call("--lake", lake.root, "sink", "remove", "mine", "--yes").code == 0


@pytest.mark.parametrize("fault", WRONG)
def test_a_package_that_is_broken_stops_its_sinks_alone(lake: Lake, shelf: Path, fault: str) -> None:
    """Whatever it does when it is imported, in a process that has not imported it before."""
    code, words = WRONG[fault]
    break_it(shelf, code)
    looked_at(lake)
    assert "the sink type 'shelf' of the package strand-shelf can't be used" in complaint(lake)
    (done,) = lake.tick("mine")
    assert done.outcome == "failed" and words in str(done.error)
    refused = call("--lake", lake.root, "--json", "sink", "add", "two", "--type", "shelf", "--set", "path=x")
    assert (refused.code, refused.error["code"]) == (6, "environment")
    assert words in refused.error["message"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("    def __init__(self, sender):\n        raise RuntimeError('cold')\n", "RuntimeError: cold"),
        ("    def look(self):\n        raise RuntimeError('dark')\n", "dark"),
        ("    def close(self):\n        raise RuntimeError('stuck')\n", ""),
    ],
)
def test_a_destination_that_raises_anything_keeps_no_report_from_being_made(
    lake: Lake, shelf: Path, code: str, words: str
) -> None:
    """Nor a tick of other sinks."""
    (page,) = blocks("python")[:1]
    break_it(shelf, page.replace("TYPE = SinkType(", f"class Worse(Shelf):\n{code}\n\nTYPE = SinkType(").replace(
        "make=Shelf", "make=Worse"
    ))  # fmt: skip
    findings = call("--lake", lake.root, "--json", "doctor").json["findings"]
    assert [words in finding["what"] for finding in findings if finding["kind"] == "destination"] == [True] * bool(
        words
    )
    lake.add_sink("other", "forward", {"url": "http://127.0.0.1:9", "token_file": "none"}, check=False)
    assert "other" in {done.sink for done in lake.tick()}


def test_two_packages_with_one_type_are_both_named(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them is meant is not for us to guess."""
    install(monkeypatch, shelf.parent, "strand-bookcase", {"shelf": "strand_bookcase:TYPE"}, strand_bookcase="")
    with pytest.raises(Environment, match="'shelf' is in strand-bookcase and strand-shelf"):
        registry.sink_type("shelf")


def test_a_section_of_a_broken_package_is_refused_and_others_are_followed(
    lake: Lake, shelf: Path, tmp_path: Path
) -> None:
    """`strand.toml` names a type that can't be had: its section makes no sink, the next one does."""
    uninstall(shelf)
    sections = '[sinks.gone]\ntype = "shelf"\npath = "x"\n[sinks.there]\ntype = "blob"\nuri = "file:///archive"\n'
    path = lake.root / "strand.toml"
    path.write_text(path.read_text() + sections)
    with Lake(lake.root) as again:
        assert {sink.name for sink in again.sinks()} == {"mine", "there"}
    break_it(shelf, "raise RuntimeError('no hardware')")
    (shelf / "entry_points.txt").write_text(f"[{registry.GROUP}]\nshelf = strand_shelf:TYPE\n")
    look_anew()
    with Lake(lake.root) as again:
        assert {sink.name for sink in again.sinks()} == {"mine", "there"}


@pytest.mark.parametrize("type_", ["shelf", "blub"])
def test_of_a_type_that_cant_be_had_all_is_hidden_but_what_every_sink_has(type_: str) -> None:
    settings: dict[str, Any] = {"path": "x", "unit_rows": 5, "secret_file": "secrets/x.json", "uri": "file:///x"}
    assert shown(type_, settings) == {**settings, "path": MASK, "uri": MASK}
    assert in_clear(type_, {**settings, "at": "https://me:secret@host"}) == ["at"]
    assert resolved(type_, {"path": "x"})["every"] == 60.0
