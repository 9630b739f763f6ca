"""What happens between a sender and a receiver of different versions, story by story: told to `crossing.py`.

A story of the pair `old-new` has an old sender and a new receiver. Those in which a side is upgraded begin with it old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crossing import Crossing


@dataclass(frozen=True)
class Story:
    """What is told, and for which pairs of versions."""

    tell: Callable[[Crossing], None]
    pairs: frozenset[str]


STORIES: dict[str, Story] = {}
MIXED = "old-new", "new-old"
OLD_SENDER = "old-new", "old-old"
OLD_RECEIVER = "new-old", "old-old"


def story(*pairs: str) -> Callable[[Callable[[Crossing], None]], Callable[[Crossing], None]]:
    """Put a function among the stories."""

    def put(tell: Callable[[Crossing], None]) -> Callable[[Crossing], None]:
        STORIES[tell.__name__] = Story(tell, frozenset(pairs))
        return tell

    return put


@story(*MIXED)
def several_ticks_and_restarts(both: Crossing) -> None:
    both.deliver(*range(10))
    both.check("the first rows")
    both.deliver(10)
    both.deliver(11)
    both.stop()
    both.serve()
    both.deliver(12)
    both.check("the receiver was started again")
    both.stop()
    both.deliver(13)
    both.serve()
    both.settle()
    both.check("it was away")


@story(*MIXED)
def killed(both: Crossing) -> None:
    number = 0
    senders = "deliver.before_open", "deliver.after_open", "forward.before_send", "forward.after_send"
    for place in (*senders, "deliver.before_close", "deliver.after_close"):
        both.append(*range(number, number + 7))
        both.tick(f"{place}=exit" + ("@2" if place.startswith("forward") else ""))
        both.append(number + 7)
        both.settle()
        both.check(f"the sender was killed at {place}")
        number += 8
    for place in ("inbound.before_commit", "inbound.after_commit"):
        both.stop()
        both.serve(f"{place}=exit@2")
        both.append(*range(number, number + 8))
        both.tick()
        both.stop()
        both.serve()
        both.settle()
        both.check(f"the receiver was killed at {place}")
        number += 8


def refuse(both: Crossing, number: int) -> None:
    """Rows, one of which the receiver refuses."""
    both.deliver(*range(number))
    both.append(number, body=None, refused=True)
    both.tick()


def replay_all(both: Crossing, *numbers: int) -> None:
    """Replay; from here on these are expected."""
    both.replay()
    both.once += [f"p{n}" for n in numbers if f"p{n}" not in both.once]


@story(*MIXED)
def a_dead_letter(both: Crossing) -> None:
    refuse(both, 5)
    both.deliver(6)
    both.check("refused")
    both.allow_null()
    both.replay("forward.after_send=exit")
    replay_all(both, 5)
    both.deliver(7)
    both.replay()
    both.check("replayed twice")


@story(*MIXED)
def rewound(both: Crossing) -> None:
    both.deliver(*range(6))
    mark = both.watermark()
    both.deliver(6, 7)
    both.rewind(mark, 6, 7)
    both.append(8)
    both.tick("forward.after_send=exit")
    both.settle()
    both.check("rewound, and killed")


@story(*MIXED)
def sender_restored(both: Crossing) -> None:
    refuse(both, 4)
    both.append(5, 6)
    both.prepare("sender", "lake.flush('messages')")
    both.back_up("sender")
    both.allow_null()
    both.tick()
    replay_all(both, 4)
    both.deliver(7, 8)
    both.restore("sender")
    both.lose(7, 8)
    both.append(9)
    both.settle()
    both.replay()
    both.check("restored, and a letter replayed that was open in the backup")
    both.deliver(10)
    both.check("and on")


@story(*MIXED)
def receiver_restored(both: Crossing) -> None:
    both.deliver(*range(6))
    both.back_up("receiver")
    both.deliver(6, 7)
    both.restore("receiver")
    both.append(8)
    both.settle()
    both.check("restored")
    both.deliver(9)
    both.check("and on")


@story(*MIXED)
def receiver_restored_to_an_older_epoch(both: Crossing) -> None:
    both.deliver(*range(6))
    both.back_up("receiver")
    both.rewind(both.watermark())
    both.deliver(6, 7)
    both.restore("receiver")
    both.append(8)
    both.settle()
    both.check("restored")


@story("new-old", "old-new")
def receiver_restored_to_before_a_replay(both: Crossing) -> None:
    refuse(both, 4)
    both.allow_null()
    both.back_up("receiver")
    replay_all(both, 4)
    both.deliver(5)
    both.restore("receiver")
    both.append(6)
    both.settle()
    both.replay()
    both.check("restored")


@story(*MIXED)
def both_restored(both: Crossing) -> None:
    both.deliver(*range(4))
    both.back_up("receiver")
    both.append(4, body=None, refused=True)
    both.append(5)
    both.tick()
    both.back_up("sender")
    both.deliver(6)
    both.restore("receiver")
    both.allow_null()
    both.restore("sender")
    both.lose(6)
    both.append(7)
    both.settle()
    replay_all(both, 4)
    both.check("restored")


def put_back(both: Crossing, *others: str) -> None:
    """The sender's ledger as it was before its last rows, with others under their seqs."""
    both.deliver(*range(6))
    both.copy("sender")
    both.deliver(6, 7)
    both.put_back("sender")
    both.lose(6, 7)
    both.append(*others)
    both.settle()
    both.check("put back")
    both.deliver(9)
    both.check("and on")


