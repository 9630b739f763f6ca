"""Ctrl-C is heard wherever the main thread happens to be."""

from __future__ import annotations

import os
import signal
import sys
import time
import weakref

import pytest

from strandline.cli.interrupts import interrupts_kept


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
