"""Readers of settings: one way to read a value, with the bounds and words that each setting hands over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strandline.settings_text import SIZE, TRUTH, choice, count, duration, or_off, parse_size, size, text

TRUTHS = choice("true or false", TRUTH)


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (text("a word"), " a ", "a"),
        (size(), 0, 0),
        (size(), "0k", 0),
        (size(if_nothing=SIZE), 7, 7),
        (size(floats=True), 1e6, 1_000_000),
        (duration(), "0s", 0.0),
        (duration(floats=True), 2.5, 2.5),
        (count("n"), "100001", 100_001),
        (count("n", most=5), 5, 5),
        (TRUTHS, True, True),
        (TRUTHS, "false", False),
        (choice("t", TRUTH, any_case=True), "TRUE", True),
        (or_off(count("n")), "off", None),
        (or_off(count("n")), "3", 3),
        (or_off(count("n"), ""), "", None),
    ],
)
def test_a_reader_takes_what_its_setting_allows(read: Callable[[object], Any], value: object, expected: Any) -> None:
    assert read(value) == expected


@pytest.mark.parametrize(
    ("read", "value", "words"),
    [
        (text("a word"), "  ", "a word"),
        (text("a word"), 5, "a word"),
        (size(if_nothing="more"), "0", "more"),
        (size(if_nothing="more"), -1, SIZE),
        (size(), 1e6, SIZE),
        (size(), True, SIZE),
        (duration(if_nothing="longer"), "0s", "longer"),
        (duration(if_nothing="longer", floats=True), -1.0, "longer"),
        (duration(), 2.5, 'a duration such as "250ms", "60s", "5m", "2h" or "7d"'),
        (count("a number", most=5), 6, "a number"),
        (count("a number"), 0, "a number"),
        (count("a number"), True, "a number"),
        (count("a number"), "²", "a number"),
        (TRUTHS, "TRUE", "true or false"),
        (TRUTHS, 1, "true or false"),
        (TRUTHS, [], "true or false"),
        (or_off(count("a number")), "", 'a number, or "off"'),
    ],
)
def test_a_reader_says_what_its_setting_expects(read: Callable[[object], Any], value: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(value)
    assert str(caught.value) == words


def test_a_whole_number_of_bytes_is_exact() -> None:
    """A float has no room for every one of them."""
    assert (parse_size(str(2**60 + 1)), size()(2**60 + 1)) == (2**60 + 1, 2**60 + 1)
