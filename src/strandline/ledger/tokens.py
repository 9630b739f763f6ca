"""Tokens: which clients may write over HTTP, and in whose name.

A token is 256 random bits, shown once. The ledger keeps its hash alone, so a reader of a backup can't write with it;
bits that can't be guessed need no slow hash. The prefix is for people and for scanners that look for leaked secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from strandline.errors import BadRequest, NotFound
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Ledger
from strandline.model.ids import new_id

PREFIX = "strand_"
_ACTOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_RESERVED = "strandline:"


@dataclass(frozen=True)
class Token:
    """A token without its secret."""

    token_id: str
    actor: str
    hash: str
    created_at_us: int
    revoked_at_us: int | None


def token_hash(secret: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(ledger: Ledger, actor: str) -> tuple[Token, str]:
    """Make a token for an actor: what is kept of it, and its secret, which can't be looked up again."""
    if not _ACTOR.fullmatch(actor) or actor.lower().startswith(_RESERVED):
        raise BadRequest(
            f"{actor!r} can't be the actor of a token",
            hint="Use letters, digits and . _ : @ -, up to 128; names that start with strandline: are ours.",
        )
    secret = PREFIX + secrets.token_urlsafe(32)
    with ledger.write() as txn:
        token = Token(new_id(), actor, token_hash(secret), txn.at_us, None)
        txn.conn.execute(
            insert(db.tokens).values(
                token_id=token.token_id, actor=actor, hash=token.hash, created_at_us=txn.at_us, revoked_at_us=None
            )
        )
    return token, secret


def list_tokens(conn: Connection) -> list[Token]:
    """Every token that was ever made, oldest first."""
    return [Token(*row) for row in conn.execute(select(*db.tokens.columns).order_by(db.tokens.c.token_id))]


def revoke_token(ledger: Ledger, token_id: str) -> Token:
    """Make a token worthless; one that is already stays so."""
    with ledger.write() as txn:
        row = txn.conn.execute(select(*db.tokens.columns).where(db.tokens.c.token_id == token_id)).one_or_none()
        if row is None:
            raise NotFound(f"there is no token {token_id}", hint="`strand token list` shows those there are.")
        if row.revoked_at_us is None:
            txn.conn.execute(update(db.tokens).where(db.tokens.c.token_id == token_id).values(revoked_at_us=txn.at_us))
        return Token(row.token_id, row.actor, row.hash, row.created_at_us, row.revoked_at_us or txn.at_us)


def is_valid(ledger: Ledger, secret: str) -> bool:
    """Whether a token is one of the lake's that was not revoked; all are compared, each in constant time."""
    with ledger.read() as conn:
        hashes = [token.hash for token in list_tokens(conn) if token.revoked_at_us is None]
    return sum(hmac.compare_digest(stored, token_hash(secret)) for stored in hashes) > 0
