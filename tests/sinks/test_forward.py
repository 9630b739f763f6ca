"""A forward sink's destination alone: what it says to the server that answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from strandline.model.sinks import DeadLetter, Stream
from strandline.model.wire import encode
from strandline.sinks.forward import Forward
from strandline.sinks.settings import resolved

STREAM = Stream("main", "table1", "all")
NOTHING = {"code": "not_found", "message": "nothing yet", "hint": "", "detail": {"mark": None, "lake": "central"}}


def test_f74_what_is_sent_says_whom_it_is_for_from_the_first_contact_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server may take the address over between the question and the first chunk: it has to refuse that."""
    sent: list[httpx.Request] = []

    def receive(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(404, json={"error": NOTHING})
        sent.append(request)
        return httpx.Response(200, json={"stored": 1, "mark": 5, "epoch": 1})

    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: client(transport=httpx.MockTransport(receive), **given))
    settings = resolved("forward", {"url": "http://127.0.0.1:9"})
    place = Forward(settings, lake_id="lake1", sink_id="sink1", start_seq=0, root=tmp_path)
    rows = pa.record_batch({"body": ["x"], "_seq": pa.array([5], pa.int64())})
    letter = DeadLetter("l1", "sink1", STREAM, "messages", 1, 5, "open", {}, 0, encode(rows))
    place.replay(letter, settings)
    assert place.standing(STREAM, "messages").lake == "central"
    place.replay(letter, settings)
    assert [request.headers.get("Strand-Receiver") for request in sent] == [None, "central"]
