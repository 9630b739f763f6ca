"""`strand schema`: what tables' schemas are, what a change of them means, and making it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import output
from strandline.cli.params import Actor, All, At, Branch, complete_table, input_path
from strandline.cli.session import Session, session_of
from strandline.errors import BadRequest, NotFound, PreconditionFailed, nearest
from strandline.model.schema.document import FIXED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strandline.lake import Lake
    from strandline.model.schema.migration import Applied
    from strandline.model.schema.steps import Step

File = Annotated[str, typer.Argument(metavar="FILE", help="The schemas as they should be: JSON, or TOML.")]
WRONG_INPUT = 3
REFUSED = "refused"
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
    from strandline.lake.schemas import SchemaPlan

    session = session_of(context)
    with session.open(read_only=True) as lake:
        planned = lake.schema_plan(_document(file), branch=branch, hard=hard)
    session.emit(SchemaPlan(branch, planned.steps), lambda: _show(planned.steps))
    if any(step.verdict == REFUSED for step in planned.steps):
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
    from strandline.lake.schemas import SchemaChanged

    session = session_of(context)
    doc = _document(file)
    with session.open() as lake:
        done = apply_document(session, lake, doc, branch=branch, actor=actor, message=message, hard=hard, yes=yes)
    commit = done.commit.commit_id if done.commit is not None else None

    def human() -> None:
        _show(done.steps)
        if commit is not None:
            output.say(f"Committed as {commit} on {branch}.")

    session.emit(SchemaChanged(branch, commit, done.steps), human)


def apply_document(
    session: Session, lake: Lake, doc: Any, *, branch: str, actor: str, message: str, yes: bool, hard: bool = False
) -> Applied:
    """Apply a document of schemas; values that would be shown no more, or be removed, are asked about first."""
    from strandline.cli.maintenance import consents

    lost = [] if yes else lake.schema_plan(doc, branch=branch, hard=hard).loses
    if lost:
        what = ", ".join(" ".join(filter(None, (step.table, step.what, step.column))) for step in lost)
        question = f"values would be {'removed for good' if hard else 'shown no more'}: {what}"
        if not consents(session, f"{question}. Go on?"):
            hint = "`--yes` does it; `strand schema plan FILE` shows all steps of a file."
            raise PreconditionFailed(question, hint=hint, steps=[asdict(step) for step in lost])
    done = lake.schema_apply(doc, branch=branch, actor=actor, message=message, hard=hard)
    for text in done.warnings:
        session.warn(text)
    return done


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
        document = lake.schema(branch, at=at)
    if table is not None:
        names = {name.lower(): name for name in document["tables"]}
        if table.lower() not in names:
            raise NotFound(f"there is no table {table!r}", hint=nearest(table, names.values()), table=table)
        document = {"tables": {names[table.lower()]: document["tables"][names[table.lower()]]}}

    def human() -> None:
        rows = [
            [
                name,
                column,
                *_type_and_default(described),
                ", ".join(what for what in FIXED if column in definition.get(what, ())),
            ]
            for name, definition in document["tables"].items()
            for column, described in definition["columns"].items()
        ]
        output.table(["table", "column", "type", "default", "part of"], rows)
        for name, definition in document["tables"].items():
            for constraint in definition.get("constraints", ()):
                output.say(f"{name}: {constraint}")

    session.emit(document, human)


def _type_and_default(column: str | dict[str, Any]) -> tuple[str, str]:
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


def _document(file: str) -> Any:
    """What a file says, by the ending of its name."""
    import tomllib

    import orjson

    text = input_path(file).read_text(encoding="utf-8-sig")
    try:
        return tomllib.loads(text) if file.endswith(".toml") else orjson.loads(text)
    except (tomllib.TOMLDecodeError, orjson.JSONDecodeError) as error:
        kind = "TOML" if file.endswith(".toml") else "JSON"
        raise BadRequest(f"{file} is not {kind}: {error}", hint="`strand schema show --json` prints one.") from error
