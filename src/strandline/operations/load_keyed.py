"""Load files into keyed tables: one commit, of one table or of many, by the ledger alone.

All rows are read and validated first, then they are a mutation like any other: judged by the constraints of the tables,
stored whole or not at all, retried where others were faster. What remembers the load is written with its commit, so run
again after a crash it answers `already_loaded`, or loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pyarrow as pa

from strandline.engines.files import Chunk, Input, Skipped, read_chunk, read_objects
from strandline.errors import Conflict, InvalidRows, StrandError, TooLarge
from strandline.ledger.appends import IdempotencyKey
from strandline.ledger.idempotency import forget, recall
from strandline.ledger.mutations import Remember
from strandline.model import rows as rules
from strandline.model.operations import Loaded
from strandline.model.tables import TableState
from strandline.model.values import shown
from strandline.operations.beats import holding
from strandline.operations.context import Context
from strandline.operations.load import SMALL_BYTES, in_file
from strandline.operations.mutate import MOST_ROWS, Change, Mutator, Request, changes_of, require_keyed

Mode = Literal["append", "merge", "overwrite"]

NAMED = "-"
"""In place of a table's name: every line names its own, in a field `_table`."""


@dataclass(frozen=True)
class KeyedLoad:
    """What to load into which table (or `NAMED`), and the key under which it is loaded once; without one, every time.

    `digest` tells other files under the same key. `state_of` finds a table of the branch.
    """

    table: str
    branch: str
    inputs: Sequence[Input]
    mode: Mode
    actor: str
    state_of: Callable[[str], TableState]
    scope: str
    key: str | None
    digest: str
    again: bool = False


@dataclass
class _Rows:
    """What the files hold, as changes, and where each row was found: file, and index of the line there."""

    changes: list[Change] = field(default_factory=list)
    places: list[tuple[str, int]] = field(default_factory=list)
    tables: dict[str, TableState] = field(default_factory=dict)
    skipped: int = 0

    def add(self, state: TableState, rows: pa.RecordBatch, uri: str, lines: Sequence[int], *, strict: bool) -> None:
        """Take a valid batch, whose rows are from these lines."""
        self.tables[state.table.table_id] = state
        first = len(self.places)
        self.places += [(uri, line) for line in lines]
        if len(self.places) > MOST_ROWS:
            raise _too_large(f"there are more than {MOST_ROWS:,} rows")
        self.changes += changes_of(state, rows, [(first + at, strict) for at in range(rows.num_rows)])


def load_keyed(ctx: Context, mutator: Mutator, load: KeyedLoad) -> Loaded:
    """Load it as one commit, or say that it is loaded already."""
    size_bytes = sum(one.size_bytes for one in load.inputs)
    if size_bytes > SMALL_BYTES:
        raise _too_large(f"the files have {size_bytes >> 20} MiB")
    if load.key is None:
        return _load(mutator, load)
    # Two processes that run the same load: the second waits, and finds the first one's answer.
    with holding(ctx, f"{load.scope}:{load.key}"):
        with ctx.ledger.write() as txn:
            if load.again:
                forget(txn, load.scope, load.key)
            answer = recall(txn, load.scope, load.key, load.digest)
        return _load(mutator, load) if answer is None else _loaded(load, answer, already_loaded=True)


def _load(mutator: Mutator, load: KeyedLoad) -> Loaded:
    rows = _read(load)
    put = {(change.state.table.name, change.hash) for change in rows.changes}
    counted = {name: sum(table == name for table, _ in put) for name in sorted({table for table, _ in put})}
    answer: dict[str, Any] = {
        "rows": len(put),
        "duplicates_dropped": len(rows.changes) - len(put),
        "skipped": rows.skipped,
        "tables": counted,
    }
    request = Request(
        branch=load.branch,
        actor=load.actor,
        message=f"load {len(put)} rows",
        kind="load",
        changes=rows.changes,
        whole=list(rows.tables.values()) if load.mode == "overwrite" else [],
    )
    if load.key is not None:
        request.remember = Remember(IdempotencyKey(load.scope, load.key, load.digest, None), answer)
    try:
        commit = mutator.store(request)
    except (InvalidRows, Conflict) as error:
        raise _located(error, rows) from None
    if commit is None:
        return _loaded(load, answer)
    written = sum(commit.tables.values())
    seqs = {"first_seq": commit.seq - written, "last_seq": commit.seq - 1}
    return _loaded(load, {**answer, **seqs, "commit": commit.commit_id})


