"""What a package's destination raises is its own error: hidden where it repeats a secret, and no end of the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import create, redaction
from strandline.errors import SinkFault
from strandline.failpoints import FailpointReached
from strandline.lake import Lake
from strandline.sinks.destination import Later, Park, Resume
from strandline.sinks.seam import Called, code_of
from tests.kit import call, in_ledger, make_table, message
from tests.packages import install_shelf, look_anew

PIN = "hunter-2'and\"zebra\\still"
ELEMENTS = "firstsecret,second-one"
PACKAGE = """
import json
from strandline.sinks.api import *

def boom(value):
    raise RuntimeError(f"can't read {value!r}")

class Base(BaseException):
    pass

class Shelf:
    def __init__(self, sender):
        self.settings = sender.settings
        self.act("make")
    def act(self, name):
        for fault in (self.settings["fault"] or "").split("+"):
            at, _, raised = fault.partition(":")
            if at == name:
                said = f"401 {self.settings['pin']} {self.settings['pin']!r} {self.settings['hdr']} in {name}"
                said += " ".join(self.settings["hdr"] or []) + json.dumps([self.settings["pin"]])
                raise {"error": RuntimeError, "later": Later, "park": Park, "exit": SystemExit, "base": Base,
                       "interrupt": KeyboardInterrupt}[raised](said)
    def probe(self):
        self.act("probe")
    def look(self):
        self.act("look")
    def standing(self, *_):
        self.act("standing")
        return Standing(None)
    def ship(self, unit):
        self.act("ship")
        return Shipped(1)
    def close(self):
        self.act("close")

TYPE = SinkType(
    name="shelf",
    keys={
        "fault": Key(None, plain_text, "what fails, and how"),
        "pin": Key(None, plain_text, "a secret", is_secret=True),
        "hdr": Key(None, lambda value: value if isinstance(value, list) else value.split(","), "more", is_secret=True),
        "odd": Key(None, boom, "can't be read", is_secret=True),
    },
    make=Shelf,
)
"""


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(redaction, "_secrets", set())
    yield
    look_anew()


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake with the package that fails as it is told."""
    install_shelf(monkeypatch, tmp_path / "site", PACKAGE)
    with create.create(tmp_path / "lake") as made:
        make_table(made)
        yield made


def add(lake: Lake, fault: str, *more: str) -> Any:
    """`sink add` of a sink that fails so."""
    given = ("--set", f"fault={fault}", "--set", f"pin={PIN}", "--set", f"hdr={ELEMENTS}")
    return call(
        "--lake",
        lake.root,
        "--json",
        "sink",
        "add",
        "mine",
        "--type",
        "shelf",
        "--set",
        "max_attempts=1",
        *given,
        *more,
    )


SECRETS = ("hunter-2", "zebra", "firstsecret", "second-one")


def hidden(text: str) -> bool:
    """Whether no part of a secret is in a text."""
    return not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("raised", ["error", "later", "park", "exit", "base"])
@pytest.mark.parametrize("at", ["probe", "close", "make"])
def test_adding_a_sink_tells_the_fault_without_its_secret(lake: Lake, at: str, raised: str) -> None:
    """It has an exit code of ours, whatever was raised; a close that fails too hides nothing."""
    done = add(lake, f"{at}:{raised}" + ("+close:error" if at == "probe" else ""))
    waits = raised in ("later", "park")
    assert (done.code, done.error["code"]) == ((5, "busy") if waits else (6, "environment")), done.err
    assert f"in {at}" in done.error["message"]
    assert hidden(done.out + done.err)


def test_an_interrupt_stays_one(lake: Lake) -> None:
    assert add(lake, "probe:interrupt").code == 130


def test_a_reader_that_raises_is_the_packages_fault(lake: Lake) -> None:
    done = add(lake, "none", "--set", "odd=anything-odd")
    assert (done.code, done.error["code"]) == (6, "environment")
    assert "can't read the setting 'odd': RuntimeError" in done.error["message"]
    assert "anything-odd" not in done.out + done.err


def tick(lake: Lake, *commands: str) -> list[Any]:
    """Rows that wait, a tick of the sink, and all that shows what became of it."""
    lake.append("messages", [message(1)])
    lake.flush("messages")
    looks = (("sink", "show", "mine"), ("status",), ("doctor",), ("worker", "--once"))
    ticks = [call("--lake", lake.root, *how, "sink", "tick", "mine") for how in (("--debug",), ("--json",))]
    return [*ticks, *(call("--lake", lake.root, "--json", *look) for look in looks)]


@pytest.mark.parametrize(
    ("at", "raised"),
    [("ship", "error"), ("ship", "exit"), ("ship", "base"), ("ship", "later"), ("standing", "error"),
     ("standing", "exit"), ("look", "error"), ("look", "exit"), ("close", "exit"), ("make", "exit"), ("make", "later")],
)  # fmt: skip
def test_whatever_a_destination_raises_a_tick_tells_it_hidden(lake: Lake, at: str, raised: str) -> None:
    """And no command ends with a code that the destination chose; nothing of it is in the ledger."""
    assert add(lake, f"{at}:{raised}", "--no-check").code == 0
    ran = tick(lake)
    shown = "".join(done.out + done.err for done in ran)
    assert hidden(shown)
    assert "in " + at in shown
    told = in_ledger(lake, "SELECT last_error FROM watermarks UNION ALL SELECT last_error FROM deliveries")
    assert hidden(str(told))
    fails = at in ("ship", "standing", "make")
    assert (ran[0].code != 0) == fails
    assert not fails or (ran[1].json if ran[1].out else None), "a tick answers"


@pytest.mark.parametrize("passing", [KeyboardInterrupt, GeneratorExit, FailpointReached])
def test_what_ends_the_process_on_purpose_passes(passing: type[BaseException]) -> None:
    with pytest.raises(passing), code_of("it"):
        raise passing


class Everything:
    """A destination that raises what it is made with."""

    def __init__(self, raised: BaseException) -> None:
        self._raised = raised

    def _fails(self, *_: object) -> Any:
        raise self._raised

    probe = look = standing = ship = close = has_lost = highest_epoch = replay = replayed = _fails


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("none")


METHODS = ("probe", "look", "standing", "ship", "close", "has_lost", "highest_epoch", "replay", "replayed")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("raised", [RuntimeError("so"), SystemExit(0), StopIteration(), Wordless()])
def test_each_method_is_called_through_the_seam(method: str, raised: BaseException) -> None:
    """Of a package; the words that steer a tick pass."""
    arguments = {"standing": 3, "ship": 1, "has_lost": 3, "highest_epoch": 1, "replay": 2, "replayed": 2}
    given = [None] * arguments.get(method, 0)
    place: Any = Called(Everything(raised), "mine", Later, Park, Resume, is_ours=False)
    with pytest.raises(SinkFault, match=rf"sink 'mine' failed in {method}\(\): {type(raised).__name__}"):
        getattr(place, method)(*given)
    place = Called(Everything(Park("so")), "mine", Later, Park, Resume, is_ours=False)
    with pytest.raises(Park, match="so"):
        getattr(place, method)(*given)
    place = Called(Everything(raised), "mine", Later, Park, Resume, is_ours=True)
    with pytest.raises(type(raised) if isinstance(raised, RuntimeError | Wordless) else Exception):
        getattr(place, method)(*given)


def test_a_destination_without_a_method_is_the_packages_fault() -> None:
    with pytest.raises(SinkFault, match=r"has no method probe\(\)"):
        Called(object(), "mine", is_ours=False)  # type: ignore[arg-type]
