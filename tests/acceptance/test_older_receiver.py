"""A receiver of an older version tells less than one of today: neither who it is, nor which rows and letters it has.

What its sender has to notice by itself. The receiver is a real one; a proxy before it takes away what one of format 1
neither takes nor tells. What an older sender does to a receiver of today is in `tests/kept`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import failpoints
from strandline.lake import Lake
from tests.acceptance.test_went_back import copy_of, down, parts, put_back
from tests.delivery import Receiver, assert_once, forward, refuse_part
from tests.kit import call, crash, messages, reopened, strand_json
from tests.proxy import PASS, Proxy, proxy_before


@pytest.fixture
def older(receiver: Receiver) -> Iterator[Proxy]:
    with proxy_before(receiver.url) as proxy:
        proxy.older = True
        yield proxy


def test_f72_a_ledger_put_back_by_hand_is_noticed_without_a_digest(
    source: Lake, receiver: Receiver, older: Proxy, tmp_path: Path
) -> None:
    """As many other rows under the same seqs, in a unit that was never sent: the receiver's mark is not about these.

    Also when the receiver could not be asked at first: the unit is written down then, and still was not sent.
    """
    forward(source, receiver, url=older.url)
    source.tick("central")
    root = source.root
    source.close()
    copy_of(root, tmp_path / "copy")
    with reopened(source) as lost:
        lost.append("messages", messages(20, 23))
        (done,) = lost.tick("central")
        assert done.outcome == "delivered"
    put_back(tmp_path / "copy", root)
    with Lake(root) as again:
        again.append("messages", messages(30, 33))
        with down(receiver):
            (done,) = again.tick("central")
            assert done.outcome == "parked"
        strand_json(again, "sink", "retry", "central")
        (done,) = again.tick("central")
        assert done.outcome == "parked" and "strand sink continue" in (done.error or "")
        refused = call("--lake", root, "--json", "sink", "continue", "central")
        assert refused.error["detail"]["rows"] == 3 and "upgraded" in refused.error["hint"]
        strand_json(again, "sink", "continue", "central", "--yes")
        again.append("messages", messages(33, 34))
        (done,) = again.tick("central")
        assert done.outcome == "delivered"
    assert_once(parts((0, 10), (20, 23), (30, 34)), receiver.rows())


def test_f72_a_ledger_put_back_to_before_its_first_delivery_takes_no_mark_on_trust(
    source: Lake, receiver: Receiver, older: Proxy, tmp_path: Path
) -> None:
    """It parks. Once the receiver can say what it has, the rows that it lacks are sent without a person."""
    forward(source, receiver, url=older.url)
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
        assert done.outcome == "parked" and "strand sink continue" in (done.error or "")
        older.older = False
        (done,) = again.tick("central")
        assert done.outcome == "delivered", done.error
    assert_once(parts((0, 10), (20, 22), (30, 34)), receiver.rows())


def test_f72_a_unit_that_was_sent_before_is_finished_without_a_digest(
    source: Lake, receiver: Receiver, older: Proxy
) -> None:
    """A tick dies behind its first chunk, and behind its last: the next one goes on, and parks nothing."""
    forward(source, receiver, url=older.url)
    failpoints.arm("forward.after_send=raise")
    with crash(source):
        source.tick("central")
    with reopened(source) as again:
        (done,) = again.tick("central")
        assert done.outcome == "delivered", done.error
        again.append("messages", messages(10, 14))
        failpoints.arm("deliver.before_close=raise")
        with crash(again):
            again.tick("central")
    with reopened(source) as again:
        again.append("messages", messages(14, 15))
        (done,) = again.tick("central")
        assert done.outcome == "delivered", done.error
    assert_once(parts((0, 15)), receiver.rows())


def test_f71_letters_are_open_again_when_a_receiver_went_back_that_does_not_count_them(
    source: Lake, receiver: Receiver, older: Proxy, tmp_path: Path
) -> None:
    """It may have lost the replay with the rest. A replay of one that it still has is not stored again."""
    forward(source, receiver, url=older.url)
    refusals = refuse_part("p2"), refuse_part("p4")
    older.rule = lambda n, seen: next((hurt for refuse in refusals if (hurt := refuse(n, seen)) != PASS), PASS)
    source.tick("central")
    older.rule = lambda _n, _seen: PASS
    first, second = strand_json(source, "sink", "dead", "central")
    strand_json(source, "sink", "dead", "central", "--replay", first["id"])
    with down(receiver):
        copy_of(receiver.root, tmp_path / "copy")
    strand_json(source, "sink", "dead", "central", "--replay", second["id"])
    source.append("messages", messages(10, 12))
    source.tick("central")
    with down(receiver):
        put_back(tmp_path / "copy", receiver.root)
    source.append("messages", messages(12, 13))
    (done,) = source.tick("central")
    assert done.outcome == "delivered"
    assert {letter["seq"] for letter in strand_json(source, "sink", "dead", "central")} == {first["seq"], second["seq"]}
    replayed = strand_json(source, "sink", "dead", "central", "--replay")
    assert {letter["outcome"] for letter in replayed} == {"replayed"}
    assert_once(parts((0, 13)), receiver.rows())
