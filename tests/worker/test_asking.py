"""Commands that ask a worker: its answer, its errors, its death, and a change of mind."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from strandline.errors import Damaged, InvalidRows
from strandline.lake import Lake
from strandline.ledger.publish import leases
from strandline.ledger.workers import requests
from strandline.ledger.workers.jobs import JobRecord, read_jobs
from strandline.ledger.workers.requests import WorkRequest, open_requests
from strandline.model.ids import lease_of_worker
from strandline.worker import delegation
from strandline.worker.delegation import Left, carry_out
from strandline.worker.loop import Worker
from tests.cli.conftest import Strand
from tests.kit import assert_recovered, call, environment, kill, log_part_ids, make_table, messages, wait_until
from tests.worker.test_loop import working

FLUSH = {"tables": ["messages"], "branch": "main", "actor": "tester"}


def asked(lake: Lake) -> list[WorkRequest]:
    with lake.ledger.read() as conn:
        return open_requests(conn)


class Said:
    """What a command was told about its progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, what: str, _done: int, _total: int | None) -> None:
        if what not in self.lines:
            self.lines.append(what)


@pytest.fixture
def filled(lake: Lake) -> Lake:
    make_table(lake)
    lake.append("messages", messages(0, 5))
    return lake


def test_a_worker_that_lives_does_it_and_the_command_gets_its_answer(filled: Lake) -> None:
    """The command has no Spark of its own: the worker's lake flushes, in the name of whoever asked."""
    said = Said()
    with working(filled.root):
        wait_until(lambda: bool(requests_of_workers(filled)))
        (flushed,) = carry_out(filled, "flush", FLUSH, report=said)
        assert (flushed["rows"], flushed["flushed_seq"] > 0) == (5, True)
        assert filled._spark._iceberg is None, "this lake has started nothing"
    assert "asked the worker" in said.lines
    assert asked(filled) == []


def jobs_of(lake: Lake) -> dict[str, JobRecord]:
    with lake.ledger.read() as conn:
        return read_jobs(conn)


def requests_of_workers(lake: Lake) -> list[str]:
    with lake.ledger.read() as conn:
        return [one.worker_id for one in requests.read_workers(conn)]


def test_an_error_comes_back_as_it_was_raised(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class, code, message, hint and detail are those of the worker's error."""

    def refuse(*_: Any, **__: Any) -> list[Any]:
        raise Damaged("a file is gone", hint="look for it", path="/x")

    with working(filled.root):
        wait_until(lambda: bool(requests_of_workers(filled)))
        monkeypatch.setattr(Lake, "flush", refuse)
        with pytest.raises(Damaged, match="a file is gone") as raised:
            carry_out(filled, "flush", FLUSH, report=Said())
    assert (raised.value.hint, raised.value.detail) == ("look for it", {"path": "/x"})


def test_without_a_worker_it_is_done_here(filled: Lake) -> None:
    """No request is written, and nobody waits."""
    said = Said()
    (flushed,) = carry_out(filled, "flush", FLUSH, report=said)
    assert flushed["rows"] == 5
    assert said.lines == []


def dead_worker(lake: Lake) -> str:
    """A worker of another host that has beaten once and will not again."""
    with lake.ledger.write() as txn:
        worker = "0000" + "0" * 20
        owner = lake.context.owner.text().replace(lake.context.owner.host, "elsewhere")
        leases.take(txn, [lease_of_worker(worker)], owner, worker)
        requests.write_worker(txn, worker, owner=owner, place="elsewhere:", state="working", spark=True, running=[])
    return worker


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_of_a_dead_worker_is_taken_back_and_done_here(filled: Lake, begun: bool) -> None:
    """Whether it had begun or not; when that worker wakes up after all, it has nothing to answer."""
    worker = dead_worker(filled)
    said = Said()
    answer: list[Any] = []
    with Lake(filled.root) as command:
        thread = threading.Thread(target=lambda: answer.extend(carry_out(command, "flush", FLUSH, report=said)))
        thread.start()
        wait_until(lambda: len(asked(filled)) == 1)
        (request,) = asked(filled)
        if begun:
            with filled.ledger.write() as txn:
                assert requests.claim_request(txn, request, worker)
        thread.join(60)
    assert [one["rows"] for one in answer] == [5]
    assert "the worker is gone; doing it here" in said.lines
    with filled.ledger.write() as txn:
        assert not requests.answer_request(txn, request.request_id, request.fence + begun, answer=[])
        assert not requests.claim_request(txn, request, worker)
    assert requests_of_workers(filled) == [], "nothing of the dead worker is left"
    assert log_part_ids(filled) == [f"p{n}" for n in range(5)]


def test_a_worker_killed_in_the_middle_of_a_request_loses_it_to_the_command(filled: Lake) -> None:
    """A real worker dies as by kill -9 when it has staged the rows: the command finishes.

    And each row is there once.
    """
    command = [sys.executable, "-m", "strandline", "--lake", str(filled.root), "worker"]
    env = environment(STRAND_FAILPOINTS="stage.after_append=exit", STRAND_FLUSH_MAX_AGE="1h")
    worker = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: bool(requests_of_workers(filled)))
        said = Said()
        (flushed,) = carry_out(filled, "flush", FLUSH, report=said)
        assert worker.wait(60) == 137
    finally:
        if worker.poll() is None:
            kill(worker)
    assert flushed["rows"] == 5 and "the worker is gone; doing it here" in said.lines
    assert log_part_ids(filled) == [f"p{n}" for n in range(5)]
    assert_recovered(filled, "rolled_back")


