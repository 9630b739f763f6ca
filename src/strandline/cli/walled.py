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

from strandline import private
from strandline.config import QueryConfig
from strandline.engines.duck.sandbox import memory_bytes, out_of_memory
from strandline.errors import StrandError, TooLarge

GRACE_S = 5.0
"""How long past its time a query may take to notice the interrupt."""
ROOM_BYTES = 320 * 1024**2
"""For libraries that are loaded later, a DuckDB that has nothing to do, and what its allocator does not give back."""
NO_THREAD = "can't start new thread"
"""What Python says where there is no memory for a thread's stack."""
THREAD_BYTES = 20 * 1024**2
"""What each thread of DuckDB takes besides that: its stack, and a heap of its own."""


@contextmanager
def walled(limits: QueryConfig, tell: Callable[[StrandError], int]) -> Iterator[None]:
    """Run one query in a process that has nothing else to do; `tell` prints an error and gives its exit code."""
    ended = threading.Event()

    def watch() -> None:
        if not ended.wait(limits.time_s + GRACE_S):
            hint = "It is too large even to be planned. Ask for less."
            message = f"the query was ended: it took longer than {limits.time_s:g} s"
            exit_code = tell(TooLarge(message, hint=hint, limit="time"))
            private.remove_working_folder()
            os._exit(exit_code)

    threading.Thread(target=watch, name="query-wall", daemon=True).start()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_ceiling(limits, before), before[1]))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or str(error) == NO_THREAD:
            raise out_of_memory(limits) from error
        raise
    finally:
        ended.set()
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _ceiling(limits: QueryConfig, before: tuple[int, int]) -> int:
    """The memory that the process may have: what it has now, room, and what the query may take twice.

    Once in DuckDB, and once as the answer's values. What is only reserved does not count, as it would in address space.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    except OSError:  # a system that does not tell
        return before[0]
    enough_bytes = pages * os.sysconf("SC_PAGE_SIZE") + 2 * memory_bytes(limits) + room_bytes()
    return min([enough_bytes, *(limit for limit in before if limit != resource.RLIM_INFINITY)])


def room_bytes() -> int:
    """What the process needs beside the query itself."""
    return ROOM_BYTES + THREAD_BYTES * (os.cpu_count() or 1)
