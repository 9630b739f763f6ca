"""What a publish writes, as data: an operation's record, and the effects that it was staged with.

An intent is written before the first effect outside the ledger. It holds all that another process needs to finish the
operation or to undo it. Because effects are data and not code, the process that staged them and the process that
recovers them publish through the same function.

An effect is a small frozen class. It stands with the ledger's tables that it is about, what it depends on (`check`)
beside what it writes (`apply`). This module knows none of them, so whatever writes intents or audits decisions can be
used by any of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from strandline.ledger.ledger import Txn
from strandline.model.history.commits import MERGE, Commit
from strandline.model.operations import Phase, TableScope


@dataclass(frozen=True)
class Effect:
    """One thing that a publish writes, or that has to hold for it."""

    def check(self, conn: Connection, intent: Intent) -> None:
        """Raise Conflict or Damaged where what it depends on is not as it was when it was staged; write nothing."""

    def apply(self, txn: Txn, publishing: Publishing) -> None:
        """Write it. By now all effects of the publish were checked, and those before it are written."""


Effects = tuple[Effect, ...]
"""Everything a publish writes, in the order in which it is written."""

Kind = TypeVar("Kind", bound=Effect)


def of_kind(effects: Iterable[Effect], kind: type[Kind]) -> list[Kind]:
    """Those effects that are of one class, in their order."""
    return [effect for effect in effects if isinstance(effect, kind)]


@dataclass(frozen=True)
class Intent:
    """The record of an operation that has begun and is not settled; `effects` is None until it is staged."""

    op_id: str
    kind: str
    phase: Phase
    branch_id: str
    actor: str
    owner: str
    created_at_us: int
    scopes: tuple[TableScope, ...]
    effects: Effects | None = None

    @property
    def is_refs_alone(self) -> bool:
        """Whether it is what a merge in the ledger leaves to do: no operation, and no process has died."""
        return (self.kind, self.phase, self.effects) == (MERGE, "published", None)


@dataclass
class Publishing:
    """A publish on its way: the operation, and its commit once that is written."""

    intent: Intent
    commit: Commit | None = None

    @property
    def number(self) -> int:
        """The seq of its commit, by which other effects are known."""
        assert self.commit is not None, f"operation {self.intent.op_id} has an effect that needs a commit, and has none"
        return self.commit.seq
