"""`strand serve`: rows over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from strandline.cli import output
from strandline.cli.session import session_of
from strandline.cli.supervised import end_with_parent, tell_ready


@dataclass(frozen=True)
class Listening:
    """A server that answers now."""

    listen: str


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("serve", short_help="Take rows over HTTP, and what other lakes forward.")(serve)


def serve(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 picks a free one.")
    ] = None,
) -> None:
    """Take rows over HTTP, and what other lakes forward, until SIGTERM or Ctrl-C. It needs no Java.

    \b
    Example: strand serve --listen 127.0.0.1:8400
    """
    from strandline.config import read_listen
    from strandline.server.run import serve as run

    session = session_of(context)
    session.keep_log()
    with session.open() as lake:
        where = lake.config.server.listen if listen is None else read_listen(listen)

        def ready(address: str) -> None:
            session.emit(Listening(address), lambda: output.say(f"Listening on http://{address}"))
            output.flush()
            tell_ready(f"listening on http://{address}")

        end_with_parent()
        run(lake, where, ready)
