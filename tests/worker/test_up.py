"""`strand up`: whoever is killed comes back, and nothing is lost; and what keeps it running on a machine."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from strandline.cli.main import run
from strandline.cli.up import Child, supervise
from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from strandline.worker.presence import living
from tests.cli.terminal import on_terminal
from tests.kit import call, environment, make_table, message, messages, part_ids, strand_json, wait_until


@contextmanager
def running(lake: Lake, *arguments: str, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any], Path]]:
    """A real `strand up` that is ready: the process, what it said of itself, and where its log is."""
    log = lake.root.parent / "up.log"
    with log.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline", "--lake", str(lake.root), "--json", "up", *arguments],
            env=environment(STRAND_FLUSH_MAX_AGE="1h", **env),
            stdout=subprocess.PIPE,
            stderr=err,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield process, json.loads(line), log
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        process.stdout.close()


def append(lake: Lake, url: str, *rows: dict[str, Any]) -> int:
    body = "".join(json.dumps(row) + "\n" for row in rows)
    token = create_token(lake.ledger, "edge")[1]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-ndjson"}
    return httpx.post(f"{url}/v1/tables/messages/rows", content=body, headers=headers).status_code


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_whichever_child_is_killed_comes_back_and_nothing_is_lost(lake: Lake) -> None:
    """kill -9 of the server, of the worker's JVM and of the worker, with appends and flushes before and after each."""
    make_table(lake)
    with running(lake, "--listen", "127.0.0.1:0") as (process, said, log):
        url = f"http://{said['listen']}"
        assert append(lake, url, *messages(0, 5)) == 201
        os.kill(said["server"], signal.SIGKILL)
        wait_until(lambda: answers(url))
        assert append(lake, url, *messages(5, 8)) == 201
        assert strand_json(lake, "flush")[0]["rows"] == 8, "the worker does it, and starts its Spark"
        (java,) = [one for one in psutil.Process(said["worker"]).children(recursive=True) if one.name() == "java"]
        java.kill()
        java.wait(30)
        lake.append("messages", [message(8)])
        assert strand_json(lake, "flush")[0]["rows"] == 1, "it starts another one"
        (before,) = living(lake)
        os.kill(said["worker"], signal.SIGKILL)
        wait_until(lambda: [one.worker_id for one in living(lake)] not in ([], [before.worker_id]))
        lake.append("messages", [message(9)])
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        lines = log.read_text().splitlines()
    assert living(lake) == []
    assert part_ids(lake) == [f"p{n}" for n in range(10)]
    assert "up | the server ended with -9; it is started again in 0.5 s" in lines
    assert any(line.startswith("worker | ") for line in lines)
    for pid in (said["server"], said["worker"]):
        assert not psutil.pid_exists(pid)


def test_children_end_with_their_supervisor(lake: Lake) -> None:
    """kill -9 of `strand up` itself: the server gives its port back."""
    with running(lake, "--listen", "127.0.0.1:0") as (process, said, _log):
        process.kill()
        process.wait(30)
        wait_until(lambda: not psutil.pid_exists(said["server"]) and not psutil.pid_exists(said["worker"]))


def test_what_can_never_run_is_said_at_once(lake: Lake) -> None:
    """A port that is taken is the machine's trouble, and a person waits for the message."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "strandline", "--lake", str(lake.root), "up", "--listen", f"127.0.0.1:{port}"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 6, done.stderr
    assert "server | error[environment]: can't listen" in done.stderr


def test_a_child_that_keeps_ending_is_started_later_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.cli.up.BACKOFF_S", 0.01)
    stop = threading.Event()
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        if len(said) > 3:
            stop.set()

    monkeypatch.setattr("strandline.cli.output.to_stderr", hear)
    child = Child("server", [sys.executable, "-c", "raise SystemExit(70)"], tmp_path, prefixed=True)
    assert supervise([child], stop, lambda: pytest.fail("it was never ready")) == 0
    waits = [float(text.split()[-2]) for text in said]
    assert waits[:4] == [0.01, 0.02, 0.04, 0.08]


def test_a_unit_for_systemd_is_one(lake: Lake, tmp_path: Path) -> None:
    """It names this lake and this strand, and systemd's own check finds nothing wrong with it."""
    answer = call("--lake", lake.root, "--json", "service", "print", "--systemd").json
    assert "Type=notify" in answer["text"] and f"--lake {tmp_path / 'lake'}" in answer["text"]
    shown = on_terminal(80, lambda: run(["--lake", str(lake.root), "service", "print", "--systemd"]))
    assert shown == answer["text"], "a terminal must not break its lines: they are copied from there"
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze here")
    unit = tmp_path / f"{answer['name']}.service"
    unit.write_text(answer["text"])
    checked = subprocess.run(
        [verify, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = [line for line in checked.stderr.splitlines() if answer["name"] in line]
    assert complaints == [], checked.stderr


def test_a_property_list_for_launchd_is_one(lake: Lake) -> None:
    answer = call("--lake", lake.root, "--json", "service", "print", "--launchd", "--run", "worker").json
    document = plistlib.loads(answer["text"].encode())
    assert document["ProgramArguments"][-1] == "worker" and document["KeepAlive"] is True
    assert call("--lake", lake.root, "service", "print").code == 2
