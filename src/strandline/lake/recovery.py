"""What dead processes left: what recovery does with it, and giving up what can't be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.actors import default_actor

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.model.operations import Recovered


@dataclass(frozen=True)
class RecoveredOperation:
    """What recovery did with an operation, or would do, as people see it."""

    op: str
    kind: str
    outcome: str
    reason: str
    settled: bool
    wait_s: float

    @classmethod
    def of(cls, recovered: Recovered) -> RecoveredOperation:
        """Recovery's own record of it."""
        return cls(
            op=recovered.op_id,
            kind=recovered.kind,
            outcome=recovered.outcome,
            reason=recovered.reason,
            settled=recovered.settled,
            wait_s=recovered.wait_s,
        )


class Recovery:
    """`lake.recovery`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def discard(self, op_id: str, *, actor: str = "") -> Recovered:
        """Give up an operation whose record can't be read. What it staged stays as garbage for a sweep."""
        from strandline.operations.core.recovery import discard

        return discard(self._lake.context, op_id, actor or default_actor())
