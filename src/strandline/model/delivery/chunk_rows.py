"""The rows of a chunk: its own columns apart from the user's, and both checked.

What a sender adds (`_seq`, `_at`, `_actor`, `_extra`; `_commit` and `_removed` of a keyed row's version) says where a
row comes from. The rest is validated as an append is, by the same rules, against the table of this lake: another lake's
word that its rows are fine is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import BadRequest, InvalidRows
from strandline.model.delivery.inbound import Chunk
from strandline.model.schema.schema import Schema, parse_columns
from strandline.model.schema.types import (
    ACTOR,
    AT,
    COMMIT,
    EXTRA,
    GATEWAY,
    ORIGIN_ACTOR,
    ORIGIN_AT,
    ORIGIN_COMMIT,
    ORIGIN_REMOVED,
    ORIGIN_SEQ,
    REMOVED,
    SEQ,
)
from strandline.model.values import rows as rules
from strandline.model.values.arrow import origin_fields, stored_schema
from strandline.model.values.arrow_stream import read_stream
from strandline.model.values.json_pieces import BodyLines, line_pieces
from strandline.model.values.json_text import DoubledKey, parsed
from strandline.model.values.sound import SoundRows
from strandline.model.values.wire import to_json_lines

MERGED_ROWS = 1024

_STAMPS = parse_columns("seq:long,at:timestamp?,actor:string?,commit:string?,removed:boolean?")
_NAMES = {SEQ: "seq", AT: "at", ACTOR: "actor", COMMIT: "commit", REMOVED: "removed"}


@dataclass(frozen=True)
class ChunkRows:
    """Rows as they came: `stamps` has what the sender says of them; `data` the rest, as Arrow or as lines."""

    stamps: pa.RecordBatch
    data: SoundRows | BodyLines
    extras: SoundRows | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.stamps.num_rows)


def from_arrow(body: bytes | bytearray) -> ChunkRows:
    """The rows of a body that is an Arrow stream; an empty body has none."""
    if not body:
        return from_lines(b"")
    rows = read_stream(body)
    names = rows.names
    if SEQ not in names or len(set(names)) < len(names):
        raise BadRequest(f"a chunk's columns are named once each, and one of them is {SEQ}")
    stamps = rows.select([name for name in _NAMES if name in names]).renamed(_NAMES)
    rest = rows.select([name for name in names if name not in (*_NAMES, EXTRA)])
    checked = _stamped(lambda: rules.from_arrow(stamps, _STAMPS))
    extras = rows.select([EXTRA]) if EXTRA in names else None
    return ChunkRows(checked, rest, extras)


def from_lines(body: bytes | bytearray) -> ChunkRows:
    """The rows of a body that is JSON lines: read twice, because objects take many times the room of their text."""
    stamps = [_stamps_of(rows, start) for start, rows in _objects(body)]
    return ChunkRows(pa.concat_batches(stamps or [rules.from_dicts([], _STAMPS)]), BodyLines(body))


def _stamps_of(rows: list[dict[str, Any]], start: int) -> pa.RecordBatch:
    stamps = [{short: row.get(name) for name, short in _NAMES.items()} for row in rows]
    return _stamped(lambda: rules.from_dicts(stamps, _STAMPS, start=start))


def _objects(body: bytes | bytearray) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The rows of a body's lines in pieces, each with the index of its first row."""
    for start, piece in line_pieces(line for line in BodyLines(body) if line.strip()):
        yield start, rules.read_objects(piece, start=start)