def test_another_worker_takes_over_what_a_dead_one_had_begun(filled: Lake) -> None:
    """Nobody waits for it any more, and it is done all the same: an answer is there for `strand status`."""
    worker = dead_worker(filled)
    with filled.ledger.write() as txn:
        request_id = requests.write_request(txn, "flush", FLUSH, None)
        seen = requests.find_request(txn.conn, request_id)
        assert seen is not None and requests.claim_request(txn, seen, worker)
    with working(filled.root):
        wait_until(lambda: asked(filled) == [])
    with filled.ledger.read() as conn:
        (done,) = requests.list_requests(conn)
    assert (done.state, done.answer[0]["rows"], done.fence) == ("done", 5, 2)


def test_a_request_is_one_workers_until_it_is_taken_away(filled: Lake) -> None:
    """Of two that saw it one gets it; when it was taken away, who had it can neither answer nor give it back."""
    with filled.ledger.write() as txn:
        request_id = requests.write_request(txn, "flush", FLUSH, None)
        seen = requests.find_request(txn.conn, request_id)
        assert seen is not None
        assert [requests.claim_request(txn, seen, name) for name in ("slow", "late")] == [True, False]
        taken = requests.find_request(txn.conn, request_id)
        assert taken is not None and (taken.worker_id, taken.fence) == ("slow", 1)
        assert requests.claim_request(txn, taken, "next"), "slow is dead, as far as anybody sees"
        assert not requests.answer_request(txn, request_id, taken.fence, answer=["slow"])
        assert not requests.note_progress(txn, request_id, taken.fence, "slow", 1, None)
        assert not requests.give_back_request(txn, request_id, taken.fence)
        assert not requests.take_request_back(txn, request_id, taken.fence), "a command that saw it with slow"
        assert requests.answer_request(txn, request_id, taken.fence + 1, answer=["next"])
        (done,) = requests.list_requests(txn.conn)
        assert not requests.claim_request(txn, done, "again"), "it is answered, and is not done again"
        assert not requests.answer_request(txn, request_id, done.fence, answer=["again"])
    assert (done.state, done.worker_id, done.answer) == ("done", "next", ["next"])


