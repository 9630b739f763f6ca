"""`strand.toml` edited while workers run: no order of edits and commands makes a sink that sends everything again."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from strandline.config import LakeConfig
from strandline.errors import BadRequest, NotFound, StrandError
from strandline.lake import Lake
from strandline.ledger.database import schema as db
from strandline.ledger.sinks.sinks import find_sink, list_sinks
from strandline.model.delivery.sinks import Sink
from strandline.reports.doctor import examine
from strandline.sinks import following
from strandline.sinks.following import GONE, ConfigFile, config_file
from strandline.sinks.instances import checked_sink
from strandline.worker.due_inputs import Sightings, read_facts
from tests.delivery import GATEWAY, Receiver, assert_once
from tests.kit import call, make_table, messages, strand_json

BLOBS = 'type = "blob"\nuri = "file:///nowhere/blobs"\n'


@pytest.fixture
def edited(lake: Lake) -> Callable[..., None]:
    """Save the config with these sections, as if it had been done a while ago."""
    head = (lake.root / "strand.toml").read_text()

    def save(*names: str, body: str = BLOBS, rest: str = "") -> None:
        write(lake.root, head + "".join(f"\n[sinks.{name}]\n{body}" for name in names) + rest)

    return save


def write(root: Path, text: str, *, ago_s: float = 60) -> None:
    """Save a file by replacing it, as editors do."""
    file = root / "strand.toml"
    partial = root / ".saving"
    partial.write_text(text)
    now = partial.stat().st_mtime - ago_s
    os.utime(partial, (now, now))
    partial.replace(file)


def known(lake: Lake) -> dict[str, str | None]:
    """Every sink, as a worker's turn leaves it: its name, and why it is paused."""
    return {sink.name: sink.paused for sink in lake.sinks()}


def sink_of(lake: Lake, name: str) -> Sink:
    with lake.ledger.read() as conn:
        return find_sink(conn, name)


def test_f73_a_section_that_goes_pauses_its_sink_and_comes_back_with_its_marks(
    lake: Lake, edited: Callable[..., None]
) -> None:
    """A worker that runs follows the file as it is now; status, doctor, the worker's verdict and tick say why."""
    edited("a")
    assert known(lake) == {"a": None}
    sink_id = sink_of(lake, "a").sink_id
    edited()
    assert known(lake) == {"a": GONE}
    (tick,) = [one for one in read_facts(lake, Sightings(), []).schedules if one.sink == "a"]
    assert tick.paused == GONE
    assert [(done.sink, done.outcome, done.error) for done in lake.tick()] == [("a", "paused", GONE)]
    assert strand_json(lake, "status")["sinks"][0]["paused"] == GONE
    found = {finding.kind: finding for finding in examine(lake)}
    assert "strand sink rename a" in found["sink_paused"].fix
    edited("a")
    assert known(lake) == {"a": None} and sink_of(lake, "a").sink_id == sink_id


def test_f73_a_renamed_section_is_refused_until_its_sink_is_renamed(lake: Lake, edited: Callable[..., None]) -> None:
    """A new sink would send everything again; the refusal names the command, and the command is right."""
    edited("old")
    lake.sinks()
    sink_id = sink_of(lake, "old").sink_id
    removed = call("--lake", lake.root, "--json", "sink", "remove", "old")
    assert removed.code == 3 and "[sinks.old]" in removed.error["hint"], "the file would make it again, from seq 0"
    early = call("--lake", lake.root, "--json", "sink", "rename", "old", "new")
    assert early.code == 3 and "[sinks.new] there in place of [sinks.old]" in early.error["hint"]
    edited("new")
    assert known(lake) == {"old": GONE}
    refused = call("--lake", lake.root, "--json", "sink", "tick", "new")
    assert refused.code == 3 and "strand sink rename old new" in refused.error["hint"]
    (finding,) = [one for one in examine(Lake(lake.root)) if one.kind == "section_refused"]
    assert "strand sink rename old new" in finding.fix
    strand_json(lake, "sink", "rename", "old", "new")
    assert known(lake) == {"new": None} and sink_of(lake, "new").sink_id == sink_id