@story(*MIXED)
def sender_put_back_with_as_many_other_rows(both: Crossing) -> None:
    put_back(both, "6x", "7x")


@story(*MIXED)
def sender_put_back_with_fewer_other_rows(both: Crossing) -> None:
    put_back(both, "6x")


@story(*MIXED)
def sender_put_back_with_more_other_rows(both: Crossing) -> None:
    put_back(both, "6x", "7x", "8x")


@story(*OLD_RECEIVER)
def receiver_upgraded_while_a_sender_that_was_put_back_is_parked(both: Crossing) -> None:
    """With a lag at the moment of the copy: the older receiver could not say which of these rows it has."""
    both.deliver(*range(6))
    both.append(6)
    both.prepare("sender", "lake.flush('messages')")
    both.copy("sender")
    both.deliver(7, 8)
    both.put_back("sender")
    both.lose(7, 8)
    both.append("7x")
    both.tick()
    for side in ("sender", "receiver"):
        if both.version[side] == "old":
            both.upgrade(side)
    both.settle()
    both.check("upgraded, and continued")


@story(*MIXED)
def sender_put_back_to_before_its_first_delivery(both: Crossing) -> None:
    both.append(0, 1)
    both.copy("sender")
    both.deliver(2)
    both.put_back("sender")
    both.lose(2)
    both.append("2x", "3x")
    if both.version["receiver"] == "old":
        both.tick()
        both.upgrade("receiver")
    both.settle()
    both.check("put back")


@story(*MIXED)
def receiver_put_back(both: Crossing) -> None:
    both.deliver(*range(6))
    both.copy("receiver")
    both.deliver(6, 7)
    both.put_back("receiver")
    both.append(8)
    both.settle()
    both.check("put back")


@story(*MIXED)
def receiver_wiped(both: Crossing) -> None:
    both.deliver(*range(6))
    both.wipe_receiver()
    both.append(6)
    both.settle("--accept-receiver")
    both.check("wiped")
    both.deliver(7)
    both.check("and on")


# -- upgrades in the middle --------------------------------------------------------------------------------------------


def under_way(both: Crossing) -> None:
    """A letter that was replayed, one that is open, and a delivery in the middle."""
    refuse(both, 4)
    both.allow_null()
    replay_all(both, 4)
    both.append(*range(5, 12))
    both.tick("forward.after_send=exit@2")
    both.append(12)


@story(*OLD_SENDER)
def sender_upgraded(both: Crossing) -> None:
    under_way(both)
    both.upgrade("sender")
    both.settle()
    both.check("upgraded")
    both.rewind(both.watermark() - 1, 12)
    both.settle()
    both.deliver(13)
    both.replay()
    both.check("and on")


@story(*OLD_RECEIVER)
def receiver_upgraded(both: Crossing) -> None:
    under_way(both)
    both.upgrade("receiver")
    both.settle()
    both.check("upgraded")
    both.rewind(both.watermark() - 1, 12)
    both.settle()
    both.deliver(13)
    both.replay()
    both.check("and on")


@story(*OLD_SENDER)
def sender_upgraded_with_a_letter_and_a_parked_stream(both: Crossing) -> None:
    refuse(both, 4)
    both.stop()
    both.deliver(5, 6)
    both.serve()
    both.upgrade("sender")
    both.settle()
    both.check("upgraded")
    both.allow_null()
    replay_all(both, 4)
    both.deliver(7)
    both.check("replayed")


