"""Tokens, by which a server of this lake knows its clients. A secret is shown once, to the caller that made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.model.times import text_of

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.ledger.tokens import Token


@dataclass(frozen=True)
class TokenEntry:
    """A token as people see it: without its hash, its times as text."""

    id: str
    actor: str
    created: str
    revoked: str | None


@dataclass(frozen=True)
class NewToken:
    """A token that was just made, with its secret, which no later call can give."""

    id: str
    actor: str
    token: str


class Tokens:
    """`lake.tokens`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def create(self, actor: str) -> NewToken:
        """Make a token that writes in an actor's name."""
        from strandline.ledger import tokens

        token, secret = tokens.create_token(self._lake.ledger, actor)
        return NewToken(token.token_id, actor, secret)

    def list(self) -> list[TokenEntry]:
        """Every token that was ever made, oldest first."""
        from strandline.ledger import tokens

        with self._lake.ledger.read() as conn:
            return [_entry(token) for token in tokens.list_tokens(conn)]

    def revoke(self, token_id: str) -> TokenEntry:
        """Make a token worthless; one that is already stays so."""
        from strandline.ledger import tokens

        return _entry(tokens.revoke_token(self._lake.ledger, token_id))


def _entry(token: Token) -> TokenEntry:
    revoked = None if token.revoked_at_us is None else text_of(token.revoked_at_us)
    return TokenEntry(token.token_id, token.actor, text_of(token.created_at_us), revoked)
