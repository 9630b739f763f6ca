"""Actors: every call that writes names the one that it is for."""

from __future__ import annotations

from strandline.errors import BadRequest

KEY_LENGTH = 500


def checked_actor(actor: str, key: str | None) -> str:
    """The actor of a write; neither it nor the call's key may hold what can't be printed."""
    actor = actor or default_actor()
    if key == "":
        raise BadRequest("the idempotency key is empty", hint="Name one, or leave it out.")
    for text in (actor, key or ""):
        if len(text) > KEY_LENGTH:
            raise BadRequest(
                f"the name of an actor or a call has {len(text)} characters", hint=f"At most {KEY_LENGTH}."
            )
        if not text.isprintable():
            raise BadRequest(f"{text!r} can't name an actor or a call", hint="Use plain, printable text.")
    return actor


def default_actor() -> str:
    """The actor of a call that names none: $STRAND_ACTOR, else the login name."""
    import getpass
    import os

    named = os.environ.get("STRAND_ACTOR")
    if named:
        return named
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
