"""Mutate: several changes of keyed tables as one commit, or none of them.

The statements are validated first, by themselves; then they are applied in their order to the rows they meet, as one
snapshot of the ledger shows these; then all of it is judged by the constraints of the tables; then the commit is stored
if nothing that any of that depends on was written since. If some was, it all begins again from a fresh view.

Threads of one process that change the same rows take turns, so that they don't do each other's work in vain. Small
changes that arrive at the same time are looked up, planned and stored together by one of the threads: at every
statement of the ledger a thread lets go of the interpreter, and several that do the same at the same time do little
else than take it from each other.
"""

from __future__ import annotations

import copy
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeAlias

from strandline.errors import (
    Busy,
    Conflict,
    StrandError,
    TransientError,
)
from strandline.failpoints import fail
from strandline.ledger.changes.mutations import (
    Held,
    Moved,
    Mutation,
)
from strandline.ledger.history.commits import find_commit
from strandline.ledger.history.starting_points import read_base
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows.group_commit import FEW_ROWS, Appender
from strandline.ledger.rows.groups import Groups, Member
from strandline.model.history.commits import Commit
from strandline.model.schema.declarations import Declarations
from strandline.model.tables import BranchTable
from strandline.model.values.row_versions import Keys, Row
from strandline.operations.change.planning import plan
from strandline.operations.change.statements import MutationRequest
from strandline.operations.core.context import Context
from strandline.operations.core.recovery import recover
from strandline.views.branch_rows import Looking, read_declared
from strandline.views.versions import NewestVersions, read_versions

PATIENCE_S = 30.0
HELD_S = 0.1
"""How long to wait before looking again whether a load has let go of a table."""
STRIPES = 256


