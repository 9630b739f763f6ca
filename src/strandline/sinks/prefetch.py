"""Read, encode and compress the next chunk while the last one is on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in another thread while the one before it is used. What goes wrong there is raised."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as pool:
        ahead: Future[T | object] = pool.submit(next, items, end)
        while True:
            item = ahead.result()
            if item is end:
                return
            ahead = pool.submit(next, items, end)
            yield item  # type: ignore[misc]
