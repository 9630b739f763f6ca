"""`strand token`: the actors that may write over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli import output
from strandline.cli.session import session_of


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    group = typer.Typer(help="Say who may write over HTTP.", no_args_is_help=True, rich_markup_mode=None)
    group.command("create")(create)
    group.command("list")(list_)
    group.command("revoke")(revoke)
    app.add_typer(group, name="token")


def create(
    context: typer.Context,
    actor: Annotated[str, typer.Argument(metavar="ACTOR", help="In whose name the token writes.")],
) -> None:
    """Make a token. It is printed once, and nobody can look it up again.

    \b
    Example: strand token create edge-7
    """
    session = session_of(context)
    with session.open() as lake:
        token = lake.tokens.create(actor)
    session.emit(token, lambda: output.say(token.token))
    session.note("This is the only time the token is shown.")


def list_(context: typer.Context) -> None:
    """List the tokens, without their secrets.

    \b
    Example: strand token list
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        tokens = lake.tokens.list()

    def human() -> None:
        if not tokens:
            output.say("There are no tokens yet. `strand token create ACTOR` makes one.")
            return
        output.table(
            ["token", "actor", "created", "revoked"],
            [[token.id, token.actor, output.when(token.created), output.when(token.revoked)] for token in tokens],
        )

    session.emit(tokens, human)


def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="A token's id, as `token list` shows it.")],
) -> None:
    """Make a token worthless; a running server notices within a second.

    \b
    Example: strand token revoke 0199c2f1a0b3d4e5f6a7b8c9
    """
    session = session_of(context)
    with session.open() as lake:
        token = lake.tokens.revoke(token_id)
    session.emit(token, lambda: output.say(f"Token {token_id} of {token.actor} is worthless now."))
