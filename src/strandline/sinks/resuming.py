"""Where a stream goes on when its destination is not where we thought.

It may be behind us: it was wiped, or restored from an older copy. Then the rows in between are sent again, if they are
still there. Rows that retention has removed can't be; a person has to know, because the destination stays without them.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.model.sinks import Delivery, Mark


@dataclass(frozen=True)
class Stuck:
    """It can't go on by itself, and why."""

    reason: str


def resume_at(found: Mark | None, delivery: Delivery, *, start_seq: int, removed_upto: int) -> Mark | Stuck:
    """The mark to go on from; `found` is the destination's, None if it knows nothing of the stream.

    `removed_upto` is the highest seq of the stream that retention has removed from the log, 0 if it has removed none.
    The lowest seq that is left would not do: seqs of a stream have gaps, and a gap is no loss.
    """
    mark = found or Mark(delivery.epoch, start_seq)
    if mark.seq > delivery.until:
        return Stuck(f"the destination's mark is {mark.seq}, and ours {delivery.since}: it is ahead of this lake")
    if mark.seq < removed_upto:
        return Stuck(
            f"the destination wants rows behind seq {mark.seq}, and retention has removed those up to {removed_upto}: "
            f"they can't be sent again. `strand sink rewind` to {removed_upto} goes on without them"
        )
    return mark
