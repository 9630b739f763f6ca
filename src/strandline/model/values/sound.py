"""Arrow data from outside, checked whole before anything touches it.

Neither PyArrow's readers nor the arrays that they give check what a stream says of itself: offsets may point past a
buffer, a bitmap may be shorter than its rows, an index may lie outside its dictionary. Whatever is done with such an
array (joined, cast, sliced and read, made a list) reads the memory behind it, which becomes values of rows, or ends the
process. So this is the only way from Arrow that another program made to rows: what takes rows takes `SoundRows`, and
they are made here alone, after every buffer of every column of every batch was checked.

Text that is not UTF-8 is the one thing that is noted and not refused here: it is a bad value of one row, and is told by
that row's index when the row is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from strandline.errors import BadRequest

MAX_NAME_SHOWN = 80


@dataclass(frozen=True)
class SoundRows:
    """Rows whose every buffer was checked; the text of the columns in `not_utf8` is not all UTF-8."""

    table: pa.Table
    not_utf8: frozenset[str] = frozenset()

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return int(self.table.num_rows)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self.table.schema.names)

    def select(self, names: Sequence[str]) -> SoundRows:
        """Only these columns, in this order."""
        return SoundRows(self.table.select(list(names)), self.not_utf8.intersection(names))

    def renamed(self, names: Mapping[str, str]) -> SoundRows:
        """The same rows under other names."""
        table = self.table.rename_columns([names[name] for name in self.names])
        return SoundRows(table, frozenset(names[name] for name in self.not_utf8))

    def slice(self, start: int, length: int | None = None) -> SoundRows:
        """Some of the rows."""
        return SoundRows(self.table.slice(start, length), self.not_utf8)


def sound(data: pa.Table | pa.RecordBatch) -> SoundRows:
    """The same rows, checked; BadRequest where they are not what they claim to be."""
    with readable("the data"):
        check_schema(data.schema)
        whole = isinstance(data, pa.RecordBatch)
        columns = [[column] if whole else column.chunks for column in data.columns]
        lengths = [sum(map(len, chunks)) for chunks in columns]
        if any(length != data.num_rows for length in lengths):
            raise BadRequest(f"the Arrow data has columns of {sorted(set(lengths))} rows")
        garbled = {
            name
            for name, chunks in zip(data.schema.names, columns, strict=True)
            # Every chunk is checked, also behind one that is not UTF-8: they are about to be joined.
            if False in {_is_utf8(chunk, name) for chunk in chunks}
        }
        return SoundRows(pa.Table.from_batches([data]) if whole else data, frozenset(garbled))


def sound_reader(reader: pa.RecordBatchReader) -> Iterator[SoundRows]:
    """The batches of a reader, one after another, each checked."""
    with readable("the data"):
        yield from map(sound, reader)


@contextmanager
def readable(what: str, hint: str = "It may be truncated or damaged.") -> Iterator[None]:
    """What PyArrow says about Arrow data that it can't read, in our words."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"{what} can't be read: a name in its schema is not UTF-8 ({error.reason})", hint=hint
        ) from None
    except (pa.ArrowException, EOFError) as error:
        raise BadRequest(f"{what} can't be read: {error}", hint=hint) from error


def check_schema(schema: pa.Schema) -> None:
    """Look at what a schema says besides its buffers, which nothing else checks.

    Every name is read: one that is not UTF-8 is no column's, and could not be told in an error. A decimal's scale is
    what PyArrow looks up powers of ten by, wherever it points; a time zone is looked up when a value is made of a time.
    """
    for field in schema:
        _names_of(field)
        _check_type(field.type, field.name)


def _check_type(type_: pa.DataType, column: str) -> None:
    where = f"column {column[:MAX_NAME_SHOWN]!r}"
    if pat.is_decimal(type_) and abs(type_.scale) > type_.precision:
        raise BadRequest(f"{where}: {type_} has more digits behind its point than digits")
    if pat.is_timestamp(type_) and type_.tz is not None and not _is_zone(type_.tz):
        zone = type_.tz[:MAX_NAME_SHOWN]
        raise BadRequest(
            f"{where}: there is no time zone {zone!r}", hint="Use UTC, an offset, or a name such as Asia/Tokyo."
        )
    for inside in _inside(type_):
        _check_type(inside.type, column)


def _is_zone(name: str) -> bool:
    try:
        pa.lib.string_to_tzinfo(name)
    except (ValueError, KeyError, OSError):  # what the libraries that know zones raise
        return False
    return True


def _inside(type_: pa.DataType) -> list[pa.Field]:
    """The fields inside a type, whatever is wrapped around them."""
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    if pat.is_dictionary(type_):
        return [pa.field("", type_.value_type)]
    return [type_.field(place) for place in range(type_.num_fields)]


def _names_of(field: pa.Field) -> list[str]:
    """The names of a field and of all that is inside it, time zones too; UnicodeDecodeError if one is not UTF-8."""
    names = [field.name, str(field.type.tz)] if pat.is_timestamp(field.type) else [field.name]
    return [*names, *(name for inside in _inside(field.type) for name in _names_of(inside))]


def _is_utf8(array: pa.Array, name: str) -> bool:
    """False for text that is not UTF-8, where everything else is valid. Anything else that is not is a bad request."""
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        if "UTF8" in str(error) and _is_sound_as_bytes(array):
            return False
        raise BadRequest(f"column {name[:MAX_NAME_SHOWN]!r} is not valid Arrow data: {error}") from None
    return True


def _is_sound_as_bytes(array: pa.Array) -> bool:
    """Whether everything but its text is valid: behind text that is not UTF-8 nothing was checked."""
    try:
        array.view(_as_bytes(array.type)).validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _as_bytes(type_: pa.DataType) -> pa.DataType:
    """The same type with bytes for text, which lies in memory as it does."""
    for is_text, as_bytes in _BYTES_FOR_TEXT:
        if is_text(type_):
            return as_bytes
    if pat.is_list(type_) or pat.is_large_list(type_):
        make = pa.list_ if pat.is_list(type_) else pa.large_list
        return make(_field_as_bytes(type_.value_field))
    if pat.is_struct(type_):
        return pa.struct([_field_as_bytes(type_.field(place)) for place in range(type_.num_fields)])
    if pat.is_map(type_):
        return pa.map_(_field_as_bytes(type_.key_field), _field_as_bytes(type_.item_field))
    return type_


_BYTES_FOR_TEXT = (
    (pat.is_string, pa.binary()),
    (pat.is_large_string, pa.large_binary()),
    (pat.is_string_view, pa.binary_view()),
)


def _field_as_bytes(field: pa.Field) -> pa.Field:
    return field.with_type(_as_bytes(field.type))
