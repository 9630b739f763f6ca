"""Group commit: appends and mutations that arrive at the same time in one process share a transaction.

One wait for the disk serves all of them: `groups.py` says which caller leads.

A call with a few dicts is queued as it came, and its leader validates and encodes it, in one batch with the calls of
the same kind. Nearly all of that cost is per batch and not per row; and threads that encoded for themselves would hold
the interpreter's lock, for which the leader then waits at every statement.

A member that can't be stored gets its own error and costs the others nothing: where the rows of several don't pass
together, each member's are judged alone; if the transaction itself fails, each member is tried alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from strandline.errors import Busy, TransientError
from strandline.failpoints import fail
from strandline.ledger.changes.mutations import Mutation, asks_of, find_mutation, store_mutations
from strandline.ledger.database.outcomes import is_unknown
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.rows.appends import Append, ack_of, find_stored, heads_of, store, store_at_once
from strandline.ledger.rows.groups import Groups, Member
from strandline.model.history.commits import Commit
from strandline.model.tables import Ack, BranchTable, TableSettings
from strandline.model.values.user_rows import UserRow, Value

FEW_ROWS = 64
"""A call of more rows is encoded by its own thread: it would make the others wait, and gain little by company."""


@dataclass(frozen=True)
class FewRows:
    """One call to append a few dicts, not validated yet, for a table as the caller knows it."""

    branch_table: BranchTable
    actor: str
    rows: Sequence[UserRow]

    @property
    def kind(self) -> tuple[str, str, int, TableSettings, str]:
        """Calls that agree in this may share a batch."""
        head = self.branch_table.head
        return head.branch_id, head.table_id, head.schema_version, self.branch_table.table.settings, self.actor


Call: TypeAlias = Append | FewRows
Answer: TypeAlias = Ack | Commit
_Member: TypeAlias = Member[Call | Mutation, Answer]


def are_few(rows: object) -> TypeGuard[list[dict[str, Value]]]:
    """Whether these can be handed to another thread as they are: a short list of plain dicts."""
    return type(rows) is list and len(rows) <= FEW_ROWS and {dict}.issuperset(map(type, rows))


@dataclass(frozen=True)
class _Joint:
    """An append or a mutation, and the members whose rows are in it, in their order."""

    append: Append | Mutation
    members: Sequence[_Member]
    shares: Sequence[tuple[int, int]] = ()
    """Of each member where there are several: rows that are stored, and rows that were too old."""

    def answer(self, answer: Answer | Exception) -> None:
        """Tell each member its part."""
        if len(self.members) == 1:
            self.members[0].answer = answer
        elif isinstance(answer, Ack):
            seq = answer.first_seq or 0
            for member, (rows, too_old) in zip(self.members, self.shares, strict=True):
                member.answer = ack_of(rows, seq, too_old)
                seq += rows
        else:
            for member in self.members:
                member.answer = copy.copy(answer)  # every thread raises its own


class Appender:
    """The queue of one process in front of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._groups: Groups[Call | Mutation, Answer] = Groups(lambda group: self._commit(_joints(ledger, group)))

    def append(self, call: Call) -> Ack:
        """Store it, alone or with others, and return when it is durable."""
        (answer,) = self._groups.ask([call])
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Ack)
        fail("append.after_commit")
        return answer

    def mutate(self, calls: Sequence[Mutation]) -> list[Commit | BaseException]:
        """Store these in one transaction. Each has an answer: its commit, or why there is none.

        Moved is the answer of one that has to be made again from a fresh view.
        """
        answers = [answer for answer in self._groups.ask(calls) if not isinstance(answer, Ack)]
        assert len(answers) == len(calls), "a mutation was answered as an append"
        return answers

    def merge(self, call: Mutation) -> Commit:
        """A merge is stored by itself: others of its group were asked about before it took tables over."""
        answer = self._store_alone(call, None)
        if isinstance(answer, Exception) and is_unknown(answer):
            answer = self._store_alone(call, answer)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Commit)
        fail("mutate.after_commit")
        return answer

    def _commit(self, joints: Sequence[_Joint]) -> None:
        """All in one transaction; if that fails each by itself, under the batch ids it has.

        The answer to a commit may be lost though it was stored. Then the ids are there already, and that is the ack.
        So one that is alone is tried again too, if the commit was asked for; before that, nothing can be stored. A
        ledger that can't be written is not waited for by one after the other.
        """
        if not joints:
            return
        may_be_stored = False
        appends = [joint.append for joint in joints if isinstance(joint.append, Append)]
        mutations = [joint.append for joint in joints if isinstance(joint.append, Mutation)]
        joints = sorted(joints, key=lambda joint: isinstance(joint.append, Mutation))  # as they are answered

        def work(txn: Txn) -> list[Answer | Exception]:
            nonlocal may_be_stored
            answers: list[Answer | Exception] = []
            if appends:
                answers += store(txn, appends)
                fail("append.before_commit")
            if mutations:
                answers += store_mutations(txn, mutations)
                fail("mutate.before_commit")
            may_be_stored = True
            return answers

        try:
            answers: Sequence[Answer | Exception] | None = None
            if not mutations:
                answers = store_at_once(self._ledger, appends)
            if answers is None:
                answers = self._ledger.run(work, heads_of(appends) if appends else asks_of(mutations))
        except Exception as error:
            may_be_stored = may_be_stored or is_unknown(error)
            alone = sum(len(joint.members) for joint in joints) == 1
            for joint in joints:
                if may_be_stored or not (alone or isinstance(error, TransientError)):
                    joint.answer(self._store_alone(joint.append, error))
                else:
                    joint.answer(error if alone else copy.copy(error))
            return
        for joint, answer in zip(joints, answers, strict=True):
            joint.answer(answer)

    def _store_alone(self, append: Append | Mutation, earlier: Exception | None) -> Answer | Exception:
        def work(txn: Txn) -> Answer | Exception:
            if isinstance(append, Mutation):
                answer = find_mutation(txn, append) or store_mutations(txn, [append])[0]
                fail("mutate.before_commit")
                return answer
            return find_stored(txn, append) or store(txn, [append])[0]

        try:
            # Under the counter's lock, so no earlier try can still be on its way.
            return self._ledger.run(work)
        except Exception as error:
            # A caller whose rows may be stored, and that can't ask, must not be told that nothing was stored.
            return earlier if earlier is not None and is_unknown(earlier) and isinstance(error, Busy) else error


