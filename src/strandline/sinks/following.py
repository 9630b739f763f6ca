"""The sinks of `strand.toml`, as the file is now.

A section makes a sink and governs it from then on; one that `strand sink add` made is never touched. Edits of the file
while workers run must not make rows be sent twice, in whatever order it is saved and commands are run:

- a section that goes pauses its sink, which keeps its marks; when it comes back, the sink goes on;
- a section that is new is refused while a sink whose section is gone has its type and its destination: it is probably
  the same one under another name, and `strand sink rename` says so. A new sink would send everything again;
- a file that can't be read, or that is just being written, changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from strandline import config as configuration
from strandline import logs
from strandline.errors import BadRequest, CallerError, Environment, StrandError
from strandline.ledger.ledger import Connection, Ledger, Txn
from strandline.ledger.sinks import sinks
from strandline.model.delivery.sinks import Sink
from strandline.sinks.instances import CheckedSink, Surroundings, add, change, checked_sink, is_as_written
from strandline.sinks.registry import in_words, sink_type
from strandline.sinks.settings import destination_of

log = logs.Logger("strandline.sinks")

GONE = "its section is gone from strand.toml"
"""Why a sink is paused that the file paused; a person's pause says something else, and the file does not end it."""

SETTLE_S = 1.0
"""How long a file must not have changed before it counts: an editor may empty it first, and write it in pieces."""

LOOKS = 10

Sections: TypeAlias = Mapping[str, Mapping[str, object]]


class ConfigFile:
    """The sections of a file that people edit while processes read it; threads may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._sections: Sections | None = None
        self._version: object = None
        self._refused: object = None
        self._pending: tuple[object, float] = (None, 0.0)

    def read(self) -> Sections:
        """What the file says; an error where it can't be read and was not read before."""
        sections = self.sections()
        return configuration.load(self._root).sinks if sections is None else sections

    def sections(self) -> Sections | None:
        """What the file says, or what it said last while it can't be read; None where nothing is known yet."""
        with self._lock:
            for _ in range(LOOKS):
                version = self._look()
                if version is None or version in (self._version, self._refused):
                    break
                if self._is_settled(version):
                    self._take(version)
                    break
                if self._sections is not None:  # it counts from one of the next looks on
                    break
                time.sleep(SETTLE_S / 2)
            return self._sections

    def _look(self) -> tuple[int, int, int] | None:
        try:
            file = (self._root / configuration.FILE_NAME).stat()
        except OSError:
            return None
        return file.st_ino, file.st_size, file.st_mtime_ns

    def _is_settled(self, version: tuple[int, int, int]) -> bool:
        """By the file's time, or where a clock is wrong by what we have seen ourselves."""
        if time.time() - version[2] / 1e9 >= SETTLE_S:
            return True
        if self._pending[0] != version:
            self._pending = (version, time.monotonic())
        return time.monotonic() - self._pending[1] >= SETTLE_S

    def _take(self, version: object) -> None:
        try:
            sections = configuration.load(self._root).sinks
        except StrandError as error:
            log.warning("strand.toml can't be read: its sinks go on as before", error=error.message, hint=error.hint)
            self._refused = version
            return
        if self._look() == version:
            self._sections, self._version = sections, version


@lru_cache(maxsize=8)
def config_file(root: Path, _ledger: Ledger) -> ConfigFile:
    """The config of an open lake, which its threads share; a lake that is opened anew looks anew."""
    return ConfigFile(root)


_logged: dict[tuple[Path, str], str] = {}
"""What was logged of sections, so that a worker logs it once."""


