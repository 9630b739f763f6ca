"""What is looked at to decide what is due: the ledger at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from strandline.ledger.clock import forgetting_us
from strandline.ledger.ledger import Connection
from strandline.ledger.tables.holds import count_expirable


@dataclass(frozen=True)
class BranchMoment:
    """A branch at one moment; `now_us` is None while the clock can't be trusted."""

    conn: Connection
    branch_id: str
    grace_s: float

    @cached_property
    def now_us(self) -> int | None:
        """The time by which rows are old."""
        return forgetting_us(self.conn)

    @cached_property
    def expirable(self) -> dict[str, int]:
        """How many snapshots of each table could be expired: one query for all of them."""
        return count_expirable(self.conn, self.branch_id, now_us=self.now_us, grace_s=self.grace_s)
