"""Idempotency keys: the same call twice is stored once.

The key is a row in the transaction that stores the rows, with a digest of them. Every such transaction holds the
counter, so two calls with one key at the same moment are one after the other, and the second finds the first one's
answer. How long it is kept is decided by the clock that deletions go by, not by the ledger's time, which one write
under a clock that was ahead moves for good.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, delete, insert, select

from strandline.errors import KeyExists
from strandline.ledger.clock import forgetting_us
from strandline.ledger.database import schema as db
from strandline.ledger.ledger import Txn
from strandline.ledger.publish.publishing import Effect, Intent, Publishing
from strandline.model.operations import KeptAnswer


def recall(
    txn: Txn, scope: str, key: str, digest: str, *, older: Callable[[], Collection[str]] = frozenset
) -> KeptAnswer | None:
    """The first answer under this key; a conflict when it was used with other rows; None when it is new.

    `older` are digests that the same rows had by an older version, or under an older schema.
    """
    row = txn.conn.execute(
        select(db.idempotency).where(db.idempotency.c.scope == scope, db.idempotency.c.key == key)
    ).one_or_none()
    if row is None:
        return None
    if row.kept_until_us is not None and _is_over(txn, row.kept_until_us):
        txn.conn.execute(delete(db.idempotency).where(db.idempotency.c.scope == scope, db.idempotency.c.key == key))
        return None
    if row.digest != digest and row.digest not in older():
        raise KeyExists(
            f"the idempotency key {key!r} was used before, with other rows",
            hint="Use a new key for new rows; the same key is only for sending the same rows again.",
            expected=row.digest,
            actual=digest,
        )
    answer: KeptAnswer = orjson.loads(row.answer)
    return answer


def _is_over(txn: Txn, kept_until_us: int) -> bool:
    """Whether a key's time is over; the clocks are asked only where the ledger's own time says so."""
    if kept_until_us >= txn.at_us:
        return False
    now_us = forgetting_us(txn.conn)
    return now_us is not None and kept_until_us < now_us


def remember(txn: Txn, scope: str, key: str, digest: str, answer: Mapping[str, object], *, kept_s: int | None) -> None:
    """Keep an answer under a key, for a time or for good."""
    txn.conn.execute(
        insert(db.idempotency).values(
            scope=scope,
            key=key,
            digest=digest,
            answer=orjson.dumps(dict(answer)).decode(),
            at_us=txn.at_us,
            kept_until_us=None if kept_s is None else txn.at_us + kept_s * 1_000_000,
        )
    )


@dataclass(frozen=True)
class KeepAnswer(Effect):
    """An operation's answer is kept under its key for good, with the commit that it made."""

    scope: str
    key: str
    digest: str
    answer: Mapping[str, object]

    def check(self, conn: Connection, intent: Intent) -> None:
        """Nothing is kept under the key: the call that used it first has the answer."""
        kept = db.idempotency.c
        row = conn.execute(select(kept.digest).where(kept.scope == self.scope, kept.key == self.key)).first()
        if row is not None:
            raise KeyExists(
                f"the idempotency key {self.key!r} was used by somebody else",
                hint="Run the same again: it gets the first answer.",
                expected=row.digest,
                actual=self.digest,
            )

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Keep it."""
        commit_id = publishing.commit.commit_id if publishing.commit is not None else None
        remember(txn, self.scope, self.key, self.digest, {**self.answer, "commit": commit_id}, kept_s=None)


def forget(txn: Txn, scope: str, key: str) -> None:
    """Drop a key, because its user asked for the work to be done again."""
    txn.conn.execute(delete(db.idempotency).where(db.idempotency.c.scope == scope, db.idempotency.c.key == key))
