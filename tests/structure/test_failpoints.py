"""Every failpoint is listed, and every one that is listed is on somebody's way."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest

from strandline import failpoints
from tests.structure.source import Module, calls, package, parse


def passed(modules: Iterable[Module]) -> tuple[dict[str, list[str]], list[str]]:
    """Where each failpoint is passed, and calls whose name can't be read from the source."""
    places: dict[str, list[str]] = {}
    unreadable = []
    for module in modules:
        if module.name == "strandline.failpoints":
            continue
        for name, call in calls(module):
            if name != "fail":
                continue
            argument = call.args[0] if len(call.args) == 1 else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                places.setdefault(argument.value, []).append(module.at(call, argument.value))
            else:
                unreadable.append(module.at(call, "a failpoint is named by a literal, so that it can be found"))
    return places, unreadable


def test_the_list_and_the_calls_agree() -> None:
    """The sweep dies at each of the list: one that is missing is never tried, one that nobody passes tries nothing."""
    places, unreadable = passed(package())
    assert unreadable == []
    assert {name: places[name] for name in places.keys() - failpoints.NAMES.keys()} == {}, "not listed"
    assert failpoints.NAMES.keys() - places.keys() == set(), "listed, and on nobody's way"


def test_every_failpoint_says_what_has_happened_there() -> None:
    """`strand doctor --failpoints` prints it for whoever wants to die there."""
    assert [name for name, text in failpoints.NAMES.items() if not text or name.count(".") != 1] == []


def test_around_a_commit_there_are_two() -> None:
    """What happens if it dies before, and what if after: the answers differ, so both are asked."""
    for name in failpoints.NAMES:
        step, _, place = name.partition(".")
        if place in ("before_commit", "after_commit") and step != "settle":
            other = "after_commit" if place == "before_commit" else "before_commit"
            assert f"{step}.{other}" in failpoints.NAMES, name


@pytest.mark.parametrize("line", ["fail(name)", "failpoints.fail(f'{step}.before')", "fail()"])
def test_a_name_that_cannot_be_read_is_found(line: str) -> None:
    assert passed([parse("strandline.lake", line)])[1]


def test_a_name_that_is_not_listed_is_found() -> None:
    places, _ = passed([parse("strandline.lake", "fail('nowhere.at_all')")])
    assert places.keys() - failpoints.NAMES.keys() == {"nowhere.at_all"}
