"""Where a stream goes on, from its destination's mark and what is left of it here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.model.sinks import Delivery, Mark, Stream
from strandline.sinks.resuming import Stuck, resume_at

OPEN = Delivery(
    delivery_id="d", sink_id="s", stream=Stream("b", "t", "all"), table="messages", epoch=2, since=50, until=60,
    version=1, snapshot=1, schema_version=1, settings={}, opened_at_us=0, attempts=0, not_before_us=0, last_error=None,
    parked=None,
)  # fmt: skip


@pytest.mark.parametrize(
    ("found", "removed_upto", "expected"),
    [
        (Mark(2, 30), 0, Mark(2, 30)),
        (Mark(2, 30), 30, Mark(2, 30)),
        (Mark(2, 60), 40, Mark(2, 60)),
        (Mark(3, 55), 40, Mark(3, 55)),
        (None, 0, Mark(2, 7)),
        (None, 7, Mark(2, 7)),
    ],
)
def test_it_goes_on_behind_the_destinations_mark(found: Mark | None, removed_upto: int, expected: Mark) -> None:
    """What retention removed at or below the mark is not missed by anybody."""
    assert resume_at(found, OPEN, start_seq=7, removed_upto=removed_upto) == expected


@pytest.mark.parametrize(("found", "removed_upto"), [(Mark(2, 30), 31), (Mark(2, 0), 45), (None, 8)])
def test_rows_that_are_wanted_and_gone_need_a_person(found: Mark | None, removed_upto: int) -> None:
    """Going on in silence would leave a hole in the destination; the reason says how to go on without them."""
    stuck = resume_at(found, OPEN, start_seq=7, removed_upto=removed_upto)
    assert isinstance(stuck, Stuck)
    assert f"up to {removed_upto}" in stuck.reason and "strand sink rewind" in stuck.reason


def test_a_destination_that_is_ahead_needs_a_person() -> None:
    assert isinstance(resume_at(Mark(2, 61), OPEN, start_seq=0, removed_upto=0), Stuck)
    assert resume_at(Mark(2, 61), replace(OPEN, until=61), start_seq=0, removed_upto=0) == Mark(2, 61)
