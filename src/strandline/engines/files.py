"""Input files as validated Arrow batches: JSON lines, CSV, Parquet, Arrow; plain or compressed.

The same functions run in this process for a small load and in Spark's workers for a large one, so a row is judged alike
whichever way it comes in. A file is read in chunks: a large file of JSON lines is cut at line ends, so that many
workers can read it and every one still knows which line it is at.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.config import Store
from strandline.engines.objects import ObjectPlace, reaching
from strandline.engines.storage import S3, open_uri
from strandline.errors import BadRequest, InvalidRows, NotFound, TooLarge, Unsupported, of_outage
from strandline.model.reporting import and_more, most_reported
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import Primitive
from strandline.model.tables import BranchTable
from strandline.model.values import rows as rules
from strandline.model.values.json_text import DoubledKey, parsed, written
from strandline.model.values.sound import SoundRows, check_schema, readable, sound
from strandline.model.values.user_rows import Value
from strandline.model.values.values import shown
from strandline.outages import judge

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

CHUNK_BYTES = 32 << 20
ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 16 << 20
MAX_LINE_BYTES = 64 << 20

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".arrows": "arrow",
}
_COMPRESSIONS = (".gz", ".zst")


@dataclass(frozen=True)
class Input:
    """A file to load: where it is, what is in it, and what tells it from a changed one."""

    uri: str
    format: str
    size_bytes: int
    identity: str


@dataclass(frozen=True)
class FilePart:
    """A part of an input that one worker reads; only JSON lines are ever cut (`start` to `end` in bytes)."""

    input: Input
    start: int = 0
    end: int | None = None


def find_inputs(sources: Sequence[str]) -> list[Input]:
    """The files behind paths, folders, globs and URIs, in a fixed order; none at all is an error."""
    inputs: dict[str, Input] = {}
    for source in sources:
        for file in _expand(source):
            inputs.setdefault(file.uri, file)
    return list(inputs.values())


def _expand(source: str) -> list[Input]:
    from pyarrow.fs import FileSelector, FileType

    with reaching(ObjectPlace(source, Store())) if source.startswith(S3) else nullcontext():
        system, path = _open_source(source)
        info = system.get_file_info(path)
    if info.type == FileType.NotFound and any(sign in path for sign in "*?["):
        inputs = [_input(system, match) for match in _glob(system, path)]
    else:
        if info.type == FileType.NotFound:
            raise NotFound(f"there is no file {source}", hint="Check the path; globs and folders work too.")
        listed = [info]
        if info.type == FileType.Directory:
            listed = [
                part
                for part in system.get_file_info(FileSelector(path, recursive=True))
                if part.type == FileType.File and not _is_hidden(part.path.removeprefix(path))
            ]
        inputs = [_input(system, part) for part in sorted(listed, key=lambda part: part.path)]
    if not inputs:
        raise NotFound(
            f"no files in {source}", hint="Files whose names start with a dot or an underscore are left out."
        )
    return inputs


def _open_source(source: str) -> tuple[FileSystem, str]:
    from pathlib import Path

    if "://" in source or source.startswith("file:"):
        scheme, _, rest = source.partition("://")
        if "@" in rest.partition("/")[0]:
            raise BadRequest(
                "the address of the files has a user or a password before an @",
                hint="Leave it out: addresses are shown and logged. Credentials come from the environment or ~/.aws.",
            )
        try:
            return open_uri(source)
        except pa.ArrowInvalid as error:
            raise Unsupported(f"no files are read from {scheme}://", hint="Use a path, or s3://BUCKET/….") from error
    return open_uri(f"file://{Path(source).expanduser().absolute()}")


def _glob(system: FileSystem, pattern: str) -> list[FileInfo]:
    from fnmatch import fnmatch

    from pyarrow.fs import FileSelector, FileType

    base = pattern[: min(pattern.index(sign) for sign in "*?[" if sign in pattern)].rpartition("/")[0]
    listed = system.get_file_info(FileSelector(base or "/", recursive=True, allow_not_found=True))
    return sorted(
        (info for info in listed if info.type == FileType.File and fnmatch(info.path, pattern)),
        key=lambda info: info.path,
    )


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.strip("/").split("/"))


def _input(system: FileSystem, info: FileInfo) -> Input:
    scheme = "file" if system.type_name == "local" else system.type_name
    return Input(
        uri=f"{scheme}://{info.path}",
        format=format_of(info.path),
        size_bytes=info.size,
        identity=f"{info.path}:{info.size}:{info.mtime_ns}",
    )


def format_of(path: str) -> str:
    """What a file's name says it holds."""
    name = path.lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    for ending, format_ in FORMATS.items():
        if name.endswith(ending):
            return format_
    raise Unsupported(f"can't tell what {path} holds", hint=f"Its name should end in one of {', '.join(FORMATS)}.")


