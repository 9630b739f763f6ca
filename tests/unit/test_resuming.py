"""Where a stream goes on: decided from what this lake knows and from what its destination says."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from strandline.errors import Conflict
from strandline.ledger.place.restores import JUMP
from strandline.model.delivery import inbound
from strandline.model.delivery.generations import new_generation
from strandline.model.delivery.inbound import InboundMark, Source
from strandline.model.delivery.sinks import Mark, SentChunk, Standing, Stream
from strandline.model.values.row_digest import NO_ROWS
from strandline.sinks.resuming import (
    AHEAD,
    DIFFERS,
    HOLE,
    RECEIVER,
    TABLE,
    Begin,
    GoOn,
    Own,
    Stuck,
    continued,
    decide,
    has_upto,
)

CHUNK = SentChunk(40, 50, "rows1:a")
OTHER = SentChunk(40, 50, "rows1:b")


def own(epoch: int = 2, seq: int = 50, **more: Any) -> Own:
    """A stream in its second epoch, acked, at 50."""
    given = {"start_seq": 7, "last_seq": 1000, "acked_epoch": 2, "receiver": "central", **more}
    return Own(mark=Mark(epoch, seq), **given)


def at(epoch: int, seq: int, **more: Any) -> Standing:
    return Standing(Mark(epoch, seq), **{"lake": "central", "is_lake": True, **more})


NOTHING = Standing(None, lake="central", is_lake=True)
CASES: list[tuple[str, Own, Standing, Any]] = [
    ("both are there", own(), at(2, 50), GoOn(50)),
    ("with the same rows", own(chunk=CHUNK), at(2, 50, chunk=CHUNK), GoOn(50, CHUNK)),
    ("with other rows", own(chunk=CHUNK), at(2, 50, chunk=OTHER), DIFFERS),
    ("one of an older version says no rows", own(chunk=CHUNK), at(2, 50), GoOn(50)),
    ("it is further, inside the delivery", own(end=70), at(2, 60), GoOn(60)),
    ("it is further, and can be read back", own(end=70), at(2, 60, reads_back=True), Begin(Mark(3, 50))),
    ("it is further than the delivery", own(end=70), at(2, 71), AHEAD),
    ("it is further, and nothing is open", own(), at(2, 51), AHEAD),
    ("it is in a later epoch", own(), at(3, 20), AHEAD),
    ("it is behind", own(), at(2, 30), Begin(Mark(3, 30))),
    ("it is behind, in an epoch before one that it acked", own(), at(1, 30), Begin(Mark(3, 30))),
    ("it is further, in an epoch before one that it acked", own(), at(1, 80), Begin(Mark(3, 80))),
    ("a rewind that it has not acked", own(acked_epoch=1, rewound_epoch=2), at(1, 80), GoOn(50)),
    ("a rewind, and it lost what is behind", own(acked_epoch=1, rewound_epoch=2), at(1, 30), Begin(Mark(3, 30))),
    ("an epoch of our own that it has not acked", own(acked_epoch=1), at(1, 50), GoOn(50)),
    ("the same, and it was put forward again", own(acked_epoch=1), at(1, 80), Begin(Mark(3, 80))),
    ("a rewind by an older version", own(acked_epoch=0), at(1, 80), GoOn(50)),
    ("it has lost the stream", own(), NOTHING, Begin(Mark(3, 7))),
    ("it has nothing, and should not", own(1, 7, acked_epoch=0), NOTHING, GoOn(7)),
    ("another lake, with nothing", own(), Standing(None, lake="other", is_lake=True), RECEIVER),
    ("another lake, with a mark", own(), at(2, 50, lake="other"), RECEIVER),
    ("nothing, and it does not say who it is", own(), Standing(None, is_lake=True), RECEIVER),
    ("nothing, and nobody was pinned", own(receiver=None), NOTHING, RECEIVER),
    ("its table is gone", own(), Standing(None, is_lake=True, missing="404"), TABLE),
    ("no table yet", Own(0, 9), Standing(None, is_lake=True, missing="404"), Begin(Mark(1, 0))),
    ("rows behind it were removed", own(removed_upto=40), at(2, 30), HOLE),
    ("and a person knows", own(removed_upto=40, hole_upto=40), at(2, 30), Begin(Mark(3, 30))),
    ("others were removed", own(removed_upto=30), at(2, 30), Begin(Mark(3, 30))),
    ("a listing seems to be behind", own(), Standing(Mark(2, 30), exact=False), GoOn(50)),
    ("a listing in an older epoch", own(), Standing(Mark(1, 30), exact=False), GoOn(50)),
    ("a listing that is ahead", own(), Standing(Mark(2, 60), exact=False), AHEAD),
    ("a new sink", Own(7, 1000), NOTHING, Begin(Mark(1, 7))),
    ("a new sink, and a receiver that knows us", Own(7, 1000), at(4, 60, chunk=CHUNK), Begin(Mark(4, 60))),
    ("the same, and it does not say which rows it has", Own(7, 1000), at(4, 30), AHEAD),
    ("the same, and they can be compared", Own(7, 1000), at(4, 30, reads_back=True), Begin(Mark(5, 7))),
    ("a mark that was forgotten", Own(7, 1000, acked_epoch=5), at(4, 30), Begin(Mark(6, 30))),
    ("a mark above all seqs", Own(7, 20), at(4, 30), AHEAD),
    ("after a restore", own(backup_seq=100), at(2, 80), Begin(Mark(3, 80))),
    ("after a restore, far beyond it", own(backup_seq=100), at(2, 10**13), Begin(Mark(3, 100))),
    ("after a restore, an epoch that nobody knows", own(backup_seq=100), at(5, 10**13), AHEAD),
    ("the same, of this backup", own(backup_seq=100, generation="b.k"), at(5, 10**13, sender="a.k"),
     Begin(Mark(6, 100))),
    ("the same, of another backup", own(backup_seq=100, generation="b.k"), at(5, 10**13, sender="a.l"), AHEAD),
    ("the same, and it can be read", own(backup_seq=100, generation="b.k"),
     at(5, 10**13, sender="a.l", reads_back=True), Begin(Mark(6, 7))),
    ("the same, and nothing is in doubt", own(backup_seq=50), at(5, 10**13), Begin(Mark(6, 50))),
    ("after a restore of both", own(backup_seq=100), at(2, 30), Begin(Mark(3, 30))),
    ("after a restore of both, an epoch back", own(backup_seq=100), at(1, 30), Begin(Mark(3, 30))),
    ("after a restore, a listing", own(backup_seq=100), Standing(Mark(2, 30), exact=False), Begin(Mark(3, 50))),
    ("after a restore, nothing", own(backup_seq=100), NOTHING, Begin(Mark(3, 7))),
    ("after a restore, no objects", own(backup_seq=100), Standing(None, exact=False), Begin(Mark(3, 50))),
    ("after a restore, removed", own(backup_seq=100, removed_upto=40), at(2, 30), HOLE),
    ("after a restore, a rewind that waits", own(backup_seq=100, acked_epoch=1, rewound_epoch=2), at(1, 80),
     Begin(Mark(3, 50))),
    ("a stream younger than the backup", Own(5, 1000, backup_seq=100), at(1, 500), Begin(Mark(2, 100))),
]  # fmt: skip


@pytest.mark.parametrize(("what", "ours", "standing", "expected"), CASES, ids=[case[0] for case in CASES])
def test_f68_what_both_sides_know_decides(what: str, ours: Own, standing: Standing, expected: Any) -> None:
    """Behind, the rows are sent again in an epoch that neither has used; ahead or other rows, a person is needed."""
    found = decide(ours, standing, lambda _since, _until: ())
    if isinstance(expected, str):
        assert isinstance(found, Stuck) and found.kind == expected
        assert "strand sink" in found.reason
    elif isinstance(expected, Begin):
        assert isinstance(found, Begin) and found.mark == expected.mark
    else:
        assert found == expected


@pytest.mark.parametrize(("digest", "fits"), [("rows1:a", True), ("rows1:b", False), ("rows9:b", True), (None, True)])
def test_f72_rows_inside_the_open_delivery_are_compared(digest: str | None, fits: bool) -> None:
    """What the destination has must be what the snapshot has; another way of digesting proves nothing."""
    standing = at(2, 60, chunk=SentChunk(50, 60, "rows1:a"))
    digests = () if digest is None else (digest,)
    found = decide(own(end=70), standing, lambda since, until: digests if (since, until) == (50, 60) else ("rows1:x",))
    assert isinstance(found, GoOn if fits else Stuck)
    alone = decide(Own(7, 1000), at(2, 60, chunk=SentChunk(50, 60, "rows1:a")), lambda _since, _until: digests)
    assert isinstance(alone, Begin if fits else Stuck), "a sender without a watermark recomputes from its log"


def test_f68_a_rewind_that_the_destination_lost_is_told() -> None:
    """What it sent again is not sent a third time, and somebody hears of it."""
    found = decide(own(rewound_epoch=2), at(1, 30), lambda _since, _until: ())
    assert isinstance(found, Begin) and found.note is not None and "rewind" in found.note


# -- histories of two sides --------------------------------------------------------------------------------------------

SOURCE = Source("l", "s", Stream("b", "t", "all"))


def digest_of(rows: dict[int, str]) -> str:
    """What stands for the digest of rows."""
    return f"rows1:{sorted(rows.items())}" if rows else NO_ROWS


@dataclass
class Receiver:
    """A receiver in memory, which decides about chunks as the real one does."""

    mark: InboundMark | None = None
    rows: list[tuple[int, str]] = field(default_factory=list)

    def take(
        self, epoch: int, since: int, until: int, rows: dict[int, str], *, opens: bool, lacking: int, generation: str
    ) -> None:
        digest = digest_of(rows)
        chunk = inbound.Chunk(SOURCE, epoch, since, until, len(rows), "x", opens=opens, digest=digest)
        verdict = inbound.decide(chunk, self.mark, "edge", "local")
        if verdict.above is None:
            return
        for seq, text in sorted(rows.items()):
            if seq > verdict.above and not (seq <= lacking and (seq, text) in self.rows):
                self.rows.append((seq, text))
        last = None if self.mark is None else self.mark.chunk
        kept = SentChunk(since, until, digest) if rows else last
        self.mark = InboundMark(epoch, until, "edge", "local", kept, generation)

    def standing(self) -> Standing:
        if self.mark is None:
            return Standing(None, lake="c", is_lake=True, reads_back=True)
        mark, chunk, sender = Mark(self.mark.epoch, self.mark.seq), self.mark.chunk, self.mark.generation
        return Standing(mark, chunk=chunk, lake="c", is_lake=True, reads_back=True, sender=sender)


@dataclass
class Sender:
    """A sender in memory: its log, and what it has noted of the one stream. A row without a text is withheld."""

    log: dict[int, str | None] = field(default_factory=dict)
    last_seq: int = 0
    mark: Mark | None = None
    acked_epoch: int = 0
    rewound_epoch: int = 0
    chunk: SentChunk | None = None
    lacking: int = 0
    end: int | None = None
    stuck: Stuck | None = None
    backup_seq: int | None = None
    generation: str = "first"

    def own(self, receiver: str | None) -> Own:
        return Own(0, self.last_seq, self.mark, self.end, self.acked_epoch, self.rewound_epoch, self.chunk,
                   lacking_upto=self.lacking, backup_seq=self.backup_seq, receiver=receiver,
                   generation=self.generation)  # fmt: skip

    def restored(self, last_seq: int, backup: str) -> None:
        """It was restored, and does not count its mark until the destination was asked."""
        self.generation = new_generation(backup)
        self.backup_seq, self.last_seq, self.end = self.last_seq, last_seq, None

    def carry_on(self, receiver: Receiver, pinned: str | None) -> None:
        """A person says `strand sink continue`."""
        standing = receiver.standing()
        assert standing.mark is not None and self.stuck is not None
        mark, self.lacking = continued(self.own(pinned), standing, self.stuck), has_upto(self.own(pinned), standing)
        self.rewound_epoch, self.mark, self.end = mark.epoch, mark, None
        jump = 0 if self.backup_seq is None else JUMP
        self.last_seq, self.backup_seq = max(self.last_seq, standing.mark.seq + jump), None

    def rows(self, since: int, until: int) -> dict[int, str]:
        return {seq: text for seq, text in self.log.items() if text is not None and since < seq <= until}

    def tick(self, receiver: Receiver, pinned: str | None, *, dies_after: int) -> str | None:
        """Deliver in chunks of two seqs; after some chunks the process dies, and the delivery stays open."""
        for _ in range(4):
            counts = self.mark is not None and self.backup_seq is None
            head = max(self.log, default=0)
            if self.mark is not None and counts and self.end is None and head > self.mark.seq:
                self.end = head
            if counts and self.end is None:
                self.stuck = None
                return pinned
            found = decide(self.own(pinned), receiver.standing(), lambda a, b: [digest_of(self.rows(a, b))])
            self.stuck = found if isinstance(found, Stuck) else None
            if isinstance(found, Stuck):
                return pinned
            pinned = "c"
            if isinstance(found, Begin):
                theirs = receiver.standing().mark
                self.acked_epoch = max(self.acked_epoch, theirs.epoch if theirs else 0)
                if self.backup_seq is not None and theirs is not None:
                    self.last_seq = max(self.last_seq, theirs.seq + JUMP)
                self.mark, self.chunk, self.end, self.lacking = found.mark, found.chunk, None, found.lacking_upto
                self.backup_seq = None
                continue
            assert self.mark is not None and self.end is not None
            epoch, at, since = self.mark.epoch, found.confirmed, self.mark.seq
            steps = sorted({since, *(seq // 2 * 2 for seq in self.rows(since, self.end) if seq // 2 * 2 > since)})
            for number, (start, until) in enumerate(zip(steps, [*steps[1:], self.end], strict=True)):
                if until <= at:
                    continue
                if number >= dies_after:
                    return pinned
                receiver.take(epoch, start, until, self.rows(start, until), opens=start == 0, lacking=self.lacking,
                              generation=self.generation)  # fmt: skip
            assert receiver.mark is not None
            self.mark, self.end = Mark(epoch, self.end), None
            self.acked_epoch, self.chunk = epoch, receiver.mark.chunk or self.chunk
        return pinned


STEPS = st.lists(
    st.sampled_from(
        ["append", "append", "withhold", "tick", "tick", "die", "copy", "receiver back", "sender back", "rewind"]
    ),
    max_size=24,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 3))
def test_f68_f72_no_history_of_copies_put_back_loses_or_repeats_a_row(steps: list[str], dies_after: int) -> None:
    """Either side is put back by hand at any moment, ticks die, a person rewinds, and says `continue` where it parks.

    In the end the receiver has every row of the sender's log, and none twice unless a rewind asked for it.
    """
    sender, receiver, pinned = Sender(), Receiver(), None
    kept, rewound, names = (copy.deepcopy(sender), copy.deepcopy(receiver), None), False, 0

    def deliver(after: int = 99) -> None:
        nonlocal pinned
        for _ in range(3):
            try:
                pinned = sender.tick(receiver, pinned, dies_after=after)
            except Conflict as error:  # the receiver was asked just before: it can't be elsewhere
                raise AssertionError(f"{error} {error.detail}") from error
            if sender.stuck is None or sender.stuck.kind not in (AHEAD, DIFFERS):
                break
            sender.carry_on(receiver, pinned)
        assert sender.stuck is None, sender.stuck

    for step in steps:
        if step in ("append", "withhold"):
            names, sender.last_seq = names + 1, sender.last_seq + 1
            sender.log[sender.last_seq] = f"row{names}" if step == "append" else None
        elif step == "tick":
            deliver()
        elif step == "die":
            deliver(dies_after)
        elif step == "copy":
            kept = copy.deepcopy((sender, receiver, pinned))
        elif step == "receiver back" and kept[1].mark is not None:
            receiver = copy.deepcopy(kept[1])
        elif step == "sender back":
            sender = copy.deepcopy(kept[0])
        elif step == "rewind" and sender.mark is not None and sender.mark.seq > 0:
            epoch = max(sender.mark.epoch, sender.acked_epoch) + 1
            sender.mark, sender.end, rewound = Mark(epoch, sender.mark.seq // 2), None, True
            sender.rewound_epoch, sender.lacking = epoch, 0
    names, sender.last_seq = names + 1, sender.last_seq + 1
    sender.log[sender.last_seq] = f"row{names}"
    deliver()
    lost = {row for row in sender.log.items() if row[1] is not None} - set(receiver.rows)
    assert not lost, "lost"
    if not rewound:
        assert [row for row, times in Counter(receiver.rows).items() if times > 1] == [], "repeated"


# -- histories of two sides that are put back to moments that never were together --------------------------------------

APART = ["append", "append", "tick", "tick", "copy sender", "copy receiver", "receiver back", "sender back", "restore"]


class History:
    """Two sides, what was kept of each, and which rows there ever were."""

    def __init__(self) -> None:
        self.sender, self.receiver = Sender(), Receiver()
        self.senders: list[Sender] = []
        self.receivers: list[Receiver] = []
        self.pinned: str | None = None
        self.names = 0

    def append(self) -> None:
        self.names, self.sender.last_seq = self.names + 1, self.sender.last_seq + 1
        self.sender.log[self.sender.last_seq] = f"row{self.names}"

    def deliver(self) -> None:
        for _ in range(4):
            try:
                self.pinned = self.sender.tick(self.receiver, self.pinned, dies_after=99)
            except Conflict as error:
                raise AssertionError(f"{error} {error.detail}") from error
            stuck = self.sender.stuck
            if stuck is None or stuck.kind not in (AHEAD, DIFFERS):
                break
            self.sender.carry_on(self.receiver, self.pinned)
        assert self.sender.stuck is None, self.sender.stuck

    def restore(self, number: int) -> None:
        """As `strand restore` does: the counter jumps above the backup's, and above what is replaced."""
        replaced, number = self.sender.last_seq, number % len(self.senders)
        self.sender = copy.deepcopy(self.senders[number])
        self.sender.restored(max(replaced, self.sender.last_seq) + JUMP, f"backup{number}")


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(APART), st.integers(0, 5)), max_size=26))
@example([("copy sender", 0), ("append", 0), ("tick", 0), ("sender back", 0), ("append", 0), ("copy sender", 0),
          ("restore", 1)])  # fmt: skip