def _joints(ledger: Ledger, group: Sequence[_Member]) -> list[_Joint]:
    """The group's appends; a member whose rows are refused has its answer, and is in none of them."""
    joints: list[_Joint] = []
    kinds: dict[tuple[str, str, int, TableSettings, str], list[_Member]] = {}
    for member in group:
        if isinstance(member.call, Append | Mutation):
            joints.append(_Joint(member.call, [member]))
        else:
            kinds.setdefault(member.call.kind, []).append(member)
    for members in kinds.values():
        joints.extend(_encoded(ledger, members))
    return joints


def _encoded(ledger: Ledger, members: Sequence[_Member]) -> Iterator[_Joint]:
    try:
        append, shares = _append_of(ledger, [member.call for member in members if isinstance(member.call, FewRows)])
    except Exception as error:
        if len(members) == 1:
            members[0].answer = error
        else:
            for member in members:
                yield from _encoded(ledger, [member])
    else:
        yield _Joint(append, members, shares)


def _append_of(ledger: Ledger, calls: Sequence[FewRows]) -> tuple[Append, list[tuple[int, int]]]:
    """Calls of one kind as one append, and what each of them has in it."""
    from strandline.ledger.rows.encode import encode_rows
    from strandline.ledger.rows.intake import Intake

    first = calls[0]
    rows = first.rows if len(calls) == 1 else [row for call in calls for row in call.rows]
    encoded = encode_rows(rows, first.branch_table, Intake(ledger, first.branch_table.table))
    return encoded.append(first.actor), encoded.intake.shares([len(call.rows) for call in calls])
