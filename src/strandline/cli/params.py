"""Arguments that several commands share, and how the shell completes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from strandline.errors import BadRequest
from strandline.model.reporting import report_all


def complete_table(context: typer.Context, incomplete: str) -> list[str]:
    """The lake's tables. A shell that completes shows no errors, so whatever goes wrong offers nothing."""
    try:
        from strandline.config import find_root
        from strandline.lake.tables import names_at

        named = context.find_root().params.get("lake")
        names = names_at(find_root(Path(named) if named else None))
        return [name for name in names if name.startswith(incomplete)]
    except Exception:
        return []


TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table's name.", autocompletion=complete_table)]
TableNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TABLE]...", help="Tables; all of them if none is named.", autocompletion=complete_table),
]
Actor = Annotated[str, typer.Option(metavar="NAME", help="Who does this: $STRAND_ACTOR, else your login name.")]
Branch = Annotated[str, typer.Option(metavar="NAME", help="The branch.")]
At = Annotated[
    str | None, typer.Option(metavar="COMMIT|TAG|TIME", help="As it was then; a time is UTC if it does not say.")
]


def _list_all(is_all: bool) -> bool:
    if is_all:
        report_all()
    return is_all


All = Annotated[bool, typer.Option("--all", help="List all that is wrong, not only the first 20.", callback=_list_all)]
"""Set by its being there: what an error lists is decided where it is made."""
InThisProcess = Annotated[bool, typer.Option("--here", help="Do it in this process, with a Spark of its own.")]
Dedupe = Annotated[Literal["table", "partition"], typer.Option(help="Where a row key is looked for.")]


def who(actor: str) -> str:
    """The actor, decided here: a worker that is asked to do it has another environment."""
    from strandline.actors import default_actor

    return actor or default_actor()


def listed(values: list[str] | None) -> list[str]:
    """`--x a,b --x c` as a, b, c."""
    return [name.strip() for value in values or [] for name in value.split(",") if name.strip()]


def input_path(name: str, hint: str = "Check the path.") -> Path:
    """A file that a user named, or an error that says what is there instead."""
    from strandline.errors import NotFound

    path = Path(name).expanduser()
    if path.is_dir():
        raise BadRequest(f"{name} is a folder", hint="Name a file; `strand load` takes folders too.")
    if not path.exists():
        raise NotFound(f"there is no file {name}", hint=hint)
    return path
