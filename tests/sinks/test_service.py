"""`lake.sinks`: what each function answers, that this is what its command prints, and what two processes do at once.

The rows of its streams are in no file, so no Spark is needed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from strandline.errors import BadRequest, Busy, Conflict, NotFound, StrandError
from strandline.lake import Lake
from strandline.lake.documents import document
from strandline.lake.sinks import RemovableSink, RemovedSink, Sinks, ticked_streams
from strandline.ledger.database import schema as db
from strandline.ledger.sinks.dead_letters import DISCARDED, list_letters
from strandline.ledger.sinks.sinks import find_sink
from strandline.model.delivery.sinks import Mark
from strandline.reports.sinks import SinkStatus
from strandline.sinks import continuing, instances
from tests.delivery import refused_rows, streams
from tests.kit import audits, call, make_table, messages, strand_json

BLOBS = "file:///nowhere/blobs"
CHANGING = {"age_s", "at", "sink_id", "created"}


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """A lake with rows, and a sink that has sent none of them."""
    make_table(lake)
    lake.append("messages", messages(0, 4))
    lake.add_sink("archive", "blob", {"uri": BLOBS, "every": "5m"}, check=False)
    return lake


@pytest.fixture
def refused(filled: Lake) -> Lake:
    """The same, and a sink to a gateway that nobody reaches, which has refused two rows."""
    refused_rows(filled.root, 2, 3)
    return filled


def lasting(value: Any) -> Any:
    """A document without what the time alone changes."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if key not in CHANGING}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def settings_of(lake: Lake, name: str) -> Mapping[str, object]:
    return lake.sinks.show(name).settings


def park(lake: Lake) -> None:
    """Let the delivery of the sink `central` wait for a person."""
    (state,) = streams(lake)
    stream = state.stream
    opened = {"epoch": 1, "since": 4, "until": 5, "version": 1, "snapshot_id": 0, "schema_version": 1, "settings": "{}"}
    failed = {"opened_at_us": 1, "attempts": 8, "not_before_us": 0, "last_error": "it said no", "parked": "it said no"}
    with lake.ledger.write() as txn:
        key = {"branch_id": stream.branch_id, "table_id": stream.table_id, "partition": stream.partition}
        sink_id = find_sink(txn.conn, "central").sink_id
        txn.conn.execute(insert(db.deliveries).values(delivery_id="d1", sink_id=sink_id, **key, **opened, **failed))


# -- what they answer --------------------------------------------------------------------------------------------------

TWICE: list[tuple[list[str], Callable[[Lake], object]]] = [
    (["list"], lambda lake: lake.sinks.list()),
    (["show", "central"], lambda lake: lake.sinks.show("central")),
    (["set", "archive", "--set", "every=9m"], lambda lake: lake.sinks.set("archive", {"every": "9m"})),
    (["pause", "archive", "--reason", "full"], lambda lake: lake.sinks.pause("archive", "full")),
    (["pause", "archive", "--actor", "ann"], lambda lake: lake.sinks.pause("archive", actor="ann")),
    (["resume", "archive"], lambda lake: lake.sinks.resume("archive").status),
    (["retry", "central"], lambda lake: lake.sinks.retry("central").deliveries),
    (["preview", "archive"], lambda lake: lake.sinks.preview("archive")),
    (["dead", "central"], lambda lake: lake.sinks.dead_letters.list("central")),
    (["dead", "central", "--replay"], lambda lake: lake.sinks.dead_letters.replay("central")),
    (["dead", "archive", "--discard"], lambda lake: lake.sinks.dead_letters.discard("archive")),
]
"""Commands that answer the same when they are done again."""


@pytest.mark.parametrize(("command", "service"), TWICE, ids=[" ".join(command) for command, _ in TWICE])
def test_a_result_is_the_document_of_its_command(
    refused: Lake, command: list[str], service: Callable[[Lake], object]
) -> None:
    """The same keys in the same order, and the same values."""
    printed = call("--lake", refused.root, "--json", "sink", *command).json
    result = document(service(refused))
    assert lasting(result) == lasting(printed)
    assert keys(result) == keys(printed)


def keys(value: Any) -> Any:
    """The keys of a document in their order, and of what is in it."""
    if isinstance(value, dict):
        return [(key, keys(item)) for key, item in value.items()]
    return [keys(item) for item in value] if isinstance(value, list) else None


