"""How the processes of a run share the files: no third Spark, and the longest files first."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import slices
from tests.sharing import FILES_WITH_SPARK_OUTSIDE, FILES_WITHOUT_SPARK, LONGEST, next_file

TESTS = Path(__file__).parents[1]
SPARK, LONG_SPARK = "tests/versions/test_drop.py", "tests/acceptance/test_operations.py"
OUTSIDE, NONE, LONG_NONE = "tests/docs/test_readme.py", "tests/unit/test_keys.py", "tests/acceptance/test_outages.py"


@pytest.fixture(autouse=True)
def _in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slices.VARIABLE, "1")


def order(number: int) -> list[str]:
    """All files that a process would take if it were alone."""
    waiting = [NONE, SPARK, LONG_NONE, OUTSIDE, LONG_SPARK]
    taken = []
    while (path := next_file(waiting, number)) is not None:
        waiting.remove(path)
        taken.append(path)
    return taken


@pytest.mark.parametrize("number", [0, 1])
def test_two_take_what_needs_their_spark_first_and_then_the_rest(number: int) -> None:
    assert order(number) == [LONG_SPARK, SPARK, OUTSIDE, LONG_NONE, NONE]


def test_a_third_takes_what_needs_no_spark_of_its_own() -> None:
    assert order(2) == [OUTSIDE, LONG_NONE, NONE]


def test_where_every_place_is_visited_only_the_second_list_needs_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slices.VARIABLE, slices.ALL)
    assert order(2) == [OUTSIDE]


def test_every_file_that_is_named_is_there() -> None:
    lists = (FILES_WITHOUT_SPARK, FILES_WITH_SPARK_OUTSIDE)
    named = [f"{folder}/{stem}" for files in lists for folder, stems in files.items() for stem in stems.split()]
    assert [name for name in [*named, *LONGEST] if not (TESTS / f"{name}.py").is_file()] == []
