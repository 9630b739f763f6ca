"""Is it alive, is it ready, what does it count. These need no token: a probe has none."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strandline.errors import Busy
from strandline.server.documents import answers
from strandline.server.service import service_of

router = APIRouter()

LOOK_S = 5.0


@router.get("/healthz", summary="Whether the process answers")
async def healthz() -> dict[str, str]:
    """Alive, and nothing more: whoever restarts on this must not do so because the ledger is slow."""
    return {"status": "ok"}


@router.get("/readyz", responses=answers(503), summary="Whether requests can be served")
async def readyz(request: Request) -> Any:
    """Ready when recovery has run and the ledger answers."""
    service = service_of(request)
    if not service.ready:
        raise Busy("the server is starting or stopping", reason="ledger_behind")
    try:
        found = await asyncio.wait_for(service.look(service.lake.ledger.format), LOOK_S)
    except TimeoutError:
        raise Busy(f"the ledger did not answer within {LOOK_S:g} s", reason="ledger_behind") from None
    return {"status": "ready", "format": found}


@router.get("/metrics", response_class=Response, summary="Counters, for Prometheus")
async def metrics(request: Request) -> Response:
    """Everything that is counted."""
    service = service_of(request)
    return Response(await service.count(), media_type="text/plain; version=0.0.4; charset=utf-8")
