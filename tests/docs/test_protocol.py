"""docs/protocol.md is what a sender in another language is written from, so its examples are run."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from strandline.model.delivery import inbound
from strandline.model.delivery.inbound import batch_id
from strandline.model.delivery.sinks import Stream
from strandline.server import documents
from tests.kit import environment, kill

TEXT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def body() -> bytes:
    """The body of the worked example."""
    (found,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    return str(found).encode()


def headers() -> dict[str, str]:
    (block,) = re.findall(r"^```\n(Strand-Lake.*?)```", TEXT, re.DOTALL | re.MULTILINE)
    return dict(line.split(": ", 1) for line in block.splitlines())


def test_the_worked_example_is_right() -> None:
    """Digest, batch id, length and partition, by hand and by the function that senders and receivers here use."""
    told = headers()
    digest = hashlib.sha256(body()).hexdigest()
    assert f"({len(body())} bytes" in TEXT and f"`{digest}`" in TEXT
    lines = [told[name] for name in ("Strand-Sink", "Strand-Stream", "Strand-Epoch", "Strand-Since", "Strand-Until")]
    by_hand = hashlib.sha256("".join(f"{line}\n" for line in [*lines, digest]).encode()).hexdigest()
    assert f"its batch id is `{by_hand}`" in TEXT
    assert batch_id(lines[0], lines[1], int(lines[2]), int(lines[3]), int(lines[4]), body()) == by_hand
    assert Stream.parse(told["Strand-Stream"]).partition == '["claude"]'
    assert inbound.parse({**told, "Strand-Batch-Id": by_hand}).rows == 2


def test_every_header_and_status_is_described() -> None:
    named = set(re.findall(r"`(Strand-[A-Z][A-Za-z-]+)`", TEXT))
    assert named >= {one["name"] for one in documents.chunk_headers()}
    for status in (200, 400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503):
        assert re.search(rf"^\| {status} \|", TEXT, re.MULTILINE), status


@pytest.fixture
def address(lake: Lake, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "chunk.ndjson").write_bytes(body())
    lake.create_table("messages", {"id": "string", "n": "long?"})
    process = subprocess.Popen(
        [sys.executable, "-m", "strandline", "--lake", str(lake.root), "--json", "serve", "--listen", "127.0.0.1:0"],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["listen"]
    kill(process)


def test_the_examples_with_curl_print_what_is_shown(lake: Lake, address: str, tmp_path: Path) -> None:
    """As they are written, but for the port and the token."""
    _, token = create_token(lake.ledger, "edge")
    blocks = [one for one in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) if "curl" in one]
    first, asked, appended = (one.replace("127.0.0.1:8400", address) for one in blocks)
    shown = re.findall(r"prints `(\{.*?\})`(?:, and a second time `(\{.*?\})`)?", TEXT)

    def run(command: str) -> str:
        script = f"TOKEN={shlex.quote(token)}\n{command.replace('curl', 'curl -s')}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        ids = (lake.ledger.lake_id(), lake.ledger.generation() or "")
        return done.stdout.replace(ids[0], "…").replace(ids[1], "…")

    assert [run(first), run(first)] == list(shown[0])
    assert run(asked) == shown[1][0]
    assert json.loads(run(appended))["rows"] == 1
    assert [row[0] for row in lake.view().sql("select id from messages order by _seq").rows()] == ["a", "b", "c"]
