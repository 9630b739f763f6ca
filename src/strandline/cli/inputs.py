"""Files of rows as `strand append` takes them: JSON lines, Parquet, Arrow; plain or compressed; from disk or stdin.

What a file is shows in its first bytes. The extension only decides where they can't: a CSV file looks like text.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

from strandline.cli.params import input_path
from strandline.errors import BadRequest, Environment, InvalidRows, TooLarge, Unsupported
from strandline.model.reporting import and_more, entry_text

if TYPE_CHECKING:
    import pyarrow as pa

    from strandline.lake import Lake
    from strandline.model.tables import Ack

T = TypeVar("T")

MAX_LINE_BYTES = 64 << 20
MAX_STDIN_BYTES = 1 << 30
ROWS_AT_ONCE = 100_000
_BOM = b"\xef\xbb\xbf"

Kind = Literal["lines", "parquet", "arrow_file", "arrow_stream", "gzip", "zstd"]
_MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow_file"),
    (b"\xff\xff\xff\xff", "arrow_stream"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
_LONGEST_MAGIC = 8
_EXTENSIONS: dict[str, Kind] = {
    ".parquet": "parquet",
    ".arrow": "arrow_file",
    ".ipc": "arrow_file",
    ".feather": "arrow_file",
}


@dataclass(frozen=True)
class OpenInput:
    """An open input: what it is called in messages, what it holds, and where to read it."""

    name: str
    kind: Kind
    stream: IO[bytes]


class Appending(TypedDict):
    """How rows are appended, whatever they come as."""

    actor: str
    idempotency_key: str | None
    branch: str


def append_file(lake: Lake, table: str, file: str, **options: Unpack[Appending]) -> Ack:
    """Append the rows of a file, or of stdin for `-`."""
    return read_rows(
        file,
        lambda rows: lake.append(table, rows, **options),
        lambda lines: lake.append_json_lines(table, lines, **options),
    )


def read_rows(
    file: str, take_rows: Callable[[pa.RecordBatchReader], T], take_lines: Callable[[Iterator[bytes]], T]
) -> T:
    """Give the rows of a file, or of stdin for `-`, to a service that takes them, and its answer back.

    An error about a row names the line that it was read from.
    """
    with _opened(file) as source, _readable(source.name):
        try:
            return take_lines(json_lines(source)) if source.kind == "lines" else take_rows(_arrow(source))
        except InvalidRows as error:
            raise _told_by_line(error, source) from None


def _told_by_line(error: InvalidRows, source: OpenInput) -> InvalidRows:
    """An error about rows by their places, told by what they were read from."""
    rows = [{"file": source.name, **row} for row in error.detail["rows"]]
    if source.kind == "lines":
        rows = [{**row, "line": row["index"] + 1} for row in rows]
    return InvalidRows(
        entry_text(rows[0]) + and_more(error.detail["bad"]), hint=error.hint, **{**error.detail, "rows": rows}
    )


@contextmanager
def _opened(file: str) -> Iterator[OpenInput]:
    if file == "-":
        yield _uncompressed(_recognised("stdin", _with_head(sys.stdin.buffer)))
        return
    path = input_path(file, "Check the path; `-` reads from stdin.")
    if path.suffix.lower() == ".csv":
        raise Unsupported(f"{file} is CSV, and append takes JSON lines, Parquet and Arrow", hint="Use `strand load`.")
    try:
        stream = path.open("rb")
    except OSError as error:
        raise Environment(f"can't read {file}: {error.strerror}", hint="Check the file's permissions.") from error
    with stream:
        yield _uncompressed(_recognised(file, _with_head(stream), path.suffix.lower()))


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """What Arrow and the decompressors say about bytes they can't read, in our words."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, EOFError, OSError, UnicodeDecodeError) as error:
        if isinstance(error, BrokenPipeError) or getattr(error, "errno", None) == 28:
            raise
        raise BadRequest(f"{name} can't be read: {error}", hint="It may be truncated or damaged.") from error


