"""A tick: everything that is due of one sink, once each.

For every stream the same steps: open a delivery (or find the one that is open), ship it, close it. The delivery says
exactly what is sent, and is written before anything is; the watermark moves in the transaction that closes it. So a
crash anywhere repeats the same unit, and a destination that has seen it changes nothing.

A stream that must wait (the destination is down, or asks for patience) lets the others go first.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from strandline import logs
from strandline.errors import (
    WAREHOUSE,
    Busy,
    CallerError,
    HistoryGone,
    LeaseLost,
    PersonError,
    SinkFault,
    StrandError,
    may_pass,
)
from strandline.failpoints import fail
from strandline.ledger.history.branches import living_branch
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.leases import Hold
from strandline.ledger.sinks import deliveries
from strandline.ledger.sinks.dead_letters import RefusedRow, bury, dead_seqs
from strandline.ledger.sinks.sinks import note_tick, sink_by_id
from strandline.ledger.tables.tables import branch_name, read_branch_tables
from strandline.model.delivery.sinks import Delivery, FollowedStream, Shipped, Sink, Stream
from strandline.model.ids import lease_of_stream
from strandline.operations.core.beats import holding
from strandline.operations.core.context import Context
from strandline.operations.maintain.flush import flush
from strandline.redaction import redacted
from strandline.sinks.answers import RETRY_AFTER_MAX_S
from strandline.sinks.destination import Destination, Later, Park, Resume, Unit
from strandline.sinks.marks import begin, draft, first_mark, is_unproven, look_at, settle
from strandline.sinks.reading import INBOUND, UNASKED, check_routing, plan_unit, read_unit
from strandline.sinks.resuming import Begin, GoOn, Stuck
from strandline.sinks.seam import words_of
from strandline.sinks.settings import BRANCH_GONE, resolved
from strandline.spans import span

log = logs.Logger("strandline.sinks")

BACKOFF_S = 0.5
BACKOFF_MAX_S = 60.0
WAREHOUSE_WAIT_S = 20.0
RESUMES = 3
"""How often one tick follows a destination's mark before it gives up on the stream."""


@dataclass
class Ticked:
    """What a tick did in one stream."""

    sink: str
    table: str
    partition: str
    since: int = 0
    until: int = 0
    rows: int = 0
    withheld: int = 0
    size_bytes: int = 0
    units: int = 0
    files_opened: int = 0
    dead_letters: int = 0
    outcome: str = "delivered"
    error: str | None = None
    note: str | None = None
    may_pass: bool = False

    def add(self, delivery: Delivery, shipped: Shipped) -> None:
        """One unit more."""
        self.since = self.since if self.units else delivery.since
        self.until = delivery.until
        self.rows += shipped.rows
        self.withheld += shipped.withheld
        self.size_bytes += shipped.size_bytes
        self.files_opened += shipped.files_opened
        self.dead_letters += shipped.dead
        self.units += 1


@dataclass
class _Turn:
    """A stream that is being worked off in this tick."""

    followed: FollowedStream
    ticked: Ticked
    due_s: float = 0.0
    waits: int = 0
    resumes: int = 0
    agreed: tuple[str, GoOn] | None = None
    """The delivery for which the destination was asked where it is, and what that gave."""
    read_again: bool = False
    """The lake's own files could not be read although its warehouse is there; they were looked at a second time."""