def cut(inputs: Sequence[Input]) -> list[list[FilePart]]:
    """The work of a load, as lists of chunks of about the same size; each list becomes one Parquet file."""
    work: list[list[FilePart]] = []
    room = 0
    for source in inputs:
        for chunk in _chunks(source):
            size = (chunk.end or source.size_bytes) - chunk.start
            if not work or size > room:
                work.append([])
                room = CHUNK_BYTES
            work[-1].append(chunk)
            room -= size
    return work


def _chunks(source: Input) -> Iterator[FilePart]:
    if source.format != "jsonl" or source.uri.endswith(_COMPRESSIONS) or source.size_bytes <= CHUNK_BYTES:
        yield FilePart(source)
        return
    system, path = open_uri(source.uri)
    with system.open_input_file(path) as file:
        start = 0
        while start < source.size_bytes:
            end = min(start + CHUNK_BYTES, source.size_bytes)
            if end < source.size_bytes:
                end = _line_end(file, end, source.size_bytes)
            yield FilePart(source, start, end)
            start = end


def _line_end(file: pa.NativeFile, at: int, size: int) -> int:
    file.seek(at)
    while at < size:
        block: bytes = file.read(1 << 20)
        newline = block.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        at += len(block)
    return size


class Skipped:
    """Counts the rows of an export that belong to other tables, and where rows have places all lines or rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.lines = 0


@dataclass(frozen=True)
class RowShape:
    """What rows of a table have to look like at the door."""

    schema: Schema
    extra: bool = False
    partition_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, branch_table: BranchTable) -> RowShape:
        """What a table asks for as it is now."""
        return cls(branch_table.schema, branch_table.table.extra, branch_table.table.partition_by)


def read_chunk(
    chunk: FilePart, shape: RowShape, *, table: str, skipped: Skipped
) -> Iterator[tuple[int, pa.RecordBatch | InvalidRows]]:
    """A chunk as validated batches, each with the number of lines or rows read for it.

    Rows that don't fit come out as the error, so that the reader can go on and list more of them.
    """
    start = 0
    for size, piece in _pieces(chunk, shape.schema, table, skipped):
        take: Any = rules.from_arrow if isinstance(piece, SoundRows) else rules.from_dicts
        if piece and isinstance(piece, list) and isinstance(piece[0], bytes):
            take = rules.from_json_lines
        try:
            yield size, take(piece, shape.schema, extra=shape.extra, start=start, partition_by=shape.partition_by)
        except InvalidRows as error:
            yield size, error
        start += size


def read_objects(source: Input) -> tuple[list[int], list[dict[str, Value]]]:
    """The objects of a whole file of JSON lines as they are, and the index of each one's line."""
    if source.format != "jsonl":
        raise Unsupported(f"{source.uri} holds {source.format}", hint="Only JSON lines name their tables.")
    numbers: list[int] = []
    lines: list[bytes] = []
    start = 0
    for size, piece in _pieces(FilePart(source), None, None, Skipped()):
        filled = [(start + place, line) for place, line in enumerate(piece) if line.strip()]
        numbers += [number for number, _ in filled]
        lines += [line for _, line in filled]
        start += size
    try:
        return numbers, rules.read_objects(lines)
    except InvalidRows as error:
        raise rules.renumbered(error, numbers) from None


@dataclass(frozen=True)
class Placed:
    """Validated rows of a chunk, or what is wrong with them: of which table, and from which lines of the chunk."""

    table: str
    lines: Sequence[int]
    rows: pa.RecordBatch | InvalidRows


class UnknownTable(KeyError):
    """A line names a table that there is not: this one."""


def read_own(chunk: FilePart, shape: RowShape, *, table: str, skipped: Skipped) -> Iterator[Placed]:
    """A chunk as rows of one table; its lines are counted, and those for other tables left out."""
    start = 0
    for size, batch in read_chunk(chunk, shape, table=table, skipped=skipped):
        yield Placed(table, range(start, start + size), batch)
        start += size
    skipped.lines += start


def read_placed(
    chunk: FilePart, tables: Mapping[str, RowShape], table: str | None, skipped: Skipped
) -> Iterator[Placed]:
    """A chunk as rows by table. Without a `table` each line names its own: UnknownTable where there is none."""
    if chunk.input.format != "jsonl":
        table = _required(chunk.input, table)
        yield from read_own(chunk, tables[table], table=table, skipped=skipped)
        return
    start = 0
    for size, lines in _pieces(chunk, None, None, skipped):
        numbers = [start + place for place, line in enumerate(lines) if line.strip()]
        yield from _placed(numbers, [lines[number - start] for number in numbers], tables, table, skipped)
        start += size
    skipped.lines += start


