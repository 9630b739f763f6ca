"""The forward protocol over HTTP, as a sender meets it."""

from __future__ import annotations

import gzip

import httpx
import pytest
import zstandard

from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from strandline.model.inbound import Source
from strandline.model.sinks import Stream
from tests.server.chunks import Sender, arrow, ndjson, origin, rows
from tests.server.conftest import NDJSON, Running, error

ARROW = "application/vnd.apache.arrow.stream"


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
@pytest.mark.parametrize("media", [NDJSON, ARROW])
def test_a_chunk_of_every_form_is_stored(lake: Lake, server: Running, media: str, encoding: str) -> None:
    """The batch id is that of the uncompressed bytes, so a proxy may compress them otherwise."""
    body = (ndjson if media == NDJSON else arrow)(rows([3, 5]))
    packed = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}[encoding](body)
    chunk = Sender().chunk(0, 6, body, 2, opens=True)
    answer = server.post(chunk, packed, Content_Type=media, Content_Encoding=encoding)
    assert (answer.status_code, answer.json()) == (200, {"stored": 2, "mark": 6, "epoch": 1, "too_old": 0}), answer.text
    assert origin(lake) == [("edge", 3), ("edge", 5)]


def test_an_answer_that_was_lost_costs_nothing(lake: Lake, server: Running) -> None:
    """The same chunk again is acked and not stored; one that overlaps stores what is new."""
    sender = Sender()
    assert server.send(sender, 0, 4, opens=True).json() == {"stored": 4, "mark": 4, "epoch": 1, "too_old": 0}
    assert server.send(sender, 0, 4, opens=True).json() == {"stored": 0, "mark": 4, "epoch": 1, "too_old": 0}
    assert server.send(sender, 2, 6).json() == {"stored": 2, "mark": 6, "epoch": 1, "too_old": 0}
    assert [seq for _, seq in origin(lake)] == [1, 2, 3, 4, 5, 6]


def test_a_sender_that_lost_its_state_goes_on_from_the_mark(lake: Lake, server: Running) -> None:
    """It asks, or it is told with the gap; either way nothing is stored twice and nothing is left out."""
    sender = Sender()
    server.send(sender, 0, 4, opens=True)
    assert server.mark(sender).json() == {"mark": 4, "epoch": 1}
    answer = server.send(sender, 9, 12)
    assert answer.status_code == 409
    detail = error(answer)["detail"]
    assert detail == {"kind": "gap", "expected": 4, "actual": 9, "mark": 4, "epoch": 1}
    assert server.send(sender, detail["mark"], 12).json()["stored"] == 8
    assert [seq for _, seq in origin(lake)] == list(range(1, 13))


def test_epochs_over_http(lake: Lake, server: Running) -> None:
    sender = Sender()
    server.send(sender, 0, 4, opens=True)
    assert server.send(sender.at(epoch=2), 1, 3).json() == {"stored": 2, "mark": 3, "epoch": 2, "too_old": 0}
    answer = server.send(sender, 4, 5)
    assert (answer.status_code, error(answer)["detail"]["kind"]) == (409, "epoch_old")
    assert server.mark(sender).json() == {"mark": 3, "epoch": 2}


def test_a_dead_letter_is_replayed_once(lake: Lake, server: Running) -> None:
    sender = Sender()
    server.send(sender, 0, 4, [1, 2, 4], opens=True)
    assert server.send(sender, 2, 3, dead=3).json() == {"stored": 1, "mark": 4, "epoch": 1, "too_old": 0}
    assert server.send(sender, 2, 3, dead=3).json() == {"stored": 0, "mark": 4, "epoch": 1, "too_old": 0}
    assert sorted(seq for _, seq in origin(lake)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "partition", ["[null]", '[""]', '["a/b"]', '[".."]', '["ä"]', '["=x:%"]', f'["{"ä" * 5_000}"]']
)
def test_every_partition_has_a_mark_of_its_own(server: Running, partition: str) -> None:
    """Null, empty, slashes, dots, other alphabets, long ones: in headers and in the query alike."""
    sender = Sender(Source("lake1", "sink1", Stream("b", "t", partition)))
    assert server.send(sender, 0, 2, opens=True).json()["mark"] == 2
    assert server.mark(sender).json() == {"mark": 2, "epoch": 1}
    assert server.mark(Sender()).status_code == 404


def test_a_stream_that_another_gateway_began_is_forbidden(lake: Lake, server: Running) -> None:
    sender = Sender()
    server.send(sender, 0, 2, opens=True)
    _, secret = create_token(lake.ledger, "other")
    body = ndjson(rows([3]))
    headers = {**sender.chunk(2, 3, body, 1).headers(), "Content-Type": NDJSON, "Authorization": f"Bearer {secret}"}
    answer = httpx.post(f"{server.url}/v1/inbound/other/messages", content=body, headers=headers)
    assert (answer.status_code, error(answer)["code"]) == (403, "forbidden")
    told = {"lake": "lake1", "sink": "sink1", "stream": sender.source.stream.text()}
    answer = httpx.get(f"{server.url}/v1/inbound/other/messages", params=told, headers=headers)
    assert answer.status_code == 403
    assert [seq for _, seq in origin(lake)] == [1, 2]
