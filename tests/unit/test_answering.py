"""Log lines of what an answer says too: for workers and servers, and not for a person who reads the answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline import logs


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    logs.set_format("text")


@pytest.mark.parametrize(
    ("log_format", "is_answering", "is_written"),
    [("text", True, False), ("text", False, True), ("json", True, True), ("json", False, True)],
)
def test_an_outcome_is_not_told_twice(
    capsys: pytest.CaptureFixture[str], log_format: logs.Format, is_answering: bool, is_written: bool
) -> None:
    logs.set_format(log_format, is_answering=is_answering)
    logs.Logger("sinks").outcome("not delivered", sink="central")
    assert ("not delivered" in capsys.readouterr().err) == is_written


def test_a_warning_is_always_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_format("text", is_answering=True)
    logs.Logger("sinks").warning("a section is not followed")
    assert "a section is not followed" in capsys.readouterr().err
