"""`strand serve` and `strand token` as real processes: started, killed, and ended politely."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from strandline.lake import Lake
from tests.kit import environment, kill, make_table, messages, part_ids, strand, strand_json, wait_until
from tests.server.chunks import Sender, ndjson, origin, rows
from tests.server.conftest import NDJSON, counts, error

LOADED = """
import sys
from strandline.cli.main import run
code = run(sys.argv[1:], own_process=True)
print("loaded:", *(name for name in ("pyspark", "py4j") if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""


@contextmanager
def served(lake: Lake, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process on a free port, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOADED, "--lake", str(lake.root), "--json", "serve", "--listen", "127.0.0.1:0"],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield process, f"http://{json.loads(line)['listen']}"
    finally:
        if process.poll() is None:
            kill(process)


@pytest.fixture
def token(lake: Lake) -> str:
    make_table(lake, row_key=[])
    return str(strand_json(lake, "token", "create", "edge")["token"])


def post(url: str, token: str, first: int, last: int) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/tables/messages/rows",
        content=ndjson(messages(first, last)),
        headers={"Authorization": f"Bearer {token}", "Content-Type": NDJSON},
        timeout=60,
    )


def chunk(url: str, token: str, since: int, until: int, *, opens: bool = False) -> httpx.Response:
    body = ndjson(rows(range(since + 1, until + 1)))
    made = Sender().chunk(since, until, body, until - since, opens=opens)
    headers = {**made.headers(), "Authorization": f"Bearer {token}", "Content-Type": NDJSON}
    return httpx.post(f"{url}/v1/inbound/edge/messages", content=body, headers=headers, timeout=60)


def test_a_server_never_imports_spark_and_ends_politely(lake: Lake, token: str) -> None:
    """Rows, a chunk, metrics and recovery without a JVM; SIGTERM ends it with 0."""
    with served(lake) as (process, url):
        assert post(url, token, 0, 3).status_code == 201
        assert counts(chunk(url, token, 0, 2, opens=True)) == {"stored": 2, "mark": 2, "epoch": 1}
        assert httpx.get(f"{url}/metrics").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said.strip()) == (0, "loaded:")
    assert len(part_ids(lake)) == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_in_flight_is_finished_before_the_end(lake: Lake, token: str, number: signal.Signals) -> None:
    """A signal while a row is being stored: its client gets the answer, and the row is there."""
    answers: list[int] = []
    with served(lake, STRAND_FAILPOINTS="append.before_commit=sleep(2000)") as (process, url):
        thread = threading.Thread(target=lambda: answers.append(post(url, token, 0, 1).status_code))
        thread.start()
        wait_until(lambda: "strand_http_in_flight 1.0" in httpx.get(f"{url}/metrics").text, 30)
        process.send_signal(number)
        thread.join(60)
        process.communicate(timeout=60)
        assert (answers, process.returncode) == ([201], 0)
    assert part_ids(lake) == ["p0"]


@pytest.mark.parametrize(("name", "stored"), [("inbound.before_commit", 2), ("inbound.after_commit", 4)])
def test_a_server_killed_around_the_commit_stores_every_row_once(
    lake: Lake, token: str, name: str, stored: int
) -> None:
    """The connection is cut and the sender does not know; it sends the same chunk to the next server."""
    with served(lake, STRAND_FAILPOINTS=f"{name}=exit@2") as (process, url):
        assert chunk(url, token, 0, 2, opens=True).json()["stored"] == 2
        with pytest.raises(httpx.HTTPError):
            chunk(url, token, 2, 4)
        process.communicate(timeout=60)
        assert process.returncode == 137
    assert len(origin(lake)) == stored
    with served(lake) as (_, url):
        assert counts(chunk(url, token, 2, 4)) == {"stored": 4 - stored, "mark": 4, "epoch": 1}
    assert [seq for _, seq in origin(lake)] == [1, 2, 3, 4]


def test_tokens_on_the_command_line(lake: Lake, token: str) -> None:
    """Printed once, listed without the secret, revoked by id."""
    made = strand(lake, "token", "create", "second")
    assert made.code == 0 and made.out.startswith("strand_")
    listing = strand(lake, "--json", "token", "list")
    tokens = listing.json
    assert [one["actor"] for one in tokens] == ["edge", "second"]
    assert token not in listing.out and made.out.strip() not in listing.out
    revoked = strand_json(lake, "token", "revoke", tokens[0]["id"])
    assert revoked["revoked"] is not None and revoked["actor"] == "edge"
    assert "second" in strand(lake, "token", "list").out
    with served(lake) as (_, url):
        assert error(post(url, token, 0, 1))["code"] == "unauthorized"
        assert post(url, made.out.strip(), 0, 1).status_code == 201


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("token", "create", "a/b"), 3, "can't be the actor"),
        (("token", "create", "strandline:worker"), 3, "can't be the actor"),
        (("token", "revoke", "nobody"), 3, "there is no token"),
        (("serve", "--listen", "nowhere"), 3, "HOST:PORT"),
        (("serve", "--listen", "192.0.2.1:1"), 6, "can't listen"),
    ],
)
def test_wrong_command_lines(tmp_path: Path, lake: Lake, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = strand(lake, *arguments)
    assert (done.code, said in done.err) == (code, True), done.err
