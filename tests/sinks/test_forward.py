"""A forward sink's destination alone: what it says to the server that answers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import certifi
import httpx
import pyarrow as pa
import pytest

from strandline.config import Store
from strandline.engines.objects import ObjectPlace
from strandline.errors import Environment
from strandline.model.delivery.sinks import DeadLetter
from strandline.model.values.wire import encode
from strandline.sinks import forward
from strandline.sinks.forward import Forward
from strandline.sinks.settings import resolved
from tests.sinks.test_blob_marks import STREAM, Archive

SETTINGS = resolved("forward", {"url": "http://127.0.0.1:9"})
NOTHING = {"code": "not_found", "message": "nothing yet", "hint": "", "detail": {"mark": None, "lake": "central"}}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """What reaches a receiver that knows nothing yet, and takes everything."""
    sent: list[httpx.Request] = []

    def receive(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(404, json={"error": NOTHING})
        sent.append(request)
        mark = {"mark": int(request.headers["Strand-Until"]), "epoch": int(request.headers["Strand-Epoch"])}
        return httpx.Response(200, json={"stored": 1, **mark})

    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: client(transport=httpx.MockTransport(receive), **given))
    return sent


def open_forward(root: Path) -> Forward:
    return Forward(SETTINGS, lake_id="lake1", sink_id="sink1", start_seq=0, root=root)


def test_f74_what_is_sent_says_whom_it_is_for_from_the_first_contact_on(
    tmp_path: Path, sent: list[httpx.Request]
) -> None:
    """Another server may take the address over between the question and the first chunk: it has to refuse that."""
    place = open_forward(tmp_path)
    rows = pa.record_batch({"body": ["x"], "_seq": pa.array([5], pa.int64())})
    letter = DeadLetter("l1", "sink1", STREAM, "messages", 1, 5, "open", {}, 0, encode(rows))
    place.replay(letter, SETTINGS)
    assert place.standing(STREAM, "messages").lake == "central"
    place.replay(letter, SETTINGS)
    assert [request.headers.get("Strand-Receiver") for request in sent] == [None, "central"]


def test_f68_f72_chunks_say_up_to_where_rows_are_gone_or_may_be_there(
    tmp_path: Path, sent: list[httpx.Request]
) -> None:
    """Those above say nothing of it: the receiver need not compare, and a gap there is a gap."""
    log = Archive(ObjectPlace(f"file://{tmp_path}/unused", Store()), tmp_path / "log.parquet")
    log.write_log({seq: f"row {seq}" for seq in range(1, 31)})
    unit = log.unit(0, 9, epoch=2, lacking_upto=7)
    delivery = replace(unit.delivery, settings={**SETTINGS, "chunk_rows": 3})
    open_forward(tmp_path).ship(replace(unit, delivery=delivery, hole_upto=4))
    headers = [(request.headers.get("Strand-Hole"), request.headers.get("Strand-Lacking")) for request in sent]
    assert headers == [("4", "7"), ("4", "7"), (None, "7")]


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>hello</html>"), (200, b"{}"), (404, b"<html>gone</html>")])
def test_a_server_that_is_no_receiver_is_refused_before_a_sink_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    """Whatever it answers: only a receiver's own document is one."""
    client, page = httpx.Client, httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    monkeypatch.setattr(httpx, "Client", lambda **given: client(transport=page, **given))
    with pytest.raises(Environment, match=f"answers {status}"):
        open_forward(tmp_path).probe()


def test_a_new_file_of_authorities_counts_from_the_next_connection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs for months, and certificates are renewed: it must not need a restart. Else they are read once."""
    bundle = tmp_path / "authorities.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    first = forward._certificates()
    assert forward._certificates() is first
    os.utime(bundle, (1, 1))
    assert forward._certificates() is not first
