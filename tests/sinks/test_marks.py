"""What is written down of a stream when its destination was asked: its mark, its receiver, its dead letters.

The destination is a word that a test gives, and the stream's rows are in no file: no Spark is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from sqlalchemy import insert

from strandline.errors import Conflict
from strandline.lake import Lake
from strandline.ledger.database import schema as db
from strandline.ledger.publish.leases import Hold
from strandline.ledger.sinks.dead_letters import OPEN, REPLAYED, RefusedRow, bury, list_letters, settle_letter
from strandline.ledger.sinks.deliveries import close_delivery, forget_replayed, has_delivered, open_epoch, read_noted
from strandline.ledger.sinks.sinks import find_sink
from strandline.model.delivery.sinks import Delivery, Mark, Replayed, Shipped, Sink, Standing, Stream
from strandline.model.ids import lease_of_stream
from strandline.operations.core.beats import holding
from strandline.sinks.continuing import accept_receiver, continue_streams
from strandline.sinks.destination import Unit
from strandline.sinks.marks import Whereabouts, begin, draft, first_mark, look_at, settle
from strandline.sinks.reading import UnitPlan
from strandline.sinks.repair import begin_anew
from strandline.sinks.resuming import AHEAD, HOLE, RECEIVER, Begin, GoOn, Stuck
from tests.kit import audits, make_table, messages


@dataclass
class Words:
    """A destination that says what it is told to say."""

    answer: Standing
    letters: frozenset[int] = frozenset()

    def probe(self) -> None: ...

    def look(self) -> None: ...

    def close(self) -> None: ...

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        return replace(self.answer, replayed=Replayed.of(self.letters))

    def replayed(self, stream: Stream, table: str) -> frozenset[int]:
        return self.letters

    def ship(self, unit: Unit) -> Shipped:
        raise AssertionError("nothing is sent here")


@dataclass
class Emptied(Words):
    """A place with a marker, which may have lost it; another sink has been in epoch 3 there."""

    is_lost: bool = True

    def has_lost(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> bool:
        return self.is_lost

    def highest_epoch(self, table: str) -> int:
        return 3


@dataclass
class Scene:
    """A sink with one stream, as a tick has it."""

    lake: Lake
    stream: Stream
    place: Words = field(default_factory=lambda: Words(Standing(None, lake="central", is_lake=True)))

    def sink(self) -> Sink:
        with self.lake.ledger.read() as conn:
            return find_sink(conn, "central")

    def says(self, epoch: int, seq: int, lake: str = "central") -> None:
        """From now on the destination has this mark."""
        self.place.answer = Standing(Mark(epoch, seq), lake=lake, is_lake=True, reads_back=True)

    def seen(self) -> Whereabouts:
        return look_at(self.lake.context, self.sink(), self.place, self.stream, "messages", None)

    def mark(self) -> Mark:
        with self.lake.ledger.read() as conn:
            noted = read_noted(conn, self.sink().sink_id, self.stream)
        assert noted is not None
        return noted.mark

    def deliver(self, hold: Hold, until: int, dead: int | None = None) -> None:
        """A unit has arrived, but for one of its rows."""
        mark = self.mark()
        plan = UnitPlan(until, version=1, snapshot=0, schema_version=1)
        delivery = draft(self.sink(), self.stream, "messages", mark, plan, {})
        with self.lake.ledger.write() as txn:
            txn.conn.execute(insert(db.deliveries).values(**_columns(delivery)))
            if dead is not None:
                bury(txn, hold, delivery, [RefusedRow(dead, b"a row", {"status": 422})])
            close_delivery(txn, hold, delivery, Shipped(until - mark.seq))
        self.says(mark.epoch, until)

    def letters(self, state: str | None = OPEN) -> list[int]:
        with self.lake.ledger.read() as conn:
            return [letter.seq for letter in list_letters(conn, self.sink().sink_id, state=state)]

    def replay(self, seq: int) -> None:
        """The dead letter is stored, and the destination counts it."""
        with self.lake.ledger.write() as txn:
            (letter,) = [one for one in list_letters(txn.conn, self.sink().sink_id) if one.seq == seq]
            settle_letter(txn, letter.letter_id, REPLAYED)
            forget_replayed(txn, self.sink().sink_id, self.stream)
        self.place.letters |= {seq}


def _columns(delivery: Delivery) -> dict[str, object]:
    stream = delivery.stream
    return {
        "delivery_id": delivery.delivery_id,
        "sink_id": delivery.sink_id,
        "branch_id": stream.branch_id,
        "table_id": stream.table_id,
        "partition": stream.partition,
        "epoch": delivery.epoch,
        "since": delivery.since,
        "until": delivery.until,
        "version": 1,
        "snapshot_id": 0,
        "schema_version": 1,
        "settings": "{}",
        "opened_at_us": 0,
        "attempts": 0,
        "not_before_us": 0,
    }


@pytest.fixture
def scene(lake: Lake) -> Scene:
    make_table(lake)
    lake.append("messages", messages(0, 30))
    head = lake.view().branch_table("messages").head
    stream = Stream(head.branch_id, head.table_id, "all")
    lake.add_sink("central", "forward", {"url": "http://127.0.0.1:9"}, check=False)
    key = {"branch_id": stream.branch_id, "table_id": stream.table_id, "partition": "all"}
    with lake.ledger.write() as txn:
        txn.conn.execute(insert(db.stream_heads).values(**key, last_seq=31, pruned_upto=0))
    return Scene(lake, stream)


@pytest.fixture
def hold(scene: Scene) -> Iterator[Hold]:
    with holding(scene.lake.context, lease_of_stream(scene.sink().sink_id, scene.stream.text())) as held:
        first_mark(scene.lake.context, held, scene.sink(), scene.place, scene.stream, "messages")
        yield held


def settled(scene: Scene, hold: Hold) -> None:
    settle(scene.lake.context, hold, scene.sink(), scene.place, scene.stream, "messages", scene.seen())


def test_f74_the_receiver_of_the_first_contact_is_pinned_and_another_one_parks(scene: Scene, hold: Hold) -> None:
    assert scene.sink().receiver == "central"
    scene.deliver(hold, 11)
    assert isinstance(scene.seen().decision, GoOn)
    scene.says(1, 11, lake="other")
    decision = scene.seen().decision
    assert isinstance(decision, Stuck) and decision.kind == RECEIVER


def test_f74_a_receiver_that_is_accepted_is_asked_where_it_is(scene: Scene) -> None:
    """What it knows nothing of begins at the sink's start, in an epoch of its own; and it is pinned in its turn."""
    context = scene.lake.context
    with holding(context, lease_of_stream(scene.sink().sink_id, scene.stream.text())) as hold:
        first_mark(context, hold, scene.sink(), scene.place, scene.stream, "messages")
        scene.deliver(hold, 11)
    scene.place.answer = Standing(None, lake="other", is_lake=True)
    assert accept_receiver(context, scene.sink()) == 1
    with holding(context, lease_of_stream(scene.sink().sink_id, scene.stream.text())) as hold:
        assert first_mark(context, hold, scene.sink(), scene.place, scene.stream, "messages") == Mark(2, 0)
    assert scene.sink().receiver == "other"


