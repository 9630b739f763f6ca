"""Making a lake, and saying what made it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli import output
from strandline.cli.session import session_of


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command("init")(init)
    app.command("version")(version)


def init(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    ledger: Annotated[
        str | None, typer.Option(metavar="URL", help="sqlite:///FILE, below DIR unless absolute, or postgresql://…")
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="Where Iceberg tables go: a path below DIR unless absolute, or s3://BUCKET/PREFIX."
        ),
    ] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="An object store that is not AWS.")] = None,
    region: Annotated[str | None, typer.Option(metavar="NAME", help="The region of the bucket.")] = None,
) -> None:
    """Make a lake. A folder that holds anything else is refused.

    \b
    Example: strand init lake
    """
    from strandline.config import Store
    from strandline.create import NewLake, create

    session = session_of(context)
    with create(Path(folder), ledger=ledger, warehouse=warehouse, store=Store(endpoint, region)) as lake:
        made = NewLake.of(lake)

    def human() -> None:
        output.say(f"Made a lake in {made.lake}")
        output.say(f"  ledger     {made.ledger}")
        output.say(f"  warehouse  {made.warehouse}")

    session.emit(made, human)
    session.note("Next, make a table:")
    session.note(f"  strand --lake {shlex.quote(folder)} table create messages \\")
    session.note('    --columns "id:string,body:string?" --row-key id')


def version(context: typer.Context) -> None:
    """Say which versions are at work, and which formats they read.

    \b
    Example: strand version --json
    """
    from strandline import __version__
    from strandline.lake.versions import installed

    session = session_of(context)
    versions = installed(__version__)

    def human() -> None:
        for name in ("strandline", "python", "spark", "iceberg", "duckdb"):
            output.say(f"{name:<11} {getattr(versions, name)}")
        output.say(f"{'formats':<11} ledger {versions.formats.ledger}, intent {versions.formats.intent}")

    session.emit(versions, human)
