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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from strandline.errors import (
    BadRequest,
    Busy,
    Conflict,
    InvalidRows,
    KeyExists,
    NotFound,
    SchemaMoved,
    StrandError,
    TooLarge,
    TransientError,
    Unsupported,
    nearest,
)
from strandline.failpoints import fail
from strandline.ledger.appends import Append
from strandline.ledger.bases import read_base
from strandline.ledger.commits import find_commit
from strandline.ledger.encode import encode_batch
from strandline.ledger.group_commit import FEW_ROWS, Appender
from strandline.ledger.groups import Groups, Member
from strandline.ledger.ledger import Ledger
from strandline.ledger.mutations import Held, Moved, Mutation, Remember, TableChange, TableRead, other_seq, other_tip
from strandline.model import rows as rules
from strandline.model.arrow import batch_arrow
from strandline.model.commits import Commit
from strandline.model.declared import Declared
from strandline.model.ids import new_id
from strandline.model.keys import key_fields, key_hash, shown_key
from strandline.model.mutations import Delete, Expectation, HeadIs, Patch, Put, RowIs, Statement, TableIs
from strandline.model.reporting import and_more, most_reported
from strandline.model.row_versions import Keys, Row, Version
from strandline.model.schema import Schema
from strandline.model.tables import TableState
from strandline.model.types import REMOVED
from strandline.operations.context import Context
from strandline.operations.recovery import recover
from strandline.rules.cascades import Cascades
from strandline.rules.changes import Changes, Claims, RowChange, column_of
from strandline.rules.rows import judge
from strandline.views.looking import Looking, read_declared
from strandline.views.versions import Versions, given_columns, read_versions, row_at

PATIENCE_S = 30.0
HELD_S = 0.1
"""How long to wait before looking again whether a load has let go of a table."""
MOST_ROWS = 500_000
"""How many rows one commit of the ledger alone may change: they are in memory, one by one."""
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


@dataclass(frozen=True)
class Change:
    """One valid statement: what becomes of a key. `fields` are a whole row, or those that a patch changes."""

    place: int
    state: TableState
    hash: bytes
    key: Row
    fields: Row | None
    kind: str

    @property
    def name(self) -> str:
        """The row, as messages name it."""
        return f"{self.state.table.name} {shown_key([value[0].as_py() for value in self.key.values()])}"

    @property
    def reads(self) -> bool:
        """Whether what happens depends on what is there."""
        return self.kind != "put"


@dataclass
class Request:
    """A mutation as it was asked for, with its statements validated.

    Of the tables in `whole` no other rows are left. `remember` is what tells it from another one when it is repeated.
    """

    branch: str
    actor: str
    message: str
    kind: str
    changes: list[Change]
    whole: list[TableState] = field(default_factory=list)
    remember: Remember | None = None
    tip: str | None = None
    seqs: list[tuple[TableState, int]] = field(default_factory=list)
    rows: list[tuple[Change, int | None]] = field(default_factory=list)

    @property
    def last_seqs(self) -> dict[str, int]:
        """What the newest version of each of these tables is expected to be."""
        return {state.table.table_id: seq for state, seq in self.seqs}

    def tables(self, declared: Declared) -> list[tuple[TableState, Keys]]:
        """The tables that it is about, each with the keys whose rows it must see."""
        tables: dict[str, tuple[TableState, dict[bytes, Row]]] = {}
        for change in [*self.changes, *(change for change, _ in self.rows)]:
            _, keys = tables.setdefault(change.state.table.table_id, (change.state, {}))
            if change.reads or declared.depends(change.state.table.table_id):
                keys[change.hash] = change.key
        for state in (*self.whole, *(state for state, _ in self.seqs)):
            tables.setdefault(state.table.table_id, (state, {}))
        return list(tables.values())


class Stored(NamedTuple):
    """What became of a request: its commit, or None where it changed nothing."""

    commit: Commit | None


