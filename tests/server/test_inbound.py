"""The forward protocol over HTTP, as a sender meets it."""

from __future__ import annotations

import gzip
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from sqlalchemy import select

from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.tokens import create_token
from strandline.model.delivery.inbound import Source
from strandline.model.delivery.sinks import Replayed, Stream
from strandline.sinks.destination import Park
from strandline.sinks.forward import Forward
from strandline.sinks.settings import resolved
from tests.server.chunks import Sender, arrow, ndjson, origin, rows
from tests.server.conftest import NDJSON, Running, counts, error

ARROW = "application/vnd.apache.arrow.stream"


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
@pytest.mark.parametrize("media", [NDJSON, ARROW])
def test_a_chunk_of_every_form_is_stored(lake: Lake, server: Running, media: str, encoding: str) -> None:
    """The batch id is that of the uncompressed bytes, so a proxy may compress them otherwise."""
    body = (ndjson if media == NDJSON else arrow)(rows([3, 5]))
    packed = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}[encoding](body)
    chunk = Sender().chunk(0, 6, body, 2, opens=True)
    answer = server.post(chunk, packed, Content_Type=media, Content_Encoding=encoding)
    assert (answer.status_code, counts(answer)) == (200, {"stored": 2, "mark": 6, "epoch": 1}), answer.text
    assert origin(lake) == [("edge", 3), ("edge", 5)]


def test_an_answer_that_was_lost_costs_nothing(lake: Lake, server: Running) -> None:
    """The same chunk again is acked and not stored; one that overlaps stores what is new."""
    sender = Sender()
    assert counts(server.send(sender, 0, 4, opens=True)) == {"stored": 4, "mark": 4, "epoch": 1}
    assert counts(server.send(sender, 0, 4, opens=True)) == {"stored": 0, "mark": 4, "epoch": 1}
    assert counts(server.send(sender, 2, 6)) == {"stored": 2, "mark": 6, "epoch": 1}
    assert [seq for _, seq in origin(lake)] == [1, 2, 3, 4, 5, 6]


def test_a_sender_that_lost_its_state_goes_on_from_the_mark(lake: Lake, server: Running) -> None:
    """It asks, or it is told with the gap; either way nothing is stored twice and nothing is left out."""
    sender = Sender()
    server.send(sender, 0, 4, opens=True)
    assert counts(server.mark(sender)) == {"mark": 4, "epoch": 1}
    answer = server.send(sender, 9, 12)
    assert answer.status_code == 409
    detail = error(answer)["detail"]
    assert detail == {"kind": "gap", "expected": 4, "actual": 9, "mark": 4, "epoch": 1}
    assert server.send(sender, detail["mark"], 12).json()["stored"] == 8
    assert [seq for _, seq in origin(lake)] == list(range(1, 13))


def test_epochs_over_http(lake: Lake, server: Running) -> None:
    sender = Sender()
    server.send(sender, 0, 4, opens=True)
    assert counts(server.send(sender.at(epoch=2), 1, 3)) == {"stored": 2, "mark": 3, "epoch": 2}
    answer = server.send(sender, 4, 5)
    assert (answer.status_code, error(answer)["detail"]["kind"]) == (409, "epoch_old")
    assert counts(server.mark(sender)) == {"mark": 3, "epoch": 2}


def test_f74_who_answers_says_which_lake_it_is(lake: Lake, server: Running) -> None:
    """Where there is no mark, with the code; with one; and after a chunk: a sender can tell it from another."""
    sender, lake_id = Sender(), lake.ledger.lake_id()
    nothing = error(server.mark(sender))
    assert (nothing["code"], nothing["detail"]) == ("not_found", {"mark": None, "lake": lake_id})
    assert server.send(sender, 0, 2, opens=True, generation="g7").json()["lake"] == lake_id
    standing = server.mark(sender).json()
    assert (standing["lake"], standing["generation"]) == (lake_id, lake.ledger.generation())
    assert standing["sender_generation"] == "g7"
    other = error(server.send(sender, 2, 4, receiver="another"))
    assert (other["code"], other["detail"]["kind"]) == ("conflict", "receiver")
    assert server.send(sender, 2, 4, receiver=lake_id).status_code == 200


def test_f68_a_chunk_above_the_mark_is_a_gap_in_every_epoch(lake: Lake, server: Running) -> None:
    """A mark means that everything up to it is here; only a person at the sender lets a stream go on past a hole."""
    sender = Sender()
    server.send(sender, 0, 4, opens=True)
    gap = error(server.send(sender.at(epoch=3), 9, 12))["detail"]
    assert (gap["kind"], gap["mark"], gap["epoch"]) == ("gap", 4, 1)
    assert counts(server.send(sender.at(epoch=3), 9, 12, hole=9)) == {"stored": 3, "mark": 12, "epoch": 3}
    with lake.ledger.read() as conn:
        (hole,) = conn.execute(select(schema.inbound_holes)).all()
    assert (hole.epoch, hole.since, hole.until) == (3, 4, 9)