def _stamped(take: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
    """What the sender says of its rows. It is no user's data: if it is wrong, the whole chunk is."""
    try:
        return take()
    except InvalidRows as error:
        raise BadRequest(f"a chunk's own columns ({', '.join(_NAMES)}) are wrong: {error.message}") from None


def _users_own(row: dict[str, Any], index: int) -> dict[str, Any]:
    """A row without what its sender says of it."""
    own = {name: value for name, value in row.items() if name not in _NAMES and name != EXTRA}
    return _with_extra(own, row.get(EXTRA), index)


def _with_extra(row: dict[str, Any], extra: Any, index: int) -> dict[str, Any]:
    """A row with its unknown fields where they were when it was first appended: they may be columns here."""
    if extra is None:
        return row
    try:
        fields = parsed(extra.encode()) if isinstance(extra, str) else extra
    except DoubledKey as error:
        raise rules.refused_row(index, EXTRA, extra, str(error)) from None
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise rules.refused_row(index, EXTRA, extra, "is not a JSON object")
    return {**fields, **row}


def check(chunk: Chunk, rows: ChunkRows) -> None:
    """As many rows as were announced, their seqs ascending and inside the range."""
    if rows.count != chunk.rows:
        raise BadRequest(
            f"Strand-Rows says {chunk.rows}, and the body has {rows.count}", expected=chunk.rows, actual=rows.count
        )
    if not rows.count:
        return
    seqs = rows.stamps.column("seq")
    first, last = seqs[0].as_py(), seqs[-1].as_py()
    ascending = rows.count == 1 or pc.all(pc.less(seqs.slice(0, rows.count - 1), seqs.slice(1))).as_py()
    if not ascending or first <= chunk.since or last > chunk.until:
        raise BadRequest(
            f"the rows' seqs don't ascend inside ({chunk.since}, {chunk.until}]",
            hint="Send each row once, in the order of its _seq.",
            first=first,
            last=last,
        )
    if chunk.dead is not None and first != chunk.dead:
        raise BadRequest(f"Strand-Dead says {chunk.dead}, and the row's _seq is {first}")


@dataclass(frozen=True)
class Validated:
    """Rows as the ledger stores them, and as the sender gave them: without the defaults that this table has put in."""

    stored: pa.RecordBatch
    sent: pa.RecordBatch


def validated(
    rows: ChunkRows,
    schema: Schema,
    *,
    extra: bool,
    gateway: str,
    above: int,
    partition_by: Sequence[str] = (),
) -> Validated:
    """The rows above a seq; InvalidRows names bad ones by their index in the chunk."""
    seqs = rows.stamps.column("seq")
    start = int(pc.sum(pc.less_equal(seqs, above)).as_py() or 0)
    as_given: list[pa.RecordBatch] = []
    batch = pa.concat_batches(_users(rows, schema, extra, start, partition_by, as_given))
    stamps = rows.stamps.slice(start)
    origin = {
        GATEWAY: pa.repeat(pa.scalar(gateway, pa.string()), batch.num_rows),
        ORIGIN_SEQ: stamps.column("seq"),
        ORIGIN_AT: stamps.column("at"),
        ORIGIN_ACTOR: stamps.column("actor"),
        ORIGIN_COMMIT: stamps.column("commit"),
        ORIGIN_REMOVED: stamps.column("removed"),
    }
    fields = origin_fields()
    shape = pa.schema([*stored_schema(schema, extra), *fields])
    stamped = [origin[field.name] for field in fields]
    stored, sent = (
        pa.RecordBatch.from_arrays([*users.columns, *stamped], schema=shape)
        for users in (batch, pa.concat_batches(as_given))
    )
    return Validated(stored, sent)


def _users(
    rows: ChunkRows,
    schema: Schema,
    extra: bool,
    start: int,
    partition_by: Sequence[str],
    as_given: list[pa.RecordBatch],
) -> list[pa.RecordBatch]:
    judged = partial(rules.from_dicts, schema=schema, extra=extra, partition_by=partition_by, as_given=as_given)
    data, extras = rows.data, rows.extras
    if isinstance(data, BodyLines):

        def read(piece: tuple[int, list[dict[str, Any]]]) -> pa.RecordBatch:
            first, objects = piece
            skipped = max(0, start - first)
            return judged(
                [_users_own(row, at) for at, row in enumerate(objects[skipped:], first + skipped)],
                start=first + skipped,
            )

        return list(rules.each_judged(_objects(data.body), read)) or [judged([], start=start)]
    if start == rows.count or extras is None or extras.table.column(EXTRA).null_count == rows.count:
        return [
            rules.from_arrow(
                data.slice(start), schema, extra=extra, start=start, partition_by=partition_by, as_given=as_given
            )
        ]

    def merged(at: int) -> pa.RecordBatch:
        """Rows whose unknown fields are put back among the others, which takes objects: a few at a time."""
        part, unknown = data.slice(at, MERGED_ROWS), extras.slice(at, MERGED_ROWS)
        try:
            objects = rules.read_objects(to_json_lines(part.table, schema), start=at)
            texts = rules.read_texts(unknown, EXTRA)
        except (ValueError, OverflowError) as error:
            raise rules.unreadable_rows(part, start=at) or rules.unreadable_rows(unknown, start=at) or error from None
        pairs = enumerate(zip(objects, texts, strict=True), at)
        return judged([_with_extra(row, text, index) for index, (row, text) in pairs], start=at)

    return list(rules.each_judged(range(start, rows.count, MERGED_ROWS), merged))
