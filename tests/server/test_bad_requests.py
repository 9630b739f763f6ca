"""Bad input over HTTP: a clear error with the code of all interfaces, and nothing changed."""

from __future__ import annotations

import gzip
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
import zstandard

from strandline.lake import Lake
from strandline.ledger.tokens import create_token, list_tokens, revoke_token
from strandline.server import protocol
from tests.kit import make_table, messages, part_ids
from tests.server.chunks import Sender, arrow, ndjson, origin, rows
from tests.server.conftest import NDJSON, Running, error

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_is_stored(lake: Lake) -> Iterator[None]:
    """Whatever was refused has left no row."""
    yield
    assert lake.view().branch_table("messages").head.books.acked == 0


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    found = error(answer)
    assert (answer.status_code, found["code"]) == (status, code), answer.text
    return found


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic abc", "Bearer strand_wrong", "strand_x"])
def test_without_a_valid_token_nothing_goes(server: Running, header: str | None) -> None:
    given = {} if header is None else {"Authorization": header}
    for path in ("/v1/tables/messages/rows", "/v1/inbound/edge/messages"):
        answer = httpx.post(server.url + path, content=b"{}", headers=given)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    refused(httpx.get(f"{server.url}/v1/inbound/edge/messages", headers=given), 401, "unauthorized")


def test_tokens_are_known_and_forgotten_without_a_restart(lake: Lake, server: Running) -> None:
    """One that was just made works at once; one that is revoked stops within the time that tokens are remembered."""
    token, secret = create_token(lake.ledger, "late")
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {secret}"}) as client:
        ask = lambda: client.post("/v1/tables/messages/rows", content=b"", headers={"Content-Type": NDJSON})  # noqa: E731
        assert ask().status_code == 201
        revoke_token(lake.ledger, token.token_id)
        deadline = time.monotonic() + 30
        while ask().status_code != 401:
            assert time.monotonic() < deadline, "a revoked token still works"
            time.sleep(0.1)
    with lake.ledger.read() as conn:
        kept = list_tokens(conn)
    assert secret not in repr(kept) and secret.startswith("strand_")


def test_a_token_writes_for_its_own_gateway_alone(lake: Lake, server: Running) -> None:
    """Neither through another gateway's address, nor into a stream that another gateway began."""
    body = ndjson(rows([1]))
    chunk = Sender().chunk(0, 1, body, 1, opens=True)
    refused(server.post(chunk, body, gateway="other"), 403, "forbidden")
    asked = {"lake": "lake1", "sink": "sink1", "stream": "branch1:table1:all"}
    refused(server.client.get("/v1/inbound/other/messages", params=asked), 403, "forbidden")


def test_a_line_that_is_not_json_is_named(server: Running) -> None:
    body = ndjson(messages(0, 2)) + b'{"part_id": oops}\n' + ndjson(messages(3, 4))
    found = refused(server.append(body), 422, "invalid_rows")
    assert [row["index"] for row in found["detail"]["rows"]] == [2]
    sent = ndjson(rows([1])) + b"{oops\n"
    found = refused(server.post(Sender().chunk(0, 2, sent, 2, opens=True), sent), 422, "invalid_rows")
    assert [row["index"] for row in found["detail"]["rows"]] == [1]


@pytest.mark.parametrize("body", [b"{", b'{"part_id":"a"}', b'"text"', b"[1", b"\xff"])
def test_a_json_body_that_is_no_array_is_refused(server: Running, body: bytes) -> None:
    refused(server.append(body, "application/json"), 400, "bad_request")


def test_rows_that_dont_fit_are_named_by_index_field_and_reason(server: Running) -> None:
    bad = messages(0, 3)
    bad[1]["n"] = "many"
    bad[2]["colour"] = "red"
    found = refused(server.append(ndjson(bad)), 422, "invalid_rows")
    assert [(row["index"], row["field"]) for row in found["detail"]["rows"]] == [(1, "n"), (2, "colour")]
    assert all(row["reason"] for row in found["detail"]["rows"])
    assert refused(server.append(orjson.dumps([1]), "application/json"), 422, "invalid_rows")


@pytest.mark.parametrize("form", [ndjson, arrow])
def test_bad_rows_of_a_chunk_are_named_by_their_index_in_it(server: Running, form: Callable[..., bytes]) -> None:
    sent = rows([3, 5, 8])
    sent[1]["source"] = None
    body = form(sent)
    media = NDJSON if form is ndjson else "application/vnd.apache.arrow.stream"
    answer = server.post(Sender().chunk(0, 9, body, 3, opens=True), body, Content_Type=media)
    found = refused(answer, 422, "invalid_rows")
    assert [(row["index"], row["field"]) for row in found["detail"]["rows"]] == [(1, "source")]


