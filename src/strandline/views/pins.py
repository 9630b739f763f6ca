"""Keeping a view readable: what it names stays for the grace period by itself, and for longer only if it is held.

Most views are read at once and forgotten, so taking one writes nothing. One that is read when half of the grace is over
writes a hold and renews it, and a reader that knows it will take long says so with a block. A lake that was opened
read-only can't hold anything: its views end with the grace, by `history_gone`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from strandline import logs
from strandline.errors import HistoryGone, StrandError
from strandline.ledger.ledger import Ledger
from strandline.ledger.tables import holds
from strandline.model.ids import new_id

log = logs.Logger("strandline.views")

PURPOSE = "view"
SHORTEST_S = 1.0


class Keeper:
    """The hold of one view, written when it becomes necessary."""

    def __init__(self, ledger: Ledger, since_us: int, grace_s: float) -> None:
        self._ledger = ledger
        self._since_us = since_us
        self._grace_s = grace_s
        self._keep_s = max(grace_s, SHORTEST_S)
        self._safe_until_s = time.monotonic() + grace_s / 2
        self._hold_id = new_id()
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Hold what the view names, if it is old enough to need that."""
        if time.monotonic() < self._safe_until_s or self._ledger.database.read_only or self._grace_s <= 0:
            return
        with self._lock:
            self._renew()

    def _renew(self) -> None:
        with self._ledger.write() as txn:
            holds.hold(txn, self._hold_id, since_us=self._since_us, keep_s=self._keep_s, purpose=PURPOSE)
        self._safe_until_s = time.monotonic() + self._keep_s / 2

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it from now on until the block ends."""
        stop = threading.Event()

        def renew() -> None:
            while not stop.wait(self._keep_s / 4):
                try:
                    with self._lock:
                        self._renew()
                except HistoryGone:
                    return  # the reader finds out by itself
                except StrandError as error:
                    log.warning("a hold was not renewed", hold=self._hold_id, error=str(error))

        with self._lock:
            self._renew()
        thread = threading.Thread(target=renew, name=f"hold-{self._hold_id}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            with self._ledger.write() as txn:
                holds.release(txn, self._hold_id)
