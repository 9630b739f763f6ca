"""Holding leases over time: a beat shows that the holder lives, from a thread of its own, until the work is done."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from strandline import logs
from strandline.errors import HeldByAnother, StrandError
from strandline.ledger.publish import leases
from strandline.ledger.publish.leases import Hold
from strandline.model.ids import new_id
from strandline.operations.core.context import Context

log = logs.Logger("strandline.leases")


@contextmanager
def beating(ctx: Context, op_id: str, fences: Mapping[str, int]) -> Iterator[None]:
    """Show that the holder of these leases lives, until the block ends."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(ctx.ttl_s / 4):
            try:
                if not leases.beat(ctx.ledger, op_id, fences):
                    return
            except StrandError as error:
                log.warning("missed a beat", op=op_id, error=str(error))

    thread = threading.Thread(target=beat, name=f"beat-{op_id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def holding(ctx: Context, name: str, *, wait_s: float | None = None) -> Iterator[Hold]:
    """Hold a lease for work that is no operation; wait for a live holder, take over a dead one.

    It keeps two processes from doing the same work at once. What is written under it shows the hold: the holder's id is
    its own, so one that lost the lease finds that out, though the lease of another may have the same fence.
    """
    holder = new_id()
    fences = _take(ctx, name, holder, ctx.wait_s if wait_s is None else wait_s)
    try:
        with beating(ctx, holder, fences):
            yield Hold(holder, fences)
    except Exception:
        _release(ctx, name, holder)
        raise
    _release(ctx, name, holder)


def _take(ctx: Context, name: str, holder: str, wait_s: float) -> dict[str, int]:
    deadline_s = time.monotonic() + wait_s
    for looks in itertools.count():
        try:
            return ctx.ledger.run(lambda txn: leases.take(txn, [name], ctx.owner.text(), holder))
        except leases.LeaseHeld as held:
            if ctx.watch.is_dead(held.lease):
                with ctx.ledger.write() as txn:
                    leases.free(txn, held.lease)
                continue
            if time.monotonic() > deadline_s:
                raise HeldByAnother("another process is doing the same work", lease=name) from held
            ctx.report("waiting for another process that does the same", 0, None)
            time.sleep(ctx.watch.pause_s(looks))
    raise AssertionError("unreachable")


def _release(ctx: Context, name: str, holder: str) -> None:
    try:
        ctx.ledger.run(lambda txn: leases.release_named(txn, name, holder))
    except StrandError as error:  # the work is done; a lease that is not given back is taken over later
        log.warning("lease left for later", lease=name, error=str(error))
