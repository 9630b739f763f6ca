"""Appending over HTTP: what is taken, and that it is durable, once, and in the name of the token's actor."""

from __future__ import annotations

import gzip
import threading
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pytest
import zstandard

from strandline.lake import Lake
from strandline.ledger.tables.tables import read_branch_tables
from tests.kit import message, messages, part_ids
from tests.server.chunks import ndjson
from tests.server.conftest import NDJSON, Running, error

ARROW = "application/vnd.apache.arrow.stream"


def arrow(rows: list[dict[str, object]]) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    ("media", "write"),
    [
        (NDJSON, ndjson),
        (f"{NDJSON}; charset=utf-8", ndjson),
        ("application/json", orjson.dumps),
        (ARROW, arrow),
    ],
)
@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_rows_of_every_kind_are_stored(lake: Lake, server: Running, media: str, write: object, encoding: str) -> None:
    """JSON lines, a JSON array, an Arrow stream; as they are or compressed."""
    body = write(messages(0, 3))  # type: ignore[operator]
    packed = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}[encoding](body)
    answer = server.append(packed, media, Content_Encoding=encoding)
    assert answer.status_code == 201, answer.text
    first = answer.json()["first_seq"]
    assert answer.json() == {"rows": 3, "first_seq": first, "last_seq": first + 2, "too_old": 0}
    assert part_ids(lake) == ["p0", "p1", "p2"]
    assert lake.view().sql("select distinct _actor from messages").rows() == [("edge",)]


def test_data_in_several_frames_is_one_body(lake: Lake, server: Running) -> None:
    """Compressed files that were put one behind another are one file."""
    pack = zstandard.ZstdCompressor().compress
    halves = ndjson(messages(0, 1)), ndjson(messages(1, 2))
    assert server.append(pack(halves[0]) + pack(halves[1]), Content_Encoding="zstd").status_code == 201
    halves = ndjson(messages(2, 3)), ndjson(messages(3, 4))
    body = gzip.compress(halves[0]) + gzip.compress(halves[1])
    assert server.append(body, Content_Encoding="gzip").status_code == 201
    assert part_ids(lake) == ["p0", "p1", "p2", "p3"]


def test_an_idempotency_key_stores_once(lake: Lake, server: Running) -> None:
    """The same key and rows get the first answer; the same key with other rows is a conflict."""
    first = server.append(ndjson(messages(0, 2)), Idempotency_Key="k")
    again = server.append(orjson.dumps(messages(0, 2)), "application/json", Idempotency_Key="k")
    assert (again.status_code, again.json()) == (201, first.json())
    other = server.append(ndjson(messages(2, 3)), Idempotency_Key="k")
    assert (other.status_code, error(other)["detail"]["kind"]) == (409, "key_exists")
    assert part_ids(lake) == ["p0", "p1"]


def test_a_body_without_rows_is_fine(server: Running) -> None:
    assert server.append(b"").json() == {"rows": 0, "first_seq": None, "last_seq": None, "too_old": 0}
    assert server.append(b"[]", "application/json").json()["rows"] == 0


def test_numbers_beyond_64_bits_are_not_rounded(server: Running) -> None:
    """They don't fit into a long, and are refused instead of becoming another number."""
    row = b'[{"part_id":"a","source":"b","n":12345678901234567890123}]'
    answer = server.append(row, "application/json")
    assert (answer.status_code, error(answer)["detail"]["rows"][0]["field"]) == (422, "n")


def test_clients_that_post_at_the_same_time_share_transactions(lake: Lake, server: Running) -> None:
    """Eight clients with single rows: fewer transactions than rows, and each row once."""
    barrier = threading.Barrier(8)
    commits = 0
    original = lake.ledger.write

    def counted(*asked: Any) -> object:
        nonlocal commits
        commits += 1
        return original(*asked)

    lake.ledger.write = counted  # type: ignore[method-assign,assignment]
    statuses: list[int] = []

    def client(number: int) -> None:
        with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}) as one:
            barrier.wait()
            for n in range(20):
                answer = one.post(
                    "/v1/tables/messages/rows",
                    content=ndjson([message(n, prefix=f"c{number}-")]),
                    headers={"Content-Type": NDJSON},
                )
                statuses.append(answer.status_code)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [201] * 160
    assert len(set(part_ids(lake))) == len(part_ids(lake)) == 160
    assert commits < 160, "no two appends shared a transaction"
    with lake.ledger.read() as conn:
        assert read_branch_tables(conn, "main", ["messages"])[0].head.books.acked == 160