def test_a_new_sink_is_described_and_its_neighbour_is_told(filled: Lake, tmp_path: Path) -> None:
    """`lake.add_sink` gives the sink itself, as ever."""
    added = filled.sinks.add("copy", "blob", {"uri": BLOBS, "tables": ["messages"]}, check=False, start="now")
    assert (added.sink.name, added.status.tables, added.status.start_seq) == ("copy", ("messages",), 5)
    assert added.shared is not None and "sink 'archive' of this lake delivers there too" in added.shared
    printed = strand_json(
        filled, "sink", "add", "other", "--type", "blob", "--set", f"uri={BLOBS}", "--tables", "messages",
        "--from", "now", "--no-check",
    )  # fmt: skip
    assert [key for key in printed if key != "warnings"] == list(document(added.status))
    assert filled.add_sink("third", "blob", {"uri": f"file://{tmp_path}"}) == filled.sinks.named("third")[0]


def test_calling_it_lists_the_sinks(filled: Lake) -> None:
    """As the method did that had its name."""
    assert [sink.name for sink in filled.sinks()] == ["archive"]
    assert filled.sinks() == filled.sinks.named() == filled.sinks.named("archive")


def test_a_sink_is_renamed_and_keeps_what_it_is(filled: Lake) -> None:
    before = filled.sinks.show("archive")
    renamed = filled.sinks.rename("archive", "cold")
    assert (renamed.sink, renamed.sink_id, renamed.settings) == ("cold", before.sink_id, before.settings)
    assert (
        document(filled.sinks.rename("cold", "archive")).keys()
        == strand_json(filled, "sink", "rename", "archive", "cold").keys()
    )


def test_a_sink_that_goes_on_says_why_it_did_not(filled: Lake) -> None:
    assert filled.sinks.pause("archive", actor="ann").paused == "ann paused it"
    resumed = filled.sinks.resume("archive")
    assert (resumed.was, resumed.status.paused) == ("ann paused it", None)
    assert filled.sinks.resume("archive").was is None


def test_settings_are_merged_and_an_empty_one_goes(filled: Lake) -> None:
    """One token takes the place of another, however either is given; none of them is shown."""
    assert filled.sinks.set("archive", {"unit_rows": 7}).settings["unit_rows"] == 7
    left = filled.sinks.set("archive", {"every": ""}).settings
    assert "every" not in left and left["unit_rows"] == 7
    filled.add_sink("central", "forward", {"url": "http://127.0.0.1:9", "token": "hush"}, check=False)
    assert filled.sinks.set("central", {"token_env": "HOME"}).settings["token_env"] == "HOME"
    assert "secret_file" not in settings_of(filled, "central")


def test_a_tick_is_printed_under_the_names_of_its_document(filled: Lake) -> None:
    """In Python it has the names that a worker's answer has."""
    filled.sinks.pause("archive", "full")
    ticked = filled.tick("archive")
    assert ticked == filled.sinks.tick("archive")
    assert [(stream.outcome, stream.error, stream.size_bytes) for stream in ticked] == [("paused", "full", 0)]
    printed = call("--lake", filled.root, "--json", "sink", "tick", "archive").json
    assert document(ticked_streams(ticked)) == printed
    assert keys(document(ticked_streams(ticked))) == keys(printed)


def test_parked_deliveries_are_tried_again(refused: Lake) -> None:
    park(refused)
    assert refused.sinks.show("central").parked == 1
    retried = refused.sinks.retry("central")
    assert document(retried.deliveries) == {
        "sink": "central",
        "retried": 1,
        "receiver_accepted": False,
        "begun_anew": 0,
    }
    assert refused.sinks.show("central").parked == 0
    accepted = refused.sinks.retry("central", accept_receiver=True, actor="ann")
    assert (accepted.asking, accepted.deliveries.retried, accepted.deliveries.receiver_accepted) == (1, 0, True)
    assert [(row["outcome"], row["actor"]) for row in audits(refused)][:1] == [("receiver_accepted", "ann")]


def test_a_rewind_says_what_it_would_do_before_it_does_it(refused: Lake) -> None:
    with pytest.raises(BadRequest, match=r"everything of messages/all in \(1, 4\] again"):
        refused.sinks.rewind("central", "messages", 1)
    assert [state.mark for state in streams(refused)] == [Mark(1, 4)]
    rewound = refused.sinks.rewind("central", "messages", 1, yes=True, actor="ann")
    assert document(rewound) == {
        "sink": "central",
        "stream": streams(refused)[0].stream.text(),
        "was": 4,
        "to": 1,
        "epoch": 2,
        "dead_letters_closed": 2,
    }
    printed = strand_json(refused, "sink", "rewind", "central", "--stream", "messages", "--to", "0", "--yes")
    assert list(printed) == list(document(rewound))