def _required(source: Input, table: str | None) -> str:
    if table is None:
        raise Unsupported(f"{source.uri} holds {source.format}", hint="Only JSON lines name their tables.")
    return table


def _placed(
    numbers: list[int], lines: list[bytes], tables: Mapping[str, RowShape], table: str | None, skipped: Skipped
) -> Iterator[Placed]:
    if table is not None and not any(_TABLE_FIELD in line for line in lines):
        yield Placed(table, numbers, _taken(rules.from_json_lines, lines, numbers, tables[table]))
        return
    try:
        objects_by_table = by_table(numbers, rules.read_objects(lines), table, skipped)
    except InvalidRows as error:
        # What is wrong with a line is told by its place among these; a table's name, by its number.
        yield Placed(table or "", numbers, error if _names_tables(error) else rules.renumbered(error, numbers))
        return
    for name, (own, objects) in objects_by_table.items():
        if name not in tables:
            raise UnknownTable(name)
        yield Placed(name, own, _taken(rules.from_dicts, objects, own, tables[name]))


def _taken(take: Any, rows: Sequence[Any], numbers: Sequence[int], shape: RowShape) -> pa.RecordBatch | InvalidRows:
    try:
        batch: pa.RecordBatch = take(rows, shape.schema, extra=shape.extra, partition_by=shape.partition_by)
    except InvalidRows as error:
        return rules.renumbered(error, numbers)
    return batch


def by_table(
    numbers: Sequence[int], objects: Sequence[dict[str, Value]], table: str | None, skipped: Skipped
) -> dict[str, tuple[list[int], list[dict[str, Value]]]]:
    """Objects of JSON lines by the table that each is for, with their lines; other tables' than `table` are skipped."""
    objects_by_table: dict[str, tuple[list[int], list[dict[str, Value]]]] = {}
    bad: list[rules.BadRow] = []
    for line, fields in zip(numbers, objects, strict=True):
        name = fields.pop("_table", table)
        if not isinstance(name, str):
            bad.append(rules.BadRow(line, "_table", shown(name), "is not the name of a table"))
        elif table is not None and name.lower() != table.lower():
            skipped.rows += 1
        else:
            lines, rows = objects_by_table.setdefault(name.lower(), ([], []))
            lines.append(line)
            rows.append(fields)
    if bad:
        raise InvalidRows(
            bad[0].text() + and_more(len(bad)),
            hint=_NAME_THEM,
            rows=[asdict(row) for row in bad[: most_reported()]],
            bad=len(bad),
        )
    return objects_by_table


_NAME_THEM = 'Every line names its table: {"_table": "person", "id": "a"}.'


def _names_tables(error: InvalidRows) -> bool:
    return error.hint == _NAME_THEM


def _pieces(chunk: FilePart, schema: Schema | None, table: str | None, skipped: Skipped) -> Iterator[tuple[int, Any]]:
    source = chunk.input
    system, path = open_uri(source.uri)
    with _readable(source):
        if source.format == "jsonl":
            yield from _json_lines(system, path, chunk, table, skipped)
        elif source.format == "csv" and schema is not None:
            yield from _csv(system, path, source, schema)
        elif source.format == "parquet":
            with system.open_input_file(path) as file:
                for batch in pq.ParquetFile(file).iter_batches(ROWS_AT_ONCE):
                    yield batch.num_rows, sound(batch)
        else:
            yield from _arrow(system, path)


@contextmanager
def _readable(source: Input) -> Iterator[None]:
    """Say in our own words what is wrong with a file that can't be read as what it is called."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {source.uri} any more") from error
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        if (outage := judge(error)) is not None:
            raise of_outage(outage, source.uri) from error
        raise BadRequest(f"can't read {source.uri} as {source.format}: {error}", hint="Is the file whole?") from error


def _json_lines(
    system: FileSystem, path: str, chunk: FilePart, table: str | None, skipped: Skipped
) -> Iterator[tuple[int, list[bytes]]]:
    lines: list[bytes] = []
    size = 0
    with open_text(system, path) as file:
        if chunk.start:
            file.seek(chunk.start)
        at = chunk.start
        while chunk.end is None or at < chunk.end:
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                break
            if len(line) > MAX_LINE_BYTES:
                raise TooLarge(
                    f"a line of {path} is longer than {MAX_LINE_BYTES >> 20} MiB", hint="Is it one row a line?"
                )
            at += len(line)
            lines.append(line if table is None else _own_line(line, table, skipped))
            size += len(line)
            if len(lines) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield len(lines), lines
                lines, size = [], 0
    if lines:
        yield len(lines), lines


_TABLE_MARK = b'{"_table":'
_TABLE_FIELD = b'"_table"'


def _own_line(line: bytes, table: str, skipped: Skipped) -> bytes:
    """A line of an export of several tables names its table first: ours loses the name, another's becomes blank."""
    if not line.startswith(_TABLE_MARK):
        return line
    try:
        row = parsed(line)
    except ValueError:
        return line  # which is told when it is validated
    if not isinstance(row, dict):
        return line  # which no line with this beginning is
    if str(row.pop("_table")).lower() != table.lower():
        skipped.rows += 1
        return b""
    return written(row)


