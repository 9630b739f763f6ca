"""A round of ticks: several sinks at once, so that one that has to wait keeps no other waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from strandline.errors import StrandError, may_pass
from strandline.ledger.sinks.sinks import why_paused
from strandline.model.delivery.sinks import Sink
from strandline.operations.core.context import Context
from strandline.sinks.decisions import decided
from strandline.sinks.destination import let_go
from strandline.sinks.instances import Surroundings, destination
from strandline.sinks.tick import Ticked, Ticker


@dataclass(frozen=True)
class Round:
    """How each of the sinks is ticked: see `Ticker`."""

    ctx: Context
    surroundings: Surroundings
    actor: str
    wait_s: float | None = None
    patient: bool = True
    take_over: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, sinks: Sequence[Sink]) -> list[Ticked]:
        """Tick all of these; a destination that can't be had is reported, and the other sinks go on."""
        if len(sinks) <= 1:
            return self._tick(sinks[0]) if sinks else []
        with ThreadPoolExecutor(len(sinks), thread_name_prefix="tick") as pool:
            try:
                ticks = [pool.submit(self._tick, sink) for sink in sinks]
                return [ticked for tick in ticks for ticked in tick.result()]
            except BaseException:
                self.stop.set()  # or the others would be waited for, however long their destinations take
                raise

    def _tick(self, sink: Sink) -> list[Ticked]:
        with self.ctx.ledger.read() as conn:
            paused = why_paused(conn, sink.sink_id)
        if paused is not None:
            return [Ticked(sink.name, "", "", outcome="paused", error=paused)]
        if self.take_over:  # before anything is: what is done outside of the ledger is written down first
            with self.ctx.ledger.write() as txn:
                decided(txn, sink, "taken_over", "this tick may take its place over, whosesoever it is", self.actor)
        try:
            place = destination(self.surroundings, sink, take_over=self.take_over)
        except StrandError as error:
            return [Ticked(sink.name, "", "", outcome="failed", error=str(error), may_pass=may_pass(error))]
        try:
            return Ticker(
                self.ctx, sink, place, self.actor, wait_s=self.wait_s, patient=self.patient, stop=self.stop
            ).tick()
        finally:
            let_go(place)
