"""Whether the sinks are where they say, can go on, and reach their destinations.

A destination is only asked, and nothing is written there: another process may be the one that delivers. An Iceberg
copy can be asked by Spark alone, so that is left to a deep look.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.errors import StrandError
from strandline.ledger.checks import marks_ahead
from strandline.ledger.history.branches import living_branch
from strandline.ledger.place.restores import last_restore, not_asked
from strandline.ledger.sinks import dead_letters, deliveries
from strandline.ledger.sinks.sinks import list_sinks
from strandline.model.delivery.sinks import FollowedStream, Sink
from strandline.model.times import text_of
from strandline.model.wording import counted
from strandline.reports.findings import Examination, Finding
from strandline.sinks.destination import let_go
from strandline.sinks.following import GONE, refused_sections
from strandline.sinks.instances import destination
from strandline.sinks.registry import known_type
from strandline.sinks.seam import words_of


def watermarks(look: Examination) -> Iterator[Finding]:
    """No watermark is above its stream's last row."""
    with look.lake.ledger.read() as conn:
        ahead = marks_ahead(conn)
    for mark in ahead:
        yield Finding(
            kind="watermark_ahead",
            about=f"{mark.sink}:{mark.stream.text()}",
            what=f"sink {mark.sink}: its watermark of {mark.table}/{mark.stream.partition} is {mark.seq:,}, and the "
            f"stream's last row is {mark.head_seq:,}",
            meaning="Rows up to that seq would never be delivered, because they count as delivered.",
            fix="`strand doctor --fix`   (forgets the mark; the next tick asks the destination where it is)",
            since=None if mark.delivered_at_us is None else text_of(mark.delivered_at_us),
        )


def branches(look: Examination) -> Iterator[Finding]:
    """Every sink's branch is there."""
    with look.lake.ledger.read() as conn:
        gone = [sink.name for sink in list_sinks(conn) if living_branch(conn, sink.branch_id) is None]
    for name in gone:
        yield Finding(
            kind="branch_deleted",
            about=name,
            what=f"sink {name}: the branch that it follows was deleted",
            meaning="It delivers nothing any more. A branch that was made later under the same name is another one.",
            fix=f"`strand sink remove {name}`   (and add it again to follow another branch)",
            severity="warning",
        )


def paused(look: Examination) -> Iterator[Finding]:
    """Sinks that send nothing until a person lets them, and sections of the config that make no sink."""
    with look.lake.ledger.read() as conn:
        resting = [sink for sink in list_sinks(conn) if sink.paused is not None]
        refused = refused_sections(conn, look.lake.config.sinks)
    for sink in resting:
        again = f"write [sinks.{sink.name}] again, or: `strand sink rename {sink.name} NEW`"
        yield Finding(
            kind="sink_paused",
            about=sink.name,
            what=f"sink {sink.name} is paused: {sink.paused}",
            meaning="It delivers nothing. Its rows wait, and retention waits for it.",
            fix=again if sink.paused == GONE else f"`strand sink resume {sink.name}`",
            severity="warning",
        )
    for name, error in refused.items():
        yield Finding(
            kind="section_refused",
            about=name,
            what=error.message,
            meaning="No sink is made of this section, and none is changed by it; other sinks go on.",
            fix=error.hint,
            severity="warning",
        )


def unasked(look: Examination) -> Iterator[Finding]:
    """Sinks that a restore brought back and whose destination has not been asked yet."""
    with look.lake.ledger.read() as conn:
        streams = not_asked(conn)
        restored = last_restore(conn)
    for sink in sorted({sink for sink, _, _ in streams}):
        count = sum(1 for name, _, _ in streams if name == sink)
        yield Finding(
            kind="not_asked",
            about=sink,
            what=f"sink {sink}: the destination of {counted(count, 'stream')} has not been asked since the lake "
            "was restored",
            meaning="Nothing is sent there until it has said what it has; nothing is lost.",
            fix=f"see whether it is up, then: `strand sink tick {sink}`",
            severity="warning",
            since=None if restored is None else text_of(restored.at_us),
        )


def waiting(look: Examination) -> Iterator[Finding]:
    """Deliveries that are parked, and rows that were refused."""
    with look.lake.ledger.read() as conn:
        letters = dead_letters.count_open(conn)
        streams = [(sink, followed) for sink in list_sinks(conn) for followed in deliveries.read_streams(conn, sink)]
    for sink, followed in streams:
        if followed.delivery is not None and followed.delivery.parked is not None:
            yield _parked(sink, followed, followed.delivery.parked)
        dead = letters.get((sink.sink_id, followed.stream), 0)
        if dead:
            yield Finding(
                kind="dead_letters",
                about=f"{sink.name}:{followed.stream.text()}",
                what=f"sink {sink.name}: refused by its destination: {counted(dead, 'row')} of {followed.table}/"
                f"{followed.stream.partition}",
                meaning="The destination does not have them, and everything after them goes on.",
                fix=f"`strand sink dead {sink.name}`   (shows them; then --replay or --discard)",
                severity="warning",
            )


def _parked(sink: Sink, followed: FollowedStream, reason: str) -> Finding:
    at_us = followed.last_error_at_us
    return Finding(
        kind="parked",
        about=f"{sink.name}:{followed.stream.text()}",
        what=f"sink {sink.name}: the delivery of {followed.table}/{followed.stream.partition} is parked: {reason}",
        meaning="Nothing of this stream is delivered until somebody has looked; other streams go on.",
        fix=f"see to the reason, then: `strand sink retry {sink.name}`",
        since=None if at_us is None else text_of(at_us),
    )


def destinations(look: Examination) -> Iterator[Finding]:
    """Every destination answers, accepts us, and belongs to this lake's sink."""
    with look.lake.ledger.read() as conn:
        sinks = list_sinks(conn)
    for sink in sinks:
        kind = known_type(sink.type)
        if kind is not None and kind.looks_with_spark and not look.deep:
            continue
        try:
            place = destination(look.lake.surroundings, sink)
            try:
                place.look()
            finally:
                let_go(place)
        except Exception as error:  # a destination of another package may raise anything
            hint = error.hint if isinstance(error, StrandError) else ""
            yield Finding(
                kind="destination",
                about=sink.name,
                what=f"sink {sink.name}: its destination can't be used: {words_of(error)}",
                meaning="Its rows wait here, and are delivered when it can. Nothing is lost, and other sinks go on.",
                fix=hint or f"see whether it is up and its address right: `strand sink show {sink.name}`",
                severity="warning",
            )