def _loaded(load: KeyedLoad, answer: Mapping[str, Any], *, already_loaded: bool = False) -> Loaded:
    first, last = answer.get("first_seq"), answer.get("last_seq")
    return Loaded(
        table=load.table,
        rows=answer["rows"],
        duplicates_dropped=answer["duplicates_dropped"],
        first_seq=first,
        last_seq=last,
        commit=answer.get("commit"),
        already_loaded=already_loaded,
        skipped=answer["skipped"],
        deleted=last - first + 1 - answer["rows"] if first is not None and last is not None else 0,
        tables=answer["tables"],
    )


def _read(load: KeyedLoad) -> _Rows:
    """Everything that the files hold, validated."""
    rows = _Rows()
    strict = load.mode == "append"
    if load.table != NAMED:
        state = load.state_of(load.table)
        rows.tables[state.table.table_id] = state
    for one in load.inputs:
        try:
            for state, batch, lines in _batches(load, one, rows):
                rows.add(state, batch, one.uri, lines, strict=strict)
        except InvalidRows as error:
            raise in_file(error, one.uri) from None
    return rows


def _batches(load: KeyedLoad, one: Input, rows: _Rows) -> Iterator[tuple[TableState, pa.RecordBatch, Sequence[int]]]:
    """The rows of a file, by table, and the lines they are from."""
    if one.format == "jsonl" or load.table == NAMED:
        for name, (lines, objects) in _by_table(load, one, rows).items():
            state = require_keyed(load.state_of(name))
            try:
                yield state, rules.from_dicts(objects, state.schema, extra=state.table.extra), lines
            except InvalidRows as error:
                raise rules.renumbered(error, lines) from None
        return
    state, start = load.state_of(load.table), 0
    for size, batch in read_chunk(
        Chunk(one), state.schema, extra=state.table.extra, table=load.table, skipped=Skipped()
    ):
        if isinstance(batch, InvalidRows):
            raise batch
        yield state, batch, range(start, start + size)
        start += size


def _by_table(load: KeyedLoad, one: Input, rows: _Rows) -> dict[str, tuple[list[int], list[dict[str, Any]]]]:
    """The objects of a file by the table that each is for, and their lines."""
    found: dict[str, tuple[list[int], list[dict[str, Any]]]] = {}
    bad: list[rules.BadRow] = []
    for line, fields in zip(*read_objects(one), strict=True):
        name = fields.pop("_table", None if load.table == NAMED else load.table)
        if not isinstance(name, str):
            bad.append(rules.BadRow(line, "_table", shown(name), "is not the name of a table"))
        elif load.table != NAMED and name.lower() != load.table.lower():
            rows.skipped += 1
        else:
            lines, objects = found.setdefault(name.lower(), ([], []))
            lines.append(line)
            objects.append(fields)
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise InvalidRows(
            bad[0].text() + more,
            hint='Every line names its table: {"_table": "person", "id": "a"}.',
            rows=[asdict(row) for row in bad[: rules.MAX_REPORTED]],
            bad=len(bad),
        )
    return found


def _located(error: InvalidRows | Conflict, rows: _Rows) -> StrandError:
    """An error about rows by their places, told by file and line."""
    detail = dict(error.detail)
    uri = ""
    for name in ("violations", "rows"):
        if name in detail:
            detail[name] = [_at(one, rows) for one in detail[name]]
            uri = next((one["file"] for one in detail[name] if "file" in one), uri)
    return type(error)(f"{uri}: {error.message}" if uri else error.message, hint=error.hint, **detail)


def _at(one: Mapping[str, Any], rows: _Rows) -> dict[str, Any]:
    if one["index"] is None or not 0 <= one["index"] < len(rows.places):
        return dict(one)
    uri, line = rows.places[one["index"]]
    return {"file": uri, **one, "index": line}


def _too_large(what: str) -> TooLarge:
    return TooLarge(
        f"{what}, and a keyed table takes {SMALL_BYTES >> 20} MiB and {MOST_ROWS:,} rows at once",
        hint="Cut the input, and load the parts one after the other.",
    )