_Asking: TypeAlias = Member[Request, Stored]


class Mutator:
    """Changes keyed tables of one lake, for all threads of a process."""

    def __init__(self, ledger: Ledger, appender: Appender, context: Callable[[], Context]) -> None:
        self._ledger = ledger
        self._appender = appender
        self._context = context
        self._turns = Turns()
        self._blind: Groups[Request, Stored] = Groups(self._serve)
        self._seeing: Groups[Request, Stored] = Groups(self._serve)
        self._declared: dict[str, Declared] = {}

    def mutate(self, request: Request) -> Commit:
        """Store it; one that changes nothing makes no commit, and the answer is the branch's newest."""
        return self.store(request) or self._newest(request.branch)

    def store(self, request: Request) -> Commit | None:
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

    def _stored(self, request: Request) -> Stored:
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

    def _company(self, request: Request) -> Groups[Request, Stored] | None:
        """With whom it is planned: few rows, which are judged by no others. One that sees no row waits for no file."""
        declared = self._declared.get(request.branch)
        if declared is None or request.whole or len(request.changes) + len(request.rows) > FEW_ROWS:
            return None
        tables = request.tables(declared)
        if any(declared.depends(state.table.table_id) for state, _ in tables):
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
                mutation = _plan(member.call, look, declared)
            except Exception as error:
                member.answer = error
            else:
                if mutation.changes:
                    yield member, mutation
                else:
                    member.answer = Stored(None)

    def _look(self, requests: Sequence[Request]) -> tuple[Declared, list[Looking]]:
        """What a branch's tables declare, as far as it is known still, and the rows that each of its requests meets."""
        branch = requests[0].branch
        declared = self._declared.get(branch)
        while True:
            if declared is None:
                declared = self._declared[branch] = read_declared(self._ledger, branch)
            by_request = [request.tables(declared) for request in requests]
            versions = read_versions(self._ledger, branch, _union(by_request))
            if (declared.branch_id, declared.shape) == (versions.base.branch_id, versions.base.shape):
                return declared, [self._looking(branch, versions, tables) for tables in by_request]
            declared = None

    def _looking(self, branch: str, versions: Versions, tables: Sequence[tuple[TableState, Keys]]) -> Looking:
        """What one request asked for, of what several did."""
        own = {
            state.table.table_id: {key: version for key in keys if (version := versions.get(state.table.table_id, key))}
            for state, keys in tables
        }
        look = Looking(self._ledger, branch, Versions(versions.base, own))
        look.asked = {state.table.table_id: dict.fromkeys(keys) for state, keys in tables}
        return look

    def _newest(self, branch: str) -> Commit:
        with self._ledger.read() as conn:
            commit = find_commit(conn, read_base(conn, branch, []).tip or "")
        assert commit is not None, "a keyed table was made, and there is no commit of that"
        return commit


def _union(by_request: Sequence[Sequence[tuple[TableState, Keys]]]) -> list[tuple[TableState, Keys]]:
    """The tables of several requests, with all their keys; one of which two know different schemas is there twice.

    Then the look is refused, and each is looked up alone.
    """
    tables: dict[tuple[str, int], tuple[TableState, dict[bytes, Row]]] = {}
    for state, keys in itertools.chain.from_iterable(by_request):
        _, all_keys = tables.setdefault((state.table.table_id, state.head.schema_version), (state, {}))
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


