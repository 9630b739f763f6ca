"""Commands that keep a lake tidy, made of what each operation declares of itself: compact, fold, retain, and others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import layout, output
from strandline.cli.params import Actor, All, Branch, InThisProcess, TableName, TableNames
from strandline.cli.session import Session, session_of
from strandline.errors import PreconditionFailed
from strandline.lake import operations
from strandline.lake.operations import Declared, Option
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.model.maintenance import Maintained, SettingChanges

Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def register(app: typer.Typer) -> None:
    """Put the names of these commands into the tree; what each of them takes is looked up when it is used."""
    for name, short_help in operations.listed().items():
        app.command(name, short_help=short_help)(_unread)


def _unread() -> None:
    raise AssertionError("`command_of` takes the place of this")


def command_of(name: str) -> Any:
    """The command of an operation, with its options and its help; None for any other name."""
    if name not in operations.listed():
        return None
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name)(_callback(operations.declared(name)))
    return typer.main.get_command(app)


def _callback(operation: type[Declared]) -> Any:
    """A function whose signature and docstring are those of a command that was written by hand."""

    def run(context: typer.Context, **typed: Any) -> None:
        _run(session_of(context), operation, typed)

    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += _parameters(operation)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__doc__ = operation.__doc__
    return run


def _parameters(operation: type[Declared]) -> Iterator[inspect.Parameter]:
    yield _parameter("table", TableName) if operation.of_one_table else _parameter("tables", TableNames, None)
    for field, meant in operations.options(operation):
        if field.name == operation.branch_before:
            yield _parameter("branch", Branch, "main")
        if meant.flag:
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield _parameter(field.name, _annotated(field.default, meant), default)
    if not operation.branch_before:
        yield _parameter("branch", Branch, "main")
    if operation.has_actor:
        yield _parameter("actor", Actor, "")
    yield _parameter("in_this_process", InThisProcess, False)
    if operation.of_one_table:  # what it refuses, it lists
        yield _parameter("every", All, False)


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotated(default: Any, meant: Option) -> Any:
    """What is typed: a flag that is there or not, or a text."""
    kind: Any = bool if isinstance(default, bool) else str if default is MISSING else str | None
    return Annotated[kind, typer.Option(meant.flag, metavar=meant.metavar, help=meant.help)]


def _run(session: Session, operation: type[Declared], typed: Mapping[str, Any]) -> None:
    tables = [typed["table"]] if operation.of_one_table else typed["tables"] or []
    branch, actor = typed["branch"], typed.get("actor", "")
    in_this_process = typed["in_this_process"] or typed.get("every", False)
    asked_for = _read(operation, typed)
    try:
        done = _carry_out(session, asked_for, tables, branch, actor, in_this_process=in_this_process)
    except PreconditionFailed as error:
        if not asked_for.takes_yes_when_refused or not consents(session, f"{error} Go on?"):
            raise
        done = _carry_out(session, asked_for.with_option("yes"), tables, branch, actor, in_this_process=in_this_process)
    _emit(session, done, operation)


def _read(operation: type[Declared], typed: Mapping[str, Any]) -> Declared:
    """The operation with the options that were typed."""
    values: dict[str, Any] = {}
    for field, meant in operations.options(operation):
        if meant.flag:
            value = typed[field.name]
            values[field.name] = value if value is None or meant.read is None else meant.read(meant.flag, value)
    return operation(**values)


def _carry_out(
    session: Session, operation: Declared, tables: Sequence[str], branch: str, actor: str, *, in_this_process: bool
) -> list[Maintained]:
    from strandline.worker import delegated

    with session.open() as lake, session.delegating():
        agree(session, lake.maintenance.unagreed(operation, tables, branch))
        return delegated.maintain(lake, operation, tables, branch=branch, actor=actor, in_this_process=in_this_process)


def confirm_window(session: Session, lake: Lake, name: str, changes: SettingChanges, *, yes: bool) -> None:
    """Ask before a window is set that lets go of rows, or of versions of them."""
    past = None if yes else lake.tables.past_window(name, changes)
    if past is None:
        return
    if past.keyed:  # the newest version of each row stays
        versions = f"{counted(past.older, 'version')} of rows of {past.table}"
        ask_first(session, f"{versions} are older than that; those that were replaced would go", yes=yes)
        return
    if past.older < past.total:
        ask_first(session, f"{past.older:,} of {counted(past.total, 'row')} of {past.table} would go", yes=yes)
        return
    agree(session, past.unagreed)


def agree(session: Session, refusal: PreconditionFailed | None) -> None:
    """Ask a person at a terminal about what is refused without a yes; where there is none, it stays refused."""
    if refusal is not None and not consents(session, f"{refusal}. Go on?"):
        raise refusal


def consents(session: Session, question: str) -> bool:
    """What a person at a terminal answers; without a terminal it is no."""
    if not asks(session):
        return False
    print(
        layout.wrapped(f"{question} [y/N]:", layout.terminal_width(sys.stderr), indent="  "), end=" ", file=sys.stderr
    )
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D: whatever is said next begins a line of its own
        print(file=sys.stderr)
    return answer.strip().lower() in ("y", "yes")


def ask_first(session: Session, loss: str, *, yes: bool) -> None:
    """Ask a person at a terminal about what can't be brought back; `--yes` answers, and so does a script's silence."""
    if not yes and asks(session) and not consents(session, f"{loss}. Go on?"):
        raise PreconditionFailed("you said no, and nothing was changed", hint="`--yes` does it without asking.")


def asks(session: Session) -> bool:
    """Whether a person is there to answer."""
    return not session.json and sys.stdin.isatty() and sys.stderr.isatty()


def _emit(session: Session, done: list[Maintained], operation: type[Declared]) -> None:
    for maintained in done:
        for text in maintained.warnings:
            session.warn(f"{maintained.table}: {text}")
    session.emit(done, lambda: _table(done, operation))


def _table(done: list[Maintained], operation: type[Declared]) -> None:
    if not done:
        output.say(operation.nothing)
    for maintained in done:
        changed = [
            f"{_named(name)} {_shown(name, before)} → {_shown(name, maintained.after.get(name, before))}"
            for name, before in maintained.before.items()
            if before != maintained.after.get(name, before)
        ]
        would = "would change: " if maintained.dry_run else ""
        left = "" if maintained.complete or maintained.dry_run else "; more is left to do"
        output.say(f"{maintained.table}: {would + ', '.join(changed) if changed else 'nothing to do'}{left}.")


def _named(figure: str) -> str:
    """A figure's name for people; what it is in is said by its value."""
    return figure.removesuffix("_bytes").replace("_", " ")


def _shown(name: str, value: int) -> str:
    return output.size(value) if name.endswith("bytes") else f"{value:,}"
