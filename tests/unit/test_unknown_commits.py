"""What doctor says of a snapshot that the ledger does not know: somebody else's, or the lake's own of before."""

from __future__ import annotations

import pytest
from tests.kit import make_table

from strandline.lake import Lake
from strandline.reports.findings import Examination
from strandline.reports.iceberg_checks import UnderWay, _refs

AT = 4711


@pytest.mark.parametrize(
    ("summary", "kind"), [({"strand-op": "01a1", "operation": "append"}, "lost_commit"), ({}, "foreign_commit")]
)
def test_a_lost_flush_of_the_lake_is_told_from_a_foreign_commit(lake: Lake, summary: dict[str, str], kind: str) -> None:
    """The summary of the lake's own snapshots names their operation; one of a ledger that was put back is its own."""
    make_table(lake)
    look = Examination.at(lake, deep=False)
    snapshot = {"snapshot-id": AT, "timestamp-ms": 1_700_000_000_000, "summary": summary}
    metadata = {"refs": {"main": {"snapshot-id": AT, "type": "branch"}}, "snapshots": [snapshot]}
    (finding,) = _refs(look, lake.view().branch_table("messages"), metadata, UnderWay(frozenset(), frozenset()))
    assert (finding.kind, finding.severity) == (kind, "error")
    assert "`strand doctor --fix --take-back messages`" in finding.fix
    assert ("of this lake's operation 01a1" in finding.what) == (kind == "lost_commit")
