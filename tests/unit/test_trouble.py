"""What is said when something unforeseen happens, and when many threads say something at once."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from strandline.errors import Internal, in_our_words
from strandline.logs import Logger


def test_a_line_is_written_while_another_thread_is_still_importing_structlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is there then, and nothing in it; a tick failed of that."""
    monkeypatch.setitem(sys.modules, "structlog", ModuleType("structlog"))
    Logger("strandline.test").info("said")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError(""), "ValueError"),
        (
            RuntimeError("An error occurred.\n: java.io.IOException: gone\n\tat x"),
            "IOException: gone",
        ),
    ],
)
def test_an_unforeseen_error_is_told_in_the_words_that_say_most(error: Exception, said: str) -> None:
    """What Py4J raises begins with a line that says nothing."""
    found = in_our_words(error)
    assert isinstance(found, Internal)
    assert found.message.endswith(said)
