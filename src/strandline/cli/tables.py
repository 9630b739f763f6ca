"""`strand table`: make tables, list them, look at one, drop one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from strandline.cli import output
from strandline.cli.params import Actor, Branch, Dedupe, TableName, input_path, listed
from strandline.cli.session import session_of
from strandline.errors import BadRequest, nearest
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.model.maintenance import SettingChanges
    from strandline.model.schema.schema import Schema
    from strandline.model.tables import TableSettings
    from strandline.reports.tables import TableHistory


class UnknownFields(StrEnum):
    """What happens to a field that is no column."""

    error = "error"
    json = "json"


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    group = typer.Typer(
        help="Make tables, list them, look at one, drop one.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("create")(create)
    group.command("list")(list_)
    group.command("show", short_help="Show a table: its columns, sizes, settings and snapshots.")(show)
    group.command("set")(set_)
    group.command("drop", short_help="Drop a table: it is shown no more; its history stays.")(drop)
    app.add_typer(group, name="table")


def set_(
    context: typer.Context,
    name: TableName,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="See above.")],
    yes: Annotated[bool, typer.Option("--yes", help="Also if every row is older than that.")] = False,
) -> None:
    """Change how a table is kept.

    \b
    retention=90d   rows older than this go, by `strand retain` or the worker;
                    of a keyed table versions that were replaced so long ago;
                    none keeps them for good
    time_column=ts  the column that says how old a row is; unless set it is
                    _at, when the row was appended
    target_file_size=128MiB
                    to which compaction merges small files

    \b
    Example: strand table set messages retention=90d time_column=ts
    """
    from strandline.cli.maintenance import confirm_window

    session = session_of(context)
    changes = _changes(settings)
    with session.open() as lake:
        confirm_window(session, lake, name, changes, yes=yes)
        kept = lake.tables.keep(name, changes, yes=True)
    session.emit(kept, lambda: output.say(f"Set {', '.join(settings)} for {kept.table}."))


def drop(
    context: typer.Context,
    name: TableName,
    branch: Branch = "main",
    message: Annotated[str, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Drop it without asking.")] = False,
    actor: Actor = "",
) -> None:
    """Drop a table of a branch, as one commit. Other branches, tags and older commits still have its rows.

    \b
    Example: strand table drop messages --yes
    """
    from strandline.cli.maintenance import agree

    session = session_of(context)
    with session.open() as lake:
        if not yes:
            agree(session, lake.tables.unagreed_drop(name, branch=branch))
        gone = lake.tables.drop(name, branch=branch, actor=actor, message=message, yes=True)
    session.emit(gone, lambda: output.say(f"Dropped table {gone.dropped} of {branch}, as commit {gone.commit}."))


def _changes(settings: list[str]) -> SettingChanges:
    from strandline.settings_text import parse_duration, parse_size

    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "retention": ("retention_s", lambda text: None if text == "none" else parse_duration(text)),
        "time_column": ("time_column", str),
        "target_file_size": ("target_file_bytes", parse_size),
    }
    changes: dict[str, Any] = {}
    for setting in settings:
        key, sign, text = setting.partition("=")
        if key not in readers:
            raise BadRequest(f"there is no setting {key!r}", hint=nearest(key, readers))
        if not sign:
            raise BadRequest(f"{setting!r} has no value", hint=f"Write {key}=VALUE.")
        name, read = readers[key]
        try:
            changes[name] = read(text)
        except ValueError as error:
            raise BadRequest(f"{key} is {text!r}, expected {error}", hint="`none` keeps rows for good.") from None
    return cast("SettingChanges", changes)


def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A letter, then letters, digits and underscores.")],
    columns: Annotated[str | None, typer.Option(metavar="LIST", help='"id:string,ts:timestamp,body:string?"')] = None,
    schema: Annotated[str | None, typer.Option(metavar="FILE", help="An Iceberg schema as JSON, instead.")] = None,
    row_key: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help="What makes rows duplicates.")] = None,
    key: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help="A keyed table: a row for each.")] = None,
    constraint: Annotated[list[str] | None, typer.Option(metavar="RULE", help="What rows keep: see above.")] = None,
    partition_by: Annotated[list[str] | None, typer.Option(metavar="COLUMNS", help="How files are laid out.")] = None,
    dedupe: Dedupe = "table",
    unknown_fields: Annotated[
        UnknownFields, typer.Option(help="A field that is no column: refuse it, or keep it as JSON in _extra.")
    ] = UnknownFields.error,
    actor: Actor = "",
) -> None:
    """Make a log table, or with --key a keyed one. A `?` makes a column nullable.

    \b
    Types: string long int double float boolean date timestamp binary json
           decimal(10,2) list<string> struct<a:long,b:string?> map<string,long>
    Rules: unique(a, b)  one_of(a: x, y)  range(a: 0..9)  check(a: /regex/)
           reference(a -> TABLE, restrict|cascade)  cardinality(a: 0..9)

    \b
    Example: strand table create messages --row-key id \\
                 --columns "id:string,ts:timestamp,body:string?"
    """
    from strandline.model.schema.schema import parse_columns

    if (columns is None) == (schema is None):
        raise typer.BadParameter("give either --columns or --schema", ctx=context)
    session = session_of(context)
    described = parse_columns(columns) if columns is not None else _schema_file(schema or "")
    with session.open() as lake:
        made = lake.tables.new(
            name,
            described,
            constraints=constraint or (),
            row_key=listed(row_key),
            key=listed(key),
            partition_by=listed(partition_by),
            dedupe=dedupe,
            unknown_fields=unknown_fields.value,
            actor=actor,
        )
    session.emit(made, lambda: output.say(f"Made table {made.table} with {counted(len(made.columns), 'column')}."))


def _schema_file(file: str) -> Schema:
    """A schema as a file of JSON describes it."""
    import orjson

    from strandline.model.schema.schema import read_schema

    try:
        document = orjson.loads(input_path(file).read_bytes())
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"{file} is not JSON: {error}", hint="It holds an Iceberg schema, as a JSON object."
        ) from error
    return read_schema(document)


def list_(context: typer.Context, branch: Branch = "main") -> None:
    """List the tables.

    \b
    Example: strand table list
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        tables = lake.tables.entries(branch)

    def human() -> None:
        if not tables:
            output.say("There are no tables yet. `strand table create` makes one.")
            return
        output.table(
            ["table", "rows in log", "rows in tail", "last seq", "key", "partitioned by"],
            [
                [
                    table.table,
                    table.rows.log,
                    table.rows.tail,
                    table.last_seq,
                    _names(table.key) or (f"row key {_names(table.row_key)}" if table.row_key else ""),
                    _names(table.partition_by),
                ]
                for table in tables
            ],
        )

    session.emit(tables, human)