@story(*OLD_SENDER)
def sender_upgraded_in_the_middle_of_a_rewind(both: Crossing) -> None:
    both.deliver(*range(8))
    both.rewind(both.watermark() - 5, *range(3, 8))
    both.tick("forward.after_send=exit")
    both.upgrade("sender")
    both.append(8)
    both.settle()
    both.check("upgraded")


@story(*OLD_SENDER)
def receiver_restored_while_the_sender_is_upgraded(both: Crossing) -> None:
    refuse(both, 4)
    both.allow_null()
    both.back_up("receiver")
    both.rewind(both.watermark())
    replay_all(both, 4)
    both.deliver(5)
    both.upgrade("sender")
    both.restore("receiver")
    both.append(6)
    both.settle()
    both.replay()
    both.check("restored to before a rewind and a replay")


@story(*OLD_SENDER)
def sender_upgraded_after_it_was_put_back_with_fewer_other_rows(both: Crossing) -> None:
    """The old version has parked it, and knows no way on."""
    both.deliver(*range(6))
    both.append(6)
    both.prepare("sender", "lake.flush('messages')")
    both.copy("sender")
    both.deliver(7, 8)
    both.put_back("sender")
    both.lose(7, 8)
    both.append("7x")
    both.tick()
    both.upgrade("sender")
    both.settle()
    both.check("upgraded")


@story("old-new")
def sender_upgraded_after_it_was_put_back_with_more_other_rows(both: Crossing) -> None:
    """The receiver has stopped it."""
    both.deliver(*range(6))
    both.copy("sender")
    both.deliver(6)
    both.put_back("sender")
    both.lose(6)
    both.append("6x", "7x")
    both.tick()
    both.upgrade("sender")
    both.settle()
    both.check("upgraded")
    both.deliver(8)
    both.check("and on")


@story(*OLD_SENDER)
def an_old_ledger_put_back_after_the_upgrade(both: Crossing) -> None:
    both.deliver(*range(6))
    both.copy("sender")
    both.deliver(6)
    both.upgrade("sender")
    both.deliver(7)
    both.put_back("sender")
    both.lose(6, 7)
    both.append("6x", "7x")
    both.settle()
    both.check("put back")


@story(*OLD_SENDER)
def an_old_backup_restored_after_the_upgrade(both: Crossing) -> None:
    both.deliver(*range(6))
    both.append(6)
    both.back_up("sender")
    both.deliver(7)
    both.upgrade("sender")
    both.deliver(8)
    both.restore("sender")
    both.lose(7, 8)
    both.append(9)
    both.settle()
    both.check("restored")


@story(*OLD_SENDER)
def restored_and_then_upgraded(both: Crossing) -> None:
    """The receiver could not be asked by the version that restored."""
    both.deliver(*range(6))
    both.append(6)
    both.back_up("sender")
    both.deliver(7)
    both.stop()
    both.restore("sender")
    both.serve()
    both.lose(7)
    both.upgrade("sender")
    both.append(8)
    both.settle()
    both.check("upgraded")


@story(*OLD_RECEIVER)
def an_old_backup_of_the_receiver_restored_after_its_upgrade(both: Crossing) -> None:
    both.deliver(*range(6))
    both.back_up("receiver")
    both.deliver(6)
    both.upgrade("receiver")
    both.deliver(7)
    both.restore("receiver")
    both.append(8)
    both.settle()
    both.check("restored")


@story(*OLD_RECEIVER)
def receiver_back_to_the_old_version(both: Crossing) -> None:
    """Its older copy is put back, with the version that it had."""
    both.deliver(*range(6))
    both.copy("receiver")
    both.upgrade("receiver")
    both.deliver(6, 7)
    both.stop()
    both.version["receiver"] = "old"
    both.put_back("receiver")
    both.serve()
    both.append(8)
    both.settle()
    both.check("put back")


@story("old-old", "new-old", "old-new")
def both_upgraded(both: Crossing) -> None:
    under_way(both)
    for side in ("sender", "receiver"):
        if both.version[side] == "old":
            both.upgrade(side)
    both.settle()
    both.deliver(13)
    both.copy("sender")
    both.deliver(14, 15)
    both.put_back("sender")
    both.lose(14, 15)
    both.append("14x", "15x")
    both.settle()
    both.check("upgraded, and then the sender put back by hand")
    both.wipe_receiver()
    both.append(16)
    both.once = [part for part in dict.fromkeys(both.once) if part != "p4"]
    both.allow_null()
    both.once.append("p4")
    both.settle("--accept-receiver")
    both.check("and the receiver wiped")
