"""Calls that arrive at the same time in one process, served together.

A caller that finds no leader leads: it serves everything that is queued by then. The others sleep, and wake with an
answer, or as the next leader.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from strandline.ledger.database.outcomes import may_be_there

C = TypeVar("C")
A = TypeVar("A")


class Member(Generic[C, A]):
    """One call in the queue. It sleeps on a plain lock, which wakes a thread at a fraction of an Event's cost."""

    def __init__(self, call: C) -> None:
        self.call = call
        self.answer: A | BaseException | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self) -> None:
        """Until another caller wakes it: with an answer, or to lead."""
        self._asleep.acquire()

    def wake(self) -> None:
        """Let it go on."""
        self._asleep.release()


class Groups(Generic[C, A]):
    """The queue of one process in front of what serves many calls at the cost of one.

    `serve` gives each member its answer; what it raises is the answer of all that have none.
    """

    def __init__(self, serve: Callable[[Sequence[Member[C, A]]], None]) -> None:
        self._serve = serve
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._queue: list[Member[C, A]] = []
        self._leader: Member[C, A] | None = None

    def ask(self, calls: Sequence[C]) -> list[A | BaseException]:
        """Have these served, all in one group; their answers, in their order."""
        members: list[Member[C, A]] = [Member(call) for call in calls]
        if not members:
            return []
        if self._process != os.getpid():
            self._begin()  # the leader of the process that this one was forked off is not here
        first = members[0]
        try:
            if not self._join(members):
                first.sleep()
            if first.answer is None:
                self._serve_group(self._take_queue(), members)
        finally:
            self._leave(members)
        answers = [member.answer for member in members if member.answer is not None]
        assert len(answers) == len(members), "a member of a finished group has no answer"
        return answers

    def _join(self, members: Sequence[Member[C, A]]) -> bool:
        """Queue up; True when there is no leader, and the first of them has to lead."""
        with self._lock:
            self._queue += members
            if self._leader is None:
                self._leader = members[0]
            return self._leader is members[0]

    def _take_queue(self) -> list[Member[C, A]]:
        with self._lock:
            group, self._queue = self._queue, []
        return group

    def _leave(self, members: Sequence[Member[C, A]]) -> None:
        """A leader that is done names the next one; so does one whose thread was interrupted in its sleep."""
        with self._lock:
            if members[0].answer is None:
                self._queue = [member for member in self._queue if member not in members]
            if self._leader is members[0]:
                self._leader = self._queue[0] if self._queue else None
                if self._leader is not None:
                    self._leader.wake()

    def _serve_group(self, group: Sequence[Member[C, A]], mine: Sequence[Member[C, A]]) -> None:
        try:
            self._serve(group)
        except BaseException as error:
            for member in group:
                if member.answer is None and (isinstance(error, Exception) or member in mine):
                    member.answer = error
                elif member.answer is None:  # Ctrl-C is for the thread that gets it alone
                    member.answer = may_be_there("the thread that did this for several was interrupted", "interrupted")
        finally:
            for member in group:
                member.wake()
