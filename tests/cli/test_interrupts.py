"""Ctrl-C is heard wherever the main thread happens to be."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from strandline.cli.interrupts import interrupts_kept
from strandline.engines.duck import sandbox
from tests.kit import call


class _Thing:
    """Something that a weak reference can point at."""


def _interrupted_in_a_callback(_reference: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)  # the interrupt is raised in here, where Python drops it


def test_an_interrupt_that_a_finalizer_swallowed_is_raised_again() -> None:
    """SIGINT in a weak reference's callback, as py4j has them, still ends what the main thread does."""
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        thing = _Thing()
        reference = weakref.ref(thing, _interrupted_in_a_callback)
        del thing
        assert reference() is None
        time.sleep(60)


def test_other_exceptions_of_finalizers_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only interrupts are raised again; the rest goes to the hook that was there, and it is put back."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_type))
    before = sys.unraisablehook

    def fail(_reference: object) -> None:
        raise ValueError

    with interrupts_kept():
        thing = _Thing()
        reference = weakref.ref(thing, fail)
        del thing
        assert reference() is None
    assert reported == [ValueError]
    assert sys.unraisablehook is before


class _Steps:
    """Counts what is asked of DuckDB. In one of the steps DuckDB hears of Ctrl-C, and says so in its own words."""

    def __init__(self) -> None:
        self._shared: Any = sandbox.scratch.__self__  # type: ignore[attr-defined]
        self.begin()

    def begin(self, interrupted: int = 0) -> None:
        """Count from here on; the next question has a DuckDB of its own, as that of a new process."""
        self.count = 0
        self.interrupted = interrupted
        self._shared._left = 0

    def watch(self, duck: Any) -> Any:
        """The same connection or relation, whose methods are steps."""
        return _Watched(self, duck) if isinstance(duck, duckdb.DuckDBPyConnection | duckdb.DuckDBPyRelation) else duck

    def take(self, method: Callable[..., Any], *args: Any, **how: Any) -> Any:
        """One step. What a statement of DuckDB says is held by `tests/substrate/test_interrupts.py`."""
        self.count += 1
        if self.count == self.interrupted:
            raise RuntimeError("Query interrupted")
        return self.watch(method(*args, **how))


class _Watched:
    def __init__(self, steps: _Steps, duck: Any) -> None:
        self._steps = steps
        self._duck = duck

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._duck, name)
        return partial(self._steps.take, member) if callable(member) else member

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._duck.close()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Steps]:
    """The steps that commands of this process ask DuckDB for."""
    steps, connect = _Steps(), duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda: steps.watch(connect()))
    yield steps
    steps.begin()


@pytest.mark.parametrize(
    "words",
    [
        ["tail", "messages", "--since", "0"],
        ["sql", "select count(*), max(body) from messages where n > 0"],
        ["export", "--tables", "messages"],
        ["purge", "messages", "--where", "n = 17", "--dry-run", "--here"],
    ],
    ids=lambda words: words[0],
)
def test_an_interrupt_in_any_step_of_duckdb_ends_a_command_as_ctrl_c_does(
    root: Path, steps: _Steps, words: list[str]
) -> None:
    """DuckDB hears it in the midst of a statement, also of one that only makes or removes what a query needs."""
    assert call(*words).code == 0
    answers = []
    for step in range(1, steps.count + 1):
        steps.begin(step)
        answers.append(call(*words))
    assert len(answers) > 3
    assert [(step, ran.err) for step, ran in enumerate(answers, 1) if ran.code != 130] == []