def test_wrong_numbers_about_a_chunk_are_refused(server: Running) -> None:
    """Another number of rows, rows outside the range, a body that is not the one that was named."""
    body = ndjson(rows([1, 2]))
    sender = Sender()
    refused(server.post(sender.chunk(0, 5, body, 3, opens=True), body), 400, "bad_request")
    refused(server.post(sender.chunk(1, 5, body, 2, opens=True), body), 400, "bad_request")
    refused(server.post(sender.chunk(0, 5, body, 2, opens=True), ndjson(rows([1, 3]))), 400, "bad_request")
    good = sender.chunk(0, 5, body, 2, opens=True)
    found = refused(server.post(replace(good, batch_id="0" * 64), body), 400, "bad_request")
    assert (found["detail"]["actual"], found["detail"]["expected"]) == ("0" * 64, good.batch_id)


@pytest.mark.parametrize(
    "changed",
    [
        {"Strand-Since": "9"},
        {"Strand-Since": "-1"},
        {"Strand-Until": "x"},
        {"Strand-Epoch": ""},
        {"Strand-Stream": "nonsense"},
        {"Strand-Dead": "2"},
        {"Strand-Rows": "1e3"},
    ],
)
def test_a_wrong_header_is_refused(server: Running, changed: dict[str, str]) -> None:
    """A range that runs backwards, and whatever else a header may be."""
    body = ndjson(rows([1, 2]))
    chunk = Sender().chunk(0, 5, body, 2, opens=True)
    headers = {**chunk.headers(), "Content-Type": NDJSON, **changed}
    answer = server.client.post("/v1/inbound/edge/messages", content=body, headers=headers)
    refused(answer, 400, "bad_request")


def test_a_missing_header_is_named(server: Running) -> None:
    answer = server.client.post("/v1/inbound/edge/messages", content=b"", headers={"Content-Type": NDJSON})
    assert "Strand-" in refused(answer, 400, "bad_request")["message"]


def test_a_chunk_that_is_not_the_start_gets_a_gap(lake: Lake, server: Running) -> None:
    found = refused(server.send(Sender(), 5, 8), 409, "conflict")
    assert found["detail"] == {"kind": "gap", "expected": None, "actual": 5, "mark": None, "epoch": None}
    assert origin(lake) == []


def test_an_unknown_table_is_named_with_its_nearest(server: Running) -> None:
    assert "messages" in refused(server.append(b"{}", table="mesages"), 404, "not_found")["hint"]
    body = ndjson(rows([1]))
    answer = server.post(Sender().chunk(0, 1, body, 1, opens=True), body, table="nowhere")
    assert refused(answer, 404, "not_found")["detail"] == {"table": "nowhere"}


def test_a_stream_without_a_mark_is_not_found(server: Running) -> None:
    assert refused(server.mark(Sender()), 404, "not_found")["detail"]["mark"] is None


def test_unsupported_types_and_encodings_are_refused(server: Running) -> None:
    refused(server.append(b"a,b", "text/csv"), 415, "unsupported")
    refused(server.append(b"{}", ""), 415, "unsupported")
    refused(server.append(b"{}", Content_Encoding="br"), 415, "unsupported")
    refused(server.append(b"{}", Content_Encoding="gzip, gzip"), 415, "unsupported")
    body = ndjson(rows([1]))
    chunk = Sender().chunk(0, 1, body, 1, opens=True)
    refused(server.post(chunk, body, Content_Type="application/json"), 415, "unsupported")
    refused(server.post(chunk, body, Content_Encoding="deflate"), 415, "unsupported")