def prepare(
    statements: Sequence[Statement],
    expect: Expectation | Sequence[Expectation] | None,
    state_of: Callable[[str], TableState],
    *,
    branch: str,
    actor: str,
    message: str,
    kind: str = "mutate",
) -> Request:
    """Validate statements by themselves: tables, keys, columns and values. What is wrong is named by its place."""
    if not statements:
        raise BadRequest("there is nothing to change", hint="Give at least one statement.")
    request = Request(branch, actor, message, kind, _changes(statements, state_of))
    expected = [expect] if isinstance(expect, HeadIs | TableIs | RowIs) else list(expect or ())
    if len({head.commit for head in expected if isinstance(head, HeadIs)}) > 1:
        raise BadRequest("two different heads are expected", hint="A branch is at one commit.")
    for expectation in expected:
        match expectation:
            case HeadIs(commit=commit):
                request.tip = commit
            case TableIs(table=table, seq=seq):
                state = require_keyed(state_of(table))
                if request.last_seqs.get(state.table.table_id, seq) != seq:
                    raise BadRequest(f"two different seqs are expected of {table!r}", hint="It has one newest version.")
                request.seqs.append((state, seq))
            case RowIs(table=table, key=key, seq=seq):
                request.rows.append((_by_key(0, require_keyed(state_of(table)), key, None, "expect"), seq))
            case _:
                raise BadRequest(f"{expectation!r} is no expectation", hint="Use sl.head, sl.table_head or sl.row.")
    return request


def _changes(statements: Sequence[Statement], state_of: Callable[[str], TableState]) -> list[Change]:
    changes: dict[int, Change] = {}
    puts: dict[str, list[tuple[int, Put]]] = {}
    for place, statement in enumerate(statements):
        match statement:
            case Put(table=table):
                puts.setdefault(require_keyed(state_of(table)).table.name, []).append((place, statement))
            case Patch(table=table, key=key, fields=fields):
                changes[place] = _by_key(place, require_keyed(state_of(table)), key, fields, "patch")
            case Delete(table=table, key=key):
                changes[place] = _by_key(place, require_keyed(state_of(table)), key, None, "delete")
            case _:
                raise BadRequest(
                    f"statement {place} is {type(statement).__name__}",
                    hint="Use sl.put, sl.insert, sl.patch, sl.delete.",
                )
    for table, table_puts in puts.items():
        changes.update((change.place, change) for change in _puts(state_of(table), table_puts))
    return [changes[place] for place in sorted(changes)]


def require_keyed(state: TableState) -> TableState:
    """The same; Unsupported where it is a log table's."""
    if not state.table.key:
        raise Unsupported(
            f"{state.table.name!r} is a log table: its rows don't change",
            hint="`strand append` and `strand load TABLE` add rows to it.",
        )
    return state


def _puts(state: TableState, puts: Sequence[tuple[int, Put]]) -> Iterator[Change]:
    """All rows of one table at once: validation costs little per row, and much per call."""
    table = state.table
    places, raw_rows = [place for place, _ in puts], [put.row for _, put in puts]
    rows = _valid(places, raw_rows, state.schema, extra=table.extra, partition_by=table.partition_by)
    return changes_of(state, rows, [(place, put.strict) for place, put in puts])


def changes_of(state: TableState, rows: pa.RecordBatch, puts: Sequence[tuple[int, bool]]) -> Iterator[Change]:
    """Valid rows as what is to be put: each with its place, and whether nothing may be there."""
    columns = given_columns(state)
    keys = zip(*(rows.column(name).to_pylist() for name in state.table.key), strict=True)
    for at, ((place, strict), key) in enumerate(zip(puts, keys, strict=True)):
        fields = row_at(rows, at, columns)
        named = {name: fields[name] for name in state.table.key}
        yield Change(place, state, key_hash(key), named, fields, "insert" if strict else "put")


def _by_key(place: int, state: TableState, key: Any, fields: Mapping[str, Any] | None, kind: str) -> Change:
    """A statement about the row that a key names."""
    table = state.table
    named = Schema(tuple(state.schema.column(name) for name in table.key))
    values = row_at(_valid([place], [key_fields(table.key, key, table.name)], named), 0, table.key)
    patch: Row | None = None
    if fields is not None:
        for name in fields:
            if name in table.key:
                raise BadRequest(
                    f"statement {place} would change {name!r}, which is part of the key of {table.name!r}",
                    hint="Delete the row, and put another one.",
                )
            if name not in state.schema.names:
                reason = f"no such column. {nearest(str(name), state.schema.names)}"
                raise rules.refused_row(place, str(name), fields[name], reason)
        schema = Schema(tuple(state.schema.column(name) for name in fields)) if fields else None
        patched = _valid([place], [fields], schema) if schema is not None else None
        patch = row_at(patched, 0, list(fields)) if patched is not None else {}
    return Change(place, state, key_hash([value[0].as_py() for value in values.values()]), values, patch, kind)


