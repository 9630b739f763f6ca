"""The model test of versions with maintenance between the steps: flush, fold, compact, refilter, expire, sweep, purge,
retain, and processes that die in one.

Its stories start Spark, so they are few and short, and a run tells those of its slice. Each begins with files that are
older than a rule, which are refiltered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from strandline import failpoints
from strandline.lake import Lake
from strandline.ledger.publish import owner
from strandline.ledger.rows import batches
from tests import slices
from tests.kit import in_ledger
from tests.maintenance.test_compact import REWRITE_POINTS
from tests.versions.test_model import FIELDS, NAMES, VersionsMachine, tell

OLD = "select commit_id from commits where seq <= (select seq from commits where commit_id = :last)"
WORK = st.sampled_from(["flush", "fold", "compact", "expire", "sweep"])
POINTS = st.sampled_from(["", "", *sorted(REWRITE_POINTS)])


class MaintainedVersionsMachine(VersionsMachine):
    """A lake with files beside its model."""

    @initialize(branch=st.sampled_from(["main", "x"]), at=POINTS)
    def begin(self, branch: str = "main", at: str = "") -> None:
        """Three branches have the same files, which are older than a rule of two; one of these is refiltered."""
        self.has_died = False
        self._create()
        self.lake.flush()
        self.lake.fold()
        self._branch_off()
        self.declare("main")
        self.declare("x")
        assert self._unfiltered(branch) > 0
        self.refilter(branch, at)

    @rule(work=WORK, branch=NAMES)
    def maintain(self, work: str, branch: str) -> None:
        """No row changes, whatever is done to files."""
        how = {"grace_s": 0} if work in ("expire", "sweep") else {}
        getattr(self.lake, work)(branch=self._living(branch), **how)
        batches.sweep(self.lake.ledger, grace_s=0)
        self.shaken = True

    @rule(branch=NAMES, at=POINTS)
    def refilter(self, branch: str, at: str) -> None:
        """Files that are older than a rule get its filters, or a process dies on the way; no row changes."""
        branch = self._living(branch)
        dies = bool(at) and self._unfiltered(branch) > 0
        failpoints.arm(f"{at}=raise" if at else None)
        try:
            self.lake.maintenance.refilter("pet", branch=branch)
            assert not dies, f"{at} was not reached"
            assert self._unfiltered(branch) == 0
        except failpoints.FailpointReached:
            assert dies
            self.has_died = True
            owner.unregister(self.lake.context.owner)
            self.lake.ledger.close()
            self.lake = Lake(self.folder / "lake")
        finally:
            failpoints.arm(None)
        self.shaken = True

    def _unfiltered(self, branch: str) -> int:
        """How many files are older than a rule."""
        (planned,) = self.lake.maintenance.refilter("pet", branch=branch, dry_run=True)
        return int(planned.before["unfiltered_files"])

    @rule(table=st.sampled_from(sorted(FIELDS)), key=st.sampled_from("abc"), and_history=st.booleans())
    def purge(self, table: str, key: str, and_history: bool) -> None:
        """A row is gone from every branch, tag and commit, as if it had never been; no feed tells of it."""
        self.lake.purge(table, f"id = '{key}'", and_history=and_history)
        self.model.purge(table, key)
        tip = self.lake.log(limit=1)[0].commit_id
        if tip != self.model.branches["main"]:  # the table of tombstones was made
            self.model.commit("main", tip, self.model.rows("main"))
        for branch in self.model.branches:
            assert key not in {one[0] for one in self.lake.view(branch).sql(f'select id from "{table}$log"').rows()}
        self.shaken = True

    @rule(branch=NAMES, chance=st.randoms(use_true_random=False))
    def retain(self, branch: str, chance: Any) -> None:
        """Some commits are old by now. What is older than the window of a branch is as it was, or it is gone."""
        branch = self._living(branch)
        last = chance.choice(sorted(self.model.points))
        old = "at_us - 1000000000 where seq <= (select seq from commits where commit_id = :last)"
        in_ledger(self.lake, f"update commits set at_us = {old}", last=last)
        self.model.old |= {row[0] for row in in_ledger(self.lake, OLD, last=last)}
        for table in FIELDS:
            self.lake.set_table(table, retention_s=500.0)
        self.lake.flush(branch=branch)
        self.lake.retain(branch=branch)
        self.shaken = True

    def teardown(self) -> None:
        """What a process that died has left is finished or undone, if nothing has been done to its table since."""
        if hasattr(self, "lake") and self.has_died:
            self.lake.recover()
        super().teardown()


@pytest.mark.parametrize("number", slices.turn(range(slices.SLICES), 1))
def test_whatever_happens_maintained_versions_are_as_their_model_says(
    places: Callable[[], dict[str, Any]], number: int
) -> None:
    """Other stories in each slice."""
    tell(lambda: MaintainedVersionsMachine(places), stories=3, steps=12, number=number)
