"""JSON bodies, a piece at a time.

The objects that a text becomes take up to fifty times its room. So no more of a body is made objects at once than a
piece, which becomes columns before the next one is read. Where a piece of an array ends is found by its brackets and
its strings; whether it is JSON is judged when the piece is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from strandline.errors import BadRequest
from strandline.model.limits import MAX_CELLS, MAX_ROW_CELLS, MAX_ROWS, PIECE_ROWS, too_many

PIECE_BYTES = 256 << 10

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TO_BRACKET = re.compile(rb'[^"{}\[\]]*+(?:%b[^"{}\[\]]*+)*+([{}\[\]])' % _STRING, re.DOTALL)
_TO_COMMA = re.compile(rb'[^"{}\[\],]*+(?:%b[^"{}\[\],]*+)*+([{}\[\],])' % _STRING, re.DOTALL)
_OUTSIDE_STRINGS = re.compile(rb'([^"]{1,65536}+)|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


@dataclass(frozen=True)
class BodyLines:
    """The lines of a body, one after another, as often as they are asked for: a list may take ten times the room."""

    body: bytes | bytearray

    def __iter__(self) -> Iterator[bytes]:
        check_values(self.body, "the request", MAX_CELLS)
        start = rows = 0
        while start < len(self.body):
            end = self.body.find(b"\n", start)
            end = len(self.body) if end < 0 else end
            line = bytes(self.body[start:end])
            rows += bool(line.strip())
            if rows > MAX_ROWS:
                raise too_many("the request", "rows", MAX_ROWS)
            check_values(line, "a row", MAX_ROW_CELLS)
            yield line
            start = end + 1


def line_pieces(lines: Iterable[bytes], most_rows: int = PIECE_ROWS) -> Iterator[tuple[int, list[bytes]]]:
    """Lines in pieces, each with the index of its first line."""
    start, size_bytes = 0, 0
    piece: list[bytes] = []
    for line in lines:
        if len(piece) >= most_rows or (piece and size_bytes + len(line) > PIECE_BYTES):
            yield start, piece
            start, size_bytes, piece = start + len(piece), 0, []
        piece.append(line)
        size_bytes += len(line)
    if piece:
        yield start, piece


@dataclass(frozen=True)
class ArrayPieces:
    """A JSON array of rows as the texts of smaller arrays, one after another, as often as they are asked for."""

    body: bytes | bytearray

    def __iter__(self) -> Iterator[bytes]:
        check_values(self.body, "the request", MAX_CELLS)
        start, stop = self._inside()
        piece = start
        for row, (begin, end) in enumerate(_elements(self.body, start, stop), 1):
            if row > MAX_ROWS:
                raise too_many("the request", "rows", MAX_ROWS)
            check_values(self.body[begin:end], "a row", MAX_ROW_CELLS)
            if begin > piece and end - piece > PIECE_BYTES:
                yield self._array(piece, begin - 1)  # without the comma before this element
                piece = begin
        if piece > start or self.body[start:stop].strip():
            yield self._array(piece, stop)

    def _inside(self) -> tuple[int, int]:
        """Where what is between its brackets begins and ends."""
        start, stop = len(self.body) - len(self.body.lstrip()), len(self.body.rstrip())
        if self.body[start : start + 1] != b"[" or self.body[stop - 1 : stop] != b"]" or stop - start < 2:
            raise BadRequest("the body is not a JSON array", hint="Send a JSON array of objects, or JSON lines.")
        return start + 1, stop - 1

    def _array(self, start: int, stop: int) -> bytes:
        inside = bytes(self.body[start:stop])
        if not inside.strip():
            raise BadRequest("the body is not JSON: nothing stands between two commas", hint="Send a JSON array.")
        return b"[%b]" % inside


def elements(text: bytes | bytearray) -> Iterator[bytes]:
    """The texts of the elements of a text that is a JSON array."""
    start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
    return (bytes(text[begin:end]) for begin, end in _elements(text, start + 1, stop - 1))


def _elements(text: bytes | bytearray, at: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where each element begins and ends, between commas that are in no bracket and no string."""
    begin, depth = at, 0
    while match := (_TO_BRACKET if depth else _TO_COMMA).match(text, at, stop):
        at, token = match.end(), match[1]
        if token == b",":
            yield begin, at - 1
            begin = at
        else:
            depth += 1 if token in b"[{" else -1
            if depth < 0:
                break  # not JSON, which is told when the piece is parsed
    yield begin, stop


def check_values(text: bytes | bytearray, what: str, limit: int) -> None:
    """Raise TooLarge for a text with more values than that. What only looks like one, in a string, does not count."""
    if len(text) // 2 <= limit or _values(text) <= limit:
        return
    values = 0
    for match in _OUTSIDE_STRINGS.finditer(text):
        values += _values(match[1] or b"")
        if values > limit:
            raise too_many(what, "values", limit)


def _values(text: bytes | bytearray) -> int:
    """How many values a text has at the most: each stands behind one of these."""
    return sum(text.count(mark) for mark in (b",", b":", b"[", b"{"))