def test_f71_a_replayed_letter_that_the_destination_does_not_list_is_open_again(scene: Scene, hold: Hold) -> None:
    """As often as it is lost: what the two sides agreed on before a replay counts no more after it."""
    scene.deliver(hold, 11, dead=5)
    for _ in range(2):
        scene.replay(5)
        settled(scene, hold)
        assert (scene.letters(), scene.letters(REPLAYED)) == ([], [5])
        scene.place.letters = frozenset()
        settled(scene, hold)
        assert (scene.letters(), scene.letters(REPLAYED)) == ([5], [])


@pytest.mark.parametrize("replayed", [False, True])
def test_f75_going_back_closes_the_letters_above_the_mark(scene: Scene, hold: Hold, replayed: bool) -> None:
    """Their rows are sent again with their range, those of letters too that were replayed to what is lost."""
    scene.deliver(hold, 6, dead=5)
    scene.deliver(hold, 11, dead=9)
    if replayed:
        scene.replay(9)
    scene.says(1, 6)
    scene.place.letters = frozenset()
    seen = scene.seen()
    assert isinstance(seen.decision, Begin)
    begin(scene.lake.context, hold, scene.sink(), scene.stream, seen, seen.decision)
    settled(scene, hold)
    assert (scene.mark(), scene.letters(), scene.letters(REPLAYED)) == (Mark(2, 6), [5], [])


