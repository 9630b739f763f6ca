"""The acceptance kit: it lets a right destination pass, and finds each fault of wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.sinks import registry
from strandline.testing import Check, Failed, checks
from strandline.testing.checks import (
    a_late_writer_changes_nothing,
    a_place_that_went_back,
    a_unit_out_of_turn_is_refused,
    a_unit_twice_is_stored_once,
    killed_anywhere,
    lost_answers,
    lost_marks,
    refused_rows_become_dead_letters,
)
from tests import slices
from tests.sinks import wrong
from tests.sinks.wrong import OnTheHeap

WRONG = [
    (wrong.StoresTwice, a_unit_twice_is_stored_once, "stored twice"),
    (wrong.StoresTwice, lost_answers, "stored twice"),
    (wrong.MarksFirst, killed_anywhere, "lost"),
    (wrong.AcksFirst, killed_anywhere, "lost"),
    (wrong.WritesInPieces, killed_anywhere, "stored twice"),
    (wrong.TakesHalfForWhole, killed_anywhere, "lost"),
    (wrong.Swallows, refused_rows_become_dead_letters, "dead letters"),
    (wrong.Remembers, a_place_that_went_back, "lost"),
    (wrong.KnowsNothing, lost_marks, "stored twice"),
    (wrong.TakesMarksBack, a_late_writer_changes_nothing, "stored twice"),
    (wrong.ActsOnOldKnowledge, a_late_writer_changes_nothing, "stored twice"),
    (wrong.LeavesGaps, a_unit_out_of_turn_is_refused, "above the mark moved the mark"),
    (wrong.TakesOlderEpochs, a_unit_out_of_turn_is_refused, "an older epoch moved the mark"),
    (wrong.CountsTwice, lost_answers, "3 rows and 0 withheld ones, Shipped counts 6 rows"),
    (wrong.MarksFirst, lost_answers, "came again: of a unit with 3 rows .* counts 0 rows"),
]


def heap(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    """Let the type `heap` be this one."""
    monkeypatch.setitem(registry.OURS, "heap", wrong.heap_type(made))


class RightOnTheHeap(OnTheHeap):
    """It is killed at some of its lines; the wrong ones at all, because one of these is where each is wrong."""

    lines = None if slices.all_places() else 15


@pytest.mark.parametrize("check", checks(RightOnTheHeap))
def test_a_right_destination_passes(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heap(monkeypatch, wrong.Heap)
    check(RightOnTheHeap, tmp_path)


@pytest.mark.parametrize(("made", "check", "words"), WRONG)
def test_a_wrong_destination_fails(
    made: Any, check: Check, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the check that is about its fault, in words that say what became of the rows."""
    heap(monkeypatch, made)
    with pytest.raises(Failed, match=words):
        check(OnTheHeap, tmp_path)


@pytest.fixture(autouse=True)
def _no_trace_is_left() -> Iterator[None]:
    """A debugger, or a measure of coverage, that was there before is there again."""
    import sys

    before = sys.gettrace()
    yield
    assert sys.gettrace() is before