def _valid(
    places: Sequence[int],
    rows: Sequence[Mapping[str, Any]],
    schema: Schema,
    *,
    extra: bool = False,
    partition_by: Sequence[str] = (),
) -> pa.RecordBatch:
    """The rows as a batch; what is wrong with one is told by its statement's place."""
    try:
        return rules.from_dicts(rows, schema, extra=extra, partition_by=partition_by)
    except InvalidRows as error:
        raise rules.renumbered(error, places) from None


def _plan(request: Request, look: Looking, declared: Declared) -> Mutation:
    """What a request comes to on what is there: the new version of each row, and what that depends on."""
    base = look.base
    for state, _ in request.tables(declared):
        if state.head.branch_id != base.branch_id or state.table.table_id not in declared.states:
            raise SchemaMoved(f"branch {request.branch!r} was made anew")
    _check_expectations(request, look, declared)
    relied = Claims()
    changes = apply_statements(request, look, declared, relied)
    for state in request.whole:
        _delete_others(state, changes, look, declared)
    claims = judge(declared, changes, look, relied)
    commit_id = new_id()
    written: dict[str, list[RowChange]] = {}
    for change in changes.values():
        if change.after is not None or change.before is not None:  # else it is as if nothing had been asked
            written.setdefault(change.state.table.table_id, []).append(change)
    return Mutation(
        commit_id=commit_id,
        branch=request.branch,
        branch_id=base.branch_id,
        base=base.number,
        kind=request.kind,
        actor=request.actor,
        message=request.message,
        changes=tuple(
            table_change(rows, request.actor, commit_id, list(claims.writes.get(table_id, ())))
            for table_id, rows in written.items()
        ),
        reads=tuple(_reads(request, look, declared, claims)),
        shape=declared.shape,
        remember=request.remember,
        tip=request.tip,
        last_seqs=request.last_seqs,
    )


def apply_statements(request: Request, look: Looking, declared: Declared, relied: Claims) -> Changes:
    """Every row that the statements change, as it was and is after the last; a delete takes what refers to it along."""
    changes: Changes = {}
    taken: list[tuple[Change, Version | None]] = []
    cascades = Cascades(declared, changes, look, relied)
    deletes = [change for change in request.changes if change.kind == "delete"]
    deletes = [change for change in deletes if declared.cascades(change.state.table.table_id)]
    cascades.expect(RowChange(change.state, change.hash, change.key, None, None) for change in deletes)
    for change in request.changes:
        at = change.state.table.table_id, change.hash
        version = look.get(*at)
        row_change = changes.get(at)
        if row_change is None:
            before = _row(version)
            row_change = changes[at] = RowChange(change.state, change.hash, change.key, before, before)
        if change.kind == "insert" and row_change.after is not None:
            taken.append((change, version))
        else:
            was_there = row_change.after is not None
            row_change.place, row_change.after = change.place, _applied(change, row_change.after)
            if deletes:
                cascades.note(row_change)
            # What refers to a row that is not there was put by this mutation, for a row that is yet to come.
            if change.kind == "delete" and was_there:
                cascades.follow(row_change)
    if taken:
        raise _key_exists(taken)
    return changes


def _key_exists(taken: Sequence[tuple[Change, Version | None]]) -> Conflict:
    """The error of inserts whose keys are there, before them or by them."""
    first, version = taken[0]
    return KeyExists(
        f"{first.name} can't be inserted: it is there already{and_more(len(taken))}",
        hint="Use put to replace a row, or patch to change some of its fields.",
        expected=None,
        actual=version.seq if version is not None else None,
        rows=[{"index": change.place, "row": change.name} for change, _ in taken[: most_reported()]],
        count=len(taken),
    )


