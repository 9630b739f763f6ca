"""One Spark at a time: every group that starts it ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spark_ends() -> Iterator[None]:
    """Spark may be started inside, and is stopped at the end."""
    from strandline.engines.spark import session

    try:
        yield
    finally:
        session.stop()
