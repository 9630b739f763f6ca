"""What an error lists, and how a person reads an entry of such a list.

An error about many rows lists the first of them, so that a log line or an HTTP answer stays small; a person who asks
for all of them (`--all`) lifts that limit for one command. The entries are documents (`detail` is for programs), and
they come from other processes too: whatever an entry looks like, it has a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

import orjson

from strandline.model.wording import judged

MAX_REPORTED = 20
MEND_ROWS = "Nothing was stored. Mend the rows that are named, and give all of them again."
NO_LIMIT = 1_000_000_000
T = TypeVar("T")
_most: ContextVar[int] = ContextVar("most_reported", default=MAX_REPORTED)
_LISTS = ("undecided", "violations", "rows", "steps", "conflicts")
_NAMED_BY_MESSAGE = ("violations", "rows", "steps")
"""Lists whose first entry is in the error's message already."""


def most_reported() -> int:
    """How many entries an error lists."""
    return _most.get()


@contextmanager
def reporting(most: int) -> Iterator[None]:
    """Let errors list so many entries for the length of a block."""
    token = _most.set(most)
    try:
        yield
    finally:
        _most.reset(token)


def report_all() -> None:
    """Let errors list all of their entries from now on, until the `reporting` block around it ends."""
    _most.set(NO_LIMIT)


@dataclass
class Listed(Generic[T]):
    """The first entries of each of several lists, as many as an error lists, and how many there are in all."""

    first: list[T] = field(default_factory=list)
    count: int = 0

    def add(self, entries: Iterable[T]) -> None:
        """List the first of these too; the others are counted as they come, so they cost no memory."""
        left = iter(entries)
        first = list(islice(left, most_reported()))
        self.first += first
        self.count += len(first) + sum(1 for _ in left)


def listed_lines(detail: Mapping[str, object]) -> list[str]:
    """The entries that an error's detail lists and its message does not name, each as a line, and how many are left."""
    if detail.get("kind") == "merge_conflicts":
        detail = {**detail, "conflicts": detail.get("actual")}
    name, entries = next(_lists_of(detail), ("", []))
    if not entries:
        return []
    total = max(_count(detail), len(entries))
    shown = entries[: most_reported()]
    files = {str(entry["file"]) for entry in shown if isinstance(entry, Mapping) and "file" in entry}
    lines = [entry_text(entry, with_file=len(files) > 1) for entry in shown]
    left = total - len(shown)
    return [*lines[name in _NAMED_BY_MESSAGE :], *([f"… and {left:,} more (--all lists them)"] if left > 0 else [])]


def _lists_of(detail: Mapping[str, object]) -> Iterator[tuple[str, list[object]]]:
    for name in _LISTS:
        entries = detail.get(name)
        if isinstance(entries, list | tuple) and entries:
            yield name, list(entries)


def _count(detail: Mapping[str, object]) -> int:
    numbers = [detail.get(name) for name in ("bad", "count")]
    return max((number for number in numbers if isinstance(number, int)), default=0)


def entry_text(entry: object, *, with_file: bool = True) -> str:
    """One entry of a list, for people: where it is, and what is the matter."""
    if not isinstance(entry, Mapping):
        return _plain(entry)
    where = ", ".join(filter(None, [_branch(entry), place_text(entry, with_file=with_file)]))
    if "fields" in entry and "kind" in entry:
        return _conflict_text(entry)
    if "row" in entry:
        return f"{where}: {entry['row']}" if "file" in entry else _plain(entry["row"])
    if "why" in entry:
        return (
            " ".join(str(entry[name]) for name in ("table", "what", "column") if entry.get(name)) + f": {entry['why']}"
        )
    if "reason" not in entry:
        return _plain(entry)
    what = judged(str(entry.get("value", "")), str(entry["reason"]))
    field = f"field {entry['field']!r}" if entry.get("field") else ""
    if "table" in entry:
        row = f"{entry['table']} {entry.get('key', '')}".strip()
        return ": ".join(
            filter(None, [where if "file" in entry or "branch" in entry else "", _joined(row, field), what])
        )
    return ": ".join(filter(None, [_joined(where, field), what]))


def place_text(entry: Mapping[str, object], *, with_file: bool = True) -> str:
    """Where a row was found: the line of a file, or its place among those that a caller gave, which count from 0."""
    index, line = entry.get("index"), entry.get("line")
    if "file" not in entry:
        return "" if index is None else f"row {index}"
    file = [shown_file(str(entry["file"]))] if with_file else []
    number = [f"line {line}"] if line is not None else [f"row {index + 1}"] if isinstance(index, int) else []
    return ", ".join([*file, *number])


def shown_file(uri: str) -> str:
    """A file as people name it: a path where it is on this machine."""
    return uri.removeprefix("file://")


def and_more(count: int) -> str:
    """How many entries there are besides the first."""
    return f" (and {count - 1:,} more)" if count > 1 else ""


def _branch(entry: Mapping[str, object]) -> str:
    return f"on branch {entry['branch']!r}" if "branch" in entry else ""


def _joined(where: str, field: str) -> str:
    return ", ".join(filter(None, [where, field]))


def _conflict_text(entry: Mapping[str, object]) -> str:
    key = entry.get("key")
    named = ", ".join(_plain(value) for value in key.values()) if isinstance(key, Mapping) else _plain(key)
    fields = entry["fields"]
    names = [str(name) for name in fields] if isinstance(fields, list | tuple) else []
    row = f"{entry.get('table', '')} {named}".strip()
    kind = str(entry["kind"]).replace("_", " ")
    both = f"ours {_side(entry.get('ours'))}, theirs {_side(entry.get('theirs'))}" if "ours" in entry else ""
    return f"{row}: {kind}" + (f" in {', '.join(names)}" if names else "") + (f" ({both})" if both else "")


def _side(row: object) -> str:
    """What a side has in the fields of a conflict."""
    if not isinstance(row, Mapping):
        return "none" if row is None else _plain(row)
    return ", ".join(_plain(value) if isinstance(value, str) else _json(value) for value in row.values())


def _plain(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return str(value)
