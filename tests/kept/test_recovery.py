"""Operations that the old code left in every phase end as with the old code, and the lake goes on."""

from __future__ import annotations

from typing import Any

import strandline as sl
from strandline.lake import Lake
from strandline.model.tables import TableState
from strandline.reports.doctor import examine
from tests.acceptance.test_rewrites import tokens
from tests.kept.conftest import Unpack
from tests.kept.unpacking import Kept, noted, shown
from tests.kit import audits, intents_of, message

KINDS = {"flush", "load", "adopt", "stream", "compact", "retain", "purge", "erase", "expire", "fold", "merge", "branch"}
WAITING = {"quarantined", "parked"}
"""What doctor goes on telling: it waits for a person."""


def test_the_kept_lakes_have_every_kind_of_operation_in_every_phase() -> None:
    """What the tests below recover; condemned snapshots and an abandoned operation among it."""
    found = {(one["kind"], one["phase"]) for one in noted("intents")["intents"].values()}
    assert {kind for kind, _ in found} == KINDS
    everywhere = KINDS - {"adopt", "stream"}
    assert {(kind, phase) for kind in everywhere for phase in ("staging", "staged", "published")} <= found
    assert ("flush", "abandoned") in found
    assert any(one["refs_alone"] for one in noted("intents")["intents"].values())


def test_what_was_under_way_ends_as_with_the_old_code_and_the_lake_goes_on(unpack: Unpack) -> None:
    """Outcomes, rows and seqs are those that the old code came to; then everything works that a lake does."""
    with unpack("intents") as kept, Lake(kept.root) as lake:
        lake.recover()
        assert intents_of(lake) == []
        assert {row["op_id"]: row["outcome"] for row in audits(lake)} == kept.noted["outcomes"]
        assert shown(lake) == kept.noted["rows"]
        assert {one.kind for one in examine(lake)} <= {*WAITING, "load_unfinished", "lease_left"}
        _tokens_moved_with_what_the_old_code_had_staged(lake, kept)
        _is_written(lake)


def _tokens_moved_with_what_the_old_code_had_staged(lake: Lake, kept: Kept) -> None:
    """Its intents say nothing of the token; today's publish raises it all the same.

    Rows were appended below the load's while it was dead: that moves it too.
    """
    staged = {
        table.partition(".")[2]
        for one in kept.noted["intents"].values()
        for table in one["tables"]
        if (one["kind"], one["phase"]) in (("purge", "staged"), ("retain", "staged"), ("erase", "staged"))
    }
    raised = {table for (branch, table), token in tokens(lake).items() if token and branch == "main"}
    assert raised == {*staged, "load_staged"}


def _is_written(lake: Lake) -> None:
    """The next append, or mutation, of every table works."""
    for name in lake.view().tables:
        state = lake.view().state(name)
        if state.table.key:
            lake.mutate([sl.put(name, {"id": "next", **_required(state)})])
        elif {"part_id", "source"} <= set(state.schema.names):
            lake.append(name, [{key: value for key, value in message(900).items() if key in state.schema.names}])


def _required(state: TableState) -> dict[str, Any]:
    return {} if state.schema.column("age").nullable else {"age": 1}
