"""One trial: a lake with rows, a sink of the type under test, and ticks in which something goes wrong.

The lake is a real one and the tick is the one of every sink. Between the tick and the destination stands a `Watched`,
which may ship a unit more than once, lose an answer, or die. Death here is an exception that no handler catches; the
lake is then left as it is, as a killed process leaves it, and opened anew.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from strandline import failpoints
from strandline.create import create
from strandline.failpoints import FailpointReached
from strandline.lake import Lake
from strandline.ledger.publish import owner
from strandline.ledger.sinks import deliveries
from strandline.ledger.sinks.dead_letters import list_letters
from strandline.ledger.sinks.sinks import find_sink
from strandline.model.delivery.sinks import FollowedStream, Mark, Shipped, Sink, Standing, Stream
from strandline.model.ids import lease_of_stream
from strandline.operations.core.beats import holding
from strandline.sinks.destination import CountsReplayed, Destination, Marked, Replays, Unit
from strandline.sinks.instances import destination
from strandline.sinks.seam import itself
from strandline.sinks.tick import Ticked, Ticker
from strandline.testing.subject import COLUMNS, TABLE, Subject

SINK = "tried"
UNIT_ROWS = 3
WITHHELD = {"body": "withheld"}
WHERE = "body is null or body <> 'withheld'"
"""What the sink withholds, as the values of a row and as its predicate."""
ATTEMPTS = 3
TICKS = 4
"""A tick gives a stream up when it had to wait `ATTEMPTS` times in it."""
ACTOR = "acceptance"

Ship = Callable[[Destination, Unit], Shipped]


class Failed(AssertionError):
    """The destination does not hold what every destination has to."""


def plainly(place: Destination, unit: Unit) -> Shipped:
    """Ship a unit as the tick does."""
    return place.ship(unit)


class Watched:
    """A destination whose units are shipped by the check; what it can do beside that, it can still do."""

    def __init__(self, place: Destination, ship: Ship) -> None:
        self._place = place
        self._ship = ship
        # A protocol's methods are looked for on the object itself.
        for protocol, names in ((CountsReplayed, ["replayed"]), (Replays, ["replay"]), (Marked, ["has_lost"])):
            if isinstance(place, protocol):
                for name in [*names, *(["highest_epoch"] if protocol is Marked else [])]:
                    setattr(self, name, getattr(place, name))

    def probe(self) -> None:
        """As the destination does."""
        self._place.probe()

    def look(self) -> None:
        """As the destination does."""
        self._place.look()

    def standing(self, stream: Stream, table: str, partition_by: tuple[str, ...]) -> Standing:
        """As the destination does."""
        return self._place.standing(stream, table, partition_by)

    def ship(self, unit: Unit) -> Shipped:
        """Let the check ship the unit."""
        return self._ship(self._place, unit)

    def close(self) -> None:
        """As the destination does."""
        self._place.close()


class Trial:
    """A lake whose rows go to the destination under test, three rows a unit."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject = subject
        self._seqs: dict[str, int] = {}
        self._refused: set[str] = set()
        self._withheld: set[str] = set()
        self.lake = create(folder / "lake")
        self.lake.create_table(TABLE, COLUMNS, row_key=["id"])
        settings = {"unit_rows": UNIT_ROWS, "max_attempts": ATTEMPTS, **subject.settings(), "where": WHERE}
        self.lake.add_sink(SINK, subject.type, settings)

    def append(self, rows: int, **values: object) -> None:
        """Put more rows into the log; with values, those of rows that the sink withholds or the destination refuses."""
        ids = [f"r{len(self._seqs) + n:05}" for n in range(rows)]
        ack = self.lake.append(TABLE, [{"id": id_, "n": n, "body": "goods", **values} for n, id_ in enumerate(ids)])
        self.lake.flush(TABLE)
        self._seqs |= {id_: (ack.first_seq or 0) + n for n, id_ in enumerate(ids)}
        if values:
            (self._withheld if values == WITHHELD else self._refused).update(ids)

    # -- ticks -----------------------------------------------------------------------------------------------------

    def sink(self) -> Sink:
        """The sink as it is now."""
        with self.lake.ledger.read() as conn:
            return find_sink(conn, SINK)

    def place(self, lake: Lake | None = None) -> Destination:
        """The destination, as a process that has just started has it."""
        return destination((lake or self.lake).surroundings, self.sink())

    def tick(self, ship: Ship = plainly, *, units: int | None = None, lake: Lake | None = None) -> list[Ticked]:
        """Deliver what is due, or so many units of it. A destination whose process dies is not closed."""
        lake = lake or self.lake
        place, stop, shipped = self.place(lake), threading.Event(), []

        def counted(inner: Destination, unit: Unit) -> Shipped:
            done = ship(inner, unit)
            shipped.append(done)
            if units is not None and len(shipped) >= units:
                stop.set()
            return done

        ticker = Ticker(lake.context, self.sink(), Watched(place, counted), ACTOR, wait_s=60.0, stop=stop)
        ticked = ticker.tick()
        place.close()
        return ticked

    def dies(self, ship: Ship = plainly, failpoint: str | None = None) -> bool:
        """Deliver one unit and die at a failpoint, or where `ship` does; False where the unit came through."""
        failpoints.arm(failpoint and f"{failpoint}=raise")
        try:
            self.tick(ship, units=1)
        except FailpointReached:
            pass
        else:
            return False
        finally:
            failpoints.arm(None)
        gc.collect()  # files and locks that the dead process held are closed, as its end would close them
        owner.unregister(self.lake.context.owner)
        self.lake.ledger.close()
        self.lake = Lake(self.lake.root)
        return True

    def forget_marks(self) -> None:
        """Lose what the ledger knows of how far each stream is: the destination has to say it."""
        for followed in self.streams():
            lease = lease_of_stream(self.sink().sink_id, followed.stream.text())
            with holding(self.lake.context, lease) as hold, self.lake.ledger.write() as txn:
                deliveries.forget_mark(txn, hold, self.sink(), followed.stream)

    def streams(self) -> list[FollowedStream]:
        """How far the sink is."""
        with self.lake.ledger.read() as conn:
            return deliveries.read_streams(conn, find_sink(conn, SINK))

    # -- what has to hold ------------------------------------------------------------------------------------------

    def settled(self, when: str, ticked: list[Ticked] | None = None) -> None:
        """Everything up to the sink's watermark is there once, and what was refused is a dead letter."""
        upto = max((followed.mark.seq for followed in self.streams() if followed.mark is not None), default=0)
        due = {id_ for id_, seq in self._seqs.items() if seq <= upto}
        self._compare(when, due - self._refused - self._withheld, ticked)
        with self.lake.ledger.read() as conn:
            buried = {letter.seq for letter in list_letters(conn, self.sink().sink_id, state=None)}
        if buried != {self._seqs[id_] for id_ in due & self._refused}:
            raise Failed(f"{when}: rows that were refused are no dead letters, or dead letters were not refused")

    def delivered(self, when: str, ship: Ship = plainly) -> None:
        """The same of every row, after ticks that deliver what is left."""
        for _ in range(TICKS):
            ticked = self.tick(ship)
            if all(done.outcome == "delivered" for done in ticked):
                break
        self.settled(when, ticked)
        missing = len(self._seqs.keys() - self._refused - self._withheld) - len(self.subject.ids())
        if missing:
            raise Failed(f"{when}: {missing} rows were not delivered{_errors_text(ticked)}")

    def marks(self) -> list[Mark | None]:
        """How far each stream is by the destination's own account, as a process that has just started hears it."""
        place = self.place()
        marks = [place.standing(followed.stream, followed.table, ()).mark for followed in self.streams()]
        place.close()
        return marks

    def _compare(self, when: str, due: set[str], ticked: list[Ticked] | None) -> None:
        held = Counter(self.subject.ids())
        faults = {
            "lost": sorted(due - held.keys()),
            "stored twice": sorted(id_ for id_, times in held.items() if times > 1),
            "stored, and not to be": sorted(held.keys() - due),
        }
        if any(faults.values()):
            words = "; ".join(f"{what}: {', '.join(ids[:5])} ({len(ids)})" for what, ids in faults.items() if ids)
            raise Failed(f"{when}: {words}{_errors_text(ticked or [])}")


