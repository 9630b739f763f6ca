"""Whether a lake is well, in one line, and what needs a person: read off the page that `strand status` shows.

A finding here is what the page has somewhere already, with the command that tells more or helps. `strand doctor` looks
at what no page shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.reports.status import Status

Level = Literal["well", "look", "person"]
"""All is well; something may be looked at and passes by itself, perhaps; a person is needed."""


@dataclass(frozen=True)
class Concern:
    """Something to look at or to do, and the command that tells more or helps."""

    level: Level
    what: str
    command: str


@dataclass(frozen=True)
class LakeVerdict:
    """The page in a line, and everything on it that is not well; what needs a person comes first."""

    level: Level
    text: str
    needs: tuple[Concern, ...]


def judge(page: Status) -> LakeVerdict:
    """Read the verdict off the page."""
    concerns = (*_needs_a_person(page), *_worth_a_look(page))
    persons = sum(concern.level == "person" for concern in concerns)
    level: Level = "person" if persons else "look" if concerns else "well"
    match level:
        case "person":
            text = f"{counted(persons, 'thing needs', 'things need')} a person."
        case "look":
            text = f"The lake works; {counted(len(concerns), 'thing is', 'things are')} worth a look."
        case "well":
            text = f"All is well: {_extent(page)}."
    return LakeVerdict(level, text, concerns)


def _extent(page: Status) -> str:
    workers = sum(worker.state != "gone" for worker in page.workers)
    parts = [counted(len(page.tables), "table"), counted(len(page.sinks), "sink")]
    return ", ".join([*parts, counted(workers, "worker") if workers else "no worker runs"])


def _needs_a_person(page: Status) -> Iterator[Concern]:
    if page.displaced:
        yield Concern("person", f"the lake is not at home: {page.displaced}", "strand doctor")
    if page.not_there:
        yield Concern("person", f"the warehouse is not there: {page.not_there}", "strand doctor")
    for branch in page.branches:
        for table, reason in branch.refuses.items():
            where = "" if branch.branch == "main" else f" on branch {branch.branch}"
            yield Concern("person", f"table {table}{where} refuses writes: {reason}", "strand doctor")
    for operation in page.unreadable_intents:
        yield Concern("person", f"operation {operation.op} can't be read: {operation.reason}", "strand doctor")
    for batch in page.damaged:
        rows = counted(batch.rows, "row")
        what = f"batch {batch.batch} of {batch.table} ({rows}) is damaged, and reads leave it out"
        yield Concern("person", what, "strand doctor")
    if page.quarantined:
        batches = counted(len(page.quarantined), "damaged batch is", "damaged batches are")
        yield Concern("person", f"{batches} set aside", "strand quarantine list")
    yield from _of_sinks(page)
    for job in page.failing_jobs:
        if job.parked:
            yield Concern("person", f"job {job.job} is parked: {job.error}", f"strand worker retry {job.job}")


def _of_sinks(page: Status) -> Iterator[Concern]:
    for sink in page.sinks:
        show = f"strand sink show {sink.sink}"
        if sink.branch is None:
            yield Concern("person", f"sink {sink.sink} follows a branch that was deleted", show)
        if sink.parked:
            parked = counted(sink.parked, "parked delivery", "parked deliveries")
            yield Concern("person", f"sink {sink.sink} has {parked}", show)
        if sink.dead_letters:
            letters = counted(sink.dead_letters, "row")
            yield Concern("person", f"sink {sink.sink}: {letters} refused", f"strand sink dead {sink.sink}")


def _worth_a_look(page: Status) -> Iterator[Concern]:
    if page.clock_behind_s is not None:
        yield Concern("look", "the clock is behind the ledger's time, so nothing is deleted", "strand doctor")
    for sink in page.sinks:
        if sink.paused:
            command = f"strand sink resume {sink.sink}"
            yield Concern("look", f"sink {sink.sink} is paused: {sink.paused}", command)
    for job in page.failing_jobs:
        if not job.parked:
            yield Concern("look", f"job {job.job} fails, and is tried again: {job.error}", "strand status --why")
    if any(operation.process == "gone" for operation in page.operations):
        yield Concern("look", "a process died in the middle of an operation", "strand recover")
