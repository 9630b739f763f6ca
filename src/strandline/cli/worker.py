"""`strand worker`: the process that flushes, delivers and maintains."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from strandline import spans
from strandline.cli import output
from strandline.cli.session import Session, session_of
from strandline.cli.supervised import end_with_parent, tell_ready
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.worker.loop import Worker

NOT_NOW = 5


@dataclass(frozen=True)
class Stopped:
    """A worker that was told to stop; `finished` is False where it left something in the middle."""

    stopped: bool
    finished: bool


@dataclass(frozen=True)
class JobDone:
    """A job that a worker did, or tried to."""

    kind: str
    name: str


@dataclass(frozen=True)
class Worked:
    """What a worker did that was to do what is due, once."""

    jobs: tuple[JobDone, ...]
    failed: tuple[str, ...]


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    group = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
    group.callback()(worker)
    group.command("retry", short_help="Let jobs that failed run again at once.")(retry)
    app.add_typer(group, name="worker", short_help="Do what is due: flushes, ticks, maintenance, recovery.")


def worker(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Do everything once, and end.")] = False,
) -> None:
    """Do what is due (flushes, ticks, maintenance, recovery) until it is told to stop (Ctrl-C, SIGTERM).

    Several workers may share a lake. Commands that need Spark ask a worker that lives.

    \b
    Example: strand worker --once
    """
    if context.invoked_subcommand is not None:
        return
    session = session_of(context)
    session.keep_log()
    stop = threading.Event()
    _stop_on_signals(stop)
    from strandline.engines.spark.archive import made_meanwhile
    from strandline.worker.loop import Worker

    with session.open() as lake:
        process = Worker(lake, stop)
        if once:
            _once(session, process)
            return

        def ready() -> None:
            session.note(f"working on {lake.root}; Ctrl-C stops")
            tell_ready("working")

        end_with_parent()
        with made_meanwhile():
            finished = process.run(ready)
        if not finished:
            session.note("stopped in the middle of something; the next worker finishes or undoes it")
            session.emit(Stopped(stopped=True, finished=False))
            output.flush()
            spans.flush()
            os._exit(0)  # a thread that is still in Spark would keep the process; what it does is described already
    session.emit(Stopped(stopped=True, finished=True), lambda: output.say("Stopped."))


def _once(session: Session, process: Worker) -> None:
    jobs = process.once()
    failed = sorted(process.failed)
    worked = Worked(tuple(JobDone(job.kind, job.name) for job in jobs), tuple(failed))
    session.emit(worked, lambda: output.say(f"{counted(len(jobs), 'job')} done, {len(failed)} failed."))
    if failed:
        raise typer.Exit(NOT_NOW)


def retry(
    context: typer.Context,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="As `strand status` names them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every job that failed.")] = False,
) -> None:
    """Let jobs that failed, and were parked perhaps, run again at once, with all their attempts.

    \b
    Example: strand worker retry flush:messages
    """
    if bool(keys) == every:
        raise typer.BadParameter("name jobs, or say --all", ctx=context)
    session = session_of(context)
    with session.open() as lake:
        done = lake.jobs.retry(None if every else keys or [])
    text = f"{counted(len(done.retried), 'job')} will be tried again: {', '.join(done.retried) or 'none had failed'}."
    session.emit(done, lambda: output.say(text))


def _stop_on_signals(stop: threading.Event) -> None:
    def handle(_number: int, _frame: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