def test_what_a_living_worker_is_at_is_not_taken_by_another(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs once, though another worker looks for something to do all the time."""
    begun, go_on = threading.Event(), threading.Event()
    ran: list[int] = []

    def slow(*_: Any, **__: Any) -> list[Any]:
        ran.append(len(ran))
        begun.set()
        assert go_on.wait(30)
        return []

    monkeypatch.setattr(Lake, "flush", slow)
    with working(filled.root), Lake(filled.root) as other:
        with filled.ledger.write() as txn:
            requests.write_request(txn, "flush", FLUSH, None)
        assert begun.wait(30)
        try:
            looking = Worker(other)
            for request in looking._requests_to_take():
                looking._answer(request)
        finally:
            go_on.set()
        wait_until(lambda: asked(filled) == [])
    assert ran == [0]


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_cancels_what_has_not_begun_and_leaves_the_rest(
    filled: Lake, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    worker = dead_worker(filled)

    def interrupted(*_: Any, **__: Any) -> Any:
        if begun:
            (request,) = asked(filled)
            with filled.ledger.write() as txn:
                requests.claim_request(txn, request, worker)
        raise KeyboardInterrupt

    monkeypatch.setattr(delegation, "_wait", interrupted)
    with pytest.raises(Left) as left:
        carry_out(filled, "flush", FLUSH, report=Said())
    assert left.value.cancelled is not begun
    assert len(asked(filled)) == begun


def test_a_file_of_this_machine_is_not_asked_of_a_worker_elsewhere(filled: Lake, tmp_path: Path) -> None:
    """Only a worker that sees the file could do it; there is none, so it is done here."""
    dead_worker(filled)
    (tmp_path / "more.jsonl").write_text('{"part_id": "x", "source": "s", "n": 1}\n')
    work = {
        "table": "messages", "files": [str(tmp_path / "more.jsonl")], "branch": "main", "again": False, "key": None,
        "mode": "append",
        "actor": "tester",
    }  # fmt: skip
    loaded = carry_out(filled, "load", work, local_files=True, report=Said())
    assert loaded["rows"] == 1


def test_a_worker_that_stops_gives_back_what_it_was_asked_for(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request waits for the next one, which finds it and does it."""
    begun, go_on = threading.Event(), threading.Event()
    flush = Lake.flush

    def slow(*_: Any, **__: Any) -> list[Any]:
        begun.set()
        go_on.wait(30)
        raise InvalidRows("too late")

    monkeypatch.setattr("strandline.worker.loop.STOP_S", 0.2)
    with working(filled.root):
        monkeypatch.setattr(Lake, "flush", slow)
        with filled.ledger.write() as txn:
            requests.write_request(txn, "flush", FLUSH, None)
        assert begun.wait(30)
    (given_back,) = asked(filled)
    assert (given_back.state, given_back.fence) == ("waiting", 2)
    go_on.set()
    monkeypatch.setattr(Lake, "flush", flush)
    with Lake(filled.root) as next_one:
        Worker(next_one).once()
    assert asked(filled) == []
    assert log_part_ids(filled) == [f"p{n}" for n in range(5)]


def test_commands_ask_and_print_what_they_would_have_printed(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flush`, `sink tick`, `recover`: the same documents, whoever did the work."""
    strand: Strand = call
    monkeypatch.setenv("STRAND_LAKE", str(filled.root))
    blobs = filled.root.parent / "blobs"
    add = ("sink", "add", "archive", "--type", "blob", "--set", f"uri=file://{blobs}", "--set", "every=1h")
    assert strand(*add).code == 0
    with working(filled.root):
        wait_until(lambda: bool(requests_of_workers(filled)))
        (flushed,) = strand("--json", "flush").json
        assert set(flushed) == {
            "table", "branch", "rows", "duplicates_dropped", "flushed_seq", "snapshot_id", "operation",
            "warnings",
        }  # fmt: skip
        wait_until(lambda: "tick:archive" in jobs_of(filled) and jobs_of(filled)["tick:archive"].outcome == "done")
        filled.append("messages", messages(5, 8))
        (ticked,) = strand("--json", "sink", "tick", "archive").json
        assert (ticked["rows"], ticked["outcome"]) == (3, "delivered")
        assert strand("--json", "recover").json == []
        assert strand("--json", "flush", "--here").code == 0
        page = strand("--json", "status", "--why").json
        assert [worker["state"] for worker in page["workers"]] == ["working"]
        assert {one["job"] for one in page["decisions"]} >= {"tick:archive"}
        assert "Workers" in strand("status", "--why").out
