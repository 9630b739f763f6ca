"""What every destination has to hold. Each check is one kind of bad night."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from strandline.errors import StrandError
from strandline.lake import Lake
from strandline.model.delivery.sinks import Shipped
from strandline.sinks.destination import Destination, Later, Park, Resume, Unit
from strandline.testing.subject import Subject
from strandline.testing.trial import UNIT_ROWS, WITHHELD, Failed, LinesRun, Trial, counted

Check: TypeAlias = Callable[[Callable[[Path], Subject], Path], None]
"""A check takes what makes a subject in a folder, and a folder that is empty."""

TICK_FAILPOINTS = ("deliver.after_open", "deliver.before_close", "deliver.after_close")


def checks(subject: type[Subject]) -> list[Check]:
    """Every check that a destination has to pass; those of refused rows where it refuses some."""
    return [check for check in _ALL if check is not refused_rows_become_dead_letters or subject.refused is not None]


@contextmanager
def _trial(make: Callable[[Path], Subject], folder: Path) -> Iterator[Trial]:
    place = folder / "destination"
    place.mkdir()
    subject = make(place)
    with subject.running():
        trial = Trial(subject, folder)
        try:
            yield trial
        finally:
            trial.lake.close()


def a_unit_twice_is_stored_once(make: Callable[[Path], Subject], folder: Path) -> None:
    """Each unit is shipped again by the same process, and by one that has just started."""

    def thrice(place: Destination, unit: Unit) -> Shipped:
        done = place.ship(unit)
        fresh = trial.place()
        for again in (place, fresh):
            with suppress(Later, Park, Resume, StrandError):
                again.ship(unit)
        fresh.close()
        return done

    with _trial(make, folder) as trial:
        trial.append(4 * UNIT_ROWS)
        trial.delivered("each unit was shipped three times", thrice)


def killed_anywhere(make: Callable[[Path], Subject], folder: Path) -> None:
    """The process dies at each step of the tick, at each failpoint and at the lines of the destination's module."""
    with _trial(make, folder) as trial:
        trial.append(2 * UNIT_ROWS)
        noted = LinesRun(trial.place())

        def noting(place: Destination, unit: Unit) -> Shipped:
            with noted.watched():
                return place.ship(unit)

        trial.tick(noting, units=1)
        lines = noted.places(trial.subject.lines)
        names = [*TICK_FAILPOINTS, *trial.subject.failpoints]
        trial.append(2 * UNIT_ROWS * (len(names) + len(lines)))
        for name in names:
            if not trial.dies(failpoint=name):
                raise Failed(f"the failpoint {name} was not passed")
            trial.settled(f"killed at {name}, one unit later", trial.tick(units=1))
        for count in lines:
            if _dies_at(trial, count):
                when = f"killed before line {noted.passed[count - 1]} of its module, one unit later"
                trial.settled(when, trial.tick(units=1))
        trial.delivered("killed many times, and left alone in the end")


def _dies_at(trial: Trial, count: int) -> bool:
    def dying(place: Destination, unit: Unit) -> Shipped:
        with LinesRun(place, die_at=count).watched():
            return place.ship(unit)

    return trial.dies(dying)


def lost_answers(make: Callable[[Path], Subject], folder: Path) -> None:
    """Each unit arrives, and its answer is lost: the same unit comes again, and both answers count its rows."""
    lost: dict[str, Shipped] = {}
    wrong: list[Failed] = []

    def unheard(place: Destination, unit: Unit) -> Shipped:
        done = place.ship(unit)
        first = lost.setdefault(unit.delivery.delivery_id, done)
        try:
            counted("a unit was shipped" if first is done else "its answer was lost, and it came again", unit, done)
        except Failed as error:
            wrong.append(error)  # a tick takes what is raised for an outcome of the unit
        if first is done:
            raise Later("the answer was lost", told_s=0.01)
        return done

    with _trial(make, folder) as trial:
        trial.append(2 * UNIT_ROWS - 1)
        trial.append(1, **WITHHELD)
        trial.append(UNIT_ROWS)
        trial.delivered("the answer to each unit was lost once", unheard)
        if wrong:
            raise wrong[0]


def refused_rows_become_dead_letters(make: Callable[[Path], Subject], folder: Path) -> None:
    """A row that is refused is a dead letter, once, however often its unit is shipped; the others arrive."""

    def unheard(place: Destination, unit: Unit) -> Shipped:
        done = place.ship(unit)
        if not letters:
            letters.append(unit.delivery.delivery_id)
            raise Later("the answer was lost", told_s=0.01)
        return done

    letters: list[str] = []
    with _trial(make, folder) as trial:
        trial.append(UNIT_ROWS - 1)
        trial.append(1, **(trial.subject.refused or {}))
        trial.append(UNIT_ROWS)
        trial.delivered("a row was refused", unheard)


