"""Rows in, a validated batch out.

Whatever rows come as (dicts, JSON lines, Arrow, Parquet), they pass here on their way to the ledger, and one
definition of validity holds for all: the rules of `values`. A call is valid as a whole or not at all, and a refused one
names every bad row it found (up to 20), so that the caller fixes them in one go.

A row's index is its position in the call, from `start`; for JSON lines it is the line's, blank lines counted, so the
index plus one is the line number that an editor shows.

A row that lacks a column gets the column's default here, and nowhere else. Rows that are compared with others, to tell
whether they were sent before, are compared as they were given: a default may have come, or changed, in between. These
are told apart by `as_given`, a list that gets the same rows without the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import BadRequest, InvalidRows, nearest
from strandline.model.reporting import MEND_ROWS, and_more, most_reported
from strandline.model.schema.defaults import default_scalar, default_value
from strandline.model.schema.partitions import MAX_BYTES as MAX_PARTITION_BYTES
from strandline.model.schema.partitions import check_partition_columns, partition_text, partitions, too_long
from strandline.model.schema.schema import SYSTEM_COLUMNS, Schema
from strandline.model.schema.types import Column, List, Map, Primitive, Struct, Type
from strandline.model.values.arrow import arrow_type, stored_schema
from strandline.model.values.casts import lossless, plain
from strandline.model.values.columns import Quick, never, quick_for
from strandline.model.values.json_pieces import elements
from strandline.model.values.json_text import DoubledKey, json_fault, may_double, parsed, parsed_quickly
from strandline.model.values.sound import SoundRows
from strandline.model.values.user_rows import UserRow, Value
from strandline.model.values.values import RefusedValue, Rule, rule_for, shown, take_json
from strandline.model.values.wire import decode, decode_columns, encode, jsonable, to_json_lines
from strandline.model.wording import judged

__all__ = [
    "BadRow", "check_partition_columns", "decode", "decode_columns", "each_judged", "encode",
    "from_arrow", "from_dicts", "from_json_lines", "partition_text", "partitions", "read_array", "read_objects",
    "read_texts", "refused_row", "renumbered", "to_json_lines",
    "unreadable_rows",
]  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True)
class BadRow:
    """What is wrong with a row: where, the value (cut to 80 characters), and why."""

    index: int
    field: str
    value: str
    reason: str

    def text(self) -> str:
        """As the error's message says it."""
        where = f"row {self.index}, field {self.field!r}" if self.field else f"row {self.index}"
        return f"{where}: {judged(self.value, self.reason)}"


@dataclass(frozen=True)
class _Plan:
    """How one column is made; worked out once per schema."""

    column: Column
    arrow: pa.DataType
    quick: Quick
    rule: Rule
    text_quick: Quick
    text_rule: Rule
    """The same for Arrow, where a value of type json is its text."""
    default: Value
    """What a row has that lacks the column, as the rule takes it; None where there is no default."""
    default_stored: pa.Scalar | None


class _Findings:
    """What is wrong, found column by column, told row by row. Values are shown only if they are told."""

    def __init__(self, indices: Sequence[int], partition_by: Sequence[str] = ()) -> None:
        self.indices = indices
        self.partition_by = partition_by
        self.found: list[tuple[int, str, RefusedValue]] = []

    def add(self, position: int, field: str, refused: RefusedValue) -> None:
        self.found.append((self.indices[position], field + refused.path, refused))

    def check(self) -> None:
        """Raise InvalidRows if anything was found."""
        if self.found:
            raise self.error()

    def error(self) -> InvalidRows:
        """What was found, of several rows at once."""
        self.found.sort(key=lambda finding: finding[0])
        bad = [BadRow(i, field, shown(r.value), r.reason) for i, field, r in self.found[: most_reported()]]
        return InvalidRows(
            bad[0].text() + and_more(len(self.found)),
            hint=MEND_ROWS,
            rows=[asdict(row) for row in bad],
            bad=len(self.found),
        )


