"""`strand schema`: what tables' schemas are, what a change of them means, and making it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import output
from strandline.cli.params import Actor, All, At, Branch, complete_table, input_path
from strandline.cli.session import session_of
from strandline.errors import BadRequest
from strandline.model.schema.document import FIXED, ColumnDocument, TableDocument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strandline.model.schema.steps import Step

File = Annotated[str, typer.Argument(metavar="FILE", help="The schemas as they should be: JSON, or TOML.")]
WRONG_INPUT = 3
Hard = Annotated[bool, typer.Option("--hard", help="Also remove the values of columns that are dropped, for good.")]


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    group = typer.Typer(help="Look at schemas, and change them.", no_args_is_help=True, rich_markup_mode=None)
    group.command("plan", short_help="Say what would have to be done; nothing is changed.")(plan)
    group.command("apply", short_help="Make the schemas what a file says, as one commit.")(apply)
    group.command("show")(show)
    app.add_typer(group, name="schema")


def plan(context: typer.Context, file: File, branch: Branch = "main", hard: Hard = False) -> None:
    """Say what would have to be done, and whether it can be; nothing is changed. Exit code 3 when a step is refused.

    \b
    Example: strand schema plan people.json --branch try-out
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        planned = lake.schemas.steps(_document(file), branch=branch, hard=hard)
    session.emit(planned, lambda: _show(planned.steps))
    if planned.is_refused:
        raise typer.Exit(WRONG_INPUT)


def apply(
    context: typer.Context,
    file: File,
    branch: Branch = "main",
    message: Annotated[str, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = "",
    hard: Hard = False,
    yes: Annotated[bool, typer.Option("--yes", help="Also if values are shown no more.")] = False,
    actor: Actor = "",
    every: All = False,
) -> None:
    """Make the schemas what a file says: all of it as one commit, or nothing.

    \b
    Example: strand schema apply people.json --branch try-out -m "ages are required"
    """
    from strandline.cli.maintenance import agree

    session = session_of(context)
    doc = _document(file)
    with session.open() as lake:
        if not yes:
            agree(session, lake.schemas.unagreed(doc, branch=branch, hard=hard))
        done = lake.schemas.change(doc, branch=branch, actor=actor, message=message, hard=hard, yes=True)
    for text in done.warnings:
        session.warn(text)

    def human() -> None:
        _show(done.changed.steps)
        if done.changed.commit is not None:
            output.say(f"Committed as {done.changed.commit} on {branch}.")

    session.emit(done.changed, human)


def show(
    context: typer.Context,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE]", help="One table; all of them if none is named.", autocompletion=complete_table
        ),
    ] = None,
    branch: Branch = "main",
    at: At = None,
) -> None:
    """Show the schemas of a branch. With --json it is a document that can be changed and applied.

    \b
    Example: strand schema show person --branch try-out
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        document = lake.schemas.show(branch, at=at, table=table)
    session.emit(document, lambda: _show_schemas(document["tables"]))


def _show_schemas(tables: Mapping[str, TableDocument]) -> None:
    rows = [
        [
            name,
            column,
            *_type_and_default(described),
            ", ".join(what for what in FIXED if column in definition.get(what, ())),
        ]
        for name, definition in tables.items()
        for column, described in definition["columns"].items()
    ]
    output.table(["table", "column", "type", "default", "part of"], rows)
    for name, definition in tables.items():
        for constraint in definition.get("constraints", ()):
            output.say(f"{name}: {constraint}")


def _type_and_default(column: str | ColumnDocument) -> tuple[str, str]:
    """A column of the document, as cells."""
    if isinstance(column, str):
        return column, ""
    return column["type"], column["default"] if isinstance(column["default"], str) else json.dumps(column["default"])


def _show(steps: Sequence[Step]) -> None:
    if not steps:
        output.say("There is nothing to do.")
        return
    output.table(
        ["table", "step", "column", "verdict", "why"],
        [[step.table, step.what, step.column or "", step.verdict, step.why] for step in steps],
    )


def _document(file: str) -> object:
    """What a file says, by the ending of its name."""
    import tomllib

    import orjson

    text = input_path(file).read_text(encoding="utf-8-sig")
    try:
        return tomllib.loads(text) if file.endswith(".toml") else orjson.loads(text)
    except (tomllib.TOMLDecodeError, orjson.JSONDecodeError) as error:
        kind = "TOML" if file.endswith(".toml") else "JSON"
        raise BadRequest(f"{file} is not {kind}: {error}", hint="`strand schema show --json` prints one.") from error