def a_place_that_went_back(make: Callable[[Path], Subject], folder: Path) -> None:
    """The destination is put back to an older copy of itself: what it lost comes again, and nothing else."""
    with _trial(make, folder) as trial:
        trial.append(4 * UNIT_ROWS)
        trial.tick(units=2)
        trial.subject.copy_to(folder / "aside")
        trial.delivered("before the place went back")
        trial.subject.put_back(folder / "aside")
        trial.append(1)
        trial.delivered("the place went back by two units")


def lost_marks(make: Callable[[Path], Subject], folder: Path) -> None:
    """The ledger has lost how far the stream is: the destination knows it."""
    with _trial(make, folder) as trial:
        trial.append(4 * UNIT_ROWS)
        trial.tick(units=2)
        trial.forget_marks()
        trial.delivered("the ledger's marks were lost")


def a_late_writer_changes_nothing(make: Callable[[Path], Subject], folder: Path) -> None:
    """A process that was paused before it shipped wakes up when others have shipped that unit and later ones."""
    late: list[tuple[Destination, Unit]] = []

    def overtaken(_place: Destination, unit: Unit) -> Shipped:
        if not late:
            late.append((trial.place(), unit))
            late[0][0].standing(unit.delivery.stream, unit.delivery.table, unit.partition_by)
        return _place.ship(unit)

    with _trial(make, folder) as trial:
        trial.append(3 * UNIT_ROWS)
        trial.delivered("before the late writer woke up", overtaken)
        place, unit = late[0]
        with suppress(Exception):  # it may be refused in whatever words
            place.ship(unit)
        place.close()
        trial.settled("a late writer shipped the first unit")
        trial.append(UNIT_ROWS)
        trial.delivered("after a late writer, the stream goes on")


def a_unit_out_of_turn_is_refused(make: Callable[[Path], Subject], folder: Path) -> None:
    """The destination went back: a unit above its mark comes, and later one that it has, of an epoch that is over."""
    units: list[Unit] = []

    def noting(place: Destination, unit: Unit) -> Shipped:
        units.append(unit)
        return place.ship(unit)

    with _trial(make, folder) as trial:
        trial.append(3 * UNIT_ROWS)
        trial.tick(noting, units=1)
        trial.subject.copy_to(folder / "aside")
        trial.delivered("before the place went back", noting)
        trial.subject.put_back(folder / "aside")
        if _changes_nothing(trial, units[-1], "a unit that begins above the mark"):
            raise Failed("a unit that begins above the mark was taken: there is a gap before it")
        trial.append(1)
        trial.delivered("a unit that begins above the mark was refused")
        _changes_nothing(trial, units[0], "a unit of an older epoch")
        trial.settled("a unit of an older epoch was shipped")


def _changes_nothing(trial: Trial, unit: Unit, what: str) -> bool:
    """Let a process that has just started ship it, and see that no mark moves; whether it was acknowledged."""
    before, place, acknowledged = trial.marks(), trial.place(), False
    with suppress(Exception):  # it may be refused in whatever words
        place.ship(unit)
        acknowledged = True
    place.close()
    if (after := trial.marks()) != before:
        raise Failed(f"{what} moved the mark: from {before} to {after}")
    return acknowledged


def two_ticks_at_once(make: Callable[[Path], Subject], folder: Path) -> None:
    """Two processes tick the same sink at the same time."""
    errors: list[BaseException] = []

    def tick(lake: Lake) -> None:
        try:
            trial.tick(lake=lake)
        except BaseException as error:
            errors.append(error)

    with _trial(make, folder) as trial, Lake(trial.lake.root) as second:
        trial.append(6 * UNIT_ROWS)
        threads = [threading.Thread(target=tick, args=(lake,)) for lake in (trial.lake, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise Failed(f"two ticks at once: {errors[0]!r}") from errors[0]
        trial.delivered("two ticks ran at once")


_ALL: tuple[Check, ...] = (
    a_unit_twice_is_stored_once,
    killed_anywhere,
    lost_answers,
    refused_rows_become_dead_letters,
    a_place_that_went_back,
    lost_marks,
    a_late_writer_changes_nothing,
    a_unit_out_of_turn_is_refused,
    two_ticks_at_once,
)
