"""`POST /v1/tables/{table}/rows`: an append over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Header
from pydantic import BaseModel
from starlette.requests import Request

from strandline.errors import Unsupported
from strandline.lake import Lake
from strandline.model.tables import Ack
from strandline.model.values.arrow_stream import read_stream
from strandline.model.values.json_pieces import PIECE_BYTES, ArrayPieces, BodyLines
from strandline.model.values.rows import read_array
from strandline.server.bodies import content_type
from strandline.server.documents import ARROW, JSON, NDJSON, answers, body_of, who
from strandline.server.service import service_of

router = APIRouter()


class Appended(BaseModel):
    """Rows that are durable, the seqs they got, and how many more were past the table's retention and left out."""

    rows: int
    first_seq: int | None
    last_seq: int | None
    too_old: int


@router.post(
    "/v1/tables/{table}/rows",
    status_code=201,
    response_model=Appended,
    responses=answers(400, 401, 404, 408, 409, 413, 415, 422, 429, 503),
    openapi_extra=body_of(NDJSON, JSON, ARROW),
    summary="Append rows",
)
async def append(
    table: str,
    request: Request,
    actor: Annotated[str, Depends(who)],
    idempotency_key: Annotated[str | None, Header(description="The same key with the same rows stores once.")] = None,
) -> dict[str, object]:
    """Store rows durably, all of them or none. The actor is the token's."""
    service = service_of(request)
    append_as = _way(content_type(request))

    def store(body: bytearray) -> Ack:
        return append_as(service.lake, table, body, actor, idempotency_key)

    ack = await service.take(request, actor, store)
    if not ack.repeated:
        service.metrics.appended.labels(table.lower()).inc(ack.rows)
    return {"rows": ack.rows, "first_seq": ack.first_seq, "last_seq": ack.last_seq, "too_old": ack.too_old}


def _way(media: str) -> Callable[[Lake, str, bytearray, str, str | None], Ack]:
    way = {NDJSON: _lines, JSON: _array, ARROW: _arrow}.get(media)
    if way is None:
        raise Unsupported(
            f"the content type {media[:80]!r} is not supported", hint=f"Use {NDJSON}, {JSON} (an array) or {ARROW}."
        )
    return way


def _lines(lake: Lake, table: str, body: bytearray, actor: str, key: str | None) -> Ack:
    return lake.append_json_lines(table, BodyLines(body), actor=actor, idempotency_key=key)


def _array(lake: Lake, table: str, body: bytearray, actor: str, key: str | None) -> Ack:
    # A short one is a list, so that it can share a transaction with others.
    rows = read_array(body) if len(body) <= PIECE_BYTES else ArrayPieces(body)
    return lake.append(table, rows, actor=actor, idempotency_key=key)


def _arrow(lake: Lake, table: str, body: bytearray, actor: str, key: str | None) -> Ack:
    return lake.append(table, read_stream(body), actor=actor, idempotency_key=key)
