"""Whether a lake is well, in one line, and what needs a person: read off the page that `strand status` shows.

A finding here is what the page has somewhere already, with the command that tells more or helps. `strand doctor` looks
at what no page shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from strandline.model.wording import counted
from strandline.reports.sinks import SinkStatus

Level = Literal["well", "look", "person"]
"""All is well; something may be looked at and passes by itself, perhaps; a person is needed."""


def verdict(page: Mapping[str, Any]) -> dict[str, Any]:
    """`{level, text, needs: [{level, what, command}]}`."""
    needs = [*_needs_a_person(page), *_worth_a_look(page)]
    persons = sum(need["level"] == "person" for need in needs)
    level: Level = "person" if persons else "look" if needs else "well"
    match level:
        case "person":
            text = f"{counted(persons, 'thing needs', 'things need')} a person."
        case "look":
            text = f"The lake works; {counted(len(needs), 'thing is', 'things are')} worth a look."
        case "well":
            text = f"All is well: {_extent(page)}."
    return {"level": level, "text": text, "needs": needs}


def _extent(page: Mapping[str, Any]) -> str:
    workers = sum(worker["state"] != "gone" for worker in page["workers"])
    parts = [counted(len(page["tables"]), "table"), counted(len(page["sinks"]), "sink")]
    return ", ".join([*parts, counted(workers, "worker") if workers else "no worker runs"])


def _need(level: Level, what: str, command: str) -> dict[str, Any]:
    return {"level": level, "what": what, "command": command}


def _needs_a_person(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if page["displaced"]:
        yield _need("person", f"the lake is not at home: {page['displaced']}", "strand doctor")
    if page["not_there"]:
        yield _need("person", f"the warehouse is not there: {page['not_there']}", "strand doctor")
    for branch in page["branches"]:
        for table, reason in branch["refuses"].items():
            where = "" if branch["branch"] == "main" else f" on branch {branch['branch']}"
            yield _need("person", f"table {table}{where} refuses writes: {reason}", "strand doctor")
    for operation in page["unreadable_intents"]:
        yield _need("person", f"operation {operation['op']} can't be read: {operation['reason']}", "strand doctor")
    for batch in page["damaged"]:
        rows = counted(batch["rows"], "row")
        what = f"batch {batch['batch']} of {batch['table']} ({rows}) is damaged, and reads leave it out"
        yield _need("person", what, "strand doctor")
    if page["quarantined"]:
        batches = counted(len(page["quarantined"]), "damaged batch is", "damaged batches are")
        yield _need("person", f"{batches} set aside", "strand quarantine list")
    yield from _of_sinks(page["sinks"])
    for job in page["failing_jobs"]:
        if job["parked"]:
            yield _need("person", f"job {job['job']} is parked: {job['error']}", f"strand worker retry {job['job']}")


def _of_sinks(sinks: Iterable[SinkStatus]) -> Iterator[dict[str, Any]]:
    for sink in sinks:
        show = f"strand sink show {sink.sink}"
        if sink.branch is None:
            yield _need("person", f"sink {sink.sink} follows a branch that was deleted", show)
        if sink.parked:
            parked = counted(sink.parked, "parked delivery", "parked deliveries")
            yield _need("person", f"sink {sink.sink} has {parked}", show)
        if sink.dead_letters:
            letters = counted(sink.dead_letters, "row")
            yield _need("person", f"sink {sink.sink}: {letters} refused", f"strand sink dead {sink.sink}")


def _worth_a_look(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if page["clock_behind_s"] is not None:
        yield _need("look", "the clock is behind the ledger's time, so nothing is deleted", "strand doctor")
    for sink in page["sinks"]:
        if sink.paused:
            yield _need("look", f"sink {sink.sink} is paused: {sink.paused}", f"strand sink resume {sink.sink}")
    for job in page["failing_jobs"]:
        if not job["parked"]:
            yield _need("look", f"job {job['job']} fails, and is tried again: {job['error']}", "strand status --why")
    if any(operation["process"] == "gone" for operation in page["operations"]):
        yield _need("look", "a process died in the middle of an operation", "strand recover")
