"""`/v1/inbound/{gateway}/{table}`: the receiving end of a forward sink. `docs/protocol.md` is its description."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.requests import Request

from strandline.errors import Forbidden, NotFound, Unsupported
from strandline.ledger.ledger import Connection
from strandline.ledger.rows.inbound import read_mark, replayed_letters
from strandline.ledger.tables.tables import find_table
from strandline.model.delivery import chunk_rows, inbound
from strandline.model.delivery.inbound import InboundMark, Received
from strandline.model.delivery.sinks import Replayed
from strandline.server.bodies import content_type
from strandline.server.documents import ARROW, NDJSON, answers, body_of, chunk_headers, who
from strandline.server.service import Service, service_of

router = APIRouter()

PAGE_ROWS = 5000

_DECODE = {ARROW: chunk_rows.from_arrow, NDJSON: chunk_rows.from_lines}


class LastChunk(BaseModel):
    """The last chunk of a stream that had rows: its range, and the digest that its sender gave it."""

    since: int
    until: int
    digest: str


class Letters(BaseModel):
    """The replayed dead letters that are here of a stream: how many, and the SHA-256 of their seqs."""

    count: int
    hash: str


class Taken(BaseModel):
    """What became of a chunk: rows stored by it, rows past the retention here, its stream's mark, and who took it."""

    stored: int
    mark: int
    epoch: int
    too_old: int
    chunk: LastChunk | None
    lake: str


class Mark(BaseModel):
    """How far a stream has come, by what its sender can tell whether it is the same stream, and who says so."""

    mark: int
    epoch: int
    chunk: LastChunk | None
    replayed: Letters
    sender_generation: str | None
    lake: str
    generation: str | None


class Page(BaseModel):
    """Some seqs, ascending; `more` when there are others behind them."""

    seqs: list[int]
    more: bool


@router.post(
    "/v1/inbound/{gateway}/{table}",
    response_model=Taken,
    responses=answers(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503),
    openapi_extra={**body_of(ARROW, NDJSON), "parameters": chunk_headers()},
    summary="Receive a chunk of a forward sink",
)
async def receive(gateway: str, table: str, request: Request, actor: Annotated[str, Depends(who)]) -> dict[str, object]:
    """Store the rows of a chunk that are above its stream's mark, and move the mark, in one transaction."""
    service = service_of(request)
    _check_gateway(gateway, actor)
    chunk = inbound.parse(request.headers)
    decode = _DECODE.get(content_type(request))
    if decode is None:
        raise Unsupported(
            f"the content type {content_type(request)[:80]!r} is not supported", hint=f"Use {ARROW} or {NDJSON}."
        )

    def store(body: bytearray) -> Received:
        inbound.check_body(chunk, body)
        rows = decode(body)
        chunk_rows.check(chunk, rows)
        return service.lake.receive(table, chunk, rows, gateway=actor)

    received = await service.take(request, actor, store)
    service.metrics.inbound.labels(actor, table.lower()).inc(received.stored)
    return {**asdict(received), "lake": await service.look(service.lake.ledger.lake_id)}


@dataclass(frozen=True)
class Question:
    """A question about a stream: whose it is, the table here, and the gateway that asks."""

    service: Service
    source: inbound.Source
    table: str
    gateway: str


async def _question(
    gateway: str,
    table: str,
    request: Request,
    actor: Annotated[str, Depends(who)],
    lake: Annotated[str, Query(description="The sender's lake id.")],
    sink: Annotated[str, Query(description="The sender's sink id.")],
    stream: Annotated[str, Query(description="The stream, as in Strand-Stream.")],
) -> Question:
    """What every question about a stream says of it."""
    _check_gateway(gateway, actor)
    return Question(service_of(request), inbound.source(lake, sink, stream), table, actor)


@router.get(
    "/v1/inbound/{gateway}/{table}",
    response_model=Mark,
    responses=answers(400, 401, 403, 404, 409, 503),
    summary="Ask how far a stream has come",
)
async def mark(question: Annotated[Question, Depends(_question)]) -> dict[str, object]:
    """The mark of a stream; 404 with this lake's id when nothing of it was accepted yet."""
    return await question.service.look(lambda: _mark(question))


def _mark(question: Question) -> dict[str, object]:
    ledger = question.service.lake.ledger
    lake_id, generation = ledger.lake_id(), ledger.generation()
    with ledger.read() as conn:
        mark = _read(conn, question, lake_id)
        letters = Replayed.of(replayed_letters(conn, question.source))
    return {
        "mark": mark.seq,
        "epoch": mark.epoch,
        "chunk": None if mark.chunk is None else asdict(mark.chunk),
        "replayed": asdict(letters),
        "sender_generation": mark.generation,
        "lake": lake_id,
        "generation": generation,
    }


def _read(conn: Connection, question: Question, lake_id: str) -> InboundMark:
    local = find_table(conn, question.table)
    mark = read_mark(conn, question.source)
    if mark is None:
        raise NotFound(
            "nothing of this stream is here yet",
            hint="Begin at the sink's starting point, with Strand-Open.",
            mark=None,
            lake=lake_id,
        )
    inbound.check_owner(mark, question.gateway)
    inbound.check_table(mark, local.table_id)
    return mark


@router.get(
    "/v1/inbound/{gateway}/{table}/replayed",
    response_model=Page,
    responses=answers(400, 401, 403, 404, 409, 503),
    summary="List the replayed dead letters of a stream",
)
async def replayed(
    question: Annotated[Question, Depends(_question)],
    after: Annotated[int, Query(description="Seqs above this one.", ge=0, le=inbound.MAX_SEQ)] = 0,
) -> dict[str, object]:
    """The seqs of the replayed dead letters that are stored here, a page at a time."""

    def read() -> list[int]:
        with question.service.lake.ledger.read() as conn:
            _read(conn, question, "")
            return replayed_letters(conn, question.source, after=after, limit=PAGE_ROWS + 1)

    seqs = await question.service.look(read)
    return {"seqs": seqs[:PAGE_ROWS], "more": len(seqs) > PAGE_ROWS}


def _check_gateway(gateway: str, actor: str) -> None:
    if gateway != actor:
        raise Forbidden(f"the token is {actor!r}'s, and writes for the gateway {actor!r} alone", gateway=gateway)
