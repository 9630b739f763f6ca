"""Commands that only read. They open the lake read-only, and work from a read-only mount."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline import private
from strandline.cli import output
from strandline.cli.params import At, Branch, TableName, complete_table, input_path, listed
from strandline.cli.session import Session, session_of
from strandline.errors import BadRequest
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.views.view import View

POLL_S = 0.5
LAST_ROWS = 10


class Engine(StrEnum):
    """Who runs a query."""

    auto = "auto"
    duckdb = "duckdb"
    spark = "spark"


class Format(StrEnum):
    """How a query's rows are printed."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


class ExportFormat(StrEnum):
    """How exported rows are written."""

    jsonl = "jsonl"
    arrow = "arrow"


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command("sql")(sql)
    app.command("tail")(tail)
    app.command("export", short_help="Write rows as JSON lines or Arrow.")(export)


def sql(
    context: typer.Context,
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="One SELECT over the lake's tables; - reads stdin.")
    ] = None,
    file: Annotated[str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the query from it.")] = None,
    engine: Annotated[Engine, typer.Option(help="auto is DuckDB, which needs no Java.")] = Engine.auto,
    format_: Annotated[Format | None, typer.Option("--format", help="table, unless --json is given.")] = None,
    branch: Branch = "main",
    at: At = None,
) -> None:
    """Run one read-only query over the lake's tables.

    Rows are visible as soon as they were appended. The columns _seq, _at and _actor are not part of `*`, and can be
    named.

    \b
    Example: strand sql "select source, count(*) from messages group by 1"
             strand sql -f report.sql --format csv
    """
    session = session_of(context)
    text = _query_text(context, session, query, file)
    shape = format_ or (Format.json if session.json else Format.table)
    run = _on_spark if engine is Engine.spark else _on_duckdb
    with session.open(read_only=True) as lake:
        columns, rows = run(session, lake.view(branch, at), lake, text)
    _print_rows(session, shape, _distinct(columns), rows)


def _query_text(context: typer.Context, session: Session, query: str | None, file: str | None) -> str:
    """The query of the line, of a file or of stdin; one of them."""
    if (query is None) == (file is None):
        raise typer.BadParameter("give a QUERY, - for stdin, or -f FILE", ctx=context)
    try:
        if file is not None and file != "-":
            return input_path(file).read_text(encoding="utf-8-sig")
        if query is not None and query != "-":
            return query
        if sys.stdin.isatty():
            session.note("Reading the query from the terminal; end with Ctrl-D.")
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"the query is not UTF-8 text: {error.reason}", hint="Save it as UTF-8.") from None


Answer = tuple[list[str], list[tuple[Any, ...]]]


def _on_duckdb(session: Session, view: View, _: Lake, query: str) -> Answer:
    with session.without_pandas(), session.walled(view.limits):
        result = view.sql(query)
        return result.columns, result.rows()


def _on_spark(session: Session, view: View, lake: Lake, query: str) -> Answer:
    from strandline.views.spark_sql import spark_sql

    spark = lake.spark  # a JVM's start is not the query's time
    with session.ending_spark():
        return spark_sql(view, spark, query)


_COUNTS = {"count_star()": "count(*)", "count(1)": "count(*)"}
"""What DuckDB and Spark call the column of `count(*)`."""


def _distinct(columns: list[str]) -> list[str]:
    """Names that can be keys of an object: a second `a` is `a_2`. What an engine calls a count is `count(*)` in all."""
    columns = [_COUNTS.get(name, name) for name in columns]
    seen: dict[str, int] = {}
    for name in columns:
        seen[name] = seen.get(name, 0) + 1
    if len(seen) == len(columns):
        return columns
    taken: list[str] = []
    for name in columns:
        number, fresh = 1, name
        while fresh in taken:
            number += 1
            fresh = f"{name}_{number}"
        taken.append(fresh)
    return taken


