"""Sinks as people look after them: made, looked at, changed, ticked, and helped on when they are stuck.

Each function decides in one write transaction, or says which of its transactions decides. What is read before that is
read again there: meanwhile another process may have changed the sink, removed it, or made another one of its name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from strandline.actors import default_actor
from strandline.errors import BadRequest, Busy, NotFound

if TYPE_CHECKING:
    from strandline.lake.dead_letters import DeadLetters
    from strandline.lake.door import Lake
    from strandline.ledger.ledger import Connection, Txn
    from strandline.model.delivery.sinks import Sink
    from strandline.reports.sinks import SinkStatus
    from strandline.sinks.continuing import Continued
    from strandline.sinks.following import Sections
    from strandline.sinks.repair import PreviewedStream, Rewound
    from strandline.sinks.tick import Ticked

Start: TypeAlias = 'int | Literal["now"]'
"""The seq that a sink begins behind."""


class Adding(TypedDict, total=False):
    """How a sink is made: see `Sinks.add`."""

    start: Start
    check: bool
    take_over: bool
    actor: str


class Ticking(TypedDict, total=False):
    """How sinks are ticked: see `Sinks.tick`."""

    actor: str
    wait_s: float | None
    patient: bool
    stop: threading.Event | None
    take_over: bool


@dataclass(frozen=True)
class AddedSink:
    """A sink that was made, and what a person should know whose other sinks deliver to the same place."""

    sink: Sink
    status: SinkStatus
    shared: str | None


@dataclass(frozen=True)
class ResumedSink:
    """A sink that may send, and why it did not before; None where it was not paused."""

    status: SinkStatus
    was: str | None


@dataclass(frozen=True)
class RemovableSink:
    """A sink that may be removed: what a person is asked about. Its id says later that it is still the same one."""

    sink: str
    sink_id: str


@dataclass(frozen=True)
class RemovedSink:
    """The sink that was forgotten."""

    removed: str
    sink_id: str


@dataclass(frozen=True)
class TickedStream:
    """What a tick did in one stream."""

    sink: str
    table: str
    partition: str
    since: int
    until: int
    rows: int
    withheld: int
    bytes: int
    units: int
    files_opened: int
    dead_letters: int
    outcome: str
    error: str | None
    note: str | None


@dataclass(frozen=True)
class RetriedDeliveries:
    """How many parked deliveries will be tried again, and how many streams begin anew."""

    sink: str
    retried: int
    receiver_accepted: bool
    begun_anew: int


@dataclass(frozen=True)
class RetriedSink:
    """The same, and how many streams ask their receiver at the next tick because another one was accepted."""

    deliveries: RetriedDeliveries
    asking: int


class Sinks:
    """`lake.sinks`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def __call__(self) -> list[Sink]:
        """Every sink: those that were added, and those of `strand.toml` as it is now."""
        from strandline.ledger.sinks.sinks import list_sinks
        from strandline.sinks.following import follow_config

        if not self._lake.read_only:
            follow_config(self._lake.surroundings)
        with self._lake.ledger.read() as conn:
            return list_sinks(conn)

    def named(self, *names: str) -> list[Sink]:
        """The sinks of these names, or all; refused for one whose section of `strand.toml` is not followed."""
        from strandline.ledger.sinks.sinks import find_sink
        from strandline.sinks.following import refused_sections

        every = self()
        if not names:
            return every
        sections = self._sections()
        with self._lake.ledger.read() as conn:
            refused = refused_sections(conn, sections)
            for name in names:
                if name in refused:
                    raise refused[name]
            return [find_sink(conn, name) for name in names]

    @property
    def dead_letters(self) -> DeadLetters:
        """Rows that destinations refused."""
        from strandline.lake.dead_letters import DeadLetters

        return DeadLetters(self._lake)

    def show(self, name: str) -> SinkStatus:
        """A sink with its settings, and how far each of its streams is."""
        from strandline.ledger.sinks.sinks import find_sink
        from strandline.reports.sinks import one_sink

        with self._lake.ledger.read() as conn:
            return one_sink(conn, find_sink(conn, name))

    def add(
        self,
        name: str,
        type: str,
        settings: Mapping[str, object],
        *,
        start: Start = 0,
        check: bool = True,
        take_over: bool = False,
        actor: str = "",
    ) -> AddedSink:
        """Let a destination follow this lake's tables; `check` asks it first whether it can be reached.

        The transaction that writes the sink down decides: it refuses a name that was taken while the destination was
        asked.
        """
        from strandline.sinks import instances
        from strandline.sinks.following import shared_place

        lake = self._lake
        checked = instances.checked_sink(name, type, settings, where=f"sink {name!r}")
        sink = instances.add(lake.surroundings, checked, start=start, check=check, take_over=take_over, actor=actor)
        with lake.ledger.read() as conn:
            shared = shared_place(conn, sink)
        return AddedSink(sink, self._status(sink), shared)

    def rename(self, name: str, new: str) -> SinkStatus:
        """Give a sink another name; its marks stay. One of `strand.toml` has its section renamed first."""
        from strandline.sinks import following
        from strandline.sinks.instances import check_name

        check_name(new)
        sections = self._sections()
        with self._lake.ledger.write() as txn:
            sink = following.rename(txn, sections, name, new)
        self()  # where a section has its new name, it goes on
        return self._status(sink)

    def pause(self, name: str, reason: str = "", *, actor: str = "") -> SinkStatus:
        """Let a sink send nothing until `resume`. It keeps its marks, and retention waits for it."""
        from strandline.sinks import following

        with self._lake.ledger.write() as txn:
            sink = following.pause(txn, name, reason or f"{actor or default_actor()} paused it")
        return self._status(sink)

    def resume(self, name: str) -> ResumedSink:
        """Let a paused sink go on from where it is."""
        from strandline.sinks import following

        sections = self._sections()
        with self._lake.ledger.write() as txn:
            sink = following.resume(txn, sections, name)
        return ResumedSink(self._status(sink), was=sink.paused)

    def removable(self, name: str) -> RemovableSink:
        """The sink that `remove` would forget; refused while `strand.toml` would make it again."""
        sections = self._sections()
        with self._lake.ledger.read() as conn:
            sink = _removable(conn, sections, name, None)
        return RemovableSink(sink.name, sink.sink_id)

    def remove(self, name: str, *, sink_id: str | None = None, force: bool = False, actor: str = "") -> RemovedSink:
        """Forget a sink and its marks; with `force` also its dead letters. What it has delivered stays where it is.

        With a `sink_id` it is refused where the name is another sink's by now: a person agreed to lose that one alone.
        """
        from strandline.sinks.instances import forget_secrets
        from strandline.sinks.repair import remove

        sections = self._sections()
        with self._lake.ledger.write() as txn:
            sink = _removable(txn.conn, sections, name, sink_id)
            remove(txn, sink, force=force, actor=actor)
        forget_secrets(self._lake.root, sink)
        return RemovedSink(name, sink.sink_id)

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def preview(self, name: str) -> list[PreviewedStream]:
        """What the next tick would send: rows, bytes, and the first few of them. Nothing is sent."""
        from strandline.sinks.repair import preview

        return preview(self._lake.context, self._find(name))

    def tick(
        self,
        *names: str,
        actor: str = "",
        wait_s: float | None = None,
        patient: bool = True,
        stop: threading.Event | None = None,
        take_over: bool = False,
    ) -> list[Ticked]:
        """Deliver what is due, now: of these sinks, or of all. One that has to wait keeps no other waiting."""
        from strandline.ledger.sinks.sinks import find_sink
        from strandline.sinks.round import Round

        lake, every = self._lake, self()
        with lake.ledger.read() as conn:
            chosen = [find_sink(conn, name) for name in names] or every
        return Round(
            lake.context,
            lake.surroundings,
            actor or default_actor(),
            wait_s=wait_s,
            patient=patient,
            take_over=take_over,
            stop=stop or threading.Event(),
        ).run(chosen)

    def retry(
        self, name: str, *, accept_receiver: bool = False, take_over: bool = False, actor: str = ""
    ) -> RetriedSink:
        """Let parked deliveries be tried again, with all their attempts, from the next tick on.

        The last of its transactions decides: until then nothing is sent. Before it each stream may have been let ask
        a receiver that was accepted, or begin anew in a place that was taken over; doing it again does no harm.
        """
        from strandline.sinks import continuing

        sink = self._find(name)
        asking = continuing.accept_receiver(self._lake.context, sink, actor=actor) if accept_receiver else 0
        begun = self._begin_anew(sink, actor) if take_over else 0
        retried = self._lake.ledger.run(lambda txn: _unpark(txn, sink))
        return RetriedSink(RetriedDeliveries(name, retried, accept_receiver, begun), asking)

    def _begin_anew(self, sink: Sink, actor: str) -> int:
        from strandline.sinks.destination import let_go
        from strandline.sinks.instances import destination
        from strandline.sinks.repair import begin_anew

        place = destination(self._lake.surroundings, sink, take_over=True)
        try:
            return begin_anew(self._lake.context, sink, place, actor=actor)
        finally:
            let_go(place)

    def continue_(
        self, name: str, stream: str | None = None, *, past_hole: bool = False, yes: bool = False, actor: str = ""
    ) -> list[Continued]:
        """Let a stream go on that is parked because one side was put back from an older copy; all of them for None.

        Each stream decides in a transaction of its own, under its lease, after its destination was asked.
        """
        from strandline.sinks.continuing import continue_streams
        from strandline.sinks.destination import Later, Park, let_go
        from strandline.sinks.instances import destination

        sink = self._find(name)
        place = destination(self._lake.surroundings, sink)
        try:
            return continue_streams(self._lake.context, sink, place, stream, past_hole=past_hole, yes=yes, actor=actor)
        except (Later, Park) as error:
            raise Busy(str(error), hint="Nothing was changed.", reason="destination") from error
        finally:
            let_go(place)

    def rewind(self, name: str, stream: str, to: int, *, yes: bool = False, actor: str = "") -> Rewound:
        """Send rows again: cancel what is open, begin a new epoch behind a seq, close the dead letters there.

        Without `yes` nothing is done, and the error says what would be.
        """
        from strandline.sinks.repair import find_stream, rewind

        sink = self._find(name)
        if not yes:
            followed = find_stream(self._lake.ledger, sink, stream)
            mark = followed.mark.seq if followed.mark else sink.start_seq
            raise BadRequest(
                f"this sends everything of {followed.table}/{followed.stream.partition} in ({to}, {mark}] again",
                hint="Add --yes if that is what you want.",
            )
        return rewind(self._lake.context, sink, stream, to, actor=actor)

    # -- what the others share -----------------------------------------------------------------------------------------

    def _find(self, name: str) -> Sink:
        from strandline.ledger.sinks.sinks import find_sink

        with self._lake.ledger.read() as conn:
            return find_sink(conn, name)

    def _sections(self) -> Sections:
        from strandline.sinks.following import config_file

        return config_file(self._lake.root, self._lake.ledger).read()

    def _status(self, sink: Sink) -> SinkStatus:
        """A sink as it is now; as it was last seen where another process has removed it since."""
        from strandline.ledger.sinks.sinks import sink_by_id
        from strandline.reports.sinks import one_sink

        with self._lake.ledger.read() as conn:
            return one_sink(conn, sink_by_id(conn, sink.sink_id) or sink)

    # -- under names of Python's own, which annotations behind them could not use any more -----------------------------

    def set(self, name: str, changes: Mapping[str, object]) -> SinkStatus:
        """Change settings; an empty value takes one away. A delivery that is open is finished under the old ones.

        The settings are read, merged and written in one transaction: of two processes that set at once, the second
        changes what the first has left, and neither is lost.
        """
        from strandline.ledger.sinks.sinks import find_sink
        from strandline.sinks import instances
        from strandline.sinks.settings import changed

        around = self._lake.surroundings
        with around.ledger.write() as txn:
            sink = find_sink(txn.conn, name)
            settings = changed(sink.type, instances.as_given(around, txn.conn, sink), changes)
            checked = instances.checked_sink(name, sink.type, settings, where=f"sink {name!r}")
            instances.change_in(txn, around, sink, checked)
        return self._status(sink)

    def list(self) -> list[SinkStatus]:
        """Every sink with its streams, as the ledger has them: `strand.toml` is not looked at."""
        from strandline.reports.sinks import sinks

        with self._lake.ledger.read() as conn:
            return sinks(conn)


