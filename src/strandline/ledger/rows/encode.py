"""Rows of any accepted kind as validated batches, ready to be stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from strandline.errors import BadRequest, InvalidRows, TooLarge
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows.appends import Append, IdempotencyKey, NewBatch
from strandline.ledger.rows.intake import Intake
from strandline.ledger.rows.rereading import KeptBatches
from strandline.model.ids import new_id
from strandline.model.limits import piece_rows
from strandline.model.schema.partitions import partitions
from strandline.model.schema.types import EXTRA, Primitive
from strandline.model.tables import BranchTable, Table
from strandline.model.values import rows as rules
from strandline.model.values.json_pieces import ArrayPieces, line_pieces
from strandline.model.values.row_digest import digest_of
from strandline.model.values.sound import SoundRows, sound
from strandline.model.values.user_rows import UserRow, Value
from strandline.model.values.wire import encode, to_json_lines

Rows: TypeAlias = (
    Iterable[UserRow] | pa.Table | pa.RecordBatch | pa.RecordBatchReader | KeptBatches | SoundRows | ArrayPieces
)

BATCH_ROWS = 100_000
BATCH_BYTES = 64 << 20
JOINED_BYTES = 8 << 20
APPEND_BYTES = 256 << 20
CHECKSUM_BYTES = 16
KEY_KEPT_S = 7 * 24 * 3600
"""For so long an idempotency key of an append is kept, by the clock that deletions go by."""


def checksum(payload: bytes) -> bytes:
    """What is stored beside a payload, to notice when it changes."""
    return hashlib.sha256(payload).digest()[:CHECKSUM_BYTES]


def older_digests(sent: Sequence[pa.RecordBatch], branch_table: BranchTable) -> frozenset[str]:
    """What may have been stored as the digest of these rows under a schema of that time; by format 1, of their JSON.

    Rows that have no value in a column which came later are those of a schema without it. A number in a column that was
    narrower then was cut to it.
    """
    batches = [batch for batch in sent if batch.num_rows]
    valued = {name for batch in batches for name in batch.schema.names if batch.column(name).null_count < len(batch)}
    digests: set[str] = set()
    for schema in branch_table.schemas.values():
        names = [*schema.names, *([EXTRA] if branch_table.table.extra else [])]
        if all(valued <= set(names) <= set(batch.schema.names) for batch in batches):
            digest = hashlib.blake2b(digest_size=16)
            for batch in batches:
                for line in to_json_lines(batch.select(names)):
                    digest.update(line)
            digests.add(digest.hexdigest())
        narrow = [name for name, column in schema.stored.items() if column.type == Primitive("float")]
        if names_now := {
            branch_table.schema.stored[name].name for name in narrow if name in branch_table.schema.stored
        }:
            digests.add(digest_of([_narrowed(batch, names_now) for batch in batches], fields_of=EXTRA))
    return frozenset(digests)


def _narrowed(batch: pa.RecordBatch, names: set[str]) -> pa.RecordBatch:
    """The rows as these columns had them when they were floats of 32 bits."""
    for place, name in enumerate(batch.schema.names):
        if name in names:
            batch = batch.set_column(place, name, batch.column(name).cast(pa.float32(), safe=False))
    return batch


@dataclass(frozen=True)
class Encoded:
    """The rows of one call: those that are stored as batches, and what the intake says of all of them."""

    branch_table: BranchTable
    batches: list[NewBatch]
    intake: Intake

    def append(self, actor: str, key: str | None = None) -> Append:
        """The append of these rows; with a key, the same rows again get the first answer.

        The same rows are those with the same values, whatever they came as and whatever columns the table has.
        """
        idempotency = None
        if key is not None:
            sent = self.intake.given
            assert sent is not None, "rows under a key were not kept to be digested"
            idempotency = IdempotencyKey(
                scope=f"append:{actor}:{self.branch_table.table.table_id}",
                key=key,
                digest=digest_of(sent, fields_of=EXTRA),
                kept_s=KEY_KEPT_S,
                older=lambda: older_digests(sent, self.branch_table),
            )
        return Append.of(
            self.branch_table, actor, self.batches, idempotency=idempotency, too_old=len(self.intake.too_old)
        )


def append_rows(
    rows: Rows, branch_table: BranchTable, ledger: Ledger, actor: str, key: str | None, keep_old: bool
) -> Append:
    """The append of rows of any accepted kind; InvalidRows when one of them does not fit."""
    intake = Intake(ledger, branch_table.table, keyed=key is not None, keep_old=keep_old)
    return encode_rows(rows, branch_table, intake).append(actor, key)


def append_lines(
    lines: Iterable[bytes], branch_table: BranchTable, ledger: Ledger, actor: str, key: str | None, keep_old: bool
) -> Append:
    """The same for JSON lines."""
    intake = Intake(ledger, branch_table.table, keyed=key is not None, keep_old=keep_old)
    return encode_lines(lines, branch_table, intake).append(actor, key)


def encode_rows(rows: Rows, branch_table: BranchTable, intake: Intake) -> Encoded:
    """Rows of any accepted kind as validated, encoded batches; InvalidRows when one of them does not fit."""

    def numbered() -> Iterator[tuple[int, Any]]:
        start = 0
        for piece in _pieces(rows, piece_rows(len(branch_table.schema.names))):
            yield start, piece
            start += piece.num_rows if isinstance(piece, SoundRows) else len(piece)

    def validated(piece: tuple[int, Any]) -> pa.RecordBatch:
        return _validated(piece[1], branch_table, piece[0], intake.given)

    return _encode_all(rules.each_judged(numbered(), validated), branch_table, intake)


def encode_lines(lines: Iterable[bytes], branch_table: BranchTable, intake: Intake) -> Encoded:
    """The same for JSON lines, a bounded number of them at a time."""

    def validated(piece: tuple[int, list[bytes]]) -> pa.RecordBatch:
        start, texts = piece
        return rules.from_json_lines(
            texts,
            branch_table.schema,
            extra=branch_table.table.extra,
            start=start,
            partition_by=branch_table.table.partition_by,
            as_given=intake.given,
        )

    pieces = line_pieces(lines, piece_rows(len(branch_table.schema.names)))
    return _encode_all(rules.each_judged(pieces, validated), branch_table, intake)


def few_objects(lines: list[bytes], most: int) -> list[dict[str, Value]] | None:
    """What up to so many lines hold, for a leader to validate with others' rows; None where it has to be done alone.

    That is where there are more, and where an error in one could not be told by its line: the objects' places are the
    lines' only without bad lines, and without blank ones before the end.
    """
    if len(lines) > most + 1:
        return None
    try:
        objects = rules.read_objects(lines)
    except InvalidRows:
        return None
    return None if len(objects) > most or any(line.strip() for line in lines[len(objects) :]) else objects


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Validated pieces as batches of the size that the ledger keeps."""
    pieces: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        pieces.append(batch)
        rows, size_bytes = rows + batch.num_rows, size_bytes + batch.get_total_buffer_size()
        if rows >= BATCH_ROWS or size_bytes >= JOINED_BYTES:
            yield pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
            pieces, rows, size_bytes = [], 0, 0
    if pieces:
        yield pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _encode_all(validated: Iterable[pa.RecordBatch], branch_table: BranchTable, intake: Intake) -> Encoded:
    batches: list[NewBatch] = []
    size_bytes = 0
    for batch in _joined(validated):
        encoded = encode_batch(intake.take(batch), branch_table.table)
        size_bytes += sum(len(part.payload) for part in encoded)
        if size_bytes > APPEND_BYTES:
            raise TooLarge(
                f"one append takes {APPEND_BYTES >> 20} MiB at the most",
                hint="Append in smaller calls, or use `strand load`, which takes files of any size.",
            )
        batches.extend(encoded)
    return Encoded(branch_table, batches, intake)


