"""Which places of a sweep a run visits: over all slices every one, and in one slice the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests import slices
from tests.kit import WAYPOINTS, swept


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object], None]]:
    """Choose a slice, as SLICE= does."""

    def choose(number: object) -> None:
        monkeypatch.setenv(slices.VARIABLE, str(number))
        slices.number.cache_clear()

    yield choose
    slices.number.cache_clear()


PLACES = [f"place {number}" for number in range(7)]


@pytest.mark.parametrize("stride", [2, 3, 4, 6, 12])
@pytest.mark.parametrize("shift", [0, 5])
def test_all_slices_visit_every_place(choose: Callable[[object], None], stride: int, shift: int) -> None:
    """And no slice is empty, so that no sweep is skipped."""
    visited: set[str] = set()
    for number in range(slices.SLICES):
        choose(number)
        share = slices.share(PLACES, stride, shift=shift)
        assert 1 <= len(share) <= -(-len(PLACES) // stride)
        assert share == slices.share(iter(PLACES), stride, shift=shift)
        visited.update(share)
    assert visited == set(PLACES)


@pytest.mark.parametrize("count", [1, 2])
def test_every_place_has_its_turn(choose: Callable[[object], None], count: int) -> None:
    visited: set[str] = set()
    for number in range(slices.SLICES):
        choose(number)
        assert len(slices.turn(PLACES, count)) == count
        visited.update(slices.turn(PLACES, count))
    assert visited == set(PLACES)


def test_shifted_sweeps_of_one_run_have_every_place_between_them(choose: Callable[[object], None]) -> None:
    choose(5)
    assert {place for shift in range(4) for place in slices.share(PLACES, 4, shift=shift)} == set(PLACES)


def test_a_run_of_everything_visits_everything(choose: Callable[[object], None]) -> None:
    choose(slices.ALL)
    assert slices.share(PLACES, 3) == slices.turn(PLACES, 1) == PLACES
    assert "every place" in slices.head()


def test_a_stride_that_slices_don_t_divide_is_refused(choose: Callable[[object], None]) -> None:
    """Some places would never be visited, or more often than others."""
    choose(0)
    with pytest.raises(AssertionError, match="stride of 5"):
        slices.share(PLACES, 5)


@pytest.mark.parametrize("text", ["12", "-1", "x"])
def test_a_slice_that_there_is_not_is_refused(choose: Callable[[object], None], text: str) -> None:
    choose(text)
    with pytest.raises(ValueError, match=f"SLICE={text}"):
        slices.number()


def test_the_head_says_how_to_run_the_same_again(choose: Callable[[object], None]) -> None:
    choose("")
    assert slices.number() == int(slices.commit(), 16) % slices.SLICES
    assert f"SLICE={slices.number()}" in slices.head()


def test_an_operation_dies_at_the_waypoints_of_its_steps_in_every_slice(choose: Callable[[object], None]) -> None:
    """They are one for each way in which a dead operation ends; the others take turns, in their order."""
    points = ["begin.before_commit", "stage.after_append", "fold.after_x@2", "staged.after_commit", "fold.before_x"]
    visited: set[str] = set()
    for number in range(slices.SLICES):
        choose(number)
        names = swept(points)
        assert WAYPOINTS & set(points) <= set(names)
        assert names == [point for point in points if point in names]
        visited.update(names)
    assert visited == set(points)