def test_f72_the_last_chunk_with_rows_is_kept_with_the_mark(server: Running) -> None:
    """Chunks without rows leave it; one of a sender that says no digest takes it away."""
    sender = Sender()
    server.send(sender, 0, 4, opens=True, digest="rows1:a")
    kept = {"since": 0, "until": 4, "digest": "rows1:a"}
    assert server.send(sender, 4, 6, []).json()["chunk"] == kept
    assert server.mark(sender).json()["chunk"] == kept
    assert server.send(sender, 0, 4, digest="rows1:b").json()["chunk"] == kept, "it was not stored"
    assert server.send(sender, 6, 8).json()["chunk"] is None


def test_f72_of_a_range_that_is_compared_only_what_is_lacking_is_stored(lake: Lake, server: Running) -> None:
    """A row is here when one with its seq, from its gateway, has the same fields; another row with that seq is not."""
    sender = Sender()
    server.send(sender, 0, 4, opens=True)
    body = ndjson([*rows([2, 3]), {**rows([4])[0], "body": "another"}, *rows([5])])
    again = sender.at(epoch=2)
    answer = server.post(again.chunk(1, 5, body, 4, lacking=4), body)
    assert counts(answer) == {"stored": 2, "mark": 5, "epoch": 2}
    assert [seq for _, seq in origin(lake)] == [1, 2, 3, 4, 4, 5]


def test_f72_a_schema_that_changed_on_either_side_makes_no_other_row(lake: Lake, server: Running) -> None:
    """A default that the sender's rows have since, a column with another name, and one that came here."""
    sender = Sender()
    lake.create_table("loose", {"part_id": "string"}, unknown_fields="json")
    body = ndjson(rows([1, 2, 3]))
    opens = sender.chunk(0, 3, body, 3, opens=True)
    assert server.post(opens, body, table="loose").json()["stored"] == 3
    document = lake.schema()
    document["tables"]["loose"]["columns"] |= {"n": "long?", "grade": {"type": "long?", "default": 7}}
    lake.schema_apply(document)
    shown = [{**row, "grade": 7, "text": row.pop("body")} for row in rows([1, 2, 3, 4])]
    body = ndjson([*shown[:2], {**shown[2], "part_id": "another"}, shown[3]])
    answer = server.post(sender.at(epoch=2).chunk(0, 4, body, 4, lacking=4), body, table="loose")
    assert answer.json()["stored"] == 2, "the row that was not here, and the one that says something else"


def test_f72_a_sender_that_tells_no_digest_is_stopped_where_its_rows_are_others(lake: Lake, server: Running) -> None:
    """A chunk over the mark has another row below it; the same one, and one that is gone here, are passed over."""
    sender = Sender()
    server.send(sender, 0, 4, [1, 2, 4], opens=True)
    assert counts(server.send(sender, 2, 5)) == {"stored": 1, "mark": 5, "epoch": 1}
    body = ndjson([*rows([4]), {**rows([5])[0], "_at": "2026-02-01T00:00:00Z"}, *rows([6])])
    stopped = error(server.post(sender.chunk(3, 6, body, 3), body))
    assert (stopped["detail"]["kind"], stopped["detail"]["actual"]) == ("differs", 5)
    assert "strand sink retry" in stopped["hint"]
    assert counts(server.mark(sender)) == {"mark": 5, "epoch": 1}
    assert [seq for _, seq in origin(lake)] == [1, 2, 4, 5]


def test_f75_a_replay_of_a_row_that_is_here_stores_nothing(lake: Lake, server: Running) -> None:
    """The letter's range was stored with its row, because both sides went back; the replay is counted all the same."""
    sender = Sender()
    server.send(sender, 0, 4, opens=True)
    assert counts(server.send(sender, 2, 3, dead=3)) == {"stored": 0, "mark": 4, "epoch": 1}
    assert [seq for _, seq in origin(lake)] == [1, 2, 3, 4]
    assert server.mark(sender).json()["replayed"]["count"] == 1