def _pieces(rows: Rows, most_rows: int) -> Iterator[Any]:
    """Rows a few at a time, as a list or checked Arrow."""
    if isinstance(rows, pa.RecordBatchReader | KeptBatches):
        for batch in rows:
            yield from _slices(sound(batch), most_rows)
    elif isinstance(rows, SoundRows | pa.Table | pa.RecordBatch):
        yield from _slices(rows if isinstance(rows, SoundRows) else sound(rows), most_rows)
    elif isinstance(rows, ArrayPieces):
        for text in rows:
            yield from _lists(rules.read_array(text), most_rows)
    elif isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise BadRequest(
            f"rows are {type(rows).__name__}, not rows", hint="Pass a list of dicts, an Arrow table or a reader."
        )
    else:
        yield from _lists(rows if isinstance(rows, Sequence) else list(rows), most_rows)


def _slices(rows: SoundRows, most_rows: int) -> Iterator[SoundRows]:
    return (rows.slice(at, most_rows) for at in range(0, rows.num_rows, most_rows))


def _lists(rows: Sequence[Any], most_rows: int) -> Iterator[Sequence[Any]]:
    if len(rows) <= most_rows:
        yield rows
    else:
        yield from (rows[at : at + most_rows] for at in range(0, len(rows), most_rows))


def _validated(
    piece: Any, branch_table: BranchTable, start: int, as_given: list[pa.RecordBatch] | None
) -> pa.RecordBatch:
    take: Callable[..., pa.RecordBatch] = rules.from_arrow if isinstance(piece, SoundRows) else rules.from_dicts
    table = branch_table.table
    return take(
        piece, branch_table.schema, extra=table.extra, start=start, partition_by=table.partition_by, as_given=as_given
    )


def encode_batch(batch: pa.RecordBatch, table: Table) -> list[NewBatch]:
    """One batch, or several where one payload would be too large for a ledger row; none when there are no rows."""
    if batch.num_rows == 0:
        return []
    if batch.num_rows > 1 and batch.nbytes > BATCH_BYTES:
        half = batch.num_rows // 2
        return encode_batch(batch.slice(0, half), table) + encode_batch(batch.slice(half), table)
    payload = encode(batch)
    return [NewBatch(new_id(), batch.num_rows, payload, checksum(payload), partitions(batch, table.partition_by))]
