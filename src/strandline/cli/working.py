"""`strand worker`: the process that flushes and delivers."""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated, Any

import typer

from strandline.cli import output
from strandline.cli.session import Session, session_of

NOT_NOW = 5


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("worker")(worker)


def worker(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Do everything once, and end.")] = False,
) -> None:
    """Flush tails and tick sinks as they become due, until it is told to stop (Ctrl-C, SIGTERM).

    \b
    Example: strand worker --once
    """
    session = session_of(context)
    stop = threading.Event()
    _stop_on_signals(stop)
    from strandline.worker.loop import Worker

    with session.open() as lake:
        one = Worker(lake, stop)
        if once:
            _once(session, one)
            return
        session.note(f"working on {lake.root}; Ctrl-C stops")
        finished = one.run()
        if not finished:
            session.note("stopped in the middle of something; the next worker finishes or undoes it")
            session.emit({"stopped": True, "finished": False})
            os._exit(0)  # a thread that is still in Spark would keep the process; what it does is described already
    session.emit({"stopped": True, "finished": True}, lambda: output.say("Stopped."))


def _once(session: Session, one: Any) -> None:
    jobs = one.once()
    document = {"jobs": [{"kind": job.kind, "name": job.name} for job in jobs], "failed": one.failed}
    session.emit(document, lambda: output.say(f"{len(jobs)} jobs done, {len(one.failed)} of them failed."))
    if one.failed:
        raise typer.Exit(NOT_NOW)


def _stop_on_signals(stop: threading.Event) -> None:
    def handle(_number: int, _frame: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