def test_f71_replayed_letters_are_counted_hashed_and_listed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender compares count and hash, and asks for the list where they differ."""
    monkeypatch.setattr("strandline.server.inbound.PAGE_ROWS", 2)
    sender = Sender()
    server.send(sender, 0, 9, [1, 2], opens=True)
    assert server.mark(sender).json()["replayed"] == asdict(Replayed.of([]))
    for seq in (3, 5, 8):
        server.send(sender, seq - 1, seq, dead=seq)
    assert server.mark(sender).json()["replayed"] == asdict(Replayed.of([3, 5, 8]))
    told = {"lake": "lake1", "sink": "sink1", "stream": sender.source.stream.text()}
    first = server.client.get("/v1/inbound/edge/messages/replayed", params=told).json()
    rest = server.client.get("/v1/inbound/edge/messages/replayed", params={**told, "after": 5}).json()
    assert (first, rest) == ({"seqs": [3, 5], "more": True}, {"seqs": [8], "more": False})


def test_f71_a_letter_replayed_above_the_mark_is_not_stored_with_its_range_in_a_new_epoch(
    lake: Lake, server: Running
) -> None:
    """The sender began an epoch meanwhile, because it found the mark behind its own: the row is here already."""
    sender = Sender()
    server.send(sender, 0, 2, opens=True)
    server.send(sender, 4, 5, dead=5)
    again = sender.at(epoch=2)
    assert server.send(again, 2, 4).json()["stored"] == 2
    assert server.send(again, 4, 6).json()["stored"] == 1
    assert sorted(seq for _, seq in origin(lake)) == [1, 2, 3, 4, 5, 6]


def other_row(server: Running, sender: Sender, since: int, until: int, seq: int, **more: Any) -> httpx.Response:
    """A row of a ledger that was put back by hand, under a seq that another one had."""
    body = ndjson([{**row, "part_id": "other", "body": "another"} for row in rows([seq])])
    return server.post(sender.chunk(since, until, body, 1, **more), body)


def test_f72_another_row_under_the_seq_of_a_replayed_letter_is_stored(lake: Lake, server: Running) -> None:
    """The sender was put back, and its new row was refused too; its replay is no repetition of the old one."""
    sender = Sender()
    server.send(sender, 0, 6, [1], opens=True)
    assert server.send(sender, 4, 5, dead=5, digest="rows1:x").json()["stored"] == 1
    again = sender.at(epoch=2)
    server.send(again, 3, 7, [4], lacking=6)
    assert other_row(server, again, 4, 5, 5, dead=5, digest="rows1:y").json()["stored"] == 1
    assert other_row(server, again, 4, 5, 5, dead=5, digest="rows1:y").json()["stored"] == 0
    assert server.send(again, 4, 5, dead=5, digest="rows1:z").json()["stored"] == 0  # the first one, as others write it
    assert sorted(seq for _, seq in origin(lake)) == [1, 4, 5, 5]


def test_f72_a_replay_of_an_older_sender_is_told_by_its_epoch_and_its_row(lake: Lake, server: Running) -> None:
    """It says no digest."""
    sender = Sender()
    server.send(sender, 0, 6, [1], opens=True)
    assert [server.send(sender, 4, 5, dead=5).json()["stored"] for _ in range(2)] == [1, 0]
    again = sender.at(epoch=2)
    server.send(again, 3, 7, [4], lacking=6)
    assert other_row(server, again, 4, 5, 5, dead=5).json()["stored"] == 1
    assert sorted(seq for _, seq in origin(lake)) == [1, 4, 5, 5]


def test_f72_a_range_has_another_row_under_the_seq_of_a_letter_that_was_replayed_before(
    lake: Lake, server: Running
) -> None:
    sender = Sender()
    server.send(sender, 0, 2, opens=True)
    server.send(sender, 4, 5, dead=5)
    again = sender.at(epoch=2)
    assert other_row(server, again, 2, 6, 5).json()["stored"] == 1
    assert sorted(seq for _, seq in origin(lake)) == [1, 2, 5, 5]


def test_a_dead_letter_is_replayed_once(lake: Lake, server: Running) -> None:
    sender = Sender()
    server.send(sender, 0, 4, [1, 2, 4], opens=True)
    assert counts(server.send(sender, 2, 3, dead=3)) == {"stored": 1, "mark": 4, "epoch": 1}
    assert counts(server.send(sender, 2, 3, dead=3)) == {"stored": 0, "mark": 4, "epoch": 1}
    assert sorted(seq for _, seq in origin(lake)) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "partition", ["[null]", '[""]', '["a/b"]', '[".."]', '["ä"]', '["=x:%"]', f'["{"ä" * 5_000}"]']
)
def test_every_partition_has_a_mark_of_its_own(server: Running, partition: str) -> None:
    """Null, empty, slashes, dots, other alphabets, long ones: in headers and in the query alike."""
    sender = Sender(Source("lake1", "sink1", Stream("b", "t", partition)))
    assert server.send(sender, 0, 2, opens=True).json()["mark"] == 2
    assert counts(server.mark(sender)) == {"mark": 2, "epoch": 1}
    assert server.mark(Sender()).status_code == 404


def test_a_sink_never_delivers_to_its_own_lake(lake: Lake, server: Running, tmp_path: Path) -> None:
    """Its rows would come back to it for ever; the same question of another lake is answered."""
    settings = resolved("forward", {"url": server.url, "gateway": "edge", "token": server.token})
    stream = Stream("b", "t", "all")

    def asking(lake_id: str) -> Forward:
        return Forward(settings, lake_id=lake_id, sink_id="sink1", start_seq=0, root=tmp_path)

    with pytest.raises(Park, match="this lake's own server"):
        asking(lake.ledger.lake_id()).standing(stream, "messages")
    assert asking("another").standing(stream, "messages").lake == lake.ledger.lake_id()


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