class Turns:
    """Locks for rows, shared by the threads of a process: a writer of a row waits for the one that is changing it."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(STRIPES)]

    @contextmanager
    def take(self, keys: Iterable[bytes]) -> Iterator[None]:
        """Hold the locks of these keys; always in one order, so that no two wait for each other."""
        with ExitStack() as held:
            for stripe in sorted({key[0] % STRIPES for key in keys}):
                held.enter_context(self._locks[stripe])
            yield


class Stored(NamedTuple):
    """What became of a request: its commit, or None where it changed nothing."""

    commit: Commit | None


_Asking: TypeAlias = Member[MutationRequest, Stored]


class Mutator:
    """Changes keyed tables of one lake, for all threads of a process."""

    def __init__(self, ledger: Ledger, appender: Appender, context: Callable[[], Context]) -> None:
        self._ledger = ledger
        self._appender = appender
        self._context = context
        self._turns = Turns()
        self._blind: Groups[MutationRequest, Stored] = Groups(self._serve)
        self._seeing: Groups[MutationRequest, Stored] = Groups(self._serve)
        self._declared: dict[str, Declarations] = {}

    def mutate(self, request: MutationRequest) -> Commit:
        """Store it; one that changes nothing makes no commit, and the answer is the branch's newest."""
        return self.store(request) or self._newest(request.branch)

    def store(self, request: MutationRequest) -> Commit | None:
        """Store it as one commit, however often it has to be begun again; a condition that does not hold is an error.

        None where it changes nothing: then there is no commit.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        with self._turns.take(change.hash for change in request.changes):
            while True:
                try:
                    return self._stored(request).commit
                except Moved as moved:
                    if time.monotonic() > deadline_s:
                        raise _given_up(moved) from moved
                    give_way(moved, self._context, most_s=0.005)

    def forget(self) -> None:
        """Ask again what the tables declare: what is remembered has been found to be old."""
        self._declared.clear()

    def _stored(self, request: MutationRequest) -> Stored:
        groups = self._company(request)
        if groups is not None:
            (answer,) = groups.ask([request])
        else:
            alone: _Asking = Member(request)
            self._serve([alone])
            answer = alone.answer or AssertionError("a request that was served has no answer")
        if isinstance(answer, BaseException):
            raise answer
        if answer.commit is not None:
            fail("mutate.after_commit")
        return answer

    def _company(self, request: MutationRequest) -> Groups[MutationRequest, Stored] | None:
        """The group it is planned in: few rows, which no others judge. One that sees no row waits for no file."""
        declared = self._declared.get(request.branch)
        if declared is None or request.whole or len(request.changes) + len(request.rows) > FEW_ROWS:
            return None
        tables = request.tables(declared)
        if any(declared.depends(branch_table.table.table_id) for branch_table, _ in tables):
            return None
        return self._seeing if any(keys for _, keys in tables) else self._blind

    def _serve(self, group: Sequence[_Asking]) -> None:
        """Plan all of these, and store what is planned."""
        by_branch: dict[str, list[_Asking]] = {}
        for member in group:
            by_branch.setdefault(member.call.branch, []).append(member)
        planned = [pair for members in by_branch.values() for pair in self._planned(members)]
        if planned:
            fail("mutate.before_store")
        answers = self._appender.mutate([mutation for _, mutation in planned])
        for (member, _), answer in zip(planned, answers, strict=True):
            member.answer = Stored(answer) if isinstance(answer, Commit) else answer

    def _planned(self, members: Sequence[_Asking]) -> Iterator[tuple[_Asking, Mutation]]:
        """What requests of one branch come to; one that changes nothing or is refused has its answer then."""
        try:
            declared, looks = self._look([member.call for member in members])
        except Exception as error:
            if len(members) == 1:
                members[0].answer = error
                return
            for member in members:
                if isinstance(error, TransientError):  # none of them can look now; each raises an error of its own
                    member.answer = copy.copy(error)
                else:  # what is wrong with one is nothing to the others
                    yield from self._planned([member])
            return
        for member, look in zip(members, looks, strict=True):
            try:
                mutation = plan(member.call, look, declared)
            except Exception as error:
                member.answer = error
            else:
                if mutation.changes:
                    yield member, mutation
                else:
                    member.answer = Stored(None)

    def _look(self, requests: Sequence[MutationRequest]) -> tuple[Declarations, list[Looking]]:
        """What a branch's tables declare, as far as it is known still, and the rows that each of its requests meets."""
        branch = requests[0].branch
        declared = self._declared.get(branch)
        while True:
            if declared is None:
                declared = self._declared[branch] = read_declared(self._ledger, branch)
            by_request = [request.tables(declared) for request in requests]
            versions = read_versions(self._ledger, branch, _union(by_request))
            # The rows are of this snapshot: older declarations would judge them by rules that may be gone.
            if (declared.branch_id, declared.shape) == (versions.base.branch_id, versions.base.shape):
                return declared, [self._looking(branch, versions, tables) for tables in by_request]
            declared = None

    def _looking(self, branch: str, versions: NewestVersions, tables: Sequence[tuple[BranchTable, Keys]]) -> Looking:
        """What one request asked for, of what several did."""
        own = {
            branch_table.table.table_id: {
                key: version for key in keys if (version := versions.get(branch_table.table.table_id, key))
            }
            for branch_table, keys in tables
        }
        look = Looking(self._ledger, branch, NewestVersions(versions.base, own))
        # Keys without a row are among them: a row that comes in under one changes what was met.
        look.asked = {branch_table.table.table_id: dict.fromkeys(keys) for branch_table, keys in tables}
        return look

    def _newest(self, branch: str) -> Commit:
        with self._ledger.read() as conn:
            commit = find_commit(conn, read_base(conn, branch, []).tip or "")
        assert commit is not None, "a keyed table was made, and there is no commit of that"
        return commit


def _union(by_request: Sequence[Sequence[tuple[BranchTable, Keys]]]) -> list[tuple[BranchTable, Keys]]:
    """The tables of several requests, with all their keys; one of which two know different schemas is there twice.

    Then the look is refused, and each is looked up alone.
    """
    tables: dict[tuple[str, int], tuple[BranchTable, dict[bytes, Row]]] = {}
    for branch_table, keys in itertools.chain.from_iterable(by_request):
        _, all_keys = tables.setdefault(
            (branch_table.table.table_id, branch_table.head.schema_version), (branch_table, {})
        )
        all_keys.update(keys)
    return list(tables.values())


def give_way(moved: Exception, context: Callable[[], Context], *, most_s: float) -> None:
    """Pause before a change is begun again; the holder of the table may be dead, and then no other process lets go."""
    if isinstance(moved, Held):
        recover(context(), with_iceberg=False)
        time.sleep(HELD_S)
    else:
        time.sleep(random.uniform(0, most_s))


def _given_up(moved: Moved) -> StrandError:
    """What to say when a change has been begun again for long enough."""
    if isinstance(moved, Held):
        message = f"a large load or merge is changing {moved}, or what its rows refer to"
        return Busy(message, reason="load_held", table=str(moved))
    return Conflict(
        f"rows of {moved} that this change depends on keep being changed by others",
        kind="row_moved",
        hint="Try again, or change fewer rows at once.",
    )
