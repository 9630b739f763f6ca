"""Outages: the database, the store or the disk is away for a while, and everything goes on by itself behind it.

No person helps: when an outage is over, rows have to be delivered again within some minutes, and `strand status` must
have nothing for a person that it had not before. That is what `Judge` looks at; the oracle counts the rows in the end.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from strandline.errors import StrandError
from strandline.lake import Lake
from tests.soak.children import Child
from tests.soak.gate import Outage
from tests.soak.stage import Stage

OUTAGES = ("database", "store", "credentials", "full", "unmounted")
COPYING = ("restore", "hand", "copies")
"""Troubles that copy the lake as a folder: beside them its warehouse is in there, and can't be filled."""
SHORTEST_S, LONGEST_S = 2.0, 120.0
SHARE = 0.12
"""Of the soak's time: no outage lasts longer."""
PATIENCE_S = 150.0
"""How long it may take until rows are delivered again: retries back off, and a Spark may have to start."""
LOOK_S = 1.0
AFTERWARDS_S = 10.0
STORE = {
    "500": Outage(500, "InternalError"),
    "503": Outage(503, "ServiceUnavailable"),
    "SlowDown": Outage(503, "SlowDown"),
    "silence": Outage(),
    "cuts": Outage(cuts=True),
}
CREDENTIALS = {
    "expired": Outage(403, "ExpiredToken"),
    "unknown": Outage(403, "InvalidAccessKeyId"),
    "denied": Outage(403, "AccessDenied"),
}
FULL = Outage(507, "QuotaExceeded", writes=True)
GONE = Outage(404, "NoSuchBucket")


def needs_of_a_person(root: Path) -> list[str] | None:
    """What `strand status` wants a person to see to; None when the lake can't be read now."""
    try:
        with Lake(root, read_only=True) as lake:
            needs = lake.reports.status().verdict.needs
    except (StrandError, OSError, SQLAlchemyError):
        return None
    return [concern.what for concern in needs if concern.level == "person"]


