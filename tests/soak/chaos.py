"""Chaos: kills and pauses at random moments, and a supervisor that starts again whatever has ended."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from strandline import failpoints
from tests.proxy import PASS, Hurt, Seen, answer, cut_request, delay, drop_answer
from tests.soak.children import Child
from tests.soak.clocks import moved, pick
from tests.soak.scene import LEASE_TTL_S

STEP_S = 0.1
BETWEEN_S = (0.5, 4.0)
LONGEST_PAUSE_S = 2.5 * LEASE_TTL_S
# A JVM needs some seconds to start. A worker that is always hurt before it has delivered anything shows little.
WORKER_LIVES_S = (8.0, 120.0)
HURT_SHARE = 0.12
# What a process that ends at a failpoint says; a signal would be a negative number.
ENDED_AT_A_FAILPOINT = 137
ARMED_SHARE = 0.5
FAILPOINTS = {
    "worker": [
        name
        for name in failpoints.NAMES
        if name.partition(".")[0] in ("begin", "stage", "staged", "publish", "settle", "recover", "deliver")
        or name.partition(".")[0] in ("forward", "blob", "copy")
    ],
    "maintainer": [
        name
        for name in failpoints.NAMES
        if name.partition(".")[0] in ("begin", "stage", "staged", "publish", "settle", "recover", "expire", "sweep")
    ],
    "receiver": ["inbound.before_commit", "inbound.after_commit"],
    "writer": ["append.before_commit", "append.after_commit"],
    "brancher": [name for name in failpoints.NAMES if name.partition(".")[0] in ("mutate", "branch", "merge")],
}
PASSAGES = {"worker": (2, 12), "maintainer": (2, 30), "receiver": (5, 60), "writer": (1, 60), "brancher": (1, 15)}


class Troubles(Protocol):
    """What goes on beside it, and comes to its end by itself once it is told to."""

    @property
    def is_over(self) -> bool: ...

    def finish(self) -> None: ...


class Chaos:
    """What is done to the processes, and how often it was."""

    def __init__(
        self,
        seed: int,
        workers: Sequence[Child],
        receiver: Child,
        writers: Sequence[Child],
        progress: Callable[[], int],
        clocks: Path | None = None,
        *,
        kills: bool = True,
    ) -> None:
        """`progress` is a number that grows with every delivery; `clocks` is the library that moves them.

        Without `kills` nobody is hurt: there are troubles alone.
        """
        self.done: Counter[str] = Counter()
        self.surprises: list[str] = []
        self._random = random.Random(f"chaos {seed}")
        self._progress = progress
        self._moved_at: dict[str, int] = {}
        self._workers, self._receiver, self._writers = list(workers), receiver, list(writers)
        self._clocks = clocks
        self._lock = threading.RLock()
        self._spares = not kills
        self.excuse: Callable[[Child], str | None] = lambda _child: None
        """Why a process may have ended by itself, if there is a reason."""

    @property
    def receiver(self) -> Child:
        """The process that receives."""
        return self._receiver

    @property
    def senders(self) -> list[Child]:
        """Everybody who has the lake open."""
        return [*self._workers, *self._writers]

    @property
    def workers(self) -> list[Child]:
        """Those who deliver."""
        return self._workers

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """In the block nobody is hurt, and whoever starts is not to die: what passes by itself is to be seen."""
        before, self._spares = self._spares, True
        try:
            yield
        finally:
            self._spares = before

    @contextmanager
    def stopped(self, children: Sequence[Child]) -> Iterator[None]:
        """In the block these processes don't run, and nothing of them is left; then they are started again."""
        with self._lock:
            for child in children:
                child.is_held = True
                child.halt()
        try:
            yield
        finally:
            with self._lock:
                for child in children:
                    child.is_held = False

    @property
    def children(self) -> list[Child]:
        """Everybody."""
        return [*self._workers, self._receiver, *self._writers]

    def keep_clocks_right(self) -> None:
        """From now on nobody starts with a moved clock."""
        self._clocks = None

    def rage(self, seconds: float, tell: Callable[[str], None], troubles: Troubles | None = None) -> None:
        """Hurt somebody every now and then, and keep everybody running meanwhile, until all troubles are over."""
        for child in self.children:
            self._start(child, self._failpoint(child))
        end_s = time.monotonic() + seconds
        next_s = time.monotonic() + 1.0
        while (now_s := time.monotonic()) < end_s or not (troubles is None or troubles.is_over):
            if troubles is not None and now_s >= end_s:
                troubles.finish()
            self.supervise(self.children, tell, arming=True)
            if now_s >= next_s:
                self._hurt_somebody(tell)
                next_s = now_s + self._random.uniform(*BETWEEN_S)
            time.sleep(STEP_S)
        for child in self.children:
            child.wake()

    def supervise(self, children: Sequence[Child], tell: Callable[[str], None], *, arming: bool) -> None:
        """Wake who has been paused for long enough; start again who is not running, to die again when `arming`."""
        with self._lock:
            self._supervise([child for child in children if not child.is_held], tell, arming=arming)

    def _supervise(self, children: Sequence[Child], tell: Callable[[str], None], *, arming: bool) -> None:
        for child in children:
            if child.paused_until_s is not None and time.monotonic() >= child.paused_until_s:
                child.wake()
            if child.code is None:
                continue
            if child.code == ENDED_AT_A_FAILPOINT:
                self.done[f"{child.role} died at a failpoint"] += 1
                tell(f"{child.name} died at {child.failpoint}")
            elif child.code >= 0 and (reason := self.excuse(child)) is not None:
                self.done[f"{child.role} ended: {reason}"] += 1
                tell(f"{child.name} ended with {child.code}: {reason}")
                time.sleep(STEP_S)
            elif child.code >= 0:
                self.surprises.append(f"{child.name} ended by itself with {child.code}:\n{child.last_words()}")
            self._start(child, self._failpoint(child) if arming else "")

    def _start(self, child: Child, failpoint: str) -> None:
        self._moved_at[child.name] = self._progress()
        how, offset_s = pick(self._random, self._clocks)
        clock: dict[str, str] = {}
        if self._clocks is not None and offset_s:
            self.done[f"{child.role} with a clock {how} off"] += 1
            clock = moved(self._clocks, offset_s, child.path)
        child.start(failpoint, clock)

    def _failpoint(self, child: Child) -> str:
        """A place where a process will die by itself, for places too narrow to be hit from outside."""
        if self._spares or self._random.random() >= ARMED_SHARE:
            return ""
        name = self._random.choice(FAILPOINTS[child.role])
        return f"{name}=exit@{self._random.randint(*PASSAGES[child.role])}"

    def _hurt_somebody(self, tell: Callable[[str], None]) -> None:
        with self._lock:
            self._hurt(tell)

    def _hurt(self, tell: Callable[[str], None]) -> None:
        child = self._random.choice([*self._workers, *self._workers, self._receiver, *self._writers])
        how = self._random.choice(("kill", "kill orphan", "pause"))
        seconds = self._random.uniform(0.2, LONGEST_PAUSE_S)
        if self._spares or child.paused_until_s is not None or child.code is not None or not self._is_at_work(child):
            return
        if how == "pause":
            child.pause(seconds)
            self.done[f"{child.role} paused"] += 1
            tell(f"paused {child.name} for {seconds:.1f} s")
        else:
            child.kill(orphan=how == "kill orphan")
            self.done[f"{child.role} killed"] += 1
            tell(f"killed {child.name}")

    def _is_at_work(self, child: Child) -> bool:
        """Whether it is worth hurting."""
        if child not in self._workers:
            return True
        lived_s = time.monotonic() - child.started_s
        least_s, most_s = WORKER_LIVES_S
        return lived_s > most_s or (lived_s > least_s and self._progress() > self._moved_at[child.name])


class Weather:
    """A rule for the proxy: most requests pass."""

    def __init__(self, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self._random = random.Random(f"weather {seed}")
        self._lock = threading.Lock()
        self._kinds: dict[str, Callable[[], Hurt]] = {
            "answer dropped": drop_answer,
            "request cut": cut_request,
            "delayed": lambda: delay(self._random.uniform(0.1, 6.0)),
            "answered 429": lambda: answer(429, Retry_After="1"),
            "answered 503": lambda: answer(503, Retry_After="1"),
            "answered 500": lambda: answer(500),
        }

    def __call__(self, _n: int, _seen: Seen) -> Hurt:
        """What happens to a request."""
        with self._lock:
            if self._random.random() >= HURT_SHARE:
                return PASS
            kind = self._random.choice(list(self._kinds))
            self.done[f"request {kind}".replace("request request", "request")] += 1
            return self._kinds[kind]()