def show(context: typer.Context, name: TableName, branch: Branch = "main") -> None:
    """Show a table: its columns, where its rows are, its snapshots and sizes.

    \b
    Example: strand table show messages
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        table = lake.tables.show(name, branch)
    session.emit(table, lambda: _show(table))


def _show(table: TableHistory) -> None:
    _show_facts(table)
    output.table(
        ["column", "type", "nullable", "default"],
        [
            [column.name, column.type, "yes" if column.nullable else "no", column.default or ""]
            for column in table.columns
        ],
    )
    if table.constraints:
        output.table(["constraint"], [[text] for text in table.constraints])
    if table.snapshots:
        output.table(
            ["version", "snapshot", "kind", "rows", "at"],
            [
                [snapshot.version, str(snapshot.snapshot_id), snapshot.kind, snapshot.rows, snapshot.at]
                for snapshot in table.snapshots
            ],
            title="Last snapshots",
        )


def _show_facts(table: TableHistory) -> None:
    rows, sizes = table.rows, table.size_bytes
    files = counted(table.files, "file")
    unknown = "kept as JSON in _extra" if table.unknown_fields == "json" else "refused"
    facts = {
        "rows": f"{rows.log:,} in the log, {rows.tail:,} in the tail",
        "acked": f"{counted(rows.acked, 'row')}: {rows.dropped:,} dropped as duplicates, "
        f"{rows.quarantined:,} quarantined, {rows.pruned:,} pruned",
        "size": f"{output.size(sizes.log)} in {files}, {output.size(sizes.tail)} in the tail",
        "seqs": f"last {table.last_seq:,}; up to {table.stable_seq:,} in the log for good",
        "key": _names(table.key) or "none: a log table",
        "row key": f"{_names(table.row_key)} (dedupe: {table.dedupe})" if table.row_key else "none",
        "partitioned": f"by {_names(table.partition_by)}" if table.partition_by else "no",
        "unknown": f"fields are {unknown}",
        "retention": _retention(table.settings, keyed=bool(table.key)),
        "iceberg": f"{table.iceberg_table}, snapshot {table.snapshot_id or 'none yet'}",
    }
    output.say(f"table {table.table}")
    for name, text in facts.items():
        output.say(f"  {name:<12} {text}")
    if table.refuses:
        output.say(f"  REFUSES WRITES: {table.refuses}")


def _retention(settings: TableSettings, *, keyed: bool) -> str:
    if settings.retention_s is None:
        return "none: rows stay"
    return f"{output.span(settings.retention_s)}, by {'the time of commits' if keyed else settings.time_column}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
