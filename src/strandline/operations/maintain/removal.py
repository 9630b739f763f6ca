"""Taking rows out of a log: whole files where all of a file goes, and the others written again without those rows.

Which rows go is decided before anything is written, as seqs: by the ledger's figures of a file, or by DuckDB from the
file's rows. So there is one evaluator of conditions, and what Spark writes can be compared with what was decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.engines.duck import relations, sandbox
from strandline.engines.spark import maintain
from strandline.engines.storage import open_uri
from strandline.errors import Damaged
from strandline.failpoints import fail
from strandline.ledger.tables.files import read_files
from strandline.ledger.tables.heads import MoveTable
from strandline.model.schema.types import SEQ
from strandline.model.tables import BranchTable, DataFile
from strandline.operations.core.context import Context
from strandline.operations.maintain.compact import place_of
from strandline.operations.maintain.layout import Group, neighbours
from strandline.operations.maintain.stage_tail import added_files, prepare_branch
from strandline.views.view import files_sql


@dataclass(frozen=True)
class Removal:
    """What goes of a table at one version: these files whole, and of the others the rows with these seqs."""

    whole: tuple[DataFile, ...] = ()
    partly: tuple[DataFile, ...] = ()
    seqs: pa.Array = field(default_factory=lambda: pa.array([], pa.int64()))
    highest: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows go."""
        return sum(file.rows for file in self.whole) + len(self.seqs)

    def plus(self, other: Removal) -> Removal:
        """Both together; they are of different files."""
        highest = {
            name: max(self.highest.get(name, 0), other.highest.get(name, 0)) for name in [*self.highest, *other.highest]
        }
        seqs = pa.concat_arrays([self.seqs, other.seqs])
        return Removal((*self.whole, *other.whole), (*self.partly, *other.partly), seqs, highest)

    @property
    def streams(self) -> dict[str, int]:
        """The highest seq that goes, of each stream that loses rows."""
        streams = dict(self.highest)
        for file in self.whole:
            streams[file.partition] = max(streams.get(file.partition, 0), file.last_seq)
        return streams


def find_rows(
    branch_table: BranchTable,
    files: Sequence[DataFile],
    condition: str,
    more: Sequence[str] = (),
    hashes: Sequence[bytes] | None = None,
) -> tuple[Removal, pa.Table]:
    """The rows of a table's files that a condition of DuckDB's names; beside it their seqs and `more` expressions.

    With `hashes`, the condition may ask whether that of a row is among them: `relations.has_hash`.
    """
    matches: list[tuple[DataFile, pa.Table]] = []
    with sandbox.interruptible(), sandbox.connect() as connection:
        if hashes is not None:
            relations.load_hashes(connection, hashes)
        sandbox.shut(connection, [relations.local_path(file.path) for file in files])
        for file in files:
            matched = relations.matching(
                connection, files_sql(branch_table, [file], branch_table.columns), [SEQ, *more], condition
            )
            if matched.num_rows:
                matches.append((file, matched))
    return removal_of(matches), pa.concat_tables([rows for _, rows in matches]) if matches else pa.table({})


def removal_of(matches: Sequence[tuple[DataFile, pa.Table]]) -> Removal:
    """What goes, by the seqs of the rows that go of each file."""
    highest: dict[str, int] = {}
    for file, rows in matches:
        last = int(pc.max(rows.column(SEQ)).as_py())
        highest[file.partition] = max(highest.get(file.partition, 0), last)
    partly = [(file, rows) for file, rows in matches if rows.num_rows < file.rows]
    seqs = [chunk for _, rows in partly for chunk in rows.column(SEQ).chunks]
    return Removal(
        whole=tuple(file for file, rows in matches if rows.num_rows == file.rows),
        partly=tuple(file for file, _ in partly),
        seqs=pa.concat_arrays(seqs) if seqs else pa.array([], pa.int64()),
        highest=highest,
    )


def stage_removal(ctx: Context, branch_table: BranchTable, removal: Removal, op_id: str) -> MoveTable:
    """Write the log without these rows on the operation's branch; says what the publish has to do."""
    prepare_branch(ctx, branch_table, op_id)
    groups = _groups(ctx, branch_table, removal)
    without = _write_seqs(ctx, branch_table, op_id, removal.seqs) if groups else None
    fail("stage.before_append")
    snapshot = maintain.remove(
        ctx.iceberg(), place_of(branch_table, op_id), removal.whole, groups, branch_table.stored.columns, without
    )
    fail("stage.after_append")
    added = added_files(ctx, branch_table, snapshot)
    _check(op_id, removal, groups, added)
    ctx.iceberg().sync_to_disk(branch_table.table.iceberg_name, snapshot, added)
    return replace(
        MoveTable.of(branch_table.head),
        snapshot=snapshot,
        files=added,
        removed=tuple(file.path for file in [*removal.whole, *removal.partly]),
        rows_removed=removal.rows,
    )


def _groups(ctx: Context, branch_table: BranchTable, removal: Removal) -> list[Group]:
    """What is written together: neighbours in a log; of a state each file alone, because it is in the order of keys."""
    if not removal.partly or branch_table.table.kind == "state":
        return [(file,) for file in removal.partly]
    with ctx.ledger.read() as conn:
        files = read_files(conn, branch_table.head.branch_id, branch_table.table.table_id, branch_table.head.version)
    return neighbours(files, removal.partly, removal.whole, branch_table.table.settings.target_file_bytes)


def _write_seqs(ctx: Context, branch_table: BranchTable, op_id: str, seqs: pa.Array) -> str:
    ctx.staging.create(op_id)
    fail("stage.before_files")
    uri = ctx.staging.uri(op_id, f"removed-{branch_table.table.kind}.parquet")
    system, path = open_uri(uri)
    pq.write_table(pa.table({SEQ: seqs}), path, filesystem=system)
    fail("stage.after_files")
    return uri


def _check(op_id: str, removal: Removal, groups: Sequence[Group], added: Sequence[DataFile]) -> None:
    """Damaged unless just the chosen rows are missing, and each new file lies within the files that it replaces."""
    left = sum(file.rows for file in removal.partly) - len(removal.seqs)
    spans = [(group[0].partition, group[0].first_seq, group[-1].last_seq) for group in groups]
    within = all(
        any(file.partition == name and first <= file.first_seq and file.last_seq <= last for name, first, last in spans)
        for file in added
    )
    if sum(file.rows for file in added) != left or not within or len(added) > len(groups):
        raise Damaged(
            f"{left} rows should have been left of the files that were written again, and "
            f"{sum(file.rows for file in added)} are: nothing was published",
            operation=op_id,
        )