def _print_rows(session: Session, shape: Format, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    match shape:
        case Format.json:
            document: dict[str, Any] = {
                "columns": columns,
                "rows": [dict(zip(columns, row, strict=True)) for row in rows],
            }
            output.write_json({**document, "warnings": session.warnings} if session.warnings else document)
        case Format.jsonl:
            for start in range(0, len(rows), 1000):
                lines = (output.json_bytes(dict(zip(columns, row, strict=True))) for row in rows[start : start + 1000])
                output.write(b"\n".join(lines) + b"\n")
        case Format.csv:
            _print_csv(columns, rows)
        case Format.table:
            output.table(columns, rows)


def _print_csv(columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    output.write(text.getvalue().encode("utf-8", "surrogatepass"))


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    said = output.json_bytes(value).decode()
    return said[1:-1] if said.startswith('"') else said


def tail(
    context: typer.Context,
    table: TableName,
    since: Annotated[int | None, typer.Option(min=0, metavar="SEQ", help="Rows after this _seq.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with rows as they arrive.")] = False,
    branch: Branch = "main",
) -> None:
    """Print rows in the order they arrived, as JSON lines.

    With _seq, _at and _actor; the last 10 without --since.

    \b
    Example: strand tail messages --follow
    """
    session = session_of(context)
    with session.without_pandas(), session.open(read_only=True) as lake:
        view = lake.view(branch)
        if since is not None:
            refuse_future(lake, since)
        seq = view.before_last(table, LAST_ROWS) if since is None else since
        try:
            seq = _print_since(view, table, seq)
            while follow:
                time.sleep(POLL_S)
                seq = _print_since(lake.view(branch), table, seq)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def refuse_future(lake: Lake, since: int) -> None:
    """A seq that was never given is another lake's, or a slip: following from there would silently skip rows."""
    with lake.ledger.read() as conn:
        last = lake.ledger.last_seq(conn)
    if since > last:
        raise BadRequest(f"this lake has no seq {since} yet", hint=f"Its last one is {last}.")


def _print_since(view: View, table: str, since: int) -> int:
    """Print what there is after `since`; returns where to go on."""
    state = view.state(table)
    if state.readable_seq <= since:
        return since
    from strandline.model.wire import to_json_lines

    rows = view.read(table, since)
    for batch in rows:
        output.write(b"".join(to_json_lines(batch, state.schema)))
    return rows.continuation


def export(
    context: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B", help="Tables; all of them if none is named.", autocompletion=complete_table),
    ] = None,
    format_: Annotated[ExportFormat, typer.Option("--format", help="arrow takes one table.")] = ExportFormat.jsonl,
    to: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Instead of stdout.")] = None,
    branch: Branch = "main",
    at: At = None,
) -> None:
    """Write the rows of tables as they are at one moment, or as they were.

    Memory does not grow with them, and `strand load` reads them back. With several tables each line has its table's
    name as "_table".

    \b
    Example: strand export --tables messages -o messages.jsonl
    """
    session = session_of(context)
    with session.without_pandas(), session.open(read_only=True) as lake:
        view = lake.view(branch, at)
        names = [view.state(name).table.name for name in listed(tables) or view.tables]
        if format_ is ExportFormat.arrow and len(names) != 1:
            raise BadRequest(
                f"an Arrow export is of one table, and this is {len(names)}", hint="Name it with --tables."
            )
        chunks = _arrow_chunks(view, names[0]) if format_ is ExportFormat.arrow else _line_chunks(view, names)
        if to is None or to == "-":
            for _, data in chunks:
                output.write(data)
            return
        counts = dict.fromkeys(names, 0) | _write_file(Path(to), chunks)
    document = {"file": to, "tables": [{"table": name, "rows": rows} for name, rows in counts.items()]}
    total = sum(counts.values())
    session.emit(
        document,
        lambda: output.say(f"Exported {counted(total, 'row')} of {counted(len(names), 'table')} to {to}."),
    )


Chunks = Iterator[tuple[tuple[str, int], bytes]]
"""Pieces of an export, each with the table and the number of rows it holds."""


def _write_file(path: Path, chunks: Chunks) -> dict[str, int]:
    """Write all of it, or nothing under that name: half an export looks like a whole one."""
    if path.is_dir():
        raise BadRequest(f"{path} is a folder", hint="Name a file.")
    partial = path.with_name(f".{path.name}.partial")
    counts: dict[str, int] = {}
    try:
        with open(partial, "wb", opener=private.opener) as file:
            for (name, rows), data in chunks:
                file.write(data)
                counts[name] = counts.get(name, 0) + rows
        partial.replace(path)
    except FileNotFoundError as error:
        raise BadRequest(f"there is no folder {path.parent}", hint="Make it first.") from error
    finally:
        partial.unlink(missing_ok=True)
    return counts


def _line_chunks(view: View, names: list[str]) -> Chunks:
    from strandline.model.wire import to_json_lines

    for name in names:
        state = view.state(name)
        head = b'{"_table":' + output.json_bytes(name) + b"," if len(names) > 1 else b"{"
        for batch in view.rows(name):
            extras = batch.column("_extra").to_pylist() if state.table.extra else [None] * batch.num_rows
            lines = to_json_lines(batch.select(list(state.schema.names)), state.schema)
            data = b"".join(_line(line, head, extra) for line, extra in zip(lines, extras, strict=True))
            yield (name, batch.num_rows), data


def _line(line: bytes, head: bytes, extra: str | None) -> bytes:
    """A row with its table's name in front, and with its unknown fields where they were when they came."""
    inside = line[1 : line.rindex(b"}")]
    more = b"," + extra.strip()[1:-1].encode() if extra else b""
    return head + inside + more + b"}\n"


def _arrow_chunks(view: View, name: str) -> Chunks:
    import pyarrow as pa
    from pyarrow import ipc

    from strandline.model.arrow import stored_schema

    state = view.state(name)
    schema = stored_schema(state.schema, state.table.extra)
    buffered = _Drain()
    with ipc.new_stream(pa.PythonFile(buffered, mode="w"), schema) as writer:
        for batch in view.rows(name):
            writer.write_batch(batch.select(schema.names).cast(schema))
            yield (name, batch.num_rows), buffered.taken()
    yield (name, 0), buffered.taken()


class _Drain:
    """A file that hands on what was written to it."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Keep it until it is taken."""
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> bytes:
        """What was written since the last time."""
        data, self._pieces = b"".join(self._pieces), []
        return data
