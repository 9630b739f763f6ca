"""The course of a soak: everybody starts, chaos rages, everything is let drain, and the oracle speaks."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

import strandline as sl
from strandline.errors import StrandError
from strandline.lake import Lake
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.sinks.dead_letters import count_open
from strandline.ledger.sinks.deliveries import read_streams
from strandline.ledger.sinks.sinks import list_sinks
from tests.kit import environment, free_port, real_strand
from tests.proxy import PASS, Proxy
from tests.soak.brancher import Lists, judge_lists
from tests.soak.chaos import Chaos, Weather
from tests.soak.children import Child
from tests.soak.clocks import find_library
from tests.soak.oracle import Offered, Verdict, feeds, overlaps, verdicts
from tests.soak.outages import COPYING
from tests.soak.person import Person
from tests.soak.scene import ENVIRONMENT, KEYED, LISTS, TABLES, Places, Scene, connect, make, places
from tests.soak.stage import Stage
from tests.soak.troubles import KINDS, Troubles
from tests.soak.writer import SOURCES, Call, append_call, row_of

Tell = Callable[[str], None]
REPORT_S = 15.0
LAST = "last"
"""The writer that comes when chaos is over."""


@dataclass(frozen=True)
class Settings:
    """What a person may choose."""

    folder: Path
    seconds: float
    seed: int
    writers: int = 4
    workers: int = 2
    drain_s: float = 300.0
    ledger: str = "sqlite"
    warehouse: str = "local"
    troubles: frozenset[str] = frozenset(KINDS)
    kills: bool = True

    @property
    def names(self) -> list[str]:
        """The writers."""
        return [f"writer-{n}" for n in range(1, self.writers + 1)]

    @property
    def branchers(self) -> list[str]:
        """Those who change and merge."""
        return ["brancher-1", "brancher-2"]


@dataclass(frozen=True)
class Outcome:
    """How it ended."""

    offered: Offered
    verdicts: dict[str, Verdict]
    chaos: Counter[str]
    wrong: list[str]
    lists: Lists
    troubles: Counter[str] = field(default_factory=Counter)
    gone: int = 0
    """Rows that were acked, and that a ledger took with it when it went back."""
    too_old: int = 0

    @property
    def is_right(self) -> bool:
        """Whether every destination has everything once, and nothing else went wrong."""
        return not self.wrong and all(verdict.is_right for verdict in self.verdicts.values())

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ok": self.is_right,
            "wrong": self.wrong,
            "calls": self.offered.calls,
            "calls_whose_answer_was_lost": self.offered.lost_calls,
            "destinations": {name: verdict.document() for name, verdict in self.verdicts.items()},
            "lists": {"acked": self.lists.acked, "merges": self.lists.merges},
            "gone_with_a_ledger": self.gone,
            "too_old": self.too_old,
            "chaos": dict(self.chaos),
            "troubles": dict(self.troubles),
        }


def soak(settings: Settings, tell: Tell) -> Outcome:
    """Run one soak in a folder that is empty or not there yet."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    small = "full" in settings.troubles and settings.troubles.isdisjoint(COPYING)
    with places(settings.folder, settings.ledger, settings.warehouse, small=small) as at:
        return _soak(settings, at, tell)


def _soak(settings: Settings, at: Places, tell: Tell) -> Outcome:
    scene = Scene(settings.folder)
    token, port = make(scene, at), free_port()
    proxy, weather = Proxy("127.0.0.1", port), Weather(settings.seed)
    proxy.keeps = False
    proxy.rule = weather
    connect(scene, proxy.url, token)
    library = find_library() if "clock" in settings.troubles else None
    if "clock" in settings.troubles and library is None:
        tell("libfaketime is not installed: all clocks are right")
    if "full" in settings.troubles and at.disk is None and at.store_gate is None:
        tell("there is no small disk for the warehouse: it is never full")
    chaos = _cast(scene, settings, port, library)
    chance = random.Random(f"troubles {settings.seed}")
    stage = Stage(scene, at, chaos, settings.seed, [*settings.names, LAST], tell, chance)
    troubles = Troubles(stage, set(settings.troubles), lambda: sum(_delivered(scene).values()), settings.seconds)
    tell(
        f"seed {settings.seed}: {settings.writers} writers, {len(settings.branchers)} branchers, "
        f"{settings.workers} workers, a maintainer, a receiver; troubles: {', '.join(sorted(settings.troubles))}; "
        f"ledger {settings.ledger}, warehouse {settings.warehouse}; {settings.folder}"
    )
    try:
        troubles.start()
        chaos.rage(settings.seconds, tell, troubles)
        proxy.rule = lambda _n, _seen: PASS
        left = _drain(scene, settings, chaos, troubles.person, tell)
    finally:
        troubles.finish()
        for child in chaos.children:
            child.end()
        proxy.close()
    tell("comparing every destination with what was acked")
    offered = stage.offered()
    found = verdicts(scene, offered, stage.losses)
    apart = feeds(scene, stage.losses)
    lists = judge_lists(scene, settings.branchers, stage.losses.tokens)  # merges what is left: no sink delivers that
    wrong = [*left, *chaos.surprises, *stage.wrong, *overlaps(scene), *apart, *lists.wrong]
    gone = sum(len(offered.acked[table] & stage.losses.rows[table]) for table in TABLES)
    too_old = sum(map(len, offered.too_old.values()))
    return Outcome(offered, found, chaos.done + weather.done, wrong, lists, stage.done, gone, too_old)