@example([("append", 0), ("copy sender", 0), ("append", 0), ("tick", 0), ("copy sender", 0), ("sender back", 0),
          ("tick", 0), ("sender back", 1)])  # fmt: skip
@example([("append", 0), ("tick", 0), ("copy sender", 0), ("append", 0), ("copy sender", 0), ("restore", 0),
          ("append", 0), ("tick", 0), ("restore", 1)])  # fmt: skip
@example([("append", 0), ("tick", 0), ("copy sender", 0), ("append", 0), ("tick", 0), ("copy receiver", 0),
          ("sender back", 0), ("append", 0), ("tick", 0), ("receiver back", 0)])  # fmt: skip
def test_f68_f72_sides_put_back_to_moments_that_were_never_together_lose_and_repeat_nothing(
    steps: list[tuple[str, int]],
) -> None:
    """In the end the receiver has every row of the sender's log, and none twice."""
    history = History()
    for step, number in steps:
        if step == "append":
            history.append()
        elif step == "tick":
            history.deliver()
        elif step == "copy sender":
            history.senders.append(copy.deepcopy(history.sender))
        elif step == "copy receiver" and history.receiver.mark is not None:
            history.receivers.append(copy.deepcopy(history.receiver))
        elif step == "receiver back" and history.receivers:
            history.receiver = copy.deepcopy(history.receivers[number % len(history.receivers)])
        elif step == "sender back" and history.senders:
            history.sender = copy.deepcopy(history.senders[number % len(history.senders)])
        elif step == "restore" and history.senders:
            history.restore(number)
    history.append()
    history.deliver()
    assert not set(history.sender.log.items()) - set(history.receiver.rows), "lost"
    assert [row for row, times in Counter(history.receiver.rows).items() if times > 1] == [], "repeated"