def follow_config(around: Surroundings) -> None:
    """Make the sinks that are written and not there yet, change those that are written differently, pause and resume.

    A section that is wrong is reported, and keeps no other sink from working.
    """
    sections = config_file(around.root, around.ledger).sections()
    if sections is None:
        return
    checked, wrong = _read(sections)
    refused = dict(wrong)
    _pause_and_resume(around, sections, checked.values())
    for name, section in checked.items():
        try:
            _follow(around, section, sections)
        except (CallerError, Environment) as error:
            refused[name] = error
    for name in sections:
        now = refused[name].message if name in refused else ""
        if now and _logged.get((around.root, name)) != now:
            log.warning("a section of strand.toml is not followed", sink=name, error=now, hint=refused[name].hint)
        _logged[around.root, name] = now


def refused_sections(conn: Connection, sections: Sections) -> dict[str, StrandError]:
    """The sections that would not be followed, by what the ledger says alone; nothing is changed."""
    checked, refused = _read(sections)
    for name, section in checked.items():
        try:
            _governed(conn, section, sections)
        except CallerError as error:
            refused[name] = error
    return refused


def _read(sections: Sections) -> tuple[dict[str, CheckedSink], dict[str, StrandError]]:
    checked: dict[str, CheckedSink] = {}
    refused: dict[str, StrandError] = {}
    for name, section in sections.items():
        where = f"[sinks.{name}]"
        try:
            if "type" not in section:
                raise BadRequest(f"{where} has no type", hint=f"Add type = {in_words(quotes=True)}.")
            settings = {key: value for key, value in section.items() if key != "type"}
            checked[name] = checked_sink(name, str(section["type"]), settings, where=where)
        except (CallerError, Environment) as error:
            refused[name] = error
    return checked, refused


@dataclass(frozen=True)
class Governing:
    """What the file says of a sink: whether a section made it, and why it is paused."""

    from_config: bool | None
    paused: str | None


def governing(sink: Sink, sections: Sections, checked: Iterable[CheckedSink], names: Iterable[str]) -> Governing:
    """What becomes of a sink under these sections; `names` are those of all sinks.

    A lake of an older format does not know which sinks are from the file: those that have a section. One without is
    its own, unless a new section goes where it goes: then a person has to say which it is.
    """
    from_config, paused = sink.from_config, sink.paused
    if from_config is None:
        taken = set(names)
        rivals = [section for section in checked if section.name not in taken and goes_where(section, sink)]
        from_config = True if sink.name in sections else (None if rivals else False)
    if from_config and sink.name not in sections:
        paused = paused or GONE
    elif from_config and paused == GONE:
        paused = None
    return Governing(from_config, paused)


def goes_where(section: CheckedSink | Sink, sink: Sink) -> bool:
    """Whether a section asks for what a sink is, or a sink is as another: the same type, and the same destination."""
    return section.type == sink.type and destination_of(section.type, section.settings) == destination_of(
        sink.type, sink.settings
    )


def shared_place(conn: Connection, sink: Sink) -> str | None:
    """The warning about a new sink that delivers where others do: it may be meant so, and mostly it is not."""
    others = [other for other in sinks.list_sinks(conn) if other.sink_id != sink.sink_id and goes_where(other, sink)]
    if not others:
        return None
    names = ", ".join(repr(other.name) for other in others)
    subject = f"sink {names} of this lake delivers" if len(others) == 1 else f"sinks {names} of this lake deliver"
    return f"{subject} there too: {sink_type(sink.type).when_shared}"


def _pause_and_resume(around: Surroundings, sections: Sections, checked: Iterable[CheckedSink]) -> None:
    def changed(conn: Connection) -> list[tuple[Sink, Governing]]:
        every = sinks.list_sinks(conn)
        names = [sink.name for sink in every]
        judged = [(sink, governing(sink, sections, checked, names)) for sink in every]
        return [(sink, now) for sink, now in judged if now != Governing(sink.from_config, sink.paused)]

    with around.ledger.read() as conn:
        if not changed(conn):
            return
    with around.ledger.write() as txn:
        done = changed(txn.conn)
        for sink, now in done:
            sinks.govern_sink(txn, sink.sink_id, from_config=now.from_config, paused=now.paused)
    for sink, now in done:
        if now.paused != sink.paused:
            what = "a sink goes on" if now.paused is None else "a sink is paused"
            log.warning(what, sink=sink.name, why=now.paused or f"[sinks.{sink.name}] is back")