def each_judged(pieces: Iterable[T], take: Callable[[T], pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What `take` makes of each piece of a call's rows; InvalidRows where it refuses some.

    Behind a bad row the rest is still judged, until there are as many as are named: the caller mends them in one go.
    """
    refused: InvalidRows | None = None
    for piece in pieces:
        try:
            batch = take(piece)
        except InvalidRows as error:
            error = error.with_traceback(None)  # which holds the rows of its piece
            refused = error if refused is None else _both(refused, error)
            if refused.detail["bad"] >= most_reported():
                break
        else:
            if refused is None:
                yield batch
    if refused is not None:
        raise refused


def _both(first: InvalidRows, second: InvalidRows) -> InvalidRows:
    """The error about two pieces of a call, the second behind the first."""
    rows = [*first.detail["rows"], *second.detail["rows"]][: most_reported()]
    bad = first.detail["bad"] + second.detail["bad"]
    return InvalidRows(BadRow(**rows[0]).text() + and_more(bad), hint=first.hint, rows=rows, bad=bad)


def refused_row(index: int, field: str, value: object, reason: str) -> InvalidRows:
    """The error about one row that other code than the rules here has judged."""
    findings = _Findings([index])
    findings.add(0, field, RefusedValue(value, reason))
    return findings.error()


def renumbered(error: InvalidRows, numbers: Sequence[int]) -> InvalidRows:
    """The same error with other numbers for its rows: those of what they were given as."""
    bad = [BadRow(**{**row, "index": numbers[row["index"]]}) for row in error.detail["rows"]]
    return InvalidRows(
        bad[0].text() + and_more(error.detail["bad"]),
        hint=error.hint,
        rows=[asdict(row) for row in bad],
        bad=error.detail["bad"],
    )


def from_dicts(
    rows: Sequence[UserRow],
    schema: Schema,
    *,
    extra: bool = False,
    start: int = 0,
    partition_by: Sequence[str] = (),
    as_given: list[pa.RecordBatch] | None = None,
) -> pa.RecordBatch:
    """A batch from Python mappings; with `extra`, unknown fields are kept as JSON in `_extra`."""
    findings = _Findings(range(start, start + len(rows)), partition_by)
    return _batch(rows, schema, extra, findings, as_given)


def from_json_lines(
    lines: Iterable[bytes],
    schema: Schema,
    *,
    extra: bool = False,
    start: int = 0,
    partition_by: Sequence[str] = (),
    as_given: list[pa.RecordBatch] | None = None,
) -> pa.RecordBatch:
    """A batch from lines of one JSON object each; blank lines are skipped."""
    rows, findings = _read_lines(lines, start, partition_by)
    return _batch(rows, schema, extra, findings, as_given)


def read_objects(lines: Iterable[bytes], *, start: int = 0) -> list[dict[str, Value]]:
    """The objects of JSON lines, for a caller that looks into them before they are validated as rows."""
    rows, findings = _read_lines(lines, start)
    objects = _as_dicts(rows, findings)
    findings.check()
    return objects


def read_array(text: bytes | bytearray) -> list[Value]:
    """The values of a JSON array; what they are is judged when they are validated as rows."""
    try:
        values = _parsed(bytes(text))
    except RefusedValue as refused:
        raise BadRequest(f"the body is {refused.reason}", hint="Send a JSON array of objects, or JSON lines.") from None
    if isinstance(values, _Doubled) and text.lstrip().startswith(b"["):
        return [_parsed(row) for row in elements(text)]
    if not isinstance(values, list):
        raise BadRequest("the body is JSON, and not an array", hint="Send a JSON array of objects, or JSON lines.")
    return values


def _read_lines(lines: Iterable[bytes], start: int, partition_by: Sequence[str] = ()) -> tuple[list[Value], _Findings]:
    """What the lines hold, and what is wrong with those that are not JSON."""
    lines = list(lines)
    rows, findings = _read_each(lines, start, parsed_quickly)
    if may_double(b"\n".join(lines), rows):
        rows, findings = _read_each(lines, start, parsed)
    findings.partition_by = partition_by
    return rows, findings


def _read_each(lines: list[bytes], start: int, read: Callable[[bytes], Value]) -> tuple[list[Value], _Findings]:
    rows: list[Value] = []
    indices: list[int] = []
    findings = _Findings(indices)
    for index, line in enumerate(lines, start):
        try:
            row = _parsed(line, read)
        except RefusedValue as refused:
            findings.found.append((index, "", refused))
        else:
            if row is not _BLANK:
                rows.append(row)
                indices.append(index)
    return rows, findings


def from_arrow(
    data: SoundRows,
    schema: Schema,
    *,
    extra: bool = False,
    start: int = 0,
    partition_by: Sequence[str] = (),
    as_given: list[pa.RecordBatch] | None = None,
) -> pa.RecordBatch:
    """A batch from Arrow: cast as a whole where nothing is lost, else judged value by value as dicts are."""
    findings = _Findings(range(start, start + data.num_rows), partition_by)
    sources = _arrow_columns(data)
    arrays = [_from_array(plan, sources, findings) for plan in _plans(schema)]
    unknown = {name: _each(source.array, jsonable) for name, source in sources.items() if name not in schema.names}
    texts: list[str | None] = [None] * data.num_rows
    if unknown:
        leftovers = [dict(zip(unknown, values, strict=True)) for values in zip(*unknown.values(), strict=True)]
        texts = _unknown_fields(leftovers, schema, extra, findings)
    batch = _finished(arrays, texts, schema, extra, findings)
    if as_given is not None:
        absent = {plan.column.name for plan in _plans(schema) if plan.default is not None} - sources.keys()
        as_given.append(_without(batch, {name: pa.repeat(True, batch.num_rows) for name in absent}))
    return batch


def read_texts(data: SoundRows, name: str) -> list[str | None]:
    """The values of a column of text, for a caller that looks into them before they are validated as rows."""
    values = _joined(data.table.column(name)).to_pylist()
    return [None if value is None else str(value) for value in values]


def unreadable_rows(data: SoundRows, *, start: int = 0) -> InvalidRows | None:
    """The error about values that Python can't have, such as text that is not UTF-8; None if there are none."""
    findings = _Findings(range(start, start + data.num_rows))
    for name, column in zip(data.names, data.table.columns, strict=True):
        for position, value in enumerate(_each(_joined(column), jsonable)):
            if isinstance(value, _UnreadableValue):
                findings.add(position, name, RefusedValue(value, "can't be read as a value of its type"))
    return findings.error() if findings.found else None


_BLANK = object()


@dataclass(frozen=True)
class _Doubled:
    """Stands for a row in which a key is doubled, until it is refused at its place among the others."""

    key: str
    text: bytes

    def __repr__(self) -> str:
        return self.text.decode()


def _parsed(line: bytes, read: Callable[[bytes], Value] = parsed) -> Value:
    try:
        return read(line)
    except DoubledKey as error:
        return _Doubled(error.key, line)
    except ValueError as error:
        if not line.strip():
            return _BLANK
        raise RefusedValue(line, _not_json(line, error)) from None


def _not_json(line: bytes, error: ValueError) -> str:
    text = line.strip()
    if text in (b"[", b"{") or (text.startswith(b"[") and text.endswith(b",")):
        return "not JSON lines, which have one object on each line: an array or an object begins, and goes on below"
    return f"not JSON: {json_fault(line, error)}"


def _batch(
    rows: Sequence[Value],
    schema: Schema,
    extra: bool,
    findings: _Findings,
    as_given: list[pa.RecordBatch] | None,
) -> pa.RecordBatch:
    if not {dict}.issuperset(map(type, rows)):
        rows = _as_dicts(rows, findings)
    columns = _full_columns(rows, schema)
    complete = columns is not None
    if columns is None:
        columns = [[row.get(plan.column.name, plan.default) for row in rows] for plan in _plans(schema)]
    arrays = [_from_values(plan, values, findings) for plan, values in zip(_plans(schema), columns, strict=True)]
    names = frozenset(schema.names)
    texts: list[str | None] = [None] * len(rows)
    if not complete and not names.issuperset(set().union(*rows)):
        leftovers = [{key: value for key, value in row.items() if key not in names} for row in rows]
        texts = _unknown_fields(leftovers, schema, extra, findings)
    batch = _finished(arrays, texts, schema, extra, findings)
    if as_given is not None:
        defaulted = () if complete else [plan.column.name for plan in _plans(schema) if plan.default is not None]
        as_given.append(_without(batch, {name: pa.array([name not in row for row in rows]) for name in defaulted}))
    return batch


def _without(batch: pa.RecordBatch, lacking: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """The same rows with nulls where they lack a value of these columns."""
    for name, rows_lack in lacking.items():
        place = batch.schema.get_field_index(name)
        column = batch.column(place)
        without_default = pc.if_else(rows_lack, pa.scalar(None, column.type), column)
        batch = batch.set_column(place, batch.schema.field(place), without_default)
    return batch


def _full_columns(rows: Sequence[dict[Value, Value]], schema: Schema) -> list[list[Value]] | None:
    """The values by column where every row has all of the schema's fields and no other, which is quickly seen."""
    if not {len(schema.names)}.issuperset(map(len, rows)):
        return None
    try:
        return [[row[name] for row in rows] for name in schema.names]
    except KeyError:
        return None


def _as_dicts(rows: Sequence[Value], findings: _Findings) -> list[dict[Value, Value]]:
    """Other mappings as dicts. A row that is none leaves the call, which has failed: its index goes with it."""
    kept: list[tuple[int, dict[Value, Value]]] = []
    for position, row in enumerate(rows):
        if isinstance(row, Mapping):
            kept.append((findings.indices[position], dict(row)))
        elif isinstance(row, _Doubled):
            findings.add(position, row.key, RefusedValue(row, "has this key more than once in an object"))
        else:
            findings.add(position, "", RefusedValue(row, "is not an object with a field per column"))
    findings.indices = [index for index, _ in kept]
    return [row for _, row in kept]


def _finished(
    arrays: list[pa.Array | None], texts: list[str | None], schema: Schema, extra: bool, findings: _Findings
) -> pa.RecordBatch:
    _judge_partitions(arrays, schema, findings)
    findings.check()
    if extra:
        arrays = [*arrays, pa.array(texts, pa.string())]
    return pa.RecordBatch.from_arrays(arrays, schema=stored_schema(schema, extra))


def _judge_partitions(arrays: list[pa.Array | None], schema: Schema, findings: _Findings) -> None:
    """A partition whose text is too long for the ledger's indexes is a fault of the rows that are in it."""
    if not findings.partition_by:
        return
    columns = [arrays[schema.names.index(name)] for name in findings.partition_by]
    whole = [column for column in columns if column is not None]
    if len(whole) == len(columns):
        for position, value, size in too_long(whole):
            reason = f"is in a partition whose text has {size} bytes, and may have {MAX_PARTITION_BYTES}"
            findings.add(position, ", ".join(findings.partition_by), RefusedValue(value, reason))


def _from_values(plan: _Plan, values: list[Value], findings: _Findings) -> pa.Array | None:
    array = plan.quick(values)
    return _by_rule(plan, values, plan.rule, findings) if array is None else array


def _by_rule(plan: _Plan, values: list[Value], rule: Rule, findings: _Findings) -> pa.Array | None:
    """Value by value; None if any was refused."""
    taken, refused_any = [], False
    for position, value in enumerate(values):
        try:
            taken.append(rule(value))
        except RefusedValue as refused:
            refused_any = True
            findings.add(position, plan.column.name, refused)
    return None if refused_any else pa.array(taken, plan.arrow)


def _unknown_fields(
    leftovers: Sequence[dict[Value, Value]], schema: Schema, extra: bool, findings: _Findings
) -> list[str | None]:
    """The `_extra` of each row. A field that is null says nothing, as with a column that a row lacks."""
    texts: list[str | None] = []
    for position, fields in enumerate(leftovers):
        kept: dict[str, Value] = {}
        for name, value in fields.items():
            try:
                kept[name] = _extra_field(name, value, schema, extra)
            except RefusedValue as refused:
                findings.add(position, str(name), refused)
        fragments = {name: orjson.Fragment(kept[name]) for name in sorted(kept) if kept[name] is not None}
        texts.append(orjson.dumps(fragments).decode() if fragments else None)
    return texts


def _extra_field(name: Value, value: Value, schema: Schema, extra: bool) -> str | None:
    if not isinstance(name, str):
        raise RefusedValue(value, f"a field's name is text, not {shown(name)}")
    if name in SYSTEM_COLUMNS:
        raise RefusedValue(value, "a reserved name: Strandline stamps this column itself")
    if not extra:
        raise RefusedValue(value, f"no such column. {nearest(name, schema.names)}")
    return None if value is None else take_json(value)


@dataclass(frozen=True)
class _Arriving:
    """An Arrow column as it came, in one piece; `utf8` if all of its text is."""

    array: pa.Array
    utf8: bool


def _arrow_columns(data: SoundRows) -> dict[str, _Arriving]:
    names = data.names
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise BadRequest(f"the Arrow data has more than one column called {', '.join(map(repr, twice))}")
    columns = zip(names, data.table.columns, strict=True)
    return {name: _Arriving(plain(_joined(column)), name not in data.not_utf8) for name, column in columns}


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _from_array(plan: _Plan, sources: Mapping[str, _Arriving], findings: _Findings) -> pa.Array | None:
    column = plan.column
    if column.name not in sources and plan.default_stored is not None:
        return pa.repeat(plan.default_stored, len(findings.indices))
    source = sources.get(column.name) or _Arriving(pa.nulls(len(findings.indices)), True)
    cast = lossless(source.array, column.type, column.nullable) if source.utf8 else None
    if cast is not None:
        return cast
    values = _each(source.array, lambda part: list(part.to_pylist()))
    quick = plan.text_quick(values)
    return _by_rule(plan, values, plan.text_rule, findings) if quick is None else quick


def _each(array: pa.Array, read: Callable[[pa.Array], list[Value]]) -> list[Value]:
    """What `read` gives for the array; one by one if there is a value that Python can't have."""
    try:
        return read(array)
    except (ValueError, OverflowError) as error:
        if len(array) == 1:
            return [_UnreadableValue(error)]
        return [value for i in range(len(array)) for value in _each(array.slice(i, 1), read)]


class _UnreadableValue:
    """Stands for a value that Python can't have: text that is not UTF-8, a date in the year 20000."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<unreadable: {self.error}>"


@lru_cache(maxsize=1024)
def _plans(schema: Schema) -> tuple[_Plan, ...]:
    return tuple(map(_plan, schema.columns))


def _plan(column: Column) -> _Plan:
    quick = quick_for(column.type, column.nullable)
    return _Plan(
        column=column,
        arrow=arrow_type(column.type, stored=True),
        quick=quick,
        rule=rule_for(column.type, column.nullable),
        text_quick=never if _has_json(column.type) else quick,
        text_rule=rule_for(column.type, column.nullable, json_text=True),
        default=default_value(column),
        default_stored=default_scalar(column),
    )


def _has_json(type_: Type) -> bool:
    match type_:
        case Primitive(name):
            return name == "json"
        case List(element, _):
            return _has_json(element)
        case Struct(fields):
            return any(_has_json(field.type) for field in fields)
        case Map(_, value, _):
            return _has_json(value)
    return False