def ticked_streams(ticked: Iterable[Ticked]) -> list[TickedStream]:
    """What a tick did, as it is printed: a worker's answer has names of its own."""
    return [
        TickedStream(
            sink=stream.sink,
            table=stream.table,
            partition=stream.partition,
            since=stream.since,
            until=stream.until,
            rows=stream.rows,
            withheld=stream.withheld,
            bytes=stream.size_bytes,
            units=stream.units,
            files_opened=stream.files_opened,
            dead_letters=stream.dead_letters,
            outcome=stream.outcome,
            error=stream.error,
            note=stream.note,
        )
        for stream in ticked
    ]


def _removable(conn: Connection, sections: Sections, name: str, sink_id: str | None) -> Sink:
    from strandline.ledger.sinks.sinks import find_sink
    from strandline.sinks.following import refuse_written

    sink = find_sink(conn, name)
    if sink_id not in (None, sink.sink_id):
        raise NotFound(
            f"the sink {name!r} that was meant is gone, and another one has its name",
            hint=f"Look at it first: `strand sink show {name}`.",
            sink=name,
        )
    refuse_written(sections, sink)
    return sink


def _unpark(txn: Txn, sink: Sink) -> int:
    from strandline.ledger.sinks.deliveries import unpark
    from strandline.ledger.sinks.sinks import sink_by_id

    if sink_by_id(txn.conn, sink.sink_id) is None:
        raise NotFound(f"sink {sink.name!r} was removed meanwhile", sink=sink.name)
    return unpark(txn, sink.sink_id)