def test_dead_letters_are_given_up_by_their_ids(refused: Lake) -> None:
    first, second = sorted(refused.sinks.dead_letters.list("central"), key=lambda letter: letter.seq)
    assert (first.seq, second.seq, first.answer) == (2, 3, {"status": 422})
    assert '"part_id":"p0"' in first.row
    assert set(refused.sinks.dead_letters.ids("central")) == {first.id, second.id}
    settled = refused.sinks.dead_letters.discard("central", [second.id], actor="ann")
    assert document(settled) == [{"id": second.id, "seq": 3, "outcome": "discarded", "error": None}]
    printed = call("--lake", refused.root, "--json", "sink", "dead", "central", "--discard").json
    assert printed == [{"id": first.id, "seq": 2, "outcome": "discarded", "error": None}]
    assert refused.sinks.dead_letters.ids("central") == ()


def test_a_sink_is_forgotten(filled: Lake) -> None:
    removable = filled.sinks.removable("archive")
    assert removable == RemovableSink("archive", filled.sinks.show("archive").sink_id)
    assert filled.sinks.remove("archive", sink_id=removable.sink_id) == RemovedSink("archive", removable.sink_id)
    assert filled.sinks.list() == []
    made = filled.add_sink("archive", "blob", {"uri": BLOBS}, check=False)
    printed = strand_json(filled, "sink", "remove", "archive")
    assert list(printed.items()) == [("removed", "archive"), ("sink_id", made.sink_id)]


