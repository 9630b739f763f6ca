"""Ctrl-C while DuckDB works."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from strandline.engines.duck import sandbox

# Of bounded length: DuckDB looks for signals between its tasks alone, and may find one only when it is done.
LONG = "SELECT sum(sqrt(range)) FROM range(300000000)"


def test_an_interrupted_query_is_a_keyboard_interrupt() -> None:
    """DuckDB swallows the KeyboardInterrupt and raises a RuntimeError of its own; ours is what Python users expect."""
    with sandbox.connect() as connection:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt), sandbox.interruptible():
            connection.execute(LONG).fetchall()
        timer.join()


def test_another_runtime_error_passes_as_it_is() -> None:
    """Only DuckDB's own words for Ctrl-C are translated."""
    with pytest.raises(RuntimeError, match="something else"), sandbox.interruptible():
        raise RuntimeError("something else")
