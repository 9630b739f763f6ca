"""Either side of a sink goes back in time, by a restore or by hand: no row is lost, and none arrives twice.

Receivers are real `strand serve`; they, and senders, are put back by copying their folders, as a VM's snapshot does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.lake import Lake
from tests.delivery import (
    Receiver,
    assert_once,
    forward,
    receiving,
    refuse_part,
    streams,
    wipe_marks,
)
from tests.kit import call, messages, reopened, strand_json
from tests.proxy import PASS, Hurt, Proxy, Seen, answer


def parts(*ranges: tuple[int, int]) -> list[str]:
    return [f"p{n}" for first, last in ranges for n in range(first, last)]


@contextmanager
def down(receiver: Receiver) -> Iterator[None]:
    """While it does not serve, its files may be copied."""
    receiver.stop()
    yield
    receiver.start()


def copy_of(root: Path, to: Path) -> None:
    """What a snapshot of a disk has of a lake that does not run: all of it."""
    shutil.copytree(root, to)


def put_back(copy: Path, root: Path) -> None:
    """The disk as it was then."""
    shutil.rmtree(root)
    shutil.copytree(copy, root)


def mark_of(lake: Lake) -> tuple[int, int]:
    (state,) = streams(lake)
    assert state.mark is not None
    return state.mark.epoch, state.mark.seq


def test_f68_a_receiver_restored_to_before_an_epoch_change_gets_everything_behind_its_mark(
    source: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """Delivered, copied, rewound, delivered more, put back: what came between is sent again, under a new epoch."""
    forward(source, receiver)
    source.tick("central")
    with down(receiver):
        copy_of(receiver.root, tmp_path / "copy")
    strand_json(source, "sink", "rewind", "central", "--stream", "messages", "--to", "9", "--yes")
    source.append("messages", messages(10, 13))
    source.tick("central")
    assert mark_of(source)[0] == 2
    with down(receiver):
        put_back(tmp_path / "copy", receiver.root)
    source.append("messages", messages(13, 14))
    (done,) = source.tick("central")
    assert done.outcome == "delivered" and "rewind" in (done.note or "")
    assert mark_of(source)[0] == 3, "an old number was used again"
    assert_once(parts((0, 14)), receiver.rows())


def test_f68_rows_that_retention_removed_are_passed_over_by_a_persons_word(
    source: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """It parks, says how to go on, and the receiver keeps where the hole is."""
    from sqlalchemy import select, update

    from strandline.ledger.database import schema

    forward(source, receiver)
    source.tick("central")
    with down(receiver):
        copy_of(receiver.root, tmp_path / "copy")
    source.append("messages", messages(10, 13))
    source.tick("central")
    with source.ledger.write() as txn:
        txn.conn.execute(update(schema.stream_heads).values(pruned_upto=12))
    with down(receiver):
        put_back(tmp_path / "copy", receiver.root)
    source.append("messages", messages(13, 14))
    (done,) = source.tick("central")
    assert done.outcome == "parked" and "--past-hole" in (done.error or "")
    refused = call("--lake", source.root, "--json", "sink", "continue", "central")
    assert refused.code == 4 and refused.error["detail"]["kind"] == "hole"
    (continued,) = strand_json(source, "sink", "continue", "central", "--past-hole")
    assert (continued["outcome"], continued["since"], continued["epoch"]) == ("continued", 11, 2)
    source.tick("central")
    assert_once(parts((0, 14)), receiver.rows())  # the rows were only said to be removed: what is left is sent
    with Lake(receiver.root, read_only=True) as central, central.ledger.read() as conn:
        (hole,) = conn.execute(select(schema.inbound_holes)).all()
    assert (hole.since, hole.until) == (11, 12)
    with down(receiver):
        put_back(tmp_path / "copy", receiver.root)
    source.append("messages", messages(14, 15))
    (done,) = source.tick("central")
    assert done.outcome == "parked" and "--past-hole" in (done.error or ""), "a word is about one hole"


def test_f71_a_replayed_letter_that_the_receiver_lost_is_open_again(
    source: Lake, receiver: Receiver, proxy: Proxy, tmp_path: Path
) -> None:
    """Replayed, then the receiver was put back to before: the letter can be replayed again, once."""
    forward(source, receiver, url=proxy.url)
    proxy.rule = refuse_part("p4")
    source.tick("central")
    proxy.rule = lambda _n, _seen: PASS
    with down(receiver):
        copy_of(receiver.root, tmp_path / "copy")
    strand_json(source, "sink", "dead", "central", "--replay")
    with down(receiver):
        put_back(tmp_path / "copy", receiver.root)
    source.append("messages", messages(10, 11))
    source.tick("central")
    (letter,) = strand_json(source, "sink", "dead", "central")
    assert letter["seq"] == 6
    strand_json(source, "sink", "dead", "central", "--replay")
    source.append("messages", messages(11, 12))
    source.tick("central")
    assert strand_json(source, "sink", "dead", "central") == []
    assert_once(parts((0, 12)), receiver.rows())


def test_f72_a_ledger_put_back_by_hand_delivers_its_new_rows_and_repeats_none(
    source: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """With a lag at the moment of the copy: rows that both have are not sent, new rows under old seqs are."""
    forward(source, receiver)
    source.tick("central")
    source.append("messages", messages(10, 13))
    source.flush("messages")  # not delivered when the copy is taken
    root = source.root
    source.close()
    copy_of(root, tmp_path / "copy")
    with reopened(source) as lost:
        lost.append("messages", messages(20, 23))
        lost.tick("central")
    put_back(tmp_path / "copy", root)
    with Lake(root) as again:
        again.append("messages", messages(30, 34))
        (done,) = again.tick("central")
        assert done.outcome == "parked" and "strand sink continue" in (done.error or "")
        (continued,) = strand_json(again, "sink", "continue", "central")
        assert (continued["compared"], continued["epoch"], continued["since"]) == (True, 2, 11)
        (done,) = again.tick("central")
        assert done.outcome == "delivered"
        again.append("messages", messages(34, 35))
        again.tick("central")
    assert_once(parts((0, 13), (20, 23), (30, 35)), receiver.rows())


def test_f72_what_was_appended_before_the_copy_and_delivered_after_it_is_no_other_row(
    source: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """The ledger is put back, and every row that the receiver has is in it: it goes on by itself. A lost mark too."""
    forward(source, receiver)
    root = source.root
    source.close()
    copy_of(root, tmp_path / "copy")
    with reopened(source) as first:
        first.tick("central")
    put_back(tmp_path / "copy", root)
    with Lake(root) as again:
        again.append("messages", messages(10, 12))
        (done,) = again.tick("central")
        assert done.outcome == "delivered"
        wipe_marks(again)
        again.append("messages", messages(12, 13))
        again.tick("central")
    assert_once(parts((0, 13)), receiver.rows())


def test_f72_a_ledger_put_back_to_before_its_first_delivery_is_noticed(
    source: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """It has no watermark: the digest is recomputed from its log, which has other rows under these seqs."""
    forward(source, receiver)
    root = source.root
    source.close()
    copy_of(root, tmp_path / "copy")
    with reopened(source) as lost:
        lost.append("messages", messages(20, 22))
        lost.tick("central")
    put_back(tmp_path / "copy", root)
    with Lake(root) as again:
        again.append("messages", messages(30, 34))
        (done,) = again.tick("central")
        assert done.outcome == "parked"
        strand_json(again, "sink", "continue", "central")
        again.tick("central")
    assert_once(parts((0, 10), (20, 22), (30, 34)), receiver.rows())


def test_f72_quiet_streams_changed_conditions_and_rewinds_park_nothing(source: Lake, receiver: Receiver) -> None:
    """What both keep of the last chunk stays equal whatever the sender withholds or removes later."""
    forward(source, receiver)
    source.tick("central")
    for where in ("part_id = 'nothing'", "part_id <> 'p11'", ""):
        strand_json(source, "sink", "set", "central", "--set", f"where={where}")
        source.append("messages", messages(10, 12) if where else messages(12, 13))
        (done,) = source.tick("central")
        assert done.outcome == "delivered", done.error
        if where == "part_id = 'nothing'":
            source.append("messages", messages(13, 14))
    strand_json(source, "sink", "rewind", "central", "--stream", "messages", "--to", "14", "--yes")
    (done,) = source.tick("central")
    assert done.outcome == "delivered", done.error


def foreign(status: int, body: bytes) -> object:
    """A proxy's `judge` that answers questions itself."""

    def judge(seen: Seen) -> Hurt:
        return answer(status, body) if seen.method == "GET" else PASS

    return judge