WRONG: list[tuple[type[StrandError], str, Callable[[Lake], object]]] = [
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.show("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.set("archiv", {"every": "1m"})),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.pause("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.resume("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.rename("archiv", "x")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.removable("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.remove("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.preview("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.tick("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.named("archive", "archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.retry("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.continue_("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.rewind("archiv", "messages", 0, yes=True)),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.dead_letters.list("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.dead_letters.replay("archiv")),
    (NotFound, "there is no sink 'archiv'", lambda lake: lake.sinks.dead_letters.discard("archiv")),
    (NotFound, "no open dead letter 'x'", lambda lake: lake.sinks.dead_letters.ids("central", ["x"])),
    (NotFound, "no open dead letter 'x'", lambda lake: lake.sinks.dead_letters.discard("central", ["x"])),
    (NotFound, "has no stream 'notes'", lambda lake: lake.sinks.rewind("central", "notes", 0)),
    (BadRequest, "can't rewind to 9", lambda lake: lake.sinks.rewind("central", "messages", 9, yes=True)),
    (BadRequest, "has no setting 'evry'", lambda lake: lake.sinks.set("archive", {"evry": "1m"})),
    (BadRequest, "can't be a sink's name", lambda lake: lake.sinks.rename("archive", "a/b")),
    (BadRequest, "Only forward", lambda lake: lake.sinks.dead_letters.replay("archive")),
    (BadRequest, "Only forward", lambda lake: lake.sinks.retry("archive", accept_receiver=True)),
    (BadRequest, "no marker", lambda lake: lake.sinks.retry("central", take_over=True)),
    (BadRequest, "can't begin at seq 99", lambda lake: lake.sinks.add("x", "blob", {"uri": BLOBS}, start=99)),
    (Conflict, "a sink 'archive' already", lambda lake: lake.sinks.rename("central", "archive")),
    (Conflict, "a sink 'archive' already", lambda lake: lake.sinks.add("archive", "blob", {"uri": BLOBS}, check=False)),
    (Conflict, "has 2 dead letters", lambda lake: lake.sinks.remove("central")),
]


@pytest.mark.parametrize(
    ("kind", "text", "call_it"), WRONG, ids=[f"{n} {text}" for n, (_, text, _) in enumerate(WRONG)]
)
def test_what_is_wrong_is_refused_and_changes_nothing(
    refused: Lake, kind: type[StrandError], text: str, call_it: Callable[[Lake], object]
) -> None:
    before = [lasting(document(sink)) for sink in refused.sinks.list()], audits(refused)
    with pytest.raises(kind) as raised:
        call_it(refused)
    assert text in f"{raised.value.message} {raised.value.hint}"
    assert ([lasting(document(sink)) for sink in refused.sinks.list()], audits(refused)) == before


def test_a_stream_does_not_go_on_while_its_destination_can_not_be_asked(refused: Lake) -> None:
    park(refused)
    with pytest.raises(Busy, match="can't be reached") as raised:
        refused.sinks.continue_("central")
    assert raised.value.hint == "Nothing was changed."
    assert refused.sinks.show("central").parked == 1


# -- two processes at once ---------------------------------------------------------------------------------------------


@pytest.fixture
def other(filled: Lake) -> Iterator[Lake]:
    """The same lake, opened by another process."""
    with Lake(filled.root) as lake:
        yield lake


@pytest.mark.parametrize(
    ("first", "second"), [({"unit_rows": 7}, {"every": "9m"}), ({"token": "new"}, {"every": "9m"})]
)
def test_of_two_that_set_at_once_neither_is_lost(
    filled: Lake,
    other: Lake,
    monkeypatch: pytest.MonkeyPatch,
    first: Mapping[str, object],
    second: Mapping[str, object],
) -> None:
    """The second reads what the first has written, secrets too, however long either takes between the two."""
    url = {"url": "http://127.0.0.1:9", "token": "old"}
    sink = filled.add_sink("central", "forward", url, check=False)
    as_given, has_read = instances.as_given, threading.Event()

    def slowly(*args: Any) -> dict[str, Any]:
        settings = as_given(*args)
        has_read.set()
        time.sleep(0.3)
        return settings

    monkeypatch.setattr(instances, "as_given", slowly)
    setting = threading.Thread(target=other.sinks.set, args=("central", second))
    setting.start()
    assert has_read.wait(30)
    filled.sinks.set("central", first)
    setting.join()
    monkeypatch.undo()
    with filled.ledger.read() as conn:
        settings = as_given(filled.surroundings, conn, find_sink(conn, sink.name))
    parsed = instances.checked_sink("central", "forward", {**url, **first, **second}, where="").settings
    assert {key: settings[key] for key in parsed} == parsed


def test_a_sink_that_is_removed_meanwhile_is_described_as_it_was_left(
    filled: Lake, other: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was decided was done; that another process decided something else since is no error of it."""
    status = Sinks._status

    def removed_meanwhile(self: Sinks, sink: Any) -> SinkStatus:
        other.sinks.remove(sink.name)
        return status(self, sink)

    monkeypatch.setattr(Sinks, "_status", removed_meanwhile)
    assert filled.sinks.resume("archive").status.sink == "archive"
    added = filled.sinks.add("archive", "blob", {"uri": BLOBS}, check=False)
    assert (added.status.sink, added.status.sink_id) == ("archive", added.sink.sink_id)
    assert filled.sinks.list() == []


def test_only_the_sink_that_was_asked_about_is_removed(filled: Lake, other: Lake) -> None:
    """A person takes time to answer: the name may be another sink's by then, or nobody's."""
    removable = filled.sinks.removable("archive")
    other.sinks.remove("archive")
    with pytest.raises(NotFound, match="there is no sink 'archive'"):
        filled.sinks.remove("archive", sink_id=removable.sink_id)
    other.add_sink("archive", "blob", {"uri": BLOBS}, check=False)
    with pytest.raises(NotFound, match="another one has its name"):
        filled.sinks.remove("archive", sink_id=removable.sink_id)
    assert [sink.name for sink in filled.sinks()] == ["archive"]
    assert [row["outcome"] for row in audits(filled)] == ["removed"]


def test_a_sink_is_not_removed_whose_section_came_while_a_person_was_asked(lake: Lake) -> None:
    """The file would make it again, and everything would be sent again."""
    file = lake.root / "strand.toml"
    without = file.read_text()

    def save(text: str) -> None:
        file.write_text(text)
        os.utime(file, (time.time() - 60 - len(text), time.time() - 60 - len(text)))

    save(f'{without}\n[sinks.a]\ntype = "blob"\nuri = "{BLOBS}"\n')
    assert [sink.name for sink in lake.sinks()] == ["a"]
    save(without)
    removable = lake.sinks.removable("a")
    save(f'{without}\n[sinks.a]\ntype = "blob"\nuri = "{BLOBS}"\n')
    with pytest.raises(BadRequest, match=r"written in strand.toml"):
        lake.sinks.remove("a", sink_id=removable.sink_id)
    assert [sink.name for sink in lake.sinks()] == ["a"]


def test_a_sink_that_is_removed_while_it_is_retried_is_no_success(
    refused: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed_meanwhile(*_: object, **__: object) -> int:
        refused.sinks.remove("central", force=True)
        return 1

    monkeypatch.setattr(continuing, "accept_receiver", removed_meanwhile)
    with pytest.raises(NotFound, match="'central' was removed meanwhile"):
        refused.sinks.retry("central", accept_receiver=True)


def test_dead_letters_that_came_after_the_question_are_not_given_up(refused: Lake) -> None:
    """None waited when a person was to be asked, so none was asked about; and none goes with one that is gone."""
    assert refused.sinks.dead_letters.discard("central", ()) == []
    first, second = refused.sinks.dead_letters.ids("central")
    refused.sinks.dead_letters.discard("central", [second])
    with pytest.raises(NotFound, match="no open dead letter"):
        refused.sinks.dead_letters.discard("central", [first, second])
    assert refused.sinks.dead_letters.ids("central") == (first,)
    with refused.ledger.read() as conn:
        sink_id = find_sink(conn, "central").sink_id
        assert [letter.letter_id for letter in list_letters(conn, sink_id, state=DISCARDED)] == [second]
