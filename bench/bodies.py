"""How much memory a server takes when many large bodies arrive at once: `python -m bench.bodies`.

A real `strand serve` gets so many bodies at the same time, each large when it is decoded, of every kind: plain lines,
the same as zstd, an array of nothing but empty objects in a few kilobytes, a single row of many values. Most of them
have to be refused. What is told is the most memory that the process ever had (VmHWM), and its answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import zstandard

from strandline.create import create
from strandline.ledger.tokens import create_token

TABLE = "messages"
ACTORS = 25
NDJSON, JSON = "application/x-ndjson", "application/json"
AT_ONCE = 256 << 10


@dataclass(frozen=True)
class Body:
    """A body as it is sent."""

    name: str
    media: str
    content: bytes
    encoding: str = "identity"


@dataclass(frozen=True)
class Flood:
    """What came of many bodies at once: how often each status, and the most memory the server had until then."""

    name: str
    statuses: Counter[int]
    peak_bytes: int


def bodies(size_bytes: int) -> list[Body]:
    """Bodies that decode to so many bytes each."""
    line = b'{"part_id":"%09d","source":"claude","n":%d,"body":"%b"}\n'
    text = b"a sentence, as people write them. " * 4
    lines = b"".join(line % (n, n, text) for n in range(size_bytes // (len(line) + len(text) + 8)))
    empty = b"[" + b",".join([b"{}"] * (size_bytes // 3)) + b"]"
    deep = b'[{"part_id":"a","body":"b","odd":[' + b",".join([b"{}"] * (size_bytes // 3)) + b"]}]"
    pack = zstandard.ZstdCompressor().compress
    return [
        Body("plain lines", NDJSON, lines),
        Body("zstd lines", NDJSON, pack(lines), "zstd"),
        Body("zstd array of {}", JSON, pack(empty), "zstd"),
        Body("zstd row of many values", JSON, pack(deep), "zstd"),
    ]


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, int, list[str]]]:
    """A server of a new lake: its process, its port, and tokens of several actors."""
    lake = create(folder / "lake")
    columns = {"part_id": "string", "source": "string", "n": "long?", "body": "string?"}
    lake.create_table(TABLE, columns, unknown_fields="json")
    tokens = [create_token(lake.ledger, f"actor{number}")[1] for number in range(ACTORS)]
    command = [
        sys.executable,
        "-m",
        "strandline",
        "--lake",
        str(lake.root),
        "--json",
        "serve",
        "--listen",
        "127.0.0.1:0",
    ]
    lake.close()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        listen = json.loads(process.stdout.readline())["listen"]
        yield process.pid, int(listen.rpartition(":")[2]), tokens
    finally:
        process.terminate()
        process.wait(60)


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


async def post(port: int, token: str, body: Body) -> int:
    """Send a body; the status of the answer, 0 when there was none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/tables/{TABLE}/rows HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {body.media}\r\nContent-Encoding: {body.encoding}\r\n"
        f"Content-Length: {len(body.content)}\r\nConnection: close\r\n\r\n"
    )
    answer = asyncio.create_task(reader.readline())
    with suppress(OSError):
        writer.write(head.encode())
        for at in range(0, len(body.content), AT_ONCE):
            writer.write(body.content[at : at + AT_ONCE])
            await writer.drain()
    try:
        line = await answer
        return int(line.split()[1]) if line else 0
    except OSError:
        return 0
    finally:
        writer.close()


async def _flood(port: int, tokens: list[str], body: Body, clients: int) -> Counter[int]:
    return Counter(await asyncio.gather(*(post(port, tokens[n % len(tokens)], body) for n in range(clients))))


def floods(clients: int, size_bytes: int) -> Iterator[Flood]:
    """A server, and so many clients at once for each kind of body, one kind after another."""
    with (
        tempfile.TemporaryDirectory(prefix="strandline-bodies-") as folder,
        serving(Path(folder)) as (pid, port, tokens),
    ):
        yield Flood("nothing yet", Counter(), peak_bytes(pid))
        for body in bodies(size_bytes):
            statuses = asyncio.run(_flood(port, tokens, body, clients))
            yield Flood(body.name, statuses, peak_bytes(pid))


def main() -> None:
    """Print what came of each kind of body."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=60)
    options = parser.parse_args()
    for flood in floods(options.clients, options.megabytes * 1_000_000):
        print(
            f"{flood.name:26} peak {flood.peak_bytes >> 20:5} MiB  {dict(sorted(flood.statuses.items()))}", flush=True
        )


if __name__ == "__main__":
    main()