def _cast(scene: Scene, settings: Settings, port: int, library: Path | None) -> Chaos:
    """Everybody who plays, not started yet."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    env = environment(**ENVIRONMENT, PYTHONPATH=path, STRAND_LAKE=str(scene.lake))

    def child(name: str, module: str, *arguments: str) -> Child:
        return Child(name, module, *arguments, env=env, log=scene.log(name))

    lake, receiver = ("--lake", str(scene.lake)), ("--lake", str(scene.receiver))
    workers = [child(f"worker-{n}", "strandline", *lake, "--json", "worker") for n in range(1, settings.workers + 1)]
    serve = child("receiver", "strandline", *receiver, "--json", "serve", "--listen", f"127.0.0.1:{port}")
    seed, folder = str(settings.seed), str(scene.folder)
    writers = [child(name, "tests.soak.writer", folder, seed, name) for name in settings.names]
    writers += [child(name, "tests.soak.brancher", folder, seed, name) for name in settings.branchers]
    workers.append(child("maintainer", "tests.soak.maintainer", folder))
    return Chaos(
        settings.seed, workers, serve, writers, lambda: sum(_delivered(scene).values()), library, kills=settings.kills
    )


def _delivered(scene: Scene) -> dict[str, int]:
    """How many units every sink has delivered; nothing is known while the lake is being put back or its file edited."""
    try:
        with Lake(scene.lake, read_only=True) as lake, lake.ledger.read() as conn:
            return {sink.name: sum(one.tally.units for one in read_streams(conn, sink)) for sink in list_sinks(conn)}
    except (StrandError, OSError, SQLAlchemyError):
        return {}


def _drain(scene: Scene, settings: Settings, chaos: Chaos, person: Person, tell: Tell) -> list[str]:
    """Let writers finish their calls and everything be delivered; returns what is left after the time for it."""
    done = ", ".join(f"{sink} {units:,}" for sink, units in _delivered(scene).items())
    tell(f"chaos is over; units delivered so far: {done}; letting everything drain")
    writers = [child for child in chaos.children if child.name in (*settings.names, *settings.branchers, "maintainer")]
    others = [child for child in chaos.children if child not in writers]
    chaos.keep_clocks_right()
    for child in others:
        child.halt()  # its clock may be a moved one
    scene.stop.touch()
    deadline_s = time.monotonic() + settings.drain_s
    told_s = time.monotonic()
    _write_last(scene, settings)
    _retry(scene)
    with Lake(scene.lake, read_only=True) as lake:
        while left := [*(f"{child.name} still runs" for child in writers if child.code is None), *_left(lake)]:
            if time.monotonic() > deadline_s:
                return [f"not drained after {settings.drain_s:.0f} s: {one}" for one in left]
            if time.monotonic() - told_s > REPORT_S:
                told_s = time.monotonic()
                tell(f"not there yet: {'; '.join(left)}")
                person.look()
            chaos.supervise(others, tell, arming=False)
            time.sleep(0.5)
        with lake.ledger.read() as conn:
            return [f"dead letters: {letters}" for letters in count_open(conn).values()]


def _write_last(scene: Scene, settings: Settings) -> None:
    """A row for every stream: a sink with nothing to send never asks its destination, which may have gone back."""
    with Lake(scene.lake) as lake, scene.calls(LAST).open("ab", buffering=0) as out:
        era, at_us = scene.read_era(), time.time_ns() // 1000
        calls = (Call(settings.seed, LAST, number, era, at_us) for number in itertools.count())
        streams: set[tuple[str, str]] = set()
        while len(streams) < len(TABLES) - 1 + SOURCES:
            call = next(calls)
            append_call(lake, call, out)
            streams |= {(call.table, row_of(i)["source"] if call.table == KEYED else "") for i in call.young_ids}
        lake.mutate([sl.put(LISTS, {"id": LAST, "tokens": [], "changes": 0})])


def _retry(scene: Scene) -> None:
    """As an operator would who knows that the trouble is over."""
    for sink in _delivered(scene):
        real_strand(scene.lake, "--json", "sink", "retry", sink)
    real_strand(scene.lake, "--json", "worker", "retry", "--all")


def _left(lake: Lake) -> list[str]:
    """What is not flushed, not settled or not delivered yet."""
    view = lake.view()
    with lake.ledger.read() as conn:
        found = [f"{intent.kind} is under way" for intent in read_intents(conn)]
        states = [(sink.name, state) for sink in list_sinks(conn) for state in read_streams(conn, sink)]
    found += [f"{table} has a tail" for table in (*TABLES, LISTS) if view.branch_table(table).tail]
    for sink, state in states:
        where = f"{sink} {state.table}/{state.stream.partition}"
        if state.delivery is not None:
            parked = f" parked: {state.delivery.parked}" if state.delivery.parked else ""
            found.append(f"{where} has a delivery open, {state.delivery.last_error}{parked}")
        elif state.mark is None or state.mark.seq < state.head_seq:
            found.append(f"{where} is behind")
    return found
