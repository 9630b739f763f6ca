"""What large loads of log tables and of keyed ones have in common: the first pass, and errors told by file and line.

The first pass holds nothing. It turns the input into Parquet parts in the load's folder, and every row is validated by
then. A load whose input turns out to be no good is given up, and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack, cast

from strandline.engines.files import FilePart, Input, UnknownTable, cut, unchanged
from strandline.engines.row_lines import with_lines
from strandline.errors import InvalidRows, KeyExists, StrandError
from strandline.failpoints import fail
from strandline.json_types import Json, JsonObject
from strandline.ledger.publish import loads
from strandline.ledger.publish.loads import Load
from strandline.model.operations import KeptAnswer, Loaded
from strandline.model.reporting import MEND_ROWS, and_more, entry_text, most_reported
from strandline.model.wording import counted
from strandline.operations.core.context import Context
from strandline.operations.core.recovery import tidy_loads

if TYPE_CHECKING:
    from strandline.engines.spark.convert import Conversion, Converted, ConvertedPart


@dataclass(frozen=True)
class LinePlace:
    """A file, and how many of its lines are before the one that is meant."""

    uri: str
    before: int

    def of(self, entry: JsonObject) -> dict[str, Json]:
        """An entry about a row that is told by its line from here on, told by its line in the file."""
        index = entry["index"]
        assert isinstance(index, int), "an entry about a row of a chunk has its index"
        return {"file": self.uri, **entry, "index": self.before + index}


@dataclass(frozen=True)
class FirstPass:
    """What the input became: its parts, and where each of its chunks begins."""

    parts: tuple[ConvertedPart, ...]
    chunks: tuple[LinePlace, ...]
    skipped: int


def first_pass(ctx: Context, load_id: str, inputs: Sequence[Input], conversion: Conversion) -> FirstPass:
    """Write the input to the load's folder, all of it valid; UnknownTable where a line names one that there is not."""
    from strandline.engines.spark.convert import convert

    work = cut(inputs)
    ctx.staging.create(load_id)
    ctx.report(f"reading {counted(len(inputs), 'file')}", 0, None)
    fail("load.before_convert")
    converted = convert(ctx.iceberg().session, work, conversion, folder=ctx.staging.uri(load_id))
    first = collected(converted, work, inputs)
    unchanged(inputs)  # a part may be the user's own file, which is read again when it is published
    fail("load.after_convert")
    return first


def collected(converted: Sequence[Converted], work: Sequence[Sequence[FilePart]], inputs: Sequence[Input]) -> FirstPass:
    """What all tasks made of the input, or one error over all that is wrong with it."""
    places = _places([chunk for chunks in work for chunk in chunks], converted)
    _refuse_bad(converted, places, inputs)
    parts = tuple(part for task in converted for part in task.parts)
    return FirstPass(parts, places, sum(task.skipped for task in converted))


def _places(chunks: Sequence[FilePart], converted: Sequence[Converted]) -> tuple[LinePlace, ...]:
    """Of each chunk its file, and how many lines of it are before the chunk."""
    before: dict[str, int] = {}
    places: list[LinePlace] = []
    lines = {number: count for task in converted for number, count in task.lines.items()}
    for number, chunk in enumerate(chunks):
        uri = chunk.input.uri
        places.append(LinePlace(uri, before.get(uri, 0)))
        before[uri] = places[-1].before + lines.get(number, 0)
    return tuple(places)


def _refuse_bad(converted: Sequence[Converted], places: Sequence[LinePlace], inputs: Sequence[Input]) -> None:
    """Raise one error over all bad rows, with line numbers that count from the beginning of each file."""
    for task in converted:
        if task.unknown is not None:
            raise UnknownTable(task.unknown)
    for task in converted:
        if task.error is not None:
            raise task.error
    rows = [places[row.chunk].of(row.entry) for task in converted for row in task.bad]
    if rows:
        raise bad_rows(rows, sum(task.bad_count for task in converted), inputs)


@contextmanager
def given_up_on_failure(ctx: Context, pending: Load) -> Iterator[None]:
    """Leave no trace of a load whose input is no good."""
    try:
        yield
    except Exception:
        with ctx.ledger.write() as txn:
            loads.give_up_load(txn, pending.load_id)
        tidy_loads(ctx)
        raise


def kept_answer(progress: loads.AdvanceLoad) -> KeptAnswer:
    """What a load has made known so far: an effect has it as it is stored, and only loads write it."""
    return cast("KeptAnswer", progress.answer)


class LoadRun(TypedDict, total=False):
    """What a load is answered besides what is remembered of it."""

    already_loaded: bool
    operations: tuple[str, ...]
    warnings: tuple[str, ...]


def loaded(table: str, answer: KeptAnswer, **run: Unpack[LoadRun]) -> Loaded:
    """What a load is answered, by what is remembered of it."""
    return Loaded(
        table=table,
        rows=answer["rows"],
        duplicates_dropped=answer["duplicates_dropped"],
        first_seq=answer.get("first_seq"),
        last_seq=answer.get("last_seq"),
        commit=answer.get("commit"),
        skipped=answer["skipped"],
        deleted=answer.get("deleted", 0),
        tables=answer.get("tables", {}),
        too_old=answer.get("too_old", 0),
        **run,
    )


# -- what is wrong, by file and line -----------------------------------------------------------------------------------


def in_file(error: InvalidRows, source: Input) -> InvalidRows:
    """An error about rows that says in which file they are, and in which lines."""
    rows = [{"file": source.uri, **row} for row in error.detail["rows"]]
    return bad_rows(rows, error.detail["bad"], [source], hint=error.hint)


def bad_rows(rows: Sequence[JsonObject], bad: int, inputs: Sequence[Input], *, hint: str = MEND_ROWS) -> InvalidRows:
    """The error that lists so many bad rows of files; each has its file beside what is wrong."""
    listed = with_lines(rows[: most_reported()], inputs)
    return InvalidRows(
        entry_text(listed[0]) + and_more(bad),
        hint=hint,
        rows=listed,
        bad=bad,
    )


def by_line(error: StrandError, listed: Mapping[str, Sequence[JsonObject]], inputs: Sequence[Input]) -> StrandError:
    """An error about rows of a load, told by file and line where these are known, in the order of the lines."""
    if not any(listed.values()):
        return error
    detail = {**error.detail, **{name: sorted(with_lines(rows, inputs), key=_in_file) for name, rows in listed.items()}}
    entries = detail.get("violations") or detail["rows"]
    total = detail.get("bad") or detail["count"]
    if isinstance(error, KeyExists):
        text = f"{entry_text(entries[0])} can't be inserted: it is there already"
        hint = "Nothing was stored. --mode merge replaces rows that are there."
    else:
        text, hint = entry_text(entries[0]), MEND_ROWS
    return type(error)(text + and_more(total), **{**detail, "hint": hint})


def _in_file(entry: JsonObject) -> tuple[str, int]:
    file, index = entry.get("file"), entry.get("index")
    return file if isinstance(file, str) else "", index if isinstance(index, int) else 0
