"""Rows of keyed tables by key: the newest version of each, as one database snapshot shows it.

The ledger knows by a key's hash which batch holds its newest version. A batch that was flushed and swept since is in
the log's files, where its rows are found by their seqs. What is folded is in the table's state: there a row is found by
its key, and by reading few rows beside it, because a state is sorted by key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from strandline.engines.duck import relations, sandbox
from strandline.errors import HistoryGone, SchemaMoved
from strandline.ledger.changes import touches
from strandline.ledger.history.starting_points import Base, read_base
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows.batches import find_payloads, in_tail
from strandline.ledger.tables.files import read_files
from strandline.model.ids import state_id
from strandline.model.schema.keys import key_hash
from strandline.model.schema.types import REMOVED, SEQ
from strandline.model.tables import BatchRef, BranchTable, DataFile
from strandline.model.values.arrow import batch_arrow
from strandline.model.values.row_versions import Keys, Row, Version
from strandline.views.tail import Unreadable, decode_payload
from strandline.views.unreadable import refuse_unreadable
from strandline.views.view import files_sql, stored_columns

if TYPE_CHECKING:
    import duckdb

    from strandline.ledger.ledger import Connection


@dataclass(frozen=True)
class NewestVersions:
    """What a branch was when it was looked at, and the newest versions of the keys that were asked for."""

    base: Base
    newest: Mapping[str, Mapping[bytes, Version]] = field(default_factory=dict)

    def get(self, table_id: str, key: bytes) -> Version | None:
        """The newest version of a key; None where there never was one."""
        return self.newest.get(table_id, {}).get(key)


def read_versions(ledger: Ledger, branch: str, tables: Sequence[tuple[BranchTable, Keys]]) -> NewestVersions:
    """A branch as it is now, with the newest versions of these keys of these tables.

    Conflict where the schema of one is not the one that `tables` has: what is there may be of another shape.
    """
    with ledger.read() as conn:
        base = read_base(conn, branch, [branch_table.table.table_id for branch_table, _ in tables])
        for branch_table, _ in tables:
            _refuse_moved(base, branch_table)
        newest = {
            branch_table.table.table_id: _read(conn, base, branch_table, keys) for branch_table, keys in tables if keys
        }
    return NewestVersions(base, newest)


def _refuse_moved(base: Base, branch_table: BranchTable) -> None:
    head = base.heads.get(branch_table.table.table_id)
    if head is not None and head.schema_version != branch_table.head.schema_version:
        raise SchemaMoved(
            f"the schema of {branch_table.table.name!r} has changed",
            hint="Try again: the change is then validated against the new schema.",
            expected=branch_table.head.schema_version,
            actual=head.schema_version,
        )


def _read(conn: Connection, base: Base, branch_table: BranchTable, keys: Keys) -> dict[bytes, Version]:
    head = base.heads.get(branch_table.table.table_id)
    if head is None:
        return {}
    # Up to `swept_seq` a hash may tell of a version that a load has replaced, without a hash of its own. Up to `began`
    # it tells of the table that was dropped before this one was added.
    since = max(head.folded_seq, head.swept_seq, branch_table.schema.began)
    newest = touches.newest(conn, base.lineage, branch_table.table.table_id, keys, since)
    by_batch: dict[str, list[tuple[bytes, int]]] = {}
    for key, touch in newest.items():
        by_batch.setdefault(touch.batch_id, []).append((key, touch.seq))
    versions: dict[bytes, Version] = {}
    for ref, rows in _decoded(conn, branch_table, list(by_batch)):
        for key, seq in by_batch.pop(ref.batch_id):
            versions[key] = _version(rows, seq - ref.first_seq, seq, branch_table)
    flushed = {seq: key for versions in by_batch.values() for key, seq in versions}
    if flushed:
        versions.update(_from_log(conn, base, branch_table, flushed))
    folded = {hash_: key for hash_, key in keys.items() if hash_ not in newest}
    if folded and (head.folded_seq or head.swept_seq):
        versions.update(_by_key(conn, base, branch_table, folded))
    return versions


def _decoded(
    conn: Connection, branch_table: BranchTable, batch_ids: Sequence[str]
) -> Iterator[tuple[BatchRef, pa.RecordBatch]]:
    """Batches that are still kept, with their rows."""
    for payload in find_payloads(conn, batch_ids):
        try:
            rows = decode_payload(payload, branch_table)
        except Unreadable as error:
            refuse_unreadable(branch_table, payload.ref, str(error))
            raise
        yield payload.ref, rows


def _version(rows: pa.RecordBatch, place: int, seq: int, branch_table: BranchTable) -> Version:
    if rows.column(REMOVED)[place].as_py():
        return Version(seq, None)
    return Version(seq, row_at(rows, place, given_columns(branch_table)))


def row_at(rows: pa.RecordBatch, place: int, columns: Sequence[str]) -> Row:
    """One row of a batch."""
    return {name: rows.column(name).slice(place, 1) for name in columns}


def given_columns(branch_table: BranchTable) -> list[str]:
    """The columns of a keyed table that a caller gives values for."""
    return [name for name in batch_arrow(branch_table.schema, branch_table.table).names if name != REMOVED]


def _from_log(
    conn: Connection, base: Base, branch_table: BranchTable, keys: Mapping[int, bytes]
) -> dict[bytes, Version]:
    """Versions out of the log's files, by their seqs."""
    version = base.heads[branch_table.table.table_id].version
    files = read_files(conn, base.branch_id, branch_table.table.table_id, version, since=min(keys) - 1, until=max(keys))
    needed = [file for file in files if any(file.first_seq <= seq <= file.last_seq for seq in keys)]
    condition = f"{SEQ} IN ({', '.join(map(str, keys))})"
    versions = {
        keys[version.seq]: version
        for _, version in _find(
            branch_table, needed, lambda connection, rows, names: relations.matching(connection, rows, names, condition)
        )
    }
    if len(versions) < len(keys):
        raise HistoryGone(
            f"versions of rows of table {branch_table.table.name!r} are no longer kept", table=branch_table.table.name
        )
    return versions


