"""`strand setup`: everything that Spark needs, before it is needed.

A package of Python brings no Java and no jars. The first command that needs Spark looks for the one and fetches the
others by itself; this one does it at a moment that the user chooses, and says how far it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from strandline.cli import output
from strandline.cli.session import session_of


@dataclass(frozen=True)
class FoundJava:
    """The Java that Spark will run on."""

    version: str
    home: str


@dataclass(frozen=True)
class SetUp:
    """What Spark needs, and where it is; `archive` is what lets it start faster, None where it could not be made."""

    java: FoundJava
    jars: tuple[str, ...]
    archive: str | None


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("setup", short_help="Find Java, and fetch the jars that Spark needs: once for a machine.")(setup)


def setup(
    context: typer.Context,
    install_java: Annotated[
        bool, typer.Option("--install-java", help="Install a Java with apt-get where there is none, and it may be.")
    ] = False,
) -> None:
    """Find Java, fetch the jars that Spark needs, and prepare its start: once for a machine, some minutes at the most.

    Capturing rows and asking SQL about them works without. What is here already is only checked.

    \b
    Example: strand setup
    """
    from strandline.engines.spark import archive, jars, java

    session = session_of(context)
    runtime = java.find_or_install() if install_java else java.find()
    paths = jars.resolve(progress=session.note)
    if archive.find() is None:
        session.note("preparing Spark's start (half a minute, once)")
    prepared = archive.make()
    ready = SetUp(
        FoundJava(runtime.version, str(runtime.home)),
        tuple(str(path) for path in paths),
        None if prepared is None else str(prepared),
    )

    def human() -> None:
        output.say(f"Java {runtime.version} in {runtime.home}")
        output.say(f"{len(paths)} jars in {paths[0].parent}")
        output.say("Ready for Spark." if prepared is not None else "Ready for Spark, which starts a little slower.")

    session.emit(ready, human)
