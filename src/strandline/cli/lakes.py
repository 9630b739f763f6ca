"""Making a lake, and saying what made it."""

from __future__ import annotations

import platform
import shlex
from pathlib import Path
from typing import Annotated, Any

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
    from strandline.create import create
    from strandline.redaction import shown_address

    session = session_of(context)
    with create(Path(folder), ledger=ledger, warehouse=warehouse, store=Store(endpoint, region)) as lake:
        document = {
            "lake": str(lake.root),
            "ledger": lake.config.ledger_shown,
            "warehouse": shown_address(lake.config.warehouse),
        }

    def human() -> None:
        output.say(f"Made a lake in {document['lake']}")
        output.say(f"  ledger     {document['ledger']}")
        output.say(f"  warehouse  {document['warehouse']}")

    session.emit(document, human)
    session.note("Next, make a table:")
    session.note(f"  strand --lake {shlex.quote(folder)} table create messages \\")
    session.note('    --columns "id:string,body:string?" --row-key id')


def version(context: typer.Context) -> None:
    """Say which versions are at work, and which formats they read.

    \b
    Example: strand version --json
    """
    session = session_of(context)
    document = versions()

    def human() -> None:
        for name, value in document.items():
            said = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            output.say(f"{name:<11} {said}")

    session.emit(document, human)


def versions() -> dict[str, Any]:
    """Read from package metadata, because importing PySpark to ask it takes half a second."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from strandline import __version__
    from strandline.engines.spark.jars import pinned
    from strandline.ledger.schema import FORMAT
    from strandline.model.operations import INTENT_FORMAT

    def of(package: str) -> str:
        try:
            return installed(package)
        except PackageNotFoundError:
            return "not installed"

    iceberg = next((jar.revision for jar in pinned() if "iceberg" in jar.name), "unknown")
    return {
        "strandline": __version__,
        "python": platform.python_version(),
        "spark": of("pyspark"),
        "iceberg": iceberg,
        "duckdb": of("duckdb"),
        "formats": {"ledger": FORMAT, "intent": INTENT_FORMAT},
    }
