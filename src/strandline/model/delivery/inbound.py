"""Chunks of a forward sink, and what a receiver does with one.

A sender may crash, lose its ledger, or send the same chunk twice because the answer to the first was lost. So it is the
receiver that decides: it keeps a mark for every stream of every sink of every lake, and stores a row only if it lies
above. The decision is a pure function of the mark and of what the chunk says about itself; the transaction that stores
the rows moves the mark, so the two can't disagree. `docs/protocol.md` describes the protocol for other languages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from strandline.errors import BadRequest, Conflict, Forbidden, TableMoved, TakesNoVersions
from strandline.model.delivery.sinks import SentChunk, Stream
from strandline.model.schema.schema import Schema
from strandline.model.tables import Table

MAX_SEQ = 2**63 - 1

LAKE, SINK, STREAM, EPOCH = "Strand-Lake", "Strand-Sink", "Strand-Stream", "Strand-Epoch"
SINCE, UNTIL, ROWS, BATCH_ID = "Strand-Since", "Strand-Until", "Strand-Rows", "Strand-Batch-Id"
OPEN, DEAD, KEY = "Strand-Open", "Strand-Dead", "Strand-Key"
DIGEST, GENERATION, RECEIVER = "Strand-Digest", "Strand-Generation", "Strand-Receiver"
HOLE, LACKING = "Strand-Hole", "Strand-Lacking"

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DIGEST = re.compile(r"[A-Za-z0-9:._-]{1,200}")
_NUMBER = re.compile(r"[0-9]{1,19}")
_COLUMNS = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}(,[A-Za-z][A-Za-z0-9_]{0,127})*")


@dataclass(frozen=True)
class Source:
    """Whose rows these are: a stream, followed by a sink, of a lake. All of them by id."""

    lake_id: str
    sink_id: str
    stream: Stream


@dataclass(frozen=True)
class Chunk:
    """What a chunk says about itself: it covers `(since, until]`, of which `rows` rows are in its body.

    `opens` marks one at its sink's starting point; `dead` is the seq of a dead letter that is sent again. With a `key`
    the rows are versions of a keyed table's rows: one that says that its row is gone has these columns alone.

    `digest` is that of its rows and `generation` the sender's, kept here with the mark; `receiver` is the lake that it
    is meant for. Some rows up to `hole` are gone at the sender, and a person there said to go on without them; of rows
    up to `lacking` only those are stored that are not here.
    """

    source: Source
    epoch: int
    since: int
    until: int
    rows: int
    batch_id: str
    opens: bool = False
    dead: int | None = None
    key: tuple[str, ...] = ()
    digest: str | None = None
    generation: str | None = None
    receiver: str | None = None
    hole: int | None = None
    lacking: int | None = None

    def __post_init__(self) -> None:
        if self.since > self.until:
            raise BadRequest(
                f"the range runs backwards: since {self.since}, until {self.until}",
                hint=f"{SINCE} is not above {UNTIL}.",
            )
        if self.rows > self.until - self.since:
            raise BadRequest(f"{self.rows} rows can't have seqs of their own in ({self.since}, {self.until}]")
        if self.dead is not None and (self.rows != 1 or not self.since < self.dead <= self.until):
            raise BadRequest(
                f"a replay of the dead letter {self.dead} is one row in a range that holds it",
                hint=f"It has {ROWS}: 1, and {SINCE} and {UNTIL} around its seq.",
            )

    def headers(self) -> dict[str, str]:
        """The headers that carry it; `parse` is the inverse."""
        headers = {
            LAKE: self.source.lake_id,
            SINK: self.source.sink_id,
            STREAM: self.source.stream.text(),
            EPOCH: str(self.epoch),
            SINCE: str(self.since),
            UNTIL: str(self.until),
            ROWS: str(self.rows),
            BATCH_ID: self.batch_id,
        }
        if self.opens:
            headers[OPEN] = "1"
        if self.dead is not None:
            headers[DEAD] = str(self.dead)
        if self.key:
            headers[KEY] = ",".join(self.key)
        texts = {DIGEST: self.digest, GENERATION: self.generation, RECEIVER: self.receiver}
        numbers = {HOLE: self.hole, LACKING: self.lacking}
        return headers | {name: str(value) for name, value in {**texts, **numbers}.items() if value is not None}


@dataclass(frozen=True)
class InboundMark:
    """How far a source has come here, in which epoch, its gateway, and the table that it goes to."""

    epoch: int
    seq: int
    gateway: str
    table_id: str
    chunk: SentChunk | None = None
    generation: str | None = None


@dataclass(frozen=True)
class ChunkVerdict:
    """What to do with a chunk: store the rows whose seq is above `above`, or, where that is None, only say yes."""

    above: int | None


@dataclass(frozen=True)
class Received:
    """The answer to a chunk: rows stored by it, and how far its source has come now.

    `too_old` more are past the retention of the table here. They are not stored, and the mark moves over them: sent
    again they would be too old again.
    """

    stored: int
    mark: int
    epoch: int
    too_old: int = 0
    chunk: SentChunk | None = None


def batch_id(sink_id: str, stream: str, epoch: int, since: int, until: int, body: bytes | bytearray) -> str:
    """What names a chunk: a digest of where it belongs and of its uncompressed bytes."""
    lines = (sink_id, stream, epoch, since, until, hashlib.sha256(body).hexdigest())
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def parse(headers: Mapping[str, str]) -> Chunk:
    """A chunk out of its headers. The mapping must find a name in any case, as that of an HTTP library does."""
    opens = headers.get(OPEN, "0").lower()
    if opens not in ("0", "1", "true", "false"):
        raise BadRequest(f"{OPEN} is {opens!r}", hint="It is 1, or left out.")
    return Chunk(
        source=source(_text(headers, LAKE), _text(headers, SINK), _text(headers, STREAM)),
        epoch=_number(headers, EPOCH),
        since=_number(headers, SINCE),
        until=_number(headers, UNTIL),
        rows=_number(headers, ROWS),
        batch_id=_text(headers, BATCH_ID).lower(),
        opens=opens in ("1", "true"),
        dead=_number(headers, DEAD) if DEAD in headers else None,
        key=_columns(headers.get(KEY)),
        digest=_word(headers, DIGEST, _DIGEST),
        generation=_word(headers, GENERATION, _ID),
        receiver=_word(headers, RECEIVER, _ID),
        hole=_number(headers, HOLE) if HOLE in headers else None,
        lacking=_number(headers, LACKING) if LACKING in headers else None,
    )


def source(lake_id: str, sink_id: str, stream: str) -> Source:
    """A source out of its texts."""
    for name, text in ((LAKE, lake_id), (SINK, sink_id)):
        if not _ID.fullmatch(text):
            raise BadRequest(f"{name} is {text[:80]!r}", hint="It is an id: letters, digits, `.`, `_` and `-`.")
    parsed = Stream.parse(stream)
    if parsed.text() != stream:
        raise BadRequest(
            f"{stream[:200]!r} does not name a stream in its one way", hint=f"It is written {parsed.text()[:200]!r}."
        )
    return Source(lake_id, sink_id, parsed)


def _text(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise BadRequest(f"the header {name} is missing", hint="docs/protocol.md lists the headers of a chunk.")
    return value


def _number(headers: Mapping[str, str], name: str) -> int:
    value = _text(headers, name)
    if not _NUMBER.fullmatch(value) or int(value) > MAX_SEQ:
        raise BadRequest(f"{name} is {value[:80]!r}", hint="It is a whole number from 0 to 2^63-1.")
    return int(value)


def _word(headers: Mapping[str, str], name: str, pattern: re.Pattern[str]) -> str | None:
    value = headers.get(name)
    if value is not None and not pattern.fullmatch(value):
        raise BadRequest(f"{name} is {value[:80]!r}", hint="docs/protocol.md says what it may be; or leave it out.")
    return value


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    if not _COLUMNS.fullmatch(text):
        raise BadRequest(f"{KEY} is {text[:80]!r}", hint="It is names of columns with commas between, or left out.")
    return tuple(text.split(","))


def check_keeps_versions(chunk: Chunk, table: Table, schema: Schema) -> None:
    """Conflict when a table can't hold a feed of versions as it is: told at the first chunk, not at the first delete.

    One that says that a row is gone has its key alone. And every version but the first would be a duplicate.
    """
    if not chunk.key:
        return
    required = [column.name for column in schema.columns if not column.nullable and column.name not in chunk.key]
    if required:
        raise TakesNoVersions(
            f"table {table.name!r} requires {', '.join(required)}, and a version that says that a row was deleted has "
            f"{', '.join(chunk.key)} alone",
            hint="Make these columns nullable with `strand schema apply`.",
            expected=[],
            actual=required,
        )
    if table.row_key:
        raise TakesNoVersions(
            f"table {table.name!r} keeps one row for each {', '.join(table.row_key)}, and would drop later versions",
            hint="Receive them in a table without a row key.",
            expected=[],
            actual=list(table.row_key),
        )


def check_body(chunk: Chunk, body: bytes | bytearray) -> None:
    """The uncompressed bytes are those that the sender named."""
    source = chunk.source
    expected = batch_id(source.sink_id, source.stream.text(), chunk.epoch, chunk.since, chunk.until, body)
    if chunk.batch_id != expected:
        raise BadRequest(
            "the body does not match its batch id",
            hint=f"{BATCH_ID} is a digest of sink, stream, epoch, range and the uncompressed body; see "
            "docs/protocol.md.",
            expected=expected,
            actual=chunk.batch_id,
        )


def decide(chunk: Chunk, mark: InboundMark | None, gateway: str, table_id: str) -> ChunkVerdict:
    """What to do with a chunk that came through `gateway` for the local table; raises what the sender is told."""
    if chunk.source.stream.table_id == table_id:
        raise BadRequest("a table can't be forwarded to itself", hint="Name another table in the URL.")
    if mark is None:
        if chunk.opens and chunk.dead is None:
            return ChunkVerdict(above=chunk.since)
        raise _gap(chunk, None)
    check_owner(mark, gateway)
    check_table(mark, table_id)
    if chunk.dead is not None:
        return ChunkVerdict(above=chunk.dead - 1)
    if chunk.epoch < mark.epoch:
        raise Conflict(
            f"epoch {chunk.epoch} is over: this stream is in epoch {mark.epoch}",
            kind="epoch_old",
            hint="Another sender has begun a newer epoch. Ask for the mark, and go on from there.",
            expected=mark.epoch,
            actual=chunk.epoch,
            mark=mark.seq,
            epoch=mark.epoch,
        )
    # Also in a new epoch: a mark means that everything up to it is here, whatever its epoch.
    if chunk.since > mark.seq and (chunk.hole is None or chunk.hole < chunk.since):
        raise _gap(chunk, mark)
    if chunk.epoch > mark.epoch:
        return ChunkVerdict(above=chunk.since)
    if chunk.until <= mark.seq:
        return ChunkVerdict(above=None)
    return ChunkVerdict(above=mark.seq)


def check_receiver(chunk: Chunk, lake_id: str) -> None:
    """A chunk that is meant for another lake is not for this one, whichever lake answers at its address."""
    if chunk.receiver is not None and chunk.receiver != lake_id:
        raise Conflict(
            f"this is the lake {lake_id}, and the chunk is for {chunk.receiver}",
            kind="receiver",
            hint="Another server answers at this address, or the receiver was made anew.",
            expected=lake_id,
            actual=chunk.receiver,
            lake=lake_id,
        )


def check_table(mark: InboundMark, table_id: str) -> None:
    """A stream goes to one table for good: one that was dropped and made anew is another."""
    if mark.table_id != table_id:
        raise TableMoved(
            "this stream goes to another table here",
            hint="Send it to the table that it went to before, or make a new sink.",
            expected=mark.table_id,
            actual=table_id,
        )


def check_owner(mark: InboundMark, gateway: str) -> None:
    """A stream belongs to the gateway that began it."""
    if mark.gateway != gateway:
        raise Forbidden(
            f"this stream is sent by another gateway than {gateway!r}",
            hint="Use the token of the gateway that began it.",
        )


def another_row(seq: int, mark: InboundMark) -> Conflict:
    """The error for a row below the mark that is here as another one."""
    return Conflict(
        f"this stream is at {mark.seq}, and has another row under the seq {seq} than this chunk",
        kind="differs",
        hint="The sender's ledger was put back from an older copy. Upgrade the sender, then `strand sink retry` there: "
        "it sends what is lacking here.",
        expected=mark.seq,
        actual=seq,
    )


def _gap(chunk: Chunk, mark: InboundMark | None) -> Conflict:
    seq = None if mark is None else mark.seq
    progress = "nothing of this stream is here yet" if mark is None else f"this stream is at {mark.seq}"
    hint = f"Begin at the sink's starting point, with {OPEN}." if mark is None else f"Go on from there: {SINCE}: {seq}."
    return Conflict(
        f"the chunk ({chunk.since}, {chunk.until}] leaves a gap: {progress}",
        kind="gap",
        hint=hint,
        expected=seq,
        actual=chunk.since,
        mark=seq,
        epoch=None if mark is None else mark.epoch,
    )
