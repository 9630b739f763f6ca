"""Ctrl-C that arrives where Python throws exceptions away.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a finalizer or a weak reference's callback
(py4j has one for every object of the JVM) it is printed as "Exception ignored" and dropped, and a command that was told
to stop goes on to its end. Here such an interrupt is raised again, a moment later, where the command hears it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LATER_S = 0.01
"""Long enough to be out of the finalizer. If the next one catches it too, it comes back once more."""


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise an interrupt again that a finalizer swallowed. Other exceptions in finalizers are reported as before."""
    report = sys.unraisablehook

    def hear(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            report(unraisable)
            return
        # Not at once: it would be raised in this very hook, and be swallowed with it.
        # As a signal: nothing else wakes a main thread that sleeps or waits for an answer.
        again = threading.Timer(LATER_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        again.daemon = True
        again.start()

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = report
