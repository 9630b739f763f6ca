"""The worker's jobs, as far as a person decides about them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from strandline.errors import NotFound, nearest

if TYPE_CHECKING:
    from strandline.lake.door import Lake


def retry_jobs(lake: Lake, keys: Collection[str] | None) -> list[str]:
    """Let jobs that failed run again at once, all of them for None; returns those that had failed."""
    from strandline.ledger import jobs

    with lake.ledger.write() as txn:
        recorded = jobs.read_jobs(txn.conn)
        for key in keys or ():
            if key not in recorded:
                raise NotFound(f"there is no job {key!r}", hint=nearest(key, recorded))
        return jobs.retry_jobs(txn, keys)
