"""Defaults over HTTP: rows that are posted, chunks of other lakes, and dead letters that are replayed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from strandline.lake import Lake
from tests.kit import message
from tests.server.chunks import Sender, arrow, ndjson, rows
from tests.server.conftest import NDJSON, Running, counts, error


def apply(lake: Lake, columns: dict[str, Any]) -> None:
    current = lake.schema()["tables"]["messages"]["columns"]
    lake.schema_apply({"tables": {"messages": {"columns": {**current, **columns}}}})


def langs(lake: Lake) -> dict[str, Any]:
    return {row["part_id"]: row["lang"] for row in lake.view().table("messages").to_pylist()}


@pytest.mark.parametrize("media", [NDJSON, "application/json"])
def test_a_producer_goes_on_when_a_required_column_comes(lake: Lake, server: Running, media: str) -> None:
    """The same body before and after; a null that is given is refused, by its field."""

    def body(**fields: Any) -> bytes:
        row = {**message(1), **fields}
        return orjson.dumps(row if media == NDJSON else [row])

    assert server.append(body(), media, Idempotency_Key="k").status_code == 201
    apply(lake, {"lang": {"type": "string", "default": "en"}})
    assert server.append(body(), media, Idempotency_Key="k").json()["first_seq"] == 2, "the first answer again"
    assert server.append(body(part_id="p2"), media).status_code == 201
    refused = error(server.append(body(lang=None), media))
    assert (refused["code"], refused["detail"]["rows"][0]["field"]) == ("invalid_rows", "lang")
    assert langs(lake) == {"p1": "en", "p2": "en"}


@pytest.mark.parametrize("encode", [ndjson, arrow])
def test_a_receiver_fills_what_the_sender_does_not_have(lake: Lake, server: Running, encode: Any) -> None:
    """A null that the sender's row has is the sender's word, and stays."""
    apply(lake, {"lang": {"type": "string?", "default": "en"}})
    media = NDJSON if encode is ndjson else "application/vnd.apache.arrow.stream"
    sender = Sender()
    body = encode(rows([1, 2]))
    opens = sender.chunk(0, 2, body, 2, opens=True)
    assert server.post(opens, body, Content_Type=media).json()["stored"] == 2
    body = encode([{**row, "lang": lang} for row, lang in zip(rows([3, 4]), ["de", None], strict=True)])
    assert server.post(sender.chunk(2, 4, body, 2), body, Content_Type=media).json()["stored"] == 2
    assert langs(lake) == {"p1": "en", "p2": "en", "p3": "de", "p4": None}


def test_f72_a_default_of_the_receiver_makes_no_other_row(lake: Lake, server: Running) -> None:
    """Rows that are sent again to be compared are the same rows, though the default is another one by now, or gone."""
    sender = Sender()
    server.send(sender, 0, 2, opens=True)
    for epoch, default in enumerate(("en", "de", None), 2):
        apply(lake, {"lang": {"type": "string?", "default": default}})
        answer = server.send(sender.at(epoch=epoch), 0, epoch + 1, lacking=epoch + 1)
        assert answer.json()["stored"] == 1, f"the row that was not here, under {default}"
    assert langs(lake) == {"p1": "en", "p2": "en", "p3": "en", "p4": "de", "p5": None}


def test_f72_a_row_without_a_time_is_the_same_with_the_default_that_it_got(lake: Lake, server: Running) -> None:
    """A sender that drops `_at`: its rows are told by what they hold, and what they hold here is the default too."""
    apply(lake, {"lang": {"type": "string?", "default": "en"}})
    sender = Sender()
    bare = [{name: value for name, value in row.items() if name != "_at"} for row in rows([1, 2])]
    body = ndjson(bare[:1])
    assert server.post(sender.chunk(0, 1, body, 1, opens=True), body).json()["stored"] == 1
    body = ndjson(bare)
    assert server.post(sender.at(epoch=2).chunk(0, 2, body, 2, lacking=2), body).json()["stored"] == 1
    assert langs(lake) == {"p1": "en", "p2": "en"}


def test_a_dead_letter_gets_the_default_that_came_since(lake: Lake, server: Running) -> None:
    """It was refused for a value that it lacks; the column has a default now, and the replay is stored once."""
    lake.schema_apply({"tables": {"strict": {"columns": {"part_id": "string", "lang": "string"}}}})
    sender = Sender()
    body = ndjson([{"part_id": "a", "_seq": 1, "_at": "2026-01-31T12:00:00Z"}])
    opens = sender.chunk(0, 1, body, 1, opens=True)
    assert error(server.post(opens, body, table="strict"))["detail"]["rows"][0]["field"] == "lang"
    opened = server.post(sender.chunk(0, 1, b"", 0, opens=True), b"", table="strict")
    assert counts(opened) == {"stored": 0, "mark": 1, "epoch": 1}
    lake.schema_apply(
        {"tables": {"strict": {"columns": {"part_id": "string", "lang": {"type": "string", "default": "en"}}}}}
    )
    letter = sender.chunk(0, 1, body, 1, dead=1)
    assert counts(server.post(letter, body, table="strict"))["stored"] == 1
    assert counts(server.post(letter, body, table="strict"))["stored"] == 0
    assert lake.view().table("strict").to_pylist() == [{"part_id": "a", "lang": "en"}]
