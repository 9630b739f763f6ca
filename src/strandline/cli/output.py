"""How answers look: JSON for programs, tables for people.

On a terminal tables are Rich's. Into a pipe they are plain aligned text of full width, without colour: a program that
cuts it up finds everything, and a short command does not wait for Rich to be imported. Text that came from rows is
never trusted: a control character in it would otherwise reach the terminal.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Literal, TextIO

import orjson

from strandline.cli import layout

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
Mood = Literal["good", "careful", "bad"]
_MOODS: dict[Mood, str] = {"good": "32", "careful": "33", "bad": "1;31"}
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def json_bytes(value: object) -> bytes:
    """A value as JSON on one line. Integers beyond 64 bits are rare, and only the slower library takes them."""
    try:
        return orjson.dumps(value, default=_as_json, option=_OPTIONS)
    except TypeError:
        return json.dumps(_plain(value), ensure_ascii=False, default=_exactly_as_json).encode()


def write_json(document: object) -> None:
    """One document on stdout."""
    write(json_bytes(document) + b"\n")


def write(data: bytes) -> None:
    """Bytes to stdout, after all the text that was printed before."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def flush() -> None:
    """Let the reader of our output see it now; a command that goes on would keep it."""
    sys.stdout.flush()


def to_stderr(text: str) -> None:
    """A line for people beside the answer."""
    print(_fitting(_printable(text, keep="\n"), sys.stderr), file=sys.stderr, flush=True)


def say(text: str = "", mood: Mood | None = None) -> None:
    """A line of the answer, in the colour of its mood where a terminal shows colours."""
    fitting = _fitting(text, sys.stdout)
    print(fitting if mood is None or not _shows_colour(sys.stdout) else f"\x1b[{_MOODS[mood]}m{fitting}\x1b[0m")


def clear() -> None:
    """Begin at the top of an empty terminal; in a pipe, with an empty line."""
    print("\x1b[H\x1b[2J\x1b[3J" if sys.stdout.isatty() else "", end="" if sys.stdout.isatty() else "\n")


def _fitting(text: str, stream: TextIO) -> str:
    """Lines for a terminal break between words; into a pipe they stay whole."""
    return layout.wrapped(text, layout.terminal_width(stream), indent="  ") if stream.isatty() else text


def _shows_colour(stream: TextIO) -> bool:
    """Whether a person sees colours there, and has not said no to them (https://no-color.org)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _as_json(value: object) -> object:
    """What JSON can't say itself. Decimals keep their digits, as numbers."""
    if isinstance(value, Decimal) and value.is_finite():
        return orjson.Fragment(format(value, "f"))
    return _exactly_as_json(value)


def _exactly_as_json(value: object) -> object:
    match value:
        case dt.datetime():
            return moment(value)
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
    return str(value)


def _plain(value: object) -> object:
    """The same with keys that the standard library takes, and without its NaN, which is no JSON."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def moment(value: dt.datetime) -> str:
    """A time as an export writes it: UTC, with microseconds and a Z; a local time has none."""
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(dt.UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def when(text: str | None) -> str:
    """A time as reports write it, for people: to the second."""
    return "" if text is None else f"{text[:19].replace('T', ' ')}Z"


def age(seconds: float | None) -> str:
    """How long ago, roughly: `42 s`, `5 min`, `3 h`, `2 days`."""
    if seconds is None:
        return ""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name}"
    return f"{int(seconds // 86400)} days"


def size(size_bytes: int) -> str:
    """`512 B`, `1.5 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{int(amount)} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(seconds: float) -> str:
    """A length of time as settings take it: `90d`, `5s`."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds and seconds % unit_s == 0:
            return f"{int(seconds // unit_s)}{unit}"
    return f"{seconds:g}s"


def exact_size(size_bytes: int) -> str:
    """A size as settings take it, without a digit lost: `64MiB`, `1000000B`."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes and size_bytes % (1 << power) == 0:
            return f"{size_bytes >> power}{unit}"
    return f"{size_bytes}B"


def cell(value: object) -> str:
    """A value as a table shows it, on one line."""
    match value:
        case None:
            return "NULL"
        case str():
            return _printable(value)
        case bool():
            return "true" if value else "false"
        case float() | int() | Decimal():
            return str(value)
        case dict() | list() | tuple():
            return _printable(json_bytes(value).decode())
    return _printable(str(_exactly_as_json(value)))


def _printable(text: str, keep: str = "") -> str:
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else _escaped(match[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    return _ESCAPES.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table on stdout; numbers stand on the right."""
    listed = [list(row) for row in rows]
    right = [_is_numeric(row[place] for row in listed) for place in range(len(columns))]
    texts = [[cell(value) for value in row] for row in listed]
    if not sys.stdout.isatty():
        _aligned(columns, texts, right, title)
        return
    room = layout.terminal_width(sys.stdout)
    heads = [_printable(name) for name in columns]
    widths = layout.column_widths([heads, *texts], room)
    if widths is None:
        _records(heads, texts, room, title)
    else:
        _rich(heads, texts, right, widths, room, title)


def _is_numeric(values: Iterable[object]) -> bool:
    kinds = {type(value) for value in values if value is not None and value != ""}
    return bool(kinds) and kinds <= {int, float, Decimal}


def _aligned(columns: Sequence[str], rows: list[list[str]], right: list[bool], title: str) -> None:
    heads = [_printable(name) for name in columns]
    widths = [max(map(layout.text_width, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, right, strict=True)
        return "  ".join(layout.padded(text, width, right=is_number) for text, width, is_number in placed).rstrip()

    lines = [title] if title else []
    lines += [line(heads), "  ".join("-" * width for width in widths), *map(line, rows)]
    print("\n".join(lines))


def _records(heads: Sequence[str], rows: list[list[str]], room: int, title: str) -> None:
    """A table that the terminal has no room for, row by row."""
    lines = [title] if title else []
    print("\n".join([*lines, *(line for row in rows for line in layout.record_lines(heads, row, room))]))


def _rich(
    heads: Sequence[str], rows: list[list[str]], right: list[bool], widths: list[int], room: int, title: str
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        say(title)
    console = Console(highlight=False, width=room)
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for head, is_number, width in zip(heads, right, widths, strict=True):
        shown.add_column(Text(head), justify="right" if is_number else "left", overflow="fold", width=width)
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(shown)