def _by_key(conn: Connection, base: Base, branch_table: BranchTable, keys: Keys) -> dict[bytes, Version]:
    """The newest versions of keys that no hash tells of: in the state, and in as much of the log as is swept past it.

    One that is nowhere was deleted, or never was.
    """
    table_id, head = branch_table.table.table_id, base.heads[branch_table.table.table_id]
    files = read_files(conn, base.branch_id, state_id(table_id), head.state_version)
    if head.swept_seq > head.folded_seq:
        files += read_files(conn, base.branch_id, table_id, head.version, since=head.folded_seq, until=head.swept_seq)
    key_rows = pa.table(
        {name: pa.concat_arrays([key[name] for key in keys.values()]) for name in branch_table.table.key}
    )
    newest: dict[bytes, Version] = {}
    flushed = _find(
        branch_table, files, lambda connection, rows, names: relations.with_keys(connection, rows, names, key_rows)
    )
    for key, version in itertools.chain(flushed, _in_tail(conn, base, branch_table, key_rows)):
        newer = newest.get(key_hash(key))
        if version.seq > branch_table.schema.began and (newer is None or newer.seq < version.seq):
            newest[key_hash(key)] = version
    return newest


def _in_tail(
    conn: Connection, base: Base, branch_table: BranchTable, key_rows: pa.Table
) -> Iterator[tuple[tuple[Any, ...], Version]]:
    """Versions of these keys in as much of the tail as no hash may tell of."""
    head = base.heads[branch_table.table.table_id]
    if head.swept_seq <= head.folded_seq:
        return
    looked_for = set(zip(*(key_rows[name].to_pylist() for name in branch_table.table.key), strict=True))
    for ref, rows in _decoded(
        conn, branch_table, in_tail(conn, base.branch_id, branch_table.table.table_id, head.swept_seq)
    ):
        keys = zip(*(rows.column(name).to_pylist() for name in branch_table.table.key), strict=True)
        for place, key in enumerate(keys):
            if key in looked_for:
                yield key, _version(rows, place, ref.first_seq + place, branch_table)


Matching: TypeAlias = "Callable[[duckdb.DuckDBPyConnection, str, list[str]], pa.Table]"


def _find(
    branch_table: BranchTable, files: Sequence[DataFile], matching: Matching
) -> Iterator[tuple[tuple[Any, ...], Version]]:
    """Versions out of some data files, each with the values of its key."""
    if not files:
        return
    shape = pa.schema([*batch_arrow(branch_table.schema, branch_table.table), pa.field(SEQ, pa.int64())])
    columns = [column for column in stored_columns(branch_table) if column.name in shape.names]
    names = [sandbox.quote_name(name) for name in shape.names]
    try:
        with sandbox.scratch() as connection:
            rows = matching(connection, files_sql(branch_table, files, columns), names)
    except Exception as error:
        if not sandbox.is_missing_file(error):
            raise
        raise HistoryGone(f"a file of table {branch_table.table.name!r} is not there any more: {error}") from error
    for batch in rows.cast(shape).to_batches():
        keys = zip(*(batch.column(name).to_pylist() for name in branch_table.table.key), strict=True)
        for place, (key, seq) in enumerate(zip(keys, batch.column(SEQ).to_pylist(), strict=True)):
            yield key, _version(batch, place, seq, branch_table)
