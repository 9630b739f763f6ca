"""How text fits a terminal: lines break between words, and a table that has no room becomes a list of records.

A word is never cut: an id, an address or a command that is broken can't be copied. Where a word alone is wider than the
terminal, its line is longer, and the terminal wraps it as it likes. Widths are those of a terminal's cells: an
ideograph takes two of them, and an accent that combines with a letter none.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

GAP = 2
"""Between two columns of a table."""
PAIRS_GAP = 3
"""Between two fields of a record."""
DEFAULT_WIDTH = 80
_MOMENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\S*"
_WORDS = re.compile(rf"`[^`]*`\S*|{_MOMENT}|\S+")
"""What stays on one line: a word, a time, or a command between backticks."""
_CELL_WORDS = re.compile(rf"{_MOMENT}|\S+")
_AMOUNTS_OR_WORDS = re.compile(rf"{_MOMENT}|\d[\d.,]* (?:s|min|h|days|[KMGT]?i?B)\b|\S+")


def terminal_width(stream: TextIO | None = None) -> int:
    """How wide the terminal of a stream is, by $COLUMNS or by itself."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    with suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or DEFAULT_WIDTH
    return DEFAULT_WIDTH


def text_width(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_cell_width(character) for character in text)


def _cell_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def padded(text: str, width: int, *, right: bool = False) -> str:
    """A text with spaces behind it, or before it, so that it takes so many cells."""
    spaces = " " * (width - text_width(text))
    return spaces + text if right else text + spaces


def wrapped(text: str, room: int, *, indent: str = "") -> str:
    """A text of one or more lines, each broken between words where it is too long; later parts stand under `indent`."""
    return "\n".join(part for line in text.split("\n") for part in _wrapped_line(line, room, indent))


def _wrapped_line(line: str, room: int, indent: str) -> list[str]:
    if text_width(line) <= room:
        return [line]
    start = line[: len(line) - len(line.lstrip(" "))]
    lines, current, end = [], start, 0
    for match in _WORDS.finditer(line):
        space = line[end : match.start()] if end else ""
        if end and text_width(current + space + match[0]) > room:
            lines.append(current)
            current, space = start + indent, ""
        current, end = current + space + match[0], match.end()
    return [*lines, current]


def column_widths(lines: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """How wide each column of a table is, so that all of them fit with every word whole; None where that can't be.

    Where there is room, an amount keeps its unit beside it too.
    """
    return _widths_of(lines, room, _AMOUNTS_OR_WORDS) or _widths_of(lines, room, _CELL_WORDS)


def _widths_of(lines: Sequence[Sequence[str]], room: int, whole: re.Pattern[str]) -> list[int] | None:
    columns = list(zip(*lines, strict=True))
    needed = [max(1, *map(text_width, column)) for column in columns]
    words = [[word for text in column for word in whole.findall(text)] for column in columns]
    widths = [max(map(text_width, column), default=1) for column in words]
    left = room - GAP * (len(columns) - 1)
    if sum(widths) > left:
        return None
    while sum(widths) < left and widths != needed:
        narrow = min((place for place, width in enumerate(widths) if width < needed[place]), key=widths.__getitem__)
        widths[narrow] += 1
    return widths


def record_lines(heads: Sequence[str], row: Sequence[str], room: int) -> list[str]:
    """A row whose table has no room: its first field, and under it, by its name, each other one that is not empty."""
    lines = [wrapped(f"{heads[0]}: {row[0]}", room, indent="  ")]
    current = ""
    for head, value in zip(heads[1:], row[1:], strict=True):
        if not value:
            continue
        pair = f"{head}: {value}"
        joined = f"{current}{' ' * PAIRS_GAP}{pair}" if current else f"  {pair}"
        if current and text_width(joined) > room:
            lines.append(wrapped(current, room, indent="  "))
            joined = f"  {pair}"
        current = joined
    return [*lines, *([wrapped(current, room, indent="  ")] if current else [])]
