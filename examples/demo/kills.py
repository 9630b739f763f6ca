"""The three kills, each at a moment that is worth it; the ledger says when it has come.

A writer dies when a batch is stored and it has not been told. The worker dies while Spark writes a flush, and again
when the receiver has a part of a delivery. All three are started again, and nobody tells them what happened.
"""

from __future__ import annotations

import time

import strandline as sl
from examples.demo import acks
from examples.demo.destinations import Halfway, halfway
from examples.demo.figures import acked_keys
from examples.demo.messages import TABLE
from examples.demo.plan import LIVE
from examples.demo.run import WORKER, Run
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.publish.publishing import Intent

VICTIM = LIVE[1]
# A batch is generated and committed in far less.
INTO_THE_APPEND_S = 0.5
# A flush has been seen under way for this long when it is killed: Spark is at work then.
INTO_THE_FLUSH_S = 0.25
# A receiver and a ledger answer in far less.
INTO_THE_ANSWER_S = 0.25
CHUNKS_SENT = 3


def hanging_writer(batches: int) -> dict[str, str]:
    """A writer that hangs at the worst moment: the next batch is committed, and nobody has told it so."""
    return {"STRAND_FAILPOINTS": f"append.after_commit=hang@{batches + 1}"}


def hanging_flush() -> dict[str, str]:
    """A worker that hangs in its second flush: the rows are on a branch that no reader sees, and the ledger waits.

    A flush may be quicker than two looks at the ledger, and the last of them has no successor to be killed instead.
    """
    return {"STRAND_FAILPOINTS": "stage.after_append=hang@2"}


def hanging_delivery() -> dict[str, str]:
    """A worker whose forwarding hangs at the worst moment: the receiver has a chunk, and the ledger does not know."""
    return {"STRAND_FAILPOINTS": f"forward.after_send=hang@{CHUNKS_SENT}"}


def kill_writer(run: Run) -> None:
    """Half-way, inside an append."""
    share, file = run.shares[VICTIM], run.places.acks(VICTIM)
    half = share.batches // 2
    run.wait(f"waiting for {VICTIM} to be half-way", lambda: acks.count(file) >= half)
    time.sleep(INTO_THE_APPEND_S)
    run.processes.kill(VICTIM)
    run.start_writer(VICTIM)
    run.narrator.say(f"killed writer {VICTIM} while it waited for the answer to batch {half + 1}; started it again")
    run.killed.append({"process": VICTIM, "acked_batches": half})


def kill_inside_a_flush(run: Run) -> None:
    """While the ledger shows a flush under way; the first that can't come to its end is that of `hanging_flush`.

    The worker is held before the last look: a flush of a dead worker is ended by the next process that opens the lake.
    """
    seen: list[Intent] = []

    def inside_a_flush() -> bool:
        seen[:] = _flushes_under_way(run.lake)
        return bool(seen)

    while True:
        run.wait("waiting for the next flush", inside_a_flush)
        time.sleep(INTO_THE_FLUSH_S)
        _hold_worker(run)
        flush = next((flush for flush in _flushes_under_way(run.lake) if flush.op_id == seen[0].op_id), None)
        if flush is not None:
            break
        run.processes.go_on(WORKER)
    run.processes.kill(WORKER)
    run.narrator.say(f"killed the worker in the middle of flush {flush.op_id} (phase {flush.phase})")
    run.killed.append({"process": WORKER, "operation": flush.op_id, "phase": flush.phase})


def kill_inside_a_delivery(run: Run) -> None:
    """While the ledger shows a delivery open, and the receiver's ledger shows that a part of it has arrived."""
    caught: list[Halfway] = []

    def inside_a_delivery() -> bool:
        caught[:] = filter(None, [halfway(run.lake, run.receiver)])
        return bool(caught)

    while True:
        run.wait("waiting for the next delivery", inside_a_delivery)
        _hold_worker(run)
        still = halfway(run.lake, run.receiver)
        if still is not None and still.delivery.delivery_id == caught[0].delivery.delivery_id:
            break
        run.processes.go_on(WORKER)
    run.processes.kill(WORKER)
    delivery = still.delivery
    run.narrator.say(
        f"killed the worker in the middle of delivery {delivery.delivery_id}: "
        f"({delivery.since:,}, {delivery.until:,}] was sent, up to {still.mark:,} has arrived"
    )
    run.killed.append(
        {
            "process": WORKER,
            "delivery": delivery.delivery_id,
            "epoch": delivery.epoch,
            "since": delivery.since,
            "until": delivery.until,
            "arrived": still.mark,
        }
    )


def _hold_worker(run: Run) -> None:
    """Let the worker do nothing more; what it had sent is answered when this returns."""
    run.processes.pause(WORKER)
    time.sleep(INTO_THE_ANSWER_S)


def _flushes_under_way(lake: sl.Lake) -> list[Intent]:
    with lake.ledger.read() as conn:
        intents = read_intents(conn)
    return [
        intent
        for intent in intents
        if isinstance(intent, Intent) and intent.kind == "flush" and intent.phase in ("staging", "staged")
    ]


def look_meanwhile(run: Run) -> None:
    """With the flush dead and Spark down, every acked row is there for SQL, once."""
    acked = set(acked_keys(run.places, run.shares.values()))
    seen = [key for (key,) in run.lake.view().sql(f"SELECT part_id FROM {TABLE}").rows()]
    missing, twice = len(acked.difference(seen)), len(seen) - len(set(seen))
    run.narrator.say(
        f"SQL meanwhile, without Spark: {len(seen):,} rows, {missing} acked ones missing, {twice} shown twice"
    )
    if missing or twice:
        run.wrong.append(f"while the worker was down SQL missed {missing} rows and showed {twice} twice")