def _delete_others(state: TableState, changes: Changes, look: Looking, declared: Declared) -> None:
    """Delete every row of a table that is not put."""
    table_id = state.table.table_id
    others = [row for row in look.having(state, state.table.key, None) if (table_id, row.hash) not in changes]
    if len(others) > MOST_ROWS:
        message = f"{len(others)} rows of {state.table.name!r} would be deleted at once"
        raise TooLarge(message, hint=f"At most {MOST_ROWS} are.")
    if declared.depends(table_id):
        look.ask(state, {row.hash: row.key for row in others})
    for row in others:
        before = _row(look.get(table_id, row.hash)) if declared.depends(table_id) else row.key
        changes[table_id, row.hash] = RowChange(state, row.hash, row.key, before, None)


def _reads(request: Request, look: Looking, declared: Declared, relied: Claims) -> Iterator[TableRead]:
    """What was asked for on the way: keys and claims, or all of a table."""
    whole = {state.table.table_id for state in request.whole}
    for table_id in {**look.asked, **relied.reads}:
        head = look.heads[table_id]
        name, claims = declared.states[table_id].table.name, list(relied.reads.get(table_id, ()))
        if table_id in whole:
            yield TableRead(name, table_id, head.barrier, (), claims, whole=head.last_seq)
        else:
            keys = list(look.asked.get(table_id, ()))
            yield TableRead(name, table_id, head.barrier, keys, claims, last_seq=head.last_seq)


def _row(version: Version | None) -> Row | None:
    return version.row if version is not None else None


def _applied(change: Change, before: Row | None) -> Row | None:
    """A row after a statement; None where it is not there."""
    if change.kind == "delete":
        return None
    assert change.fields is not None
    if change.kind != "patch":
        return change.fields
    if before is None:
        raise NotFound(
            f"statement {change.place} changes {change.name}, which is not there",
            hint="Put the row, or look at what there is.",
            table=change.state.table.name,
        )
    return {**before, **change.fields}


def table_change(rows: Sequence[RowChange], actor: str, commit_id: str, claims: Sequence[bytes]) -> TableChange:
    """The new versions of a table's rows, as a batch; a row that is gone leaves its key alone."""
    state = rows[0].state
    shape = batch_arrow(state.schema, state.table)
    written = [change.key if change.after is None else change.after for change in rows]
    deleted = pa.array([change.after is None for change in rows])
    arrays = [deleted if column.name == REMOVED else column_of(written, column) for column in shape]
    batches = encode_batch(pa.RecordBatch.from_arrays(arrays, schema=shape), state.table)
    append = Append.of(state, actor, batches, commit_id=commit_id)
    return TableChange(append, [change.hash for change in rows], claims)


def _check_expectations(request: Request, look: Looking, declared: Declared) -> None:
    """Raise Conflict where something is not as the caller expects it. The transaction looks once more."""
    base = look.base
    error = other_tip(request.branch, request.tip, base.tip)
    for state, _ in request.tables(declared):
        table_id = state.table.table_id
        error = error or other_seq(state.table.name, request.last_seqs.get(table_id), base.heads[table_id].last_seq)
    if error is not None:
        raise error
    for change, seq in request.rows:
        _expect_row(change, seq, look)


def _expect_row(change: Change, seq: int | None, look: Looking) -> None:
    version = look.get(change.state.table.table_id, change.hash)
    actual = version.seq if version is not None and version.row is not None else None
    if actual != seq:
        raise Conflict(
            f"{change.name} " + ("is not there" if actual is None else f"has seq {actual}") + f", expected {seq}",
            kind="row_moved",
            hint="Read the row again, and decide again.",
            expected=seq,
            actual=actual,
        )