def test_f73_a_section_is_refused_that_another_process_has_made_under_its_old_name(
    lake: Lake, edited: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers start, and one of them read the file before it was edited: the ledger is asked when it is written."""
    edited("new")
    add = following.add

    def overtaken(*given: Any, **more: Any) -> Sink:
        monkeypatch.undo()
        other = checked_sink("old", "blob", {"uri": "file:///nowhere/blobs"}, where="")
        add(lake.surroundings, other, start=0, check=False, allowed=lambda _txn: None)
        return add(*given, **more)

    monkeypatch.setattr(following, "add", overtaken)
    lake.sinks()
    assert known(lake) == {"old": GONE}


def test_f73_two_sinks_to_one_destination_are_legal(lake: Lake, edited: Callable[..., None]) -> None:
    """A second section beside the first makes a second sink; so does one that goes elsewhere, beside a paused one."""
    edited("a")
    lake.sinks()
    edited("a", "b")
    assert known(lake) == {"a": None, "b": None}
    edited("b", rest='\n[sinks.c]\ntype = "blob"\nuri = "file:///nowhere/else"\n')
    assert known(lake) == {"a": GONE, "b": None, "c": None}


@pytest.mark.both_ledgers
def test_f73_a_sink_that_a_command_made_is_never_touched(lake: Lake, edited: Callable[..., None]) -> None:
    """No section pauses it, changes it or takes its name; nor does it keep a section from making a sink."""
    lake.add_sink("mine", "blob", {"uri": "file:///nowhere/blobs"}, check=False)
    edited("a")
    assert known(lake) == {"a": None, "mine": None}
    edited("a", "mine", body='type = "blob"\nuri = "file:///nowhere/else"\n')
    assert known(lake) == {"a": None, "mine": None}
    assert sink_of(lake, "mine").settings["uri"] == "file:///nowhere/blobs"
    edited(rest='\n[sinks.wrong]\nuri = "file:///nowhere/blobs"\n')
    assert known(lake) == {"a": GONE, "mine": None}
    refused = call("--lake", lake.root, "--json", "sink", "rename", "mine", "wrong")
    assert refused.code == 3 and "section [sinks.wrong]" in refused.error["message"]
    strand_json(lake, "sink", "rename", "mine", "own")
    strand_json(lake, "sink", "remove", "own")


def test_f73_a_person_pauses_and_resumes_and_the_file_does_not_undo_it(lake: Lake, edited: Callable[..., None]) -> None:
    """What a person paused a section does not resume; what a section paused a person does not resume."""
    edited("a")
    lake.sinks()
    strand_json(lake, "sink", "pause", "a", "--reason", "the disk is full")
    edited()
    assert known(lake) == {"a": "the disk is full"}
    edited("a")
    assert known(lake) == {"a": "the disk is full"}
    assert strand_json(lake, "sink", "resume", "a")["paused"] is None
    edited()
    assert known(lake) == {"a": GONE}
    refused = call("--lake", lake.root, "--json", "sink", "resume", "a")
    assert refused.code == 3 and "strand sink rename a" in refused.error["hint"]
    lake.add_sink("copy", "blob", {"uri": "file:///nowhere/other"}, check=False)
    with lake.ledger.write() as txn:
        txn.conn.execute(update(db.sinks).where(db.sinks.c.name == "copy").values(paused="this lake is a clone"))
    strand_json(lake, "sink", "resume", "copy")
    assert known(lake)["copy"] is None


@pytest.mark.parametrize("text", ["", "[sinks.a", "[lake]\nnonsense = 1\n", "\xff"])
def test_f73_a_file_that_can_not_be_read_or_is_being_written_changes_nothing(
    lake: Lake, edited: Callable[..., None], text: str
) -> None:
    """Cut anywhere, emptied by an editor, or gone: the sinks go on as they were."""
    edited("a")
    lake.sinks()
    whole = (lake.root / "strand.toml").read_text()
    if text == "":
        write(lake.root, "", ago_s=0)  # an editor has emptied it, and is about to write
    else:
        (lake.root / "strand.toml").write_bytes(text.encode("latin-1"))
        os.utime(lake.root / "strand.toml", (1, 1))
    assert known(lake) == {"a": None}
    (lake.root / "strand.toml").unlink()
    assert known(lake) == {"a": None}
    write(lake.root, whole.replace("blobs", "more"))
    assert known(lake) == {"a": None} and sink_of(lake, "a").settings["uri"].endswith("more")


def test_f73_a_file_that_is_saved_while_it_is_read_is_read_again(
    lake: Lake, edited: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read then may be the first half of it: it counts when it has settled."""
    edited("a")
    lake.sinks()
    whole = (lake.root / "strand.toml").read_text()
    load = following.configuration.load

    def saved_meanwhile(root: Path) -> LakeConfig:
        monkeypatch.undo()
        write(root, whole.partition("[sinks.a]")[0], ago_s=0)
        return load(root)

    edited("a", body=BLOBS.replace("blobs", "more"))
    monkeypatch.setattr(following.configuration, "load", saved_meanwhile)
    assert known(lake) == {"a": None}
    write(lake.root, whole.replace("blobs", "other"))
    assert known(lake) == {"a": None} and sink_of(lake, "a").settings["uri"].endswith("other")


def test_f73_a_file_that_was_just_saved_counts_when_it_has_settled(
    lake: Lake, edited: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the file's own time; and where that is wrong, by how long the process has seen it so."""
    edited("a")
    lake.sinks()
    clock = [1000.0]
    monkeypatch.setattr(following.time, "monotonic", lambda: clock[0])
    text = (lake.root / "strand.toml").read_text()
    write(lake.root, text.replace("[sinks.a]", "[sinks.b]").replace("blobs", "elsewhere"), ago_s=-3600)
    assert known(lake) == {"a": None}
    clock[0] += following.SETTLE_S
    assert known(lake) == {"a": GONE, "b": None}
    assert ConfigFile(lake.root).read().keys() == {"b"}, "who knows nothing yet waits for it"


def test_the_config_of_a_new_lake_counts_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written whole, so the first delivery waits for nothing."""
    waits: list[float] = []
    monkeypatch.setattr(following.time, "sleep", waits.append)
    assert ConfigFile(lake.root).read() == {} and waits == []


@pytest.mark.both_ledgers
def test_f73_sinks_of_an_older_lake_are_the_file_s_if_a_section_has_their_name(
    lake: Lake, edited: Callable[..., None]
) -> None:
    """The others are their own; one that a new section would double waits for a person's word."""
    edited("a", "renamed")
    lake.sinks()
    lake.add_sink("mine", "blob", {"uri": "file:///nowhere/mine"}, check=False)
    with lake.ledger.write() as txn:
        txn.conn.execute(update(db.sinks).values(from_config=None))
        txn.conn.execute(update(db.sinks).where(db.sinks.c.name == "renamed").values(name="before"))
    assert known(lake) == {"a": None, "before": None, "mine": None}
    assert [sink_of(lake, name).from_config for name in ("a", "before", "mine")] == [True, None, False]
    strand_json(lake, "sink", "pause", "before")
    strand_json(lake, "sink", "resume", "before")
    assert known(lake) == {"a": None, "before": None, "mine": None}, "that it goes on does not say whose it is"
    with lake.ledger.write() as txn:
        following.rename(txn, config_file(lake.root, lake.ledger).read(), "before", "renamed")
    edited("a")
    assert known(lake) == {"a": None, "mine": None, "renamed": GONE}, "the file had it, and has it no more"
    edited("a", "renamed")
    assert known(lake) == {"a": None, "mine": None, "renamed": None}


STEPS = ("rename section", "remove section", "restore section", "sink rename", "half-saved", "restart", "resume")


@pytest.mark.parametrize(
    "orders",
    [
        itertools.permutations(STEPS[:4]),
        itertools.islice(itertools.permutations(STEPS, 3), 0, None, 9),
    ],
)
def test_f73_no_order_of_steps_makes_a_second_sink(
    lake: Lake, edited: Callable[..., None], orders: Iterable[tuple[str, ...]]
) -> None:
    """Whatever is done, a worker's turn behind each step: one sink, one id, its marks; and the file can always win."""
    make_table(lake)
    lake.append("messages", messages(0, 1))
    edited("old")
    lake.sinks()
    sink_id = sink_of(lake, "old").sink_id
    for order in orders:
        for step in order:
            do(lake, edited, step)
            lake.sinks()
            with lake.ledger.read() as conn:
                (only,) = list_sinks(conn)
            assert only.sink_id == sink_id, order
            sections = config_file(lake.root, lake.ledger).read()
            assert (only.paused is None) == (only.name in sections), order
        # Whatever it is called by now, the sink goes on under the section that a person writes for it.
        edited("old")
        lake.sinks()
        if only.name != "old":
            with lake.ledger.write() as txn:
                following.rename(txn, config_file(lake.root, lake.ledger).read(), only.name, "old")
        assert known(lake) == {"old": None}, order


@pytest.mark.parametrize(
    "order",
    [
        ("rename section", "sink rename", "restore section", "remove section"),
        ("remove section", "rename section", "restart", "sink rename"),
        ("half-saved", "restart", "sink rename", "rename section"),
    ],
)
def test_f73_rows_that_come_between_the_steps_arrive_once(
    lake: Lake, edited: Callable[..., None], receiver: Receiver, order: tuple[str, ...]
) -> None:
    """A tick behind each step delivers what came before it, or nothing while the sink is paused; in the end all."""
    body = f'type = "forward"\nurl = "{receiver.url}"\ngateway = "{GATEWAY}"\ntoken = "{receiver.token}"\n'

    def forwarded(*names: str) -> None:
        edited(*names, body=body)

    make_table(lake)
    forwarded("old")
    for number, step in enumerate(order):
        lake.append("messages", messages(2 * number, 2 * number + 1))
        lake.tick()
        lake.append("messages", messages(2 * number + 1, 2 * number + 2))
        do(lake, forwarded, step)
        paused = {sink.name: sink.paused for sink in lake.sinks() if sink.paused}
        before = len(receiver.rows())
        lake.tick()
        expected = before if paused else 2 * number + 2
        assert len(receiver.rows()) == expected, (order, step)
    (sink,) = lake.sinks()
    forwarded(sink.name)
    lake.tick()
    assert_once([f"p{n}" for n in range(2 * len(order))], receiver.rows())


def do(lake: Lake, edited: Callable[..., None], step: str) -> None:
    match step:
        case "rename section":
            edited("new")
        case "remove section":
            edited()
        case "restore section":
            edited("old")
        case "half-saved":
            (lake.root / "strand.toml").write_text("[sinks.ol")
            os.utime(lake.root / "strand.toml", (1, 1))
        case "restart":
            config_file.cache_clear()
            try:
                with Lake(lake.root) as other:
                    other.sinks()
            except StrandError:  # of a half-saved file
                edited("old")
        case "resume" | "sink rename":
            with lake.ledger.write() as txn:
                try:
                    if step == "resume":
                        following.resume(txn, config_file(lake.root, lake.ledger).read(), "old")
                    else:
                        following.rename(txn, config_file(lake.root, lake.ledger).read(), "old", "new")
                except (BadRequest, NotFound):
                    return
