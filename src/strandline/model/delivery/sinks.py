"""Sinks: what follows a table, how far it has come, and what it is sending now.

A stream is what a sink follows: one partition of one table on one branch. Per (sink, stream) there is a watermark, and
at most one delivery: the exact range that is being sent, written down before anything is sent, so that a crash anywhere
repeats the same unit and nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from strandline.errors import BadRequest
from strandline.json_types import JsonObject

Setting: TypeAlias = Any
"""A sink's setting in plain units. What type it has is said by the setting's `Key`, which the sink's type brings."""
SinkSettings: TypeAlias = Mapping[str, Setting]
"""A sink's settings by name: those given, or with the defaults of the rest."""


@dataclass(frozen=True, order=True)
class Stream:
    """One partition of one table on one branch, by ids: a table made anew under the same name is another stream."""

    branch_id: str
    table_id: str
    partition: str

    def text(self) -> str:
        """The form that travels in headers and names leases."""
        return f"{self.branch_id}:{self.table_id}:{quote(self.partition, safe='')}"

    @property
    def short_id(self) -> str:
        """A name that does not tell the partition's values: for metrics, which any person may read."""
        return hashlib.blake2b(self.text().encode(), digest_size=6).hexdigest()

    @classmethod
    def parse(cls, text: str) -> Stream:
        """The inverse of `text`."""
        parts = text.split(":")
        if len(parts) != 3 or not all(parts):
            raise BadRequest(f"{text!r} does not name a stream", hint="It is BRANCH_ID:TABLE_ID:PARTITION.")
        return cls(parts[0], parts[1], unquote(parts[2]))


@dataclass(frozen=True)
class Sink:
    """A sink instance. `tables` are the ids it follows, None for all; `start_seq` is where it began."""

    sink_id: str
    name: str
    type: str
    branch_id: str
    tables: tuple[str, ...] | None
    settings: SinkSettings
    start_seq: int
    created_at_us: int
    hold_until_us: int | None
    ticked_at_us: int | None
    receiver: str | None = None
    """The lake id that its destination had at the first contact, where that is a lake."""
    from_config: bool | None = None
    """Whether a section of `strand.toml` made it; None in a lake of an older format whose file was not read yet."""
    paused: str | None = None
    """Why it sends nothing for now."""


@dataclass(frozen=True)
class Mark:
    """How far a stream has come: everything up to `seq` was delivered, in this epoch."""

    epoch: int
    seq: int


@dataclass(frozen=True)
class SentChunk:
    """The last chunk (or unit) of a stream that had rows: its range, and what tells its rows from any others.

    Both sides keep it. A ledger that was put back by hand gives old seqs to new rows; then the two differ.
    """

    since: int
    until: int
    digest: str


@dataclass(frozen=True)
class Replayed:
    """The replayed dead letters that a destination has stored of a stream: how many, and a hash of their seqs."""

    count: int
    hash: str

    @classmethod
    def of(cls, seqs: Iterable[int]) -> Replayed:
        """Of these seqs."""
        ordered = sorted(set(seqs))
        return cls(len(ordered), hashlib.sha256("".join(f"{seq}\n" for seq in ordered).encode()).hexdigest())

    def text(self) -> str:
        """As it is kept."""
        return f"{self.count}:{self.hash}"


@dataclass(frozen=True)
class Standing:
    """Where a stream is by its destination's own account.

    Without a `mark` it has nothing of the stream. A mark that is `exact` moves with every unit, so one that is behind
    ours has lost rows; one that is read off a listing of objects may just seem to be behind, because units without rows
    left nothing there. A destination that `is_lake` says its lake id in `lake`, unless it is of an older version. One
    that `reads_back` can tell which rows it has; where it can't, sending a range again may repeat some.
    """

    mark: Mark | None
    chunk: SentChunk | None = None
    replayed: Replayed | None = None
    lake: str | None = None
    is_lake: bool = False
    exact: bool = True
    reads_back: bool = False
    sender: str | None = None
    """The generation of the sender that the mark comes from, where that is kept."""
    missing: str | None = None
    """What it says when it has no table of that name."""


@dataclass(frozen=True)
class Tally:
    """What was delivered so far: rows sent, rows that a predicate withheld, dead letters, bytes, units."""

    rows: int = 0
    withheld: int = 0
    dead: int = 0
    size_bytes: int = 0
    units: int = 0


@dataclass(frozen=True)
class Noted:
    """A stream's watermark as the ledger has it, also one that does not count yet, with all that is kept beside it."""

    mark: Mark
    acked_epoch: int = 0
    rewound_epoch: int = 0
    chunk: SentChunk | None = None
    lacking_upto: int = 0
    hole_upto: int = 0
    replayed: str | None = None


@dataclass(frozen=True)
class Delivery:
    """What is being sent now. `settings` are those it was opened under; `version` is the log version it reads."""

    delivery_id: str
    sink_id: str
    stream: Stream
    table: str
    epoch: int
    since: int
    until: int
    version: int
    snapshot: int
    schema_version: int
    settings: SinkSettings
    opened_at_us: int
    attempts: int
    not_before_us: int
    last_error: str | None
    parked: str | None


@dataclass(frozen=True)
class FollowedStream:
    """A (sink, stream) as one database snapshot shows it. `mark` is None until the destination was asked."""

    stream: Stream
    table: str
    mark: Mark | None
    head_seq: int
    tally: Tally
    last_error: str | None
    last_error_at_us: int | None
    delivered_at_us: int | None
    delivery: Delivery | None


@dataclass(frozen=True)
class DeadLetter:
    """A row that the destination refused, with the answer it gave."""

    letter_id: str
    sink_id: str
    stream: Stream
    table: str
    epoch: int
    seq: int
    state: str
    answer: JsonObject
    at_us: int
    payload: bytes


@dataclass(frozen=True)
class Shipped:
    """What a destination took of one unit."""

    rows: int
    withheld: int = 0
    size_bytes: int = 0
    files_opened: int = 0
    dead: int = 0
    key: str | None = None
    chunk: SentChunk | None = None
    """The last chunk with rows, as the destination keeps it with its mark; None when none had rows."""
