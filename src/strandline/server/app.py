"""The HTTP application of one lake.

The gates of a request are in one order: authenticate, admit, then work; a refused one takes no other's place. Every
refusal is one of our errors, with the same codes as on the command line.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from strandline.errors import BadRequest, Internal, NotFound, StrandError, TransientError, Unauthorized, in_our_words
from strandline.lake import Lake
from strandline.logs import Logger
from strandline.server import health, inbound, rows
from strandline.server.metrics import CountRequests
from strandline.server.service import Service, make_service, service_of

_log = Logger("strandline.server")

# A client that stopped in the middle of a body can't send another request. One that sends too much is read for a while
# behind its answer (`protocol.py`): a client that is writing when its connection is closed sees no answer.
_OVER = (408,)


def create_app(lake: Lake) -> FastAPI:
    """The application."""
    service = make_service(lake)
    app = FastAPI(
        title="Strandline",
        description="Append rows durably, and receive what other lakes forward.",
        version="1",
        lifespan=_lifespan,
        docs_url=None,
        redirect_slashes=False,  # a redirect names the host that the client says, before it was asked for a token
        redoc_url=None,
    )
    app.state.service = service
    for router in (rows.router, inbound.router, health.router):
        app.include_router(router)
    app.add_exception_handler(StrandError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown_route)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(CountRequests, metrics=service.metrics)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Recovery's ledger half before the first request; what is in the threads before the end."""
    service: Service = app.state.service
    await service.look(service.lake.refresh)
    service.ready = True
    try:
        yield
    finally:
        service.ready = False
        service.close()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, StrandError)
    headers: dict[str, str] = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TransientError) and error.http_status in (429, 503):
        headers["Retry-After"] = str(service_of(request).gate.retry_after_s())
    if error.http_status in _OVER:
        headers["Connection"] = "close"
    if error.http_status == 500:
        _log.warning("request failed", path=request.url.path, code=error.code, message=error.message)
    return _document(error, headers)


async def _invalid(request: Request, error: Exception) -> Response:
    """A path, query or header that FastAPI could not read."""
    assert isinstance(error, RequestValidationError)
    what = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
    return _document(BadRequest(what, hint="GET /openapi.json describes every request."), {})


async def _unknown_route(request: Request, error: Exception) -> Response:
    """Only routes that don't exist come here, and ways of asking that a route does not have."""
    return _document(
        NotFound(f"there is no {request.method} {request.url.path}", hint="GET /openapi.json lists what there is."), {}
    )


async def _bug(request: Request, error: Exception) -> Response:
    import traceback

    known_error = in_our_words(error)
    if not isinstance(known_error, Internal):
        return await _refused(request, known_error)
    _log.warning("a bug", path=request.url.path, trace="".join(traceback.format_exception(error)))
    return _document(Internal(f"{type(error).__name__} in {request.method} {request.url.path}"), {})


def _document(error: StrandError, headers: dict[str, str]) -> Response:
    document: dict[str, object] = {"error": error.as_dict()}
    body = orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, error.http_status, headers, "application/json")
