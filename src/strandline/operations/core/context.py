"""What every operation needs: the ledger, Spark when it is asked for, a folder to work in, and its owner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.ledger.ledger import Ledger
from strandline.ledger.publish.owner import Owner
from strandline.operations.core.fence import Fence
from strandline.operations.core.staging import Staging
from strandline.operations.core.watch import Watch

if TYPE_CHECKING:
    from strandline.engines.spark.iceberg import Iceberg

Report = Callable[[str, int, int | None], None]
"""Progress: what is being done, how much of it is done, and out of how much if that is known."""


def silent(_what: str, _done: int, _total: int | None) -> None:
    """Report nothing."""


class LiveOperations:
    """The operations that run in this process now. One that is not here any more has failed to tidy up after itself."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._lock = threading.Lock()

    def add(self, op_id: str) -> None:
        """An operation begins."""
        with self._lock:
            self._ids.add(op_id)

    def discard(self, op_id: str) -> None:
        """An operation has ended, well or badly."""
        with self._lock:
            self._ids.discard(op_id)

    def __contains__(self, op_id: str) -> bool:
        with self._lock:
            return op_id in self._ids


@dataclass(frozen=True)
class Context:
    """The surroundings of an operation."""

    ledger: Ledger
    owner: Owner
    staging: Staging
    fence: Fence
    iceberg: Callable[[], Iceberg]
    watch: Watch
    ttl_s: float
    wait_s: float
    grace_s: float
    report: Report = silent
    live: LiveOperations = field(default_factory=LiveOperations)
