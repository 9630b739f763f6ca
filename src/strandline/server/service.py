"""What every route works with: the lake, the threads, the gate, the counters.

The event loop only reads and answers. Decompressing, decoding, validating and storing happen in a bounded pool of
threads; appends that meet there share a transaction, as everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from strandline.lake import Lake
from strandline.server.admission import Gate
from strandline.server.auth import ValidTokens, bearer
from strandline.server.bodies import Arriving, declared_bytes, decompressed, encoding_of, read_body
from strandline.server.doubled import refuse_doubled
from strandline.server.metrics import Metrics

T = TypeVar("T")

LOOKING_THREADS = 2
"""For tokens, health and marks: a stuck writer must not keep a reader from seeing that it is stuck.

Metrics have a thread of their own: this machine needs no token for them, so no request's token may wait for them.
"""

LARGE_TIMEOUTS = 4
"""How many times `read_timeout` a large body may go on arriving while another actor waits to send one."""


@dataclass
class Service:
    """One running server."""

    lake: Lake
    tokens: ValidTokens
    gate: Gate
    metrics: Metrics
    workers: ThreadPoolExecutor
    lookers: ThreadPoolExecutor
    counters: ThreadPoolExecutor
    ready: bool = False

    async def actor(self, request: Request) -> str:
        """The actor that asks; Unauthorized if no valid token says it, BadRequest if it can be read in two ways."""
        refuse_doubled(request)
        return await self.tokens.actor(bearer(request.headers.get("authorization")), self.look)

    async def look(self, read: Callable[[], T]) -> T:
        """Read the ledger in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.lookers, read)

    async def count(self) -> bytes:
        """The metrics, one collection at a time."""
        return await asyncio.get_running_loop().run_in_executor(self.counters, self.metrics.text)

    async def take(self, request: Request, actor: str, store: Callable[[bytearray], T]) -> T:
        """Admit a request, read its body, and let a thread decompress and store it.

        A refused body is answered at once. What is still sent of it is passed over behind the answer, by the protocol.
        """
        limit = self.lake.config.server.max_body
        encoding = encoding_of(request)
        with self.gate.admitted(actor, declared_bytes(request, limit)) as charge:
            body = await read_body(Arriving(request, self.lake.config.server.read_timeout_s), limit, charge.arrived)
            with self.gate.working(), self.metrics.append_s.labels(request.scope["route"].path).time():
                return await self._work(lambda: store(decompressed(body, encoding, limit, charge.decoded)))

    async def _work(self, work: Callable[[], T]) -> T:
        """Run it in a thread; a request that is cancelled meanwhile keeps its place until the thread is done."""
        future = asyncio.get_running_loop().run_in_executor(self.workers, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """Finish what the threads are doing."""
        self.workers.shutdown(wait=True)
        self.lookers.shutdown(wait=True)
        self.counters.shutdown(wait=True)


def make_service(lake: Lake) -> Service:
    """A service for a lake that is open."""
    settings = lake.config.server
    pool = partial(ThreadPoolExecutor, thread_name_prefix="strand")
    gate = Gate(
        max_requests=settings.max_requests,
        max_bytes=settings.max_bytes,
        process_bytes=lake.config.admission.process_bytes,
        queue=settings.queue,
        behind_s=lake.ledger.behind_s,
        patience_s=LARGE_TIMEOUTS * settings.read_timeout_s,
    )
    metrics = Metrics(lake.ledger)
    metrics.in_flight.set_function(lambda: gate.in_flight)
    return Service(
        lake=lake,
        tokens=ValidTokens(lake.ledger),
        gate=gate,
        metrics=metrics,
        workers=pool(max_workers=settings.threads),
        lookers=pool(max_workers=LOOKING_THREADS),
        counters=pool(max_workers=1),
    )


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
