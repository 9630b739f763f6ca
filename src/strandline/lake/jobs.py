"""The worker's jobs, as far as a person decides about them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.errors import NotFound, nearest

if TYPE_CHECKING:
    from strandline.lake.door import Lake


@dataclass(frozen=True)
class Retried:
    """The jobs that had failed, and will run again."""

    retried: tuple[str, ...]


class Jobs:
    """`lake.jobs`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def retry(self, keys: Collection[str] | None = None) -> Retried:
        """Let jobs that failed run again at once, all of them for None."""
        from strandline.ledger.workers import jobs

        with self._lake.ledger.write() as txn:
            recorded = jobs.read_jobs(txn.conn)
            for key in keys or ():
                if key not in recorded:
                    raise NotFound(f"there is no job {key!r}", hint=nearest(key, recorded))
            return Retried(tuple(jobs.retry_jobs(txn, keys)))