class Judge:
    """Sees to it that an outage passes by itself."""

    def __init__(
        self,
        root: Path,
        progress: Callable[[], int],
        sparing: Callable[[], AbstractContextManager[None]] = nullcontext,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`progress` is a number that grows with every delivery; `sparing` keeps kills away while it looks."""
        self._root, self._progress, self._sparing, self._patience_s = root, progress, sparing, patience_s

    @contextmanager
    def passing(self, outage: str, wrong: list[str]) -> Iterator[None]:
        """The block is the outage; what has not passed in time is written down as wrong."""
        before = set(needs_of_a_person(self._root) or ())
        yield
        with self._sparing():
            wrong += self._not_passed(outage, before)

    def _not_passed(self, outage: str, before: set[str]) -> Iterator[str]:
        began_s, units = time.monotonic(), self._progress()
        while True:
            needs = needs_of_a_person(self._root)
            more = None if needs is None else sorted(set(needs) - before)
            delivered = self._progress() - units
            if more == [] and delivered > 0:
                return
            if time.monotonic() - began_s >= self._patience_s:
                break
            time.sleep(LOOK_S)
        when = f"{self._patience_s:.0f} s after {outage}"
        if more is None:
            yield f"{when}: the lake can't be read"
        yield from (f"{when}: a person is needed: {need}" for need in more or ())
        if delivered <= 0:
            yield f"{when}: nothing was delivered"


class Outages:
    """One card for each, drawn like other troubles."""

    def __init__(self, stage: Stage, progress: Callable[[], int], seconds: float) -> None:
        self._stage = stage
        self._longest_s = max(2 * SHORTEST_S, min(LONGEST_S, seconds * SHARE))
        self._judge = Judge(stage.scene.lake, progress, stage.chaos.sparing)
        self._began_s: float | None = None
        self._over_s = 0.0

    def cards(self) -> dict[str, list[Callable[[], None]]]:
        """By kind, those that make sense where the lake is."""
        places = self._stage.places
        database = [self.restart_fast, self.restart_at_once, self.kill_database, self.be_read_only, self.fail_over]
        store = [self.fail_requests, self.be_silent, self.cut_requests]
        mounted = places.store_gate is not None or places.disk is not None
        return {
            "database": database if places.databases is not None else [],
            "store": store if places.store_gate is not None else [],
            "credentials": [self.refuse_credentials, self.roll_keys_over] if places.keys is not None else [],
            "full": [self.fill_warehouse] if mounted else [],
            "unmounted": [self.take_warehouse_away],
        }

    def excuse(self, child: Child) -> str | None:
        """A process that was started while something was away may end because of it; one that ran before may not."""
        under_way = self._began_s is not None and time.monotonic() < self._over_s + AFTERWARDS_S
        if under_way and self._began_s is not None and child.started_s >= self._began_s:
            return "it was started in an outage"
        return None

    # -- the database --------------------------------------------------------------------------------------------------

    def restart_fast(self) -> None:
        """As a package upgrade does it."""
        self._restart(signal.SIGINT, "the database was restarted")

    def restart_at_once(self) -> None:
        """Without a word to anybody."""
        self._restart(signal.SIGQUIT, "the database was stopped at once")

    def kill_database(self) -> None:
        """kill -9 to the server."""
        self._restart(signal.SIGKILL, "the database was killed")

    def be_read_only(self) -> None:
        """It answers, and takes no writes."""
        assert self._stage.places.databases is not None
        with self._outage("the database was read-only"):
            self._stage.places.databases.be_read_only(self._wait)

    def fail_over(self) -> None:
        """Its standby takes over."""
        assert self._stage.places.databases is not None
        with self._outage("the standby took over"):
            self._stage.places.databases.fail_over(self._wait)

    def _restart(self, how: signal.Signals, what: str) -> None:
        assert self._stage.places.databases is not None
        with self._outage(what):
            self._stage.places.databases.restart(how, self._wait)

    # -- the store -----------------------------------------------------------------------------------------------------

    def fail_requests(self) -> None:
        """500, 503 or SlowDown, to every request."""
        self._fail(*self._stage.random.choice([(name, STORE[name]) for name in ("500", "503", "SlowDown")]))

    def be_silent(self) -> None:
        """Requests are taken, and never answered."""
        self._fail("silence", STORE["silence"])

    def cut_requests(self) -> None:
        """Connections are cut with their first byte."""
        self._fail("cuts", STORE["cuts"])

    def refuse_credentials(self) -> None:
        """As between a rotation of keys and the moment that processes have the new ones."""
        name, outage = self._stage.random.choice(sorted(CREDENTIALS.items()))
        self._fail(f"credentials: {name}", outage)

    def roll_keys_over(self) -> None:
        """The store's account has another secret, and the file that everybody reads it from follows later."""
        assert self._stage.places.keys is not None
        with self._outage("the store's keys rolled over"):
            self._stage.places.keys.roll_over(self._wait)

    def _fail(self, name: str, outage: Outage) -> None:
        gate = self._stage.places.store_gate
        assert gate is not None
        with self._outage(f"the store failed ({name})"), gate.failing(outage):
            self._wait()

    # -- the warehouse -------------------------------------------------------------------------------------------------

    def fill_warehouse(self) -> None:
        """A quota is reached, or the disk has no room."""
        disk = self._stage.places.disk
        if disk is None:
            self._fail("full", FULL)
            return
        filler = disk / "filler"
        with self._outage("the warehouse was full"):
            try:
                subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], capture_output=True, check=False)
                self._wait()
            finally:
                filler.unlink()

    def take_warehouse_away(self) -> None:
        """It is not mounted for a while. What was written in its place meanwhile is under the mount then."""
        if self._stage.places.store_gate is not None:
            self._fail("no such bucket", GONE)
            return
        warehouse = (self._stage.places.disk or self._stage.scene.lake) / "warehouse"
        away = warehouse.with_name(f"{warehouse.name}-away")
        with self._outage("the warehouse was not there"):
            warehouse.rename(away)
            try:
                self._wait()
            finally:
                while not _mounted(away, warehouse):  # a job that was under way may write there once more
                    under = (self._stage.places.disk or self._stage.scene.folder) / "under-the-mount"
                    under.mkdir(exist_ok=True)
                    warehouse.rename(under / f"{time.monotonic_ns()}")
                    self._stage.note("something was written where the warehouse was not")

    # -- both ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _outage(self, what: str) -> Iterator[None]:
        with self._judge.passing(what, self._stage.wrong):
            self._began_s, self._over_s = time.monotonic(), float("inf")
            try:
                yield
            finally:
                self._over_s = time.monotonic()
            self._stage.note(what)

    def _wait(self) -> None:
        """For as long as this outage lasts."""
        seconds = self._stage.random.uniform(SHORTEST_S, self._longest_s)
        self._stage.tell(f"(for {seconds:.0f} s)")
        time.sleep(seconds)


def _mounted(away: Path, place: Path) -> bool:
    """Put a folder back into its place, in one step as a mount is; False while something is in its way."""
    try:
        away.rename(place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True
