"""`/v1/inbound/{gateway}/{table}`: the receiving end of a forward sink. `docs/protocol.md` is its description."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.requests import Request

from strandline.errors import Forbidden, NotFound, Unsupported
from strandline.ledger.inbound import read_mark
from strandline.ledger.tables import find_table
from strandline.model import chunk_rows, inbound
from strandline.model.inbound import InboundMark, Received
from strandline.server.bodies import content_type
from strandline.server.documents import ARROW, NDJSON, answers, body_of, chunk_headers, who
from strandline.server.service import Service, service_of

router = APIRouter()

_DECODE = {ARROW: chunk_rows.from_arrow, NDJSON: chunk_rows.from_lines}


class Taken(BaseModel):
    """What became of a chunk: rows stored by it, rows past the retention here, and how far its stream has come."""

    stored: int
    mark: int
    epoch: int
    too_old: int


class Mark(BaseModel):
    """How far a stream has come."""

    mark: int
    epoch: int


@router.post(
    "/v1/inbound/{gateway}/{table}",
    response_model=Taken,
    responses=answers(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
    openapi_extra={**body_of(ARROW, NDJSON), "parameters": chunk_headers()},
    summary="Receive a chunk of a forward sink",
)
async def receive(gateway: str, table: str, request: Request, actor: Annotated[str, Depends(who)]) -> Any:
    """Store the rows of a chunk that are above its stream's mark, and move the mark, in one transaction."""
    service = service_of(request)
    _check_gateway(gateway, actor)
    chunk = inbound.parse(request.headers)
    decode = _DECODE.get(content_type(request))
    if decode is None:
        raise Unsupported(
            f"the content type {content_type(request)[:80]!r} is not supported", hint=f"Use {ARROW} or {NDJSON}."
        )

    def store(body: bytes) -> Received:
        inbound.check_body(chunk, body)
        rows = decode(body)
        chunk_rows.check(chunk, rows)
        return service.lake.receive(table, chunk, rows, gateway=actor)

    received = await service.take(request, actor, store)
    service.metrics.inbound.labels(actor, table.lower()).inc(received.stored)
    return asdict(received)


@router.get(
    "/v1/inbound/{gateway}/{table}",
    response_model=Mark,
    responses=answers(400, 401, 403, 404, 503),
    summary="Ask how far a stream has come",
)
async def mark(
    gateway: str,
    table: str,
    request: Request,
    actor: Annotated[str, Depends(who)],
    lake: Annotated[str, Query(description="The sender's lake id.")],
    sink: Annotated[str, Query(description="The sender's sink id.")],
    stream: Annotated[str, Query(description="The stream, as in Strand-Stream.")],
) -> Any:
    """The mark of a stream; 404 when nothing of it was accepted yet."""
    _check_gateway(gateway, actor)
    service = service_of(request)
    source = inbound.source(lake, sink, stream)
    found = await service.look(lambda: _read(service, source, table))
    inbound.check_owner(found, actor)
    return {"mark": found.seq, "epoch": found.epoch}


def _read(service: Service, source: inbound.Source, table: str) -> InboundMark:
    with service.lake.ledger.read() as conn:
        local = find_table(conn, table)
        found = read_mark(conn, source)
    if found is None or found.table_id != local.table_id:
        raise NotFound(
            "nothing of this stream is here yet",
            hint="Begin at the sink's starting point, with Strand-Open.",
            mark=None,
        )
    return found


def _check_gateway(gateway: str, actor: str) -> None:
    if gateway != actor:
        raise Forbidden(f"the token is {actor!r}'s, and writes for the gateway {actor!r} alone", gateway=gateway)
