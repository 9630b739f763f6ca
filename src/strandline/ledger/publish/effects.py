"""The effects that there are, and how an intent's body is stored: one codec, with a version.

A body that this strandline does not understand whole is refused. Its intent then stays as one that can't be read, and
only its tables refuse operations; half of a publish would be worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strandline.ledger.changes.judged import KeepSchemas
from strandline.ledger.changes.purges import RecordPurge, StayUnreferred
from strandline.ledger.history.commits import WriteCommit
from strandline.ledger.history.merges import TakeMerge
from strandline.ledger.publish.effects_version_1 import translated
from strandline.ledger.publish.intent_rows import WITHOUT_EFFECTS
from strandline.ledger.publish.loads import AdvanceLoad
from strandline.ledger.publish.publishing import Effect, Effects
from strandline.ledger.rows.batches import ReleaseBatches
from strandline.ledger.rows.idempotency import KeepAnswer
from strandline.ledger.rows.query_marks import MoveQueryMark
from strandline.ledger.tables.heads import MoveStreams, MoveTable, PassOver, PruneStreams, RefuseStale
from strandline.ledger.tables.holds import CondemnSnapshots
from strandline.model.operations import INTENT_FORMAT, TableScope
from strandline.model.stored import NotStored, from_stored, to_stored

VERSION = INTENT_FORMAT
NAME = "effect"
"""The field that says which class an effect is of."""

KINDS: dict[str, type[Effect]] = {
    "keep_schemas": KeepSchemas,
    "stay_unreferred": StayUnreferred,
    "move_table": MoveTable,
    "refuse_stale": RefuseStale,
    "prune_streams": PruneStreams,
    "condemn_snapshots": CondemnSnapshots,
    "move_streams": MoveStreams,
    "release_batches": ReleaseBatches,
    "record_purge": RecordPurge,
    "write_commit": WriteCommit,
    "take_merge": TakeMerge,
    "pass_over": PassOver,
    "advance_load": AdvanceLoad,
    "keep_answer": KeepAnswer,
    "move_query_mark": MoveQueryMark,
}
"""By the names that they are stored under."""

_NAMES = {kind: name for name, kind in KINDS.items()}


class UnknownVersion(ValueError):
    """A body of a version that this strandline does not know."""


@dataclass(frozen=True)
class Body:
    """What an intent says besides its row."""

    scopes: tuple[TableScope, ...]
    effects: Effects | None


@dataclass(frozen=True)
class _StoredBody:
    """The same as it is stored, with effects of whatever version."""

    scopes: tuple[TableScope, ...]
    effects: object


def encode(effects: Iterable[Effect]) -> list[dict[str, object]]:
    """Effects as JSON has them."""
    return [{NAME: _NAMES[type(effect)], **_fields(effect)} for effect in effects]


def _fields(effect: Effect) -> dict[str, object]:
    stored = to_stored(effect)
    assert isinstance(stored, dict), f"{effect} is no record"
    return stored


def decode(document: object) -> Effects:
    """Effects from what `encode` gave; NotStored where it is not that."""
    if not isinstance(document, list):
        raise NotStored("effects are not a list")
    return tuple(_decode_one(effect, f"effects[{number}]") for number, effect in enumerate(document))


def _decode_one(document: object, at: str) -> Effect:
    if not isinstance(document, dict):
        raise NotStored(f"{at} is not an object")
    name = document.get(NAME)
    if not isinstance(name, str) or name not in KINDS:
        raise NotStored(f"{at} is of an unknown kind: {name!r}")
    return from_stored(KINDS[name], {key: value for key, value in document.items() if key != NAME}, at)


def decode_body(version: int, document: object) -> Body:
    """What an intent of a version says; ValueError where that can't be understood whole."""
    if version not in (WITHOUT_EFFECTS, VERSION):
        raise UnknownVersion(f"its format is {version}, and this strandline knows formats up to {VERSION}")
    stored = from_stored(_StoredBody, document, "body")
    if stored.effects is None:
        return Body(stored.scopes, None)
    return Body(stored.scopes, translated(stored.effects) if version == WITHOUT_EFFECTS else decode(stored.effects))