def _follow(around: Surroundings, section: CheckedSink, sections: Sections) -> None:
    with around.ledger.read() as conn:
        sink = _governed(conn, section, sections)
        same = sink is not None and is_as_written(around, conn, sink, section)
    if sink is None:
        add(around, section, start=0, check=False, allowed=lambda txn: _governed(txn.conn, section, sections))
    elif not same:
        change(around, sink, section)


def _governed(conn: Connection, section: CheckedSink, sections: Sections) -> Sink | None:
    """The sink that a section governs; None where it is to be made; an error where it can't be followed."""
    every = sinks.list_sinks(conn)
    where = f"[sinks.{section.name}]"
    governed = next((sink for sink in every if sink.name == section.name), None)
    if governed is not None and governed.from_config is False:
        raise BadRequest(
            f"{where} is not followed: `strand sink add` made the sink {section.name!r}",
            hint=f"Change that one with `strand sink set {section.name}`, or give the section another name.",
        )
    if governed is not None and governed.type != section.type:
        raise BadRequest(
            f"{where}: the sink {section.name!r} is of type {governed.type}", hint="Remove it first, or rename this."
        )
    for sink in every if governed is None else ():
        if sink.from_config is not False and sink.name not in sections and goes_where(section, sink):
            raise BadRequest(
                f"{where} is not followed: it goes where the sink {sink.name!r} goes, which has no section any more",
                hint=f"If it is that one under a new name: `strand sink rename {sink.name} {section.name}`. "
                f"If it is to send everything again: `strand sink remove {sink.name}`.",
            )
    return governed


# -- what people say ---------------------------------------------------------------------------------------------------


def rename(txn: Txn, sections: Sections, name: str, new: str) -> Sink:
    """Give a sink another name; its marks stay. One that a section governs has its section renamed first."""
    sink = sinks.find_sink(txn.conn, name)
    governed = sink.from_config is not False
    if governed and name in sections:
        raise BadRequest(
            f"sink {name!r} is written in strand.toml",
            hint=f"Write [sinks.{new}] there in place of [sinks.{name}], and run this again: its marks stay.",
        )
    if not governed and new in sections:
        raise BadRequest(
            f"strand.toml has a section [sinks.{new}], and `strand sink add` made the sink {name!r}",
            hint="Take the section out, or choose another name: a section does not govern a sink that it did not make.",
        )
    sinks.rename_sink(txn, sink.sink_id, new)
    if governed and new in sections:  # now: the section may be gone again when the file is looked at next
        sinks.govern_sink(txn, sink.sink_id, from_config=True, paused=sink.paused)
    return sink


def refuse_written(sections: Sections, sink: Sink) -> None:
    """BadRequest where the file would make a sink again that is to be removed."""
    if sink.from_config is not False and sink.name in sections:
        raise BadRequest(f"sink {sink.name!r} is written in strand.toml", hint=f"Take [sinks.{sink.name}] out first.")


def resume(txn: Txn, sections: Sections, name: str) -> Sink:
    """Let a paused sink go on; returns it as it was, with the reason of its pause if it was paused."""
    sink = sinks.find_sink(txn.conn, name)
    if sink.from_config and name not in sections:
        raise BadRequest(
            f"sink {name!r} can't go on: {GONE}",
            hint=f"Write [sinks.{name}] again; or if it has another name there: `strand sink rename {name} NEW`.",
        )
    sinks.govern_sink(txn, sink.sink_id, from_config=sink.from_config, paused=None)
    return sink


def pause(txn: Txn, name: str, reason: str) -> Sink:
    """Let a sink send nothing until a person resumes it; what it has to deliver is kept."""
    sink = sinks.find_sink(txn.conn, name)
    sinks.govern_sink(txn, sink.sink_id, from_config=sink.from_config, paused=reason)
    return sink