def test_a_compressed_body_that_is_broken_is_refused(server: Running) -> None:
    """Cut in the middle, or not compressed at all: what did arrive is not stored as if it were everything."""
    body = ndjson(messages(0, 500))
    packed = {"gzip": gzip.compress(body), "zstd": zstandard.ZstdCompressor().compress(body)}
    for encoding, whole in packed.items():
        refused(server.append(whole[:-4], Content_Encoding=encoding), 400, "bad_request")
        refused(server.append(whole[: len(whole) // 2], Content_Encoding=encoding), 400, "bad_request")
        refused(server.append(body, Content_Encoding=encoding), 400, "bad_request")


def test_unknown_routes_have_the_same_errors(server: Running) -> None:
    refused(server.client.get("/v1/nothing"), 404, "not_found")
    refused(server.client.get("/v1/tables/messages/rows"), 404, "not_found")
    refused(server.client.get("/v1/inbound/edge/messages"), 400, "bad_request")


@pytest.fixture
def small(lake: Lake, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Any]) -> Iterator[Running]:
    """A server with a small limit and little patience."""
    make_table(lake, row_key=[])
    settings = replace(lake.config.server, max_body=MIB, read_timeout_s=0.5)
    monkeypatch.setattr(lake, "config", replace(lake.config, server=settings))
    with serve(lake) as one:
        yield one


def test_a_body_over_the_limit_is_refused(small: Running) -> None:
    """Announced or not: it is stopped at the limit."""
    found = refused(small.append(b" " * (MIB + 1)), 413, "too_large")
    assert found["detail"] == {"limit": MIB}

    def pieces() -> Iterator[bytes]:
        for _ in range(24):
            yield b" " * (MIB // 16)

    answer = small.client.post("/v1/tables/messages/rows", content=pieces(), headers={"Content-Type": NDJSON})
    refused(answer, 413, "too_large")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_bomb_is_stopped_while_it_is_decompressed(
    small: Running, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a GiB in a few bytes: no more of it is made than the limit and one step allow."""
    zeros = b"\0" * (256 * MIB)
    bomb = gzip.compress(zeros, 9) if encoding == "gzip" else zstandard.ZstdCompressor().compress(zeros)
    assert len(bomb) < MIB
    refused(small.append(bomb, Content_Encoding=encoding), 413, "too_large")
    from strandline.server import bodies

    made = 0

    class Counting:
        def __init__(self) -> None:
            self._inner = zlib.decompressobj(wbits=31) if encoding == "gzip" else bodies._zstd()

        eof = property(lambda self: self._inner.eof)
        unused_data = property(lambda self: self._inner.unused_data)

        def decompress(self, data: bytes) -> bytes:
            nonlocal made
            got: bytes = self._inner.decompress(data)
            made += len(got)
            return got

    monkeypatch.setitem(bodies._ENCODINGS, encoding, (Counting, bodies._ENCODINGS[encoding][1]))
    refused(small.append(bomb, Content_Encoding=encoding), 413, "too_large")
    assert MIB < made < 80 * MIB


def test_a_client_that_stops_in_the_middle_is_timed_out(small: Running) -> None:
    """Half a body and then silence: 408, and the connection is closed."""
    host, port = small.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(
            f"POST /v1/tables/messages/rows HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {small.token}\r\n"
            f"Content-Type: {NDJSON}\r\nContent-Length: 1000\r\n\r\n{{".encode()
        )
        said = b""
        while piece := line.recv(4096):
            said += piece
    assert said.startswith(b"HTTP/1.1 408") and b'"request_timeout"' in said
    assert small.service.gate.in_flight == 0, "its place is free again"


def test_a_client_that_vanishes_leaves_its_place(small: Running) -> None:
    host, port = small.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(
            f"POST /v1/tables/messages/rows HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {small.token}\r\n"
            f"Content-Type: {NDJSON}\r\nContent-Length: 1000\r\n\r\n{{".encode()
        )
    deadline = time.monotonic() + 30
    while small.service.gate.in_flight:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("said", [b"", b"POST /v1/tables/mess", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\0\0"])
def test_a_client_that_never_finishes_its_headers_is_hung_up_on(
    server: Running, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Nothing, half a line, silence after a first request, nonsense: the connection does not stay."""
    monkeypatch.setattr(protocol, "HEADERS_S", 0.5)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(said)
        while line.recv(4096):
            pass
    assert httpx.get(f"{server.url}/healthz").status_code == 200


@pytest.mark.parametrize("said", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_no_http_is_refused_like_everything_else(server: Running, said: bytes) -> None:
    """Noise, a broken header, somebody who begins with TLS: our document, and the end of the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(said + b"\r\n\r\n")
        heard = b""
        while part := line.recv(65536):
            heard += part
    head, _, body = heard.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    assert orjson.loads(body)["error"]["code"] == "bad_request"


DOUBLED = ["Idempotency-Key", "Content-Encoding", "Content-Type", "Authorization", "Strand-Epoch"]


@pytest.mark.parametrize("name", DOUBLED)
def test_a_header_that_is_there_twice_is_refused(lake: Lake, server: Running, name: str) -> None:
    """Which one counts is nobody's guess: not even where both say the same."""
    body = ndjson(rows([1]))
    own = {
        **Sender().chunk(0, 1, body, 1, opens=True).headers(),
        "Content-Type": NDJSON,
        "Content-Encoding": "identity",
        "Authorization": f"Bearer {server.token}",
        "Idempotency-Key": "k",
    }
    for path in ("/v1/tables/messages/rows", "/v1/inbound/edge/messages"):
        headers = [*own.items(), (name.lower(), own[name])]
        error = refused(httpx.post(f"{server.url}{path}", content=body, headers=headers), 400, "bad_request")
        assert repr(name.lower()) in error["message"]
    assert part_ids(lake) == []


def test_a_parameter_that_is_there_twice_is_refused(server: Running) -> None:
    query = "lake=a&sink=b&stream=c&lake=d"
    assert "'lake'" in refused(server.client.get(f"/v1/inbound/edge/messages?{query}"), 400, "bad_request")["message"]


def test_a_key_that_is_there_twice_in_a_row_is_refused(lake: Lake, server: Running) -> None:
    """By its index and its name, in lines and in arrays, short and long."""
    good = [orjson.dumps(row) for row in messages(0, 2)]
    bad = good[1][:-1] + b', "n": 7}'
    filler = b" " * (300 << 10)
    for body, media in (
        (b"\n".join([good[0], bad]), NDJSON),
        (b"[" + b",".join([good[0], bad]) + b"]", "application/json"),
        (b"[" + good[0] + filler + b"," + bad + b"]", "application/json"),
        (b"\n".join([good[0] + filler, bad]), NDJSON),
    ):
        error = refused(server.append(body, media), 422, "invalid_rows")
        assert [(row["index"], row["field"]) for row in error["detail"]["rows"]] == [(1, "n")]
        assert "more than once" in error["message"]
    assert part_ids(lake) == []