@pytest.mark.parametrize("body", [b"<html>404</html>", b'{"error": {"code": "not_found", "detail": {}}}', b"{}"])
def test_f74_a_foreign_404_says_nothing_about_the_stream(
    source: Lake, receiver: Receiver, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """It is asked again; when the receiver is back, the stream goes on where it was."""
    forward(source, receiver, url=proxy.url)
    source.tick("central")
    before = mark_of(source)
    source.append("messages", messages(10, 12))
    with monkeypatch.context() as patched:
        patched.setattr(proxy, "judge", foreign(404, body))
        (done,) = source.tick("central")
    assert done.outcome == "parked" and mark_of(source) == before
    strand_json(source, "sink", "retry", "central")
    source.tick("central")
    assert_once(parts((0, 12)), receiver.rows())
    assert mark_of(source)[0] == before[0]


def test_f74_another_lake_at_the_address_parks_until_a_person_accepts_it(
    source: Lake, receiver: Receiver, proxy: Proxy, tmp_path: Path
) -> None:
    """A wrong server for a while changes nothing. One that took the place for good gets everything, once, on a word."""
    forward(source, receiver, url=proxy.url)
    source.tick("central")
    source.append("messages", messages(10, 12))
    before, right = mark_of(source), proxy.upstream
    with receiving(tmp_path / "other") as other:
        proxy.upstream = ("127.0.0.1", other.port)
        strand_json(source, "sink", "set", "central", "--set", f"token={other.token}")
        (done,) = source.tick("central")
        assert done.outcome == "parked" and "--accept-receiver" in (done.error or "")
        assert (mark_of(source), other.rows()) == (before, [])
        proxy.upstream = right
        strand_json(source, "sink", "set", "central", "--set", f"token={receiver.token}")
        strand_json(source, "sink", "retry", "central")
        source.tick("central")
        assert_once(parts((0, 12)), receiver.rows())
        proxy.upstream = ("127.0.0.1", other.port)
        strand_json(source, "sink", "set", "central", "--set", f"token={other.token}")
        assert strand_json(source, "sink", "retry", "central", "--accept-receiver")["receiver_accepted"]
        source.append("messages", messages(12, 13))
        (done,) = source.tick("central")
        assert done.outcome == "delivered", done.error
        assert_once(parts((0, 13)), other.rows())
        assert mark_of(source)[0] > before[0]
        proxy.upstream = right
        strand_json(source, "sink", "set", "central", "--set", f"token={receiver.token}")
        strand_json(source, "sink", "retry", "central", "--accept-receiver")
        source.tick("central")
        assert_once(parts((0, 13)), receiver.rows())


def test_f75_both_sides_went_back_and_a_letter_is_stored_with_its_range_alone(
    source: Lake, receiver: Receiver, proxy: Proxy, tmp_path: Path
) -> None:
    """The range of an open letter is sent again, with its row: the letter is closed, and can't be replayed."""
    forward(source, receiver, url=proxy.url)
    source.tick("central")
    with down(receiver):
        copy_of(receiver.root, tmp_path / "copy")
    proxy.rule = refuse_part("p11")
    source.append("messages", messages(10, 13))
    source.tick("central")
    proxy.rule = lambda _n, _seen: PASS
    (letter,) = strand_json(source, "sink", "dead", "central")
    with down(receiver):
        put_back(tmp_path / "copy", receiver.root)
    source.append("messages", messages(13, 14))
    source.tick("central")
    assert_once(parts((0, 14)), receiver.rows())
    assert strand_json(source, "sink", "dead", "central") == []
    gone = call("--lake", source.root, "--json", "sink", "dead", "central", letter["id"], "--replay")
    assert gone.code == 3
