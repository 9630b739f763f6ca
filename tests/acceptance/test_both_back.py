"""Both sides of a sink go back in time, to moments that never were together: no row is lost, and none arrives twice."""

from __future__ import annotations

from pathlib import Path

from strandline.lake import Lake
from tests.acceptance.test_went_back import copy_of, down, parts, put_back
from tests.delivery import Receiver, assert_once, forward
from tests.kit import messages, reopened, strand_json


def ticked(lake: Lake) -> None:
    """Tick; where it parks, continue as the answer tells a person to, and tick again."""
    (done,) = lake.tick("central")
    if done.outcome == "parked":
        assert "strand sink continue" in (done.error or ""), done.error
        strand_json(lake, "sink", "continue", "central", "--yes")
        (done,) = lake.tick("central")
    assert done.outcome == "delivered", done


def test_f72_a_receiver_put_back_to_rows_that_the_put_back_sender_has_lost_gets_its_new_rows(
    source: Lake, receiver: Receiver, tmp_path: Path
) -> None:
    """The receiver's copy was taken when it had rows under seqs that the sender has given to others since.

    Its mark is then below the sender's, and yet does not mean that it has the sender's rows up to there.
    """
    forward(source, receiver)
    source.tick("central")
    root = source.root
    source.close()
    copy_of(root, tmp_path / "copy of sender")
    with reopened(source) as lost:
        lost.append("messages", messages(20, 23))
        lost.tick("central")
    with down(receiver):
        copy_of(receiver.root, tmp_path / "copy of receiver")
    put_back(tmp_path / "copy of sender", root)
    with Lake(root) as again:
        again.append("messages", messages(30, 34))  # three of them under seqs of the lost rows
        ticked(again)
        again.append("messages", messages(34, 35))
        ticked(again)
        with down(receiver):
            put_back(tmp_path / "copy of receiver", receiver.root)
        again.append("messages", messages(35, 36))
        ticked(again)
        again.append("messages", messages(36, 37))
        ticked(again)
    assert_once(parts((0, 10), (20, 23), (30, 37)), receiver.rows())