@dataclass(frozen=True)
class Ticker:
    """One sink, its destination, and how long this tick waits for other processes (`wait_s`) and its destination.

    Not `patient`, it leaves a stream that has to wait to a later tick; the ledger knows until when.
    """

    ctx: Context
    sink: Sink
    destination: Destination
    actor: str
    wait_s: float | None = None
    patient: bool = True
    stop: threading.Event = field(default_factory=threading.Event)

    def tick(self) -> list[Ticked]:
        """Flush what the sink follows, then work off every stream that is due."""
        if _held(self.sink):
            return []
        failed = [*self._branch_gone(), *self._flush()]
        with self.ctx.ledger.read() as conn:
            due = deliveries.read_streams(conn, self.sink, due=True)
        turns = [_Turn(followed, Ticked(self.sink.name, followed.table, followed.stream.partition)) for followed in due]
        self._work_off(turns)
        if turns and not self.stop.is_set():  # one that was told to stop has not done what was due: it is due again
            self.ctx.ledger.run(lambda txn: note_tick(txn, self.sink.sink_id))
        return [*failed, *(turn.ticked for turn in turns if turn.ticked.units or turn.ticked.outcome != "delivered")]

    def _branch_gone(self) -> list[Ticked]:
        """Report it when the sink's branch was deleted: one of the same name is another one, with marks of its own."""
        with self.ctx.ledger.read() as conn:
            if living_branch(conn, self.sink.branch_id) is not None:
                return []
        return [Ticked(self.sink.name, "", "", outcome="failed", error=BRANCH_GONE)]

    def _flush(self) -> list[Ticked]:
        """Move tails into the log. A table that can't be flushed keeps its rows, and the others go on."""
        with self.ctx.ledger.read() as conn:
            names = deliveries.tables_with_tails(conn, self.sink)
            branch = branch_name(conn, self.sink.branch_id)
        failed: list[Ticked] = []
        for name in names:
            if self.stop.is_set():
                break
            try:
                self.ctx.iceberg()  # where there is no Java, say so before anything is begun
                flush(self.ctx, name, branch, self.actor)
            except StrandError as error:
                log.outcome("not flushed", sink=self.sink.name, table=name, error=str(error))
                failed.append(Ticked(self.sink.name, name, "", outcome="not_flushed", error=str(error)))
        return failed

    def _work_off(self, turns: list[_Turn]) -> None:
        waiting = list(turns)
        while waiting and not self.stop.is_set():
            turn = min(waiting, key=lambda turn: turn.due_s)
            pause_s = turn.due_s - time.monotonic()
            if pause_s > 0:
                self.ctx.report(f"{self.sink.name} waits for its destination", 0, None)
                self.stop.wait(pause_s)
                continue
            if not (self._take_turn(turn) and self.patient):
                waiting.remove(turn)
        for turn in waiting:
            turn.ticked.outcome = turn.ticked.outcome if turn.ticked.error else "stopped"

    def _take_turn(self, turn: _Turn) -> bool:
        """Work a stream off as far as it goes; True when it has to be looked at again in this tick."""
        stream = turn.followed.stream
        try:
            with holding(self.ctx, lease_of_stream(self.sink.sink_id, stream.text()), wait_s=self.wait_s) as hold:
                while not self.stop.is_set():
                    delivery = self._delivery(hold, stream)
                    if delivery is None:
                        return False
                    if not self._deliver(hold, turn, delivery):
                        return turn.ticked.outcome == "waiting"
        except Busy as error:
            turn.ticked.outcome, turn.ticked.error = "busy", str(error)
        except LeaseLost as error:
            turn.ticked.outcome, turn.ticked.error = "lost", str(error)
        except Exception as error:  # before there was a delivery: the destination could not be asked
            outcome = "parked" if isinstance(error, Park) else "failed"
            reason = words_of(error)
            turn.ticked.outcome, turn.ticked.error = outcome, reason
            with self.ctx.ledger.write() as txn:
                if sink_by_id(txn.conn, self.sink.sink_id) is not None:
                    deliveries.note_error(txn, self.sink, stream, reason)
        return False

    # -- one delivery --------------------------------------------------------------------------------------------------

    def _delivery(self, hold: Hold, stream: Stream) -> Delivery | None:
        """The delivery that is open, or a new one; None when the stream has nothing more to send."""
        ledger = self.ctx.ledger
        with ledger.read() as conn:
            sink = sink_by_id(conn, self.sink.sink_id)  # as it is now: what it may send may have been changed
            followed = None if sink is None else deliveries.read_stream(conn, sink, stream)
        if sink is None or followed is None or sink.paused is not None or _held(sink):
            return None
        if followed.delivery is not None:
            return followed.delivery
        settings = resolved(sink.type, sink.settings)
        mark = followed.mark or first_mark(self.ctx, hold, sink, self.destination, stream, followed.table)
        with ledger.read() as conn:
            (table,) = read_branch_tables(conn, branch_name(conn, stream.branch_id), [followed.table])
            check_routing(settings, [table])
            plan = plan_unit(conn, table, followed, mark, settings)
            noted = deliveries.read_noted(conn, sink.sink_id, stream)
            unproven = is_unproven(sink_by_id(conn, sink.sink_id) or sink, noted)
        if plan is None:
            return None
        opened = {**settings, INBOUND: table.table.inbound, **({UNASKED: True} if unproven else {})}
        try:
            delivery = self._open(hold, draft(sink, stream, followed.table, mark, plan, opened))
        except HistoryGone:  # what was planned was superseded and has expired, all between the two transactions
            return self._delivery(hold, stream)
        fail("deliver.after_open")
        log.info("opened", delivery=delivery.delivery_id, sink=self.sink.name, since=delivery.since, until=plan.until)
        return delivery

    def _open(self, hold: Hold, drafted: Delivery) -> Delivery:
        def work(txn: Txn) -> Delivery:
            delivery = deliveries.open_delivery(txn, hold, drafted)
            fail("deliver.before_open")
            return delivery

        return self.ctx.ledger.run(work)

    def _deliver(self, hold: Hold, turn: _Turn, delivery: Delivery) -> bool:
        """Ship and close one unit; False when the stream can't go on now."""
        if delivery.parked is not None:
            turn.ticked.outcome, turn.ticked.error = "parked", delivery.parked
            return False
        pause_s = (delivery.not_before_us - time.time_ns() // 1000) / 1e6
        if 0 < pause_s <= RETRY_AFTER_MAX_S:  # further ahead, it was the clock that jumped
            return self._wait(turn, min(pause_s, BACKOFF_MAX_S), delivery.last_error or "")
        self.ctx.report(f"{self.sink.name}: {delivery.table}", turn.ticked.rows, None)
        try:
            agreed = self._agreed(hold, turn, delivery)
            if not isinstance(agreed, GoOn):
                return agreed
            about = {"delivery": delivery.delivery_id, "sink": self.sink.name, "table": delivery.table}
            with span("delivery", kind=self.sink.type, **about):
                shipped = self.destination.ship(self._unit(hold, delivery, agreed))
        except Resume as moved:
            turn.agreed = None
            return self._again(hold, turn, delivery, words_of(moved))
        except LeaseLost:
            raise
        except SinkFault as error:  # as any exception of ours: tried again, and parked when it was tried often enough
            return self._later(hold, turn, delivery, error)
        except (Park, CallerError, PersonError) as error:
            away = self.ctx.fence.why_away()  # whatever the error was: without its warehouse a lake can't do much
            if away is not None or may_pass(error):
                return self._later(hold, turn, delivery, away or error)
            if isinstance(error, HistoryGone) and not turn.read_again:
                turn.read_again = True  # the warehouse may have come back between the error and the question
                return True
            return self._park(hold, turn, delivery, _reason(error))
        except Exception as error:
            return self._later(hold, turn, delivery, error)

        self._close(hold, delivery, replace(shipped, chunk=shipped.chunk or agreed.chunk))
        turn.read_again = False
        turn.ticked.add(delivery, shipped)
        turn.ticked.outcome, turn.ticked.error = "delivered", None
        return True

    def _close(self, hold: Hold, delivery: Delivery, shipped: Shipped) -> None:
        """Write down that a unit has arrived; one that dies before it ships the same unit again."""

        def close(txn: Txn) -> None:
            deliveries.close_delivery(txn, hold, delivery, shipped)
            fail("deliver.before_close")

        self.ctx.ledger.run(close)
        fail("deliver.after_close")
        log.info("delivered", delivery=delivery.delivery_id, sink=self.sink.name, rows=shipped.rows)

    def _agreed(self, hold: Hold, turn: _Turn, delivery: Delivery) -> GoOn | bool:
        """Ask the destination where it is, once for a delivery; what to ship, or whether the stream can go on at all.

        It may be behind us (restored from an older copy), ahead (our ledger was put back), or another one.
        """
        if turn.agreed is not None and turn.agreed[0] == delivery.delivery_id:
            return turn.agreed[1]
        stream = delivery.stream
        seen = look_at(self.ctx, self.sink, self.destination, stream, delivery.table, delivery)
        match seen.decision:
            case Stuck() as stuck:
                return self._park(hold, turn, delivery, stuck.reason)
            case Begin() as beginning:
                if not self._again(hold, turn, delivery, f"the destination's mark is {seen.standing.mark}"):
                    return False
                begin(self.ctx, hold, self.sink, stream, seen, beginning)
                turn.ticked.note = beginning.note or turn.ticked.note
                settle(self.ctx, hold, self.sink, self.destination, stream, delivery.table, seen)
                return True
            case GoOn() as going_on:
                self._note_asked(hold, delivery)
                settle(self.ctx, hold, self.sink, self.destination, stream, delivery.table, seen)
                turn.agreed = (delivery.delivery_id, going_on)
                return going_on

    def _note_asked(self, hold: Hold, delivery: Delivery) -> None:
        """Before anything of a unit is sent: from here on the destination may have some of it."""
        if delivery.settings.get(UNASKED):
            settings = {name: value for name, value in delivery.settings.items() if name != UNASKED}
            self.ctx.ledger.run(lambda txn: deliveries.set_settings(txn, hold, delivery, settings))

    def _again(self, hold: Hold, turn: _Turn, delivery: Delivery, why: str) -> bool:
        """Look at the stream anew, unless its destination's mark keeps moving."""
        turn.resumes += 1
        if turn.resumes <= RESUMES:
            return True
        return self._park(hold, turn, delivery, f"{why}, and ours {delivery.since}: another sender moves it")

    def _unit(self, hold: Hold, delivery: Delivery, agreed: GoOn) -> Unit:
        with self.ctx.ledger.read() as conn:
            rows, branch_table = read_unit(conn, delivery)
            dead = dead_seqs(conn, delivery)
            noted = deliveries.read_noted(conn, delivery.sink_id, delivery.stream)

        def write_down(refused: Sequence[RefusedRow]) -> None:
            def into_ledger(txn: Txn) -> None:
                bury(txn, hold, delivery, refused)
                fail("dead.before_commit")

            self.ctx.ledger.run(into_ledger)
            fail("dead.after_commit")

        table = branch_table.table
        return Unit(
            delivery,
            rows,
            branch_table.schema,
            table.partition_by,
            dead,
            write_down,
            table.key,
            confirmed=agreed.confirmed,
            lacking_upto=noted.lacking_upto if noted is not None else 0,
            hole_upto=noted.hole_upto if noted is not None else 0,
        )

    # -- what went wrong -----------------------------------------------------------------------------------------------

    def _later(self, hold: Hold, turn: _Turn, delivery: Delivery, error: Exception) -> bool:
        """Try again after a while; park it when it has been tried often enough.

        A wait that the destination asked for is no failed attempt: it is alive. Nor is one for the lake's own files:
        the destination has no part in it. But one tick has only so much patience.
        """
        most = int(delivery.settings["max_attempts"])
        told_s = error.told_s if isinstance(error, Later) else None
        if isinstance(error, StrandError) and error.detail.get("reason") == WAREHOUSE:
            told_s = WAREHOUSE_WAIT_S * random.uniform(0.5, 1.0)
        progressed = isinstance(error, Later) and error.progressed
        attempts = delivery.attempts if told_s is not None else (0 if progressed else delivery.attempts) + 1
        wait_s = told_s if told_s is not None else _backoff_s(attempts)
        parked = told_s is None and attempts >= most
        reason = words_of(error)
        self.ctx.ledger.run(
            lambda txn: deliveries.note_failure(
                txn, hold, delivery, error=reason, attempts=attempts, wait_s=wait_s, parked=parked
            )
        )
        log.outcome("not delivered", delivery=delivery.delivery_id, sink=self.sink.name, error=reason, parked=parked)
        if parked:
            turn.ticked.outcome, turn.ticked.error = "parked", reason
            return False
        turn.waits += 1
        if turn.waits >= most:
            turn.ticked.outcome, turn.ticked.error = "failed", reason
            return False
        return self._wait(turn, wait_s, reason)

    def _wait(self, turn: _Turn, wait_s: float, error: str) -> bool:
        turn.due_s = time.monotonic() + wait_s
        turn.ticked.outcome, turn.ticked.error = "waiting", error
        return False

    def _park(self, hold: Hold, turn: _Turn, delivery: Delivery, reason: str) -> bool:
        reason = redacted(reason)
        attempts = delivery.attempts + 1
        self.ctx.ledger.run(
            lambda txn: deliveries.note_failure(
                txn, hold, delivery, error=reason, attempts=attempts, wait_s=0, parked=True
            )
        )
        log.outcome("parked", delivery=delivery.delivery_id, sink=self.sink.name, error=reason)
        turn.ticked.outcome, turn.ticked.error = "parked", reason
        return False


def _reason(error: Exception) -> str:
    """Why a delivery is parked, with what to do about it."""
    hint = error.hint if isinstance(error, StrandError) else ""
    return f"{words_of(error)}. {hint}" if hint else words_of(error)


def _held(sink: Sink) -> bool:
    return sink.hold_until_us is not None and time.time_ns() // 1000 < sink.hold_until_us


def _backoff_s(attempts: int) -> float:
    """Longer each time, and not the same for all senders that were refused at the same moment."""
    return float(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (attempts - 1)) * random.uniform(0.5, 1.0))
