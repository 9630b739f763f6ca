"""Who leads a group is in this process."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.ledger.rows.groups import Groups, Member


def doubled(group: Sequence[Member[int, int]]) -> None:
    """What the calls of these tests ask for."""
    for member in group:
        member.answer = member.call * 2


def test_calls_are_answered_in_their_order() -> None:
    """Several of one caller are one group."""
    assert Groups(doubled).ask([3, 1, 2]) == [6, 2, 4]
    assert Groups(doubled).ask([]) == []


def test_a_forked_process_does_not_wait_for_a_leader_that_stayed_behind() -> None:
    """The thread that led is in the process that this one was forked off, and so is who held the lock."""
    groups: Groups[int, int] = Groups(doubled)
    groups._process -= 1
    groups._leader = Member(0)
    groups._lock.acquire()
    assert groups.ask([1]) == [2]
