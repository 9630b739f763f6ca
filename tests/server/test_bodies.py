"""Bodies that are small when they are sent and large when they are read: counted as they are decoded, and refused."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import zstandard

from bench.bodies import floods
from strandline.config_keys import process_memory_bytes, read_memory
from strandline.errors import BadRequest, Busy, TooLarge
from strandline.lake import Lake
from strandline.model.delivery import chunk_rows
from strandline.model.delivery.chunk_rows import from_lines
from strandline.model.schema.schema import parse_columns
from strandline.model.values import json_pieces
from strandline.model.values import rows as rules
from strandline.model.values.json_pieces import ArrayPieces, BodyLines, check_values
from strandline.model.values.rows import read_array
from strandline.server.admission import WEIGHT, Gate
from strandline.server.bodies import decompressed
from tests.kit import make_table, messages, part_ids, wait_until
from tests.server.chunks import ndjson, rows
from tests.server.conftest import NDJSON, Running, error
from tests.server.test_admission import charged, half_sent

MIB = 1 << 20
JSON = "application/json"
pack = zstandard.ZstdCompressor().compress


def gate(process_bytes: int) -> Gate:
    return Gate(max_requests=99, max_bytes=1 << 40, process_bytes=process_bytes, queue=99, behind_s=lambda: 0.0)


def test_f86_all_requests_share_one_budget_and_one_of_them_may_be_large() -> None:
    """A third is shared; the rest is for one that does not fit there, so that large ones don't refuse each other."""
    budget = gate(300 * WEIGHT)
    with ExitStack() as requests:
        small = [requests.enter_context(charged(budget, f"actor{n}", 20)) for n in range(3)]
        large = requests.enter_context(charged(budget, "large", 50))
        with pytest.raises(Busy) as caught, charged(budget, "late", 30):
            pass
        assert caught.value.detail["reason"] == "bytes"
        large.decoded(150)
        with pytest.raises(Busy):
            small[0].decoded(20)
        with pytest.raises(TooLarge) as never:
            large.decoded(1)
        assert never.value.detail["limit"] == 200
        assert budget.bytes_in_flight == 260
    assert (budget.bytes_in_flight, budget.in_flight) == (0, 0)
    with charged(budget, "other", 200):
        pass
    with pytest.raises(TooLarge), budget.admitted("other", 201):
        pass


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_f86_a_bomb_is_refused_before_its_bytes_are_there(encoding: str) -> None:
    """No more than 2 MiB come out of a decompressor at once, and each piece is counted before it is kept."""
    body = bytearray(pack(bytes(60 * MIB)) if encoding == "zstd" else gzip.compress(bytes(60 * MIB)))
    kept: list[int] = []

    def grow(size_bytes: int) -> None:
        kept.append(size_bytes)
        if sum(kept) > 4 * MIB:
            raise Busy("no room", reason="bytes")

    tracemalloc.start()
    try:
        with pytest.raises(Busy):
            decompressed(body, encoding, 64 * MIB, grow)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert max(kept) <= 2 * MIB + 65_536


def test_f86_pieces_of_an_array_are_the_rows_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere between rows: never in a string, and never inside a row."""
    values: list[Any] = [
        {"a": "],[{\\\"}", "b": [{"c": 1}, {"d": ["},{"]}]}, "x,y", 'q"\\', 1.5, None, [], {}, [[1], [2, "]"]],
    ] * 7  # fmt: skip
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 12)
    for text in (orjson.dumps(values), orjson.dumps(values, option=orjson.OPT_INDENT_2), b" [ ] \n", b"[1]"):
        pieces = list(ArrayPieces(text))
        assert [value for piece in pieces for value in read_array(piece)] == orjson.loads(text)
    assert len(list(ArrayPieces(orjson.dumps(values)))) > 20


@pytest.mark.parametrize(
    "text", [b"[{},]", b"[,{}]", b"[{},,{}]", b"[1,2", b'["a]', b"[}]", b"[[]", b"{}", b"", b"[", b"[1]]", b"[{}]x[]"]
)
def test_f86_an_array_that_is_not_json_is_refused_in_pieces_too(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 1)
    with pytest.raises(BadRequest):
        for piece in ArrayPieces(text):
            read_array(piece)


def test_f86_values_are_counted_before_they_are_objects() -> None:
    check_values(b'{"a":"' + b",:[{" * 1000 + b'\\""}', "a row", 100)
    with pytest.raises(TooLarge):
        check_values(b'{"a":[' + b"{}," * 1000 + b"{}]}", "a row", 100)


def test_f86_a_request_has_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "MAX_ROWS", 10)
    for body in (BodyLines(b"\n".join([b"{}"] * 11)), ArrayPieces(b"[" + b",".join([b"{}"] * 11) + b"]")):
        with pytest.raises(TooLarge, match="more than 10 rows"):
            list(body)


def test_f86_lines_of_a_chunk_are_objects_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of rows is read twice, and never held as objects, which take many times its room."""
    body = ndjson(rows(range(1, 10_001)))
    at_once: list[int] = []

    def counted(lines: list[bytes], *, start: int) -> list[dict[str, Any]]:
        at_once.append(sum(map(len, lines)))
        return rules.read_objects(lines, start=start)

    monkeypatch.setattr(chunk_rows, "rules", SimpleNamespace(**{**vars(rules), "read_objects": counted}))
    schema = parse_columns("part_id:string,source:string,n:long?,body:string?")
    taken = from_lines(body)
    stored = chunk_rows.validated(taken, schema, extra=False, gateway="edge", above=9_990).stored
    assert (taken.count, stored.column("n").to_pylist()) == (10_000, list(range(9_991, 10_001)))
    assert max(at_once) <= json_pieces.PIECE_BYTES and sum(at_once) > 1.9 * len(body)


