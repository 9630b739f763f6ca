"""What routes share: the actor that asks, and how the API describes itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.requests import Request

from strandline.model.delivery import inbound
from strandline.server.service import service_of

NDJSON = "application/x-ndjson"
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"

# Only for the description of the API: the header is read, and refused in our own words, by the service.
_scheme = HTTPBearer(auto_error=False, description="A token that `strand token create ACTOR` printed.")

_TEXTS = {
    400: "The request itself is wrong.",
    401: "No token, or none that is valid.",
    403: "The token is another gateway's.",
    404: "There is no such table, or no mark yet.",
    408: "The body did not arrive in time.",
    409: "Somebody was first: a gap, an old epoch, a key used with other rows.",
    413: "The body is too large, as it is or decompressed.",
    415: "A content type or encoding that is not taken.",
    422: "Rows that don't fit the table, by index, field and reason.",
    429: "This actor has too much in flight; see Retry-After.",
    503: "The ledger is behind; see Retry-After.",
}


class ErrorBody(BaseModel):
    """What happened, what to do, and the rest for programs."""

    code: str
    message: str
    hint: str
    detail: dict[str, object]


class ErrorDocument(BaseModel):
    """The answer to every request that was refused."""

    error: ErrorBody


async def who(request: Request, _shown: Annotated[HTTPAuthorizationCredentials | None, Depends(_scheme)] = None) -> str:
    """The actor of the request's token."""
    return await service_of(request).actor(request)


def answers(*statuses: int) -> dict[int | str, dict[str, object]]:
    """The refusals of a route."""
    return {status: {"model": ErrorDocument, "description": _TEXTS[status]} for status in statuses}


def body_of(*media: str) -> dict[str, object]:
    """A body that is read as it comes."""
    content = {media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in media}
    return {"requestBody": {"required": True, "content": content}}


def chunk_headers() -> list[dict[str, object]]:
    """The headers of a chunk."""
    texts = (inbound.LAKE, inbound.SINK, inbound.STREAM, inbound.BATCH_ID)
    numbers = (inbound.EPOCH, inbound.SINCE, inbound.UNTIL, inbound.ROWS)
    words = (inbound.OPEN, inbound.KEY, inbound.DIGEST, inbound.GENERATION, inbound.RECEIVER)
    optional = (*words, inbound.DEAD, inbound.HOLE, inbound.LACKING)
    return [
        {
            "name": name,
            "in": "header",
            "required": name not in optional,
            "schema": {"type": "string" if name in (*texts, *words) else "integer"},
        }
        for name in (*texts, *numbers, *optional)
    ]
