"""The troubles of a soak beside kills and pauses, drawn like cards, one after another, while chaos goes on.

Each kind can be left out. A trouble that needs a backup or a copy comes after one was made; the rest is shuffled, and
when all were drawn they are shuffled again. Between two of them something is delivered, or they would only meet each
other.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable

from tests.soak.children import Child
from tests.soak.copies import Copies
from tests.soak.outages import OUTAGES, Outages
from tests.soak.person import Person
from tests.soak.restores import Restores
from tests.soak.sections import Sections
from tests.soak.stage import Stage

KINDS = ("restore", "hand", "copies", "clock", "config", *OUTAGES)
REST_S = (1.0, 8.0)
MOST_REST_S = 120.0
MOST_REST_SHARE = 0.2
UNITS = 6
GOING_BACK = ("restore_lake", "restore_both", "put_lake_back", "put_ledger_back")
"""After these the ledger may know the sinks by older names."""
Trouble = Callable[[], None]


class Troubles:
    """A thread that makes trouble until it is told to finish; what it has begun it brings to its end."""

    def __init__(self, stage: Stage, kinds: set[str], progress: Callable[[], int], seconds: float) -> None:
        self._stage, self._kinds, self._progress = stage, kinds, progress
        self._most_rest_s = min(MOST_REST_S, seconds * MOST_REST_SHARE)
        self._restores, self._person = Restores(stage), Person(stage)
        self._sections, self._copies = Sections(stage), Copies(stage, self._restores)
        self._outages = Outages(stage, progress, seconds)
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name="troubles", daemon=True)
        stage.chaos.excuse = self._excuse

    @property
    def person(self) -> Person:
        """Who looks after the lake."""
        return self._person

    @property
    def is_over(self) -> bool:
        """Whether no trouble is under way any more."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """Draw no further card."""
        self._finish.set()

    def _run(self) -> None:
        while not self._finish.is_set():
            for trouble in deck(self._stage.random, self._first(), self._cards()):
                self._rest()
                if self._finish.is_set():
                    return
                self._make(trouble)

    def _make(self, trouble: Trouble) -> None:
        began_s = time.monotonic()
        try:
            trouble()
            if trouble.__name__ in GOING_BACK:
                self._sections.reread()
        except Exception:
            self._stage.wrong.append(f"{trouble.__name__} failed:\n{traceback.format_exc()}")
        self._stage.tell(f"({trouble.__name__} took {time.monotonic() - began_s:.0f} s)")

    def _excuse(self, child: Child) -> str | None:
        return self._sections.excuse(child) or self._outages.excuse(child)

    def _rest(self) -> None:
        """Let some units be delivered, and the person look."""
        until_s = time.monotonic() + self._most_rest_s
        units = self._progress()
        while time.monotonic() < until_s and abs(self._progress() - units) < UNITS and not self._finish.wait(1.0):
            pass
        self._person.look()
        self._finish.wait(self._stage.random.uniform(*REST_S))

    def _first(self) -> list[Trouble]:
        first: list[Trouble] = []
        if "restore" in self._kinds:
            first.append(self._restores.back_up)
        if self._kinds & {"restore", "hand", "copies"}:
            first.append(self._restores.copy_by_hand)
        return first

    def _cards(self) -> list[Trouble]:
        restores, sections, copies = self._restores, self._sections, self._copies
        local = self._stage.places.are_local
        cards: dict[str, list[Trouble]] = {
            "restore": [
                restores.restore_receiver,
                restores.restore_lake,
                restores.restore_both,
                restores.put_receiver_back,
                restores.put_blobs_back,
                restores.put_copy_back,
            ],
            "hand": [restores.put_lake_back, restores.put_ledger_back] if local else [],
            "copies": [copies.work_in_a_copy, copies.clone] if local else [],
            "clock": [self._person.give_word_on_the_clock],
            "config": [
                sections.rename_by_command_first,
                sections.rename_by_section_first,
                sections.remove_for_a_while,
                sections.save_by_halves,
                sections.change_a_setting,
            ],
            **self._outages.cards(),
        }
        return [card for kind in KINDS if kind in self._kinds for card in cards[kind]]


def deck(chance: random.Random, first: list[Trouble], cards: list[Trouble]) -> list[Trouble]:
    """What comes first, and then the rest in any order, with another backup and another copy in its middle."""
    rest = list(cards)
    chance.shuffle(rest)
    middle = len(rest) // 2
    again = first if len(rest) > 6 else []
    return [*first, *rest[:middle], *again, *rest[middle:]]
