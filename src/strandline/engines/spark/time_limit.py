"""The time that a user's query may take on Spark.

A job can be cancelled. But a query may be in the middle of something that is none: it is parsed, or optimised, when
constants are computed; or its answer is waited for, which never comes when the thread that makes it ran out of memory.
So the work has a thread of its own, and its caller goes on without it when it does not end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from strandline.engines.spark.session import dies, lives
from strandline.errors import Environment, TooLarge
from strandline.model.ids import new_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GRACE_S = 3.0
"""How long past its time a query may take to notice that its jobs are cancelled."""

PULSE_S = 0.5
CANCELLED_TIMES = 120
"""A query that was given up while it was planned starts its jobs only then."""

T = TypeVar("T")


def within(session: SparkSession, time_s: float, work: Callable[[threading.Event], T]) -> T:
    """What `work` answers; TooLarge where it does not in its time, whatever Spark is doing then, or dies of it.

    It is handed an event that says that it was given up: others may use the session by then.
    """
    if not lives():
        raise Environment(
            "Spark has died", hint="`lake.drop_dead_spark()`; the next use of `lake.spark` starts another."
        )
    try:
        return _within(session, time_s, work)
    except Exception as error:
        if not _is_of_line(error) or not dies(GRACE_S):
            raise
        raise TooLarge(
            "the query was ended: Spark ran out of memory, and died of it", hint="Ask for less.", limit="memory"
        ) from error


def _is_of_line(error: BaseException | None) -> bool:
    """Whether it is about the connection to the JVM, or about files that it takes with it."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if error is None:
        return False
    is_of_py4j = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)  # which is Spark's answer
    return is_of_py4j or isinstance(error, OSError | EOFError) or _is_of_line(error.__cause__ or error.__context__)


def _within(session: SparkSession, time_s: float, work: Callable[[threading.Event], T]) -> T:
    task = _Task(session, work)
    try:
        in_time = task.ended.wait(time_s)
    except KeyboardInterrupt:
        task.cancel()
        raise
    if not in_time:
        task.cancel()
        if not task.ended.wait(GRACE_S) or task.error is not None:
            raise TooLarge(
                f"the query was ended: it took longer than {time_s:g} s",
                hint="Ask for less; `time` in [query], or $STRAND_QUERY_TIME, allows more.",
                limit="time",
            ) from task.error
    return task.answer()


class _Task(Generic[T]):
    """Work in a thread of its own, whose jobs are a group. Each thread of ours is one of the JVM's."""

    def __init__(self, session: SparkSession, work: Callable[[threading.Event], T]) -> None:
        self._work = work
        self._context: Any = session.sparkContext
        self._group = f"query-{new_id()}"
        self._answers: list[T] = []
        self.error: Exception | None = None
        self.ended = threading.Event()
        self.given_up = threading.Event()
        # Not PySpark's own thread: to make one, the caller has to talk with the JVM.
        threading.Thread(target=self._run, name="query", daemon=True).start()

    def answer(self) -> T:
        """What the work has answered, or its error."""
        if self.error is not None:
            raise self.error
        return self._answers[0]

    def cancel(self) -> None:
        """End its jobs, and those that it would still start; without waiting for a JVM that does not listen."""

        self.given_up.set()

        def cancel() -> None:
            with suppress(Exception):  # the JVM may be gone, and with it the jobs
                for _ in range(CANCELLED_TIMES):
                    self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
                    if self.ended.wait(PULSE_S):
                        return

        threading.Thread(target=cancel, name="query-limit", daemon=True).start()

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "a query", interruptOnCancel=True)
            self._answers.append(self._work(self.given_up))
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()