def test_f86_bad_rows_of_all_pieces_are_counted_and_the_first_are_named(server: Running) -> None:
    bad = {5, 30_000, 30_001}
    listed = [{**row, "n": "x"} if at in bad else row for at, row in enumerate(messages(0, 40_000))]
    for body, media in ((ndjson(listed), NDJSON), (orjson.dumps(listed), JSON)):
        refused = error(server.append(body, media))
        assert refused["code"] == "invalid_rows"
        assert [row["index"] for row in refused["detail"]["rows"]] == sorted(bad)
        assert refused["detail"]["bad"] == 3


def test_f86_rows_of_many_pieces_are_stored_in_their_order(lake: Lake, server: Running) -> None:
    listed = messages(0, 30_000)
    answer = server.append(orjson.dumps(listed), JSON)
    assert answer.json()["rows"] == 30_000, answer.text
    assert part_ids(lake) == [row["part_id"] for row in listed]
    with lake.ledger.read() as conn:
        batches = conn.exec_driver_sql("select count(*) from batches").scalar_one()
    assert batches <= 2, "pieces are joined before they are stored"


@pytest.fixture
def little(lake: Lake, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Any]) -> Iterator[Running]:
    """A server with room for 300,000 decoded bytes."""
    make_table(lake, row_key=[])
    admission = replace(lake.config.admission, process_bytes=300_000 * WEIGHT)
    monkeypatch.setattr(lake, "config", replace(lake.config, admission=admission))
    with serve(lake) as server:
        yield server


def test_f86_what_was_taken_is_given_back_on_every_way_out(lake: Lake, little: Running) -> None:
    """Stored, refused, not what it says, too large, gone in the middle: nothing is left in flight."""
    gate = little.service.gate
    small, large = ndjson(messages(0, 1)), b'{"part_id":"x"}\n' * 20_000
    assert little.append(pack(small), Content_Encoding="zstd").status_code == 201
    assert little.append(b'{"nothing":1}').status_code == 422
    assert little.append(b"no zstd", Content_Encoding="zstd").status_code == 400
    for body, encoding in ((large, "identity"), (pack(large), "zstd"), (gzip.compress(large), "gzip")):
        answer = little.append(body, Content_Encoding=encoding)
        assert (answer.status_code, error(answer)["code"]) == (413, "too_large"), encoding
    with half_sent(little, 90_000):
        assert gate.bytes_in_flight == 90_000
    wait_until(lambda: gate.in_flight == 0, 30)
    assert gate.bytes_in_flight == 0
    with charged(gate, "other", 50_000), charged(gate, "another", 150_000):
        answer = little.append(b" " * 50_000)
        assert (answer.status_code, error(answer)["code"]) == (503, "busy")
        assert error(answer)["detail"]["reason"] == "bytes"
        assert int(answer.headers["retry-after"]) >= 1
    assert little.append(small).status_code == 201
    assert part_ids(lake) == ["p0", "p0"]


def test_f86_memory_is_a_size_or_a_part_of_what_the_process_may_have() -> None:
    half = process_memory_bytes() // 2
    assert read_memory("64MiB") == 64 * MIB
    assert read_memory("50%") == read_memory("100%") == read_memory("1000TiB") == half
    for wrong in ("0%", "500%", "0", "much"):
        with pytest.raises(ValueError):
            read_memory(wrong)


def test_f86_a_real_server_stays_small_under_many_large_bodies() -> None:
    """12 bodies of 9 MB at once, of every kind; `python -m bench.bodies` sends 200 of 60 MB."""
    _before, *after = floods(12, 9_000_000)
    for flood in after:
        # 0: on a busy machine a refusal can be lost with a connection that the client still sends on.
        assert set(flood.statuses) <= {0, 201, 413, 422, 503} and flood.statuses[0] <= 3, flood
        assert flood.peak_bytes < 700 * MIB, flood
    assert after[0].statuses[201] >= 1 and after[1].statuses[201] >= 1, "some are stored"
    assert after[2].statuses[201] == after[3].statuses[201] == 0
