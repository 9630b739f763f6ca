"""Is it alive, is it ready, what does it count. A probe has no token; a client that counts from elsewhere needs one."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from strandline.errors import Busy
from strandline.reports.access import OPEN, is_local
from strandline.server.documents import answers
from strandline.server.service import service_of

router = APIRouter()

LOOK_S = 5.0


@router.get("/healthz", summary="Whether the process answers")
async def healthz() -> dict[str, str]:
    """Alive, and nothing more: whoever restarts on this must not do so because the ledger is slow."""
    return {"status": "ok"}


@router.get("/readyz", response_model=Any, responses=answers(503), summary="Whether requests can be served")
async def readyz(request: Request) -> dict[str, object]:
    """Ready when recovery has run and the ledger answers."""
    service = service_of(request)
    if not service.ready:
        raise Busy("the server is starting or stopping", reason="ledger_behind")
    try:
        ledger_format = await asyncio.wait_for(service.look(service.lake.ledger.format), LOOK_S)
    except TimeoutError:
        raise Busy(f"the ledger did not answer within {LOOK_S:g} s", reason="ledger_behind") from None
    return {"status": "ready", "format": ledger_format}


@router.get("/metrics", response_class=Response, responses=answers(401), summary="Counters, for Prometheus")
async def metrics(request: Request) -> Response:
    """Everything that is counted: for a token, for this machine, or with `[server] metrics = "open"` for everybody."""
    service = service_of(request)
    host = request.client.host if request.client is not None else None
    if service.lake.config.server.metrics != OPEN and not is_local(host, request.headers.items()):
        await service.actor(request)
    return Response(await service.count(), media_type="text/plain; version=0.0.4; charset=utf-8")