def open_text(system: FileSystem, path: str) -> IO[bytes]:
    """A file of text, taken out of its compression."""
    raw: Any = system.open_input_file(path)
    if path.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if path.endswith(".zst"):
        import zstandard

        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return io.BufferedReader(raw, buffer_size=1 << 20)


def _csv(system: FileSystem, path: str, source: Input, schema: Schema) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """CSV with a header. A field that is empty is null; numbers and booleans are read from their text."""
    with io.TextIOWrapper(open_text(system, path), encoding="utf-8-sig", newline="") as text:
        reader = csv.DictReader(text, strict=True)
        if reader.fieldnames is None:
            return
        rows: list[Any] = []
        try:
            for row in reader:
                if None in row or None in row.values():
                    rows.append(_Misfit(tuple(row.values())))  # refused by its index, like any other bad row
                    continue
                rows.append(_csv_row(schema, row))
                if len(rows) >= ROWS_AT_ONCE:
                    yield len(rows), rows
                    rows = []
        except csv.Error as error:
            raise BadRequest(f"{source.uri}: line {reader.line_num}: {error}", hint="Is it CSV?") from error
        if rows:
            yield len(rows), rows


def _csv_row(schema: Schema, row: Mapping[str, str]) -> dict[str, Any]:
    """A column's empty field is a null that the row gives, and no default. An unknown empty one says nothing."""
    values = {name: _csv_value(schema, name, text) if text else None for name, text in row.items()}
    return {name: value for name, value in values.items() if value is not None or name in schema.names}


@dataclass(frozen=True)
class _Misfit:
    """A line of CSV with another number of fields than the header."""

    fields: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"the line {','.join(map(str, self.fields))}"


def _csv_value(schema: Schema, name: str, text: str) -> Any:
    type_ = schema.column(name).type if name in schema.names else None
    if not isinstance(type_, Primitive):
        return text if type_ is None or type(type_).__name__ == "Decimal" else _or_text(_json_value, text)
    if type_.name in ("long", "int"):
        return _or_text(int, text)
    if type_.name in ("double", "float"):
        return _or_text(float, text)
    if type_.name == "boolean":
        return {"true": True, "false": False}.get(text.lower(), text)
    return _or_text(_json_value, text) if type_.name == "json" else text


def _json_value(text: str) -> Any:
    """What a field of JSON holds; one with a doubled key holds nothing that its column takes."""
    try:
        return parsed(text.encode())
    except DoubledKey as error:
        return error


def _or_text(read: Any, text: str) -> Any:
    try:
        return read(text)
    except ValueError:
        return text


def _arrow(system: FileSystem, path: str) -> Iterator[tuple[int, SoundRows]]:
    with system.open_input_file(path) as file:
        reader = _reader(file)
        is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader
        for batch in batches:
            yield batch.num_rows, sound(batch)


def _reader(file: Any) -> Any:
    """A reader of an Arrow file, or of a file that holds a stream."""
    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    return pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)


def shape_of(source: Input) -> pa.Schema:
    """The Arrow schema of a Parquet or Arrow file."""
    system, path = open_uri(source.uri)
    with _readable(source), system.open_input_file(path) as file, readable(source.uri):
        schema = pq.ParquetFile(file).schema_arrow if source.format == "parquet" else _reader(file).schema
        check_schema(schema)
        return schema


def count_rows(source: Input) -> int:
    """How many rows a file says that it has, without being read; 0 where it does not say."""
    if source.format != "parquet":
        return 0
    system, path = open_uri(source.uri)
    try:
        with system.open_input_file(path) as file:
            return int(pq.ParquetFile(file).metadata.num_rows)
    except (pa.ArrowException, OSError):
        return 0  # the reader says what is wrong


def unchanged(inputs: Sequence[Input]) -> None:
    """Raise BadRequest if a file has changed since it was found."""
    for source in inputs:
        system, path = open_uri(source.uri)
        info = system.get_file_info(path)
        now = replace(source, identity=f"{info.path}:{info.size}:{info.mtime_ns}")
        if now != source:
            raise BadRequest(
                f"{source.uri} changed while it was loaded", hint="Nothing of it was loaded. Load it again."
            )
