"""Read by Python at the start of a process with a moved clock: lets it sleep.

Under libfaketime 0.9.10 with an unmoved monotonic clock `clock_nanosleep` fails, and `time.sleep` with it; `select`
waits.
"""

import select
import time


def _sleep(seconds: float) -> None:
    select.select([], [], [], max(0.0, float(seconds)))


time.sleep = _sleep