def counted(when: str, unit: Unit, shipped: Shipped) -> Shipped:
    """What the destination said of a unit, if that is what the unit has; rows that it refused are not expected."""
    pieces = list(unit.pieces())
    rows, withheld = sum(piece.rows.num_rows for piece in pieces), sum(piece.withheld for piece in pieces)
    if (shipped.rows, shipped.withheld, shipped.dead) != (rows, withheld, 0):
        raise Failed(
            f"{when}: of a unit with {rows} rows and {withheld} withheld ones, Shipped counts {shipped.rows} rows, "
            f"{shipped.withheld} withheld and {shipped.dead} dead"
        )
    return shipped


def _errors_text(ticked: list[Ticked]) -> str:
    errors = [f"{done.outcome}: {done.error}" for done in ticked if done.error]
    return f". The tick said: {'; '.join(errors)}" if errors else ""


class LinesRun:
    """Notes the lines that a destination's own module runs while it ships, and dies before one of them."""

    def __init__(self, place: Destination, die_at: int | None = None) -> None:
        self.passed: list[int] = []
        self._die_at = die_at
        self._file = inspect.getsourcefile(type(itself(place)))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note, and maybe die, in this block."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def places(self, most: int | None) -> list[int]:
        """Where to die: the first and the last passage of each line, or so many of these."""
        first = {line: count for count, line in reversed([*enumerate(self.passed, 1)])}
        last = {line: count for count, line in enumerate(self.passed, 1)}
        places = sorted({*first.values(), *last.values()})
        return places if most is None else places[:: max(1, -(-len(places) // most))]

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        if event == "line":
            self.passed.append(frame.f_lineno)
            if len(self.passed) == self._die_at:
                raise FailpointReached(f"line {frame.f_lineno}")
        return self._trace