class _Joined(io.RawIOBase):
    """The first bytes of a stream, put back in front of the rest; a pipe can't be wound back.

    Behind its end it is not read again: a terminal would wait there for a second Ctrl-D.
    """

    def __init__(self, head: bytes, rest: IO[bytes], *, is_all: bool) -> None:
        self._head = head
        self._rest = rest
        self._has_ended = is_all

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        taken = self._head[: len(buffer)]
        self._head = self._head[len(taken) :]
        if not taken and not self._has_ended:
            taken = self._rest.read(len(buffer))
            self._has_ended = len(taken) < len(buffer)
        buffer[: len(taken)] = taken
        return len(taken)


class _Zstd(io.RawIOBase):
    """Zstandard frames, one after another. The library's own reader takes the end of a cut-off file for its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._fresh = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._fresh()
        self._stream = stream
        self._ready = b""
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and self._more():
            pass
        taken = self._ready[: len(buffer)]
        self._ready = self._ready[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def _more(self) -> bool:
        """Decompress the next piece; False at the end."""
        left = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame, self._begun = self._fresh(), False
        data = left or self._stream.read(1 << 16)
        if not data:
            if self._begun:
                raise EOFError("the compressed data ends in the middle")
            return False
        self._begun = True
        try:
            self._ready = self._frame.decompress(data)
        except self._error as error:
            raise OSError(str(error)) from error
        return True


def _with_head(stream: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    if stream.seekable():
        head = stream.read(_LONGEST_MAGIC)
        stream.seek(-len(head), io.SEEK_CUR)
        return head, stream
    head = stream.read(_LONGEST_MAGIC)
    return head, io.BufferedReader(_Joined(head, stream, is_all=len(head) < _LONGEST_MAGIC), 1 << 16)


def _recognised(name: str, opened: tuple[bytes, IO[bytes]], suffix: str = "") -> OpenInput:
    head, stream = opened
    kind = next((kind for magic, kind in _MAGIC if head.startswith(magic)), None)
    if kind is None and head and suffix in _EXTENSIONS:
        raise BadRequest(f"{name} is not a {suffix[1:]} file", hint="It may be truncated, or have the wrong extension.")
    return OpenInput(name, kind or "lines", stream)


def _uncompressed(source: OpenInput) -> OpenInput:
    if source.kind == "gzip":
        import gzip

        return OpenInput(source.name, "lines", gzip.GzipFile(fileobj=source.stream))  # type: ignore[arg-type]
    if source.kind == "zstd":
        return OpenInput(source.name, "lines", io.BufferedReader(_Zstd(source.stream), 1 << 16))
    return source


def json_lines(source: OpenInput) -> Iterator[bytes]:
    """The lines of a stream, none of them longer than memory should hold."""
    number = 0
    while line := source.stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise TooLarge(
                f"line {number} of {source.name} is longer than {MAX_LINE_BYTES >> 20} MiB",
                hint="Nothing was stored. Is it JSON lines, with one object to a line?",
                line=number,
            )
        yield line.removeprefix(_BOM) if number == 1 else line


def _arrow(source: OpenInput) -> pa.RecordBatchReader:
    """A reader of record batches."""
    import pyarrow as pa
    from pyarrow import ipc

    if source.kind == "arrow_stream":
        return ipc.open_stream(source.stream)
    stream = source.stream if source.stream.seekable() else io.BytesIO(_all(source))
    if source.kind == "arrow_file":
        file = ipc.open_file(stream)
        batches = (file.get_batch(at) for at in range(file.num_record_batches))
        return pa.RecordBatchReader.from_batches(file.schema, batches)
    from pyarrow import parquet

    parquet_file = parquet.ParquetFile(stream)
    return pa.RecordBatchReader.from_batches(parquet_file.schema_arrow, parquet_file.iter_batches(ROWS_AT_ONCE))


def _all(source: OpenInput) -> bytes:
    data = source.stream.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise TooLarge(
            f"{source.name} is larger than {MAX_STDIN_BYTES >> 20} MiB", hint="Use `strand load` with a file."
        )
    return data
