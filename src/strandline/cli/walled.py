"""The last wall around a query: this process's own memory and time.

DuckDB counts what it keeps, and looks for an interrupt between two pieces of work. A value that grows inside one call
of a function is not counted, and a plan that grows without end is not interrupted. A command that runs one query may
have the operating system say no to the memory; and it ends itself where nothing else did.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.config import QueryConfig
from strandline.engines.duck.sandbox import memory_bytes
from strandline.errors import StrandError, TooLarge

GRACE_S = 5.0
"""How long past its time a query may take to notice the interrupt."""
ROOM_BYTES = 2 * 1024**3
"""Address space that is reserved and hardly used: stacks and arenas of threads, libraries."""


@contextmanager
def walled(limits: QueryConfig, tell: Callable[[StrandError], int]) -> Iterator[None]:
    """Run one query in a process that has nothing else to do; `tell` prints an error and gives its exit code."""
    ended = threading.Event()

    def watch() -> None:
        if not ended.wait(limits.time_s + GRACE_S):
            hint = "It is too large even to be planned. Ask for less."
            message = f"the query was ended: it took longer than {limits.time_s:g} s"
            os._exit(tell(TooLarge(message, hint=hint, limit="time")))

    threading.Thread(target=watch, name="query-wall", daemon=True).start()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_ceiling(limits, before), before[1]))
    try:
        yield
    finally:
        ended.set()
        resource.setrlimit(resource.RLIMIT_AS, before)


def _ceiling(limits: QueryConfig, before: tuple[int, int]) -> int:
    """The address space that the process may have: what it has now, and what the query may take twice.

    Once in DuckDB, and once as the answer's values.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # a system that does not tell
        return before[0]
    wanted = pages * os.sysconf("SC_PAGE_SIZE") + 2 * memory_bytes(limits) + ROOM_BYTES
    return min([wanted, *(limit for limit in before if limit != resource.RLIM_INFINITY)])
