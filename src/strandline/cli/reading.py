"""Commands that only read. They open the lake read-only, and work from a read-only mount."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import output
from strandline.cli.params import At, Branch, TableName, complete_table, input_path, listed
from strandline.cli.session import Session, session_of
from strandline.errors import BadRequest
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.lake.queries import QueryAnswer
    from strandline.views.view import View

POLL_S = 0.5
LAST_ROWS = 10


class Engine(StrEnum):
    """The engine that runs a query."""

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
        answer = run(session, lake.view(branch, at), lake, text)
    _print_rows(session, shape, answer)


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


def _on_duckdb(session: Session, view: View, lake: Lake, query: str) -> QueryAnswer:
    with session.without_pandas(), session.walled(view.limits):
        return lake.queries.on_duckdb(view, query)


def _on_spark(session: Session, view: View, lake: Lake, query: str) -> QueryAnswer:
    lake.iceberg()  # a JVM's start is not the query's time
    with session.ending_spark():
        return lake.queries.on_spark(view, query)


def _print_rows(session: Session, shape: Format, answer: QueryAnswer) -> None:
    columns, rows = answer.columns, answer.values
    match shape:
        case Format.json:
            output.write_json(session.document_of(answer.by_name()))
        case Format.jsonl:
            for start in range(0, len(rows), 1000):
                lines = (output.json_bytes(dict(zip(columns, row, strict=True))) for row in rows[start : start + 1000])
                output.write(b"\n".join(lines) + b"\n")
        case Format.csv:
            _print_csv(answer)
        case Format.table:
            output.table(columns, rows)


def _print_csv(answer: QueryAnswer) -> None:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows([_csv_cell(value) for value in row] for row in answer.values)
    output.write(text.getvalue().encode("utf-8", "surrogatepass"))


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    text = output.json_bytes(value).decode()
    return text[1:-1] if text.startswith('"') else text


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
    from strandline.lake.following import refuse_future

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


def _print_since(view: View, table: str, since: int) -> int:
    """Print what there is after `since`; returns where to go on."""
    branch_table = view.branch_table(table)
    if branch_table.readable_seq <= since:
        return since
    from strandline.model.values.wire import to_json_lines

    rows = view.read(table, since)
    for batch in rows:
        output.write(b"".join(to_json_lines(batch, branch_table.schema)))
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
        export = lake.export(listed(tables), format=format_.value, branch=branch, at=at)
        if to is None or to == "-":
            for piece in export.pieces():
                output.write(piece.data)
            return
        exported = export.write(to)
    rows = counted(sum(table.rows for table in exported.tables), "row")
    text = f"Exported {rows} of {counted(len(exported.tables), 'table')} to {to}."
    session.emit(exported, lambda: output.say(text))