def test_f68_a_hole_is_passed_by_a_persons_word_alone(scene: Scene) -> None:
    """The epoch is above both, at the destination's mark; letters behind it are closed, their rows come again."""
    context = scene.lake.context
    with holding(context, lease_of_stream(scene.sink().sink_id, scene.stream.text())) as hold:
        first_mark(context, hold, scene.sink(), scene.place, scene.stream, "messages")
        scene.deliver(hold, 6)
        scene.deliver(hold, 11, dead=9)
    with scene.lake.ledger.write() as txn:
        txn.conn.execute(db.stream_heads.update().values(pruned_upto=8))
    scene.says(1, 6)
    decision = scene.seen().decision
    assert isinstance(decision, Stuck) and decision.kind == HOLE
    with pytest.raises(Conflict) as refused:
        continue_streams(context, scene.sink(), scene.place, "messages", past_hole=False, yes=True)
    assert refused.value.detail["kind"] == "hole" and scene.mark() == Mark(1, 11)
    continue_streams(context, scene.sink(), scene.place, "messages", past_hole=True, yes=False)
    assert (scene.mark(), scene.letters()) == (Mark(2, 6), [])
    with scene.lake.ledger.read() as conn:
        noted = read_noted(conn, scene.sink().sink_id, scene.stream)
    assert noted is not None and noted.hole_upto == 8
    newest = audits(scene.lake)[0]
    assert (newest["outcome"], "without rows up to 8" in newest["reason"]) == ("continued", True)


def test_f72_a_stream_that_goes_on_by_a_persons_word_has_its_rows_compared(scene: Scene) -> None:
    """The epoch begins at our own mark; new seqs are above the destination's, so none is taken for an old one."""
    context = scene.lake.context
    with holding(context, lease_of_stream(scene.sink().sink_id, scene.stream.text())) as hold:
        first_mark(context, hold, scene.sink(), scene.place, scene.stream, "messages")
        scene.deliver(hold, 11, dead=9)
    scene.says(1, 100)
    (continued,) = continue_streams(context, scene.sink(), scene.place, "messages", past_hole=False, yes=False)
    assert (continued.kind, continued.compared, continued.upto) == (AHEAD, True, 100)
    with scene.lake.ledger.read() as conn:
        noted = read_noted(conn, scene.sink().sink_id, scene.stream)
        assert scene.lake.ledger.last_seq(conn) >= 100
    assert noted is not None and (noted.mark, noted.lacking_upto) == (Mark(2, 11), 100)
    assert scene.letters() == [9], "its row is below the mark, and is not sent again"


def test_f80_a_place_that_lost_its_marker_begins_anew_above_every_epoch(scene: Scene) -> None:
    """What was delivered to the place that is gone counts no more, and its epochs are not used again."""
    context = scene.lake.context
    with holding(context, lease_of_stream(scene.sink().sink_id, scene.stream.text())) as hold:
        first_mark(context, hold, scene.sink(), scene.place, scene.stream, "messages")
        scene.deliver(hold, 11)
    assert begin_anew(context, scene.sink(), Emptied(scene.place.answer, is_lost=False)) == 0
    assert scene.mark() == Mark(1, 11)
    assert begin_anew(context, scene.sink(), Emptied(scene.place.answer)) == 1
    assert "messages/all begins anew" in audits(scene.lake)[0]["reason"]
    assert scene.mark() == Mark(4, 0)
    with scene.lake.ledger.read() as conn:
        assert not has_delivered(conn, scene.sink())


def test_f68_a_rewind_that_waits_is_no_reason_to_go_back(scene: Scene, hold: Hold) -> None:
    """A person's epoch that is not acked yet begins below the destination's mark on purpose; one above it is a gap."""
    scene.deliver(hold, 11)
    with scene.lake.ledger.write() as txn:
        open_epoch(txn, hold, scene.sink().sink_id, scene.stream, Mark(2, 4))
    assert scene.seen().decision == GoOn(4)
    scene.says(1, 2)
    decision = scene.seen().decision
    assert isinstance(decision, Begin) and decision.mark == Mark(3, 2)
    scene.says(3, 5)
    ahead = scene.seen().decision
    assert isinstance(ahead, Stuck) and ahead.kind == AHEAD
