"""Watching whether the holder of a lease is alive, without ever comparing two clocks.

A holder is dead when its process certainly is, or when its beat has not changed for the lease's time on the observer's
own monotonic clock. An observer that was itself asleep has seen nothing: however long it slept, one look counts for a
quarter of the lease's time at most, so a healthy holder that slept with it gets the chance to beat.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from strandline.ledger.publish.leases import Lease
from strandline.ledger.publish.owner import certainly_dead

SHORT_PAUSE_S = 0.05
SHORT_PAUSES = 60


@dataclass
class _Seen:
    fence: int
    beat: int
    op_id: str | None
    at_s: float
    quiet_s: float = 0.0


class Watch:
    """What one process has seen of other processes' leases."""

    def __init__(self, ttl_s: float, *, one_host: bool = False) -> None:
        self._ttl_s = ttl_s
        self._one_host = one_host
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    @property
    def poll_s(self) -> float:
        """How often to look while waiting for long."""
        return min(1.0, self._ttl_s / 8)

    def pause_s(self, looks: int) -> float:
        """How long to wait after so many looks: most operations end soon, and each look takes a turn of the ledger."""
        return min(
            self.poll_s, SHORT_PAUSE_S if looks < SHORT_PAUSES else SHORT_PAUSE_S * 2.0 ** (looks - SHORT_PAUSES)
        )

    def is_dead(self, lease: Lease) -> bool:
        """Whether the holder is dead, by all that was seen up to and including this look."""
        if lease.owner is None or certainly_dead(lease.owner, one_host=self._one_host):
            return True
        now_s = time.monotonic()
        with self._lock:
            seen = self._seen.get(lease.name)
            if seen is None or (seen.fence, seen.beat, seen.op_id) != (lease.fence, lease.beat, lease.op_id):
                self._seen[lease.name] = _Seen(lease.fence, lease.beat, lease.op_id, now_s)
                return False
            seen.quiet_s += min(now_s - seen.at_s, self._ttl_s / 4)
            seen.at_s = now_s
            return seen.quiet_s >= self._ttl_s

    def silence_left_s(self, lease: Lease) -> float:
        """How much longer a holder that was looked at before has to be silent until it is called dead."""
        with self._lock:
            seen = self._seen.get(lease.name)
            return self._ttl_s if seen is None else max(0.0, self._ttl_s - seen.quiet_s)
