"""Whether the data files are there and hold what the ledger says, and whether there are others.

A quick look compares the size of every file; a bucket is asked for a list of them. A deep one reads them: Parquet's own
checksums of its pages are compared, and every `_seq` must be there once, in its file's range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from strandline.engines.duck.relations import local_path
from strandline.engines.metadata import size_of
from strandline.engines.storage import S3, entries, open_uri
from strandline.errors import Conflict, Displaced, NoMarker
from strandline.ledger.checks import known_paths
from strandline.ledger.publish.intents import read_intents
from strandline.ledger.publish.loads import list_loads
from strandline.model.schema.types import SEQ
from strandline.model.tables import BranchTable, DataFile, disjoint_runs
from strandline.model.times import text_of
from strandline.model.wording import counted
from strandline.operations.core.staging import FOLDER
from strandline.reports.findings import RESTORE, Examination, Finding

TOLD_FILES = 5
YOUNG_S = 24 * 3600
"""What is younger may be of a writer that is not done."""


def warehouse(look: Examination) -> Iterator[Finding]:
    """The lake is where it was made, and the warehouse is its own: no other lake's, and no other copy's."""
    displaced = look.lake.displaced
    if displaced is not None:
        yield Finding(kind="displaced", about=_about(look), what=str(displaced), meaning=REFUSES, fix=displaced.hint)
        return
    try:
        look.lake.context.fence.compare()
    except Conflict as error:
        yield Finding(kind="warehouse_taken", about=_about(look), what=str(error), meaning=REFUSES, fix=error.hint)
    except NoMarker as error:
        yield Finding(kind="no_marker", about=_about(look), what=str(error), meaning=REFUSES, fix=error.hint)
    except Displaced as error:
        yield Finding(kind="fenced", about=_about(look), what=str(error), meaning=REFUSES, fix=error.hint)


REFUSES = "Whatever writes to the warehouse refuses to begin. What was appended is safe in the ledger."


def _about(look: Examination) -> str:
    return look.lake.config.warehouse


def data_files(look: Examination) -> Iterator[Finding]:
    """Every pinned data file is there, has its size, and in a deep look its rows."""
    for branch_table in look.branch_tables():
        name = branch_table.table.name
        files = look.view.files(name)
        sizes = _listed_sizes(look, branch_table)
        wrong = {file.path: fault for file in files if (fault := _wrong(file, sizes, deep=look.deep)) is not None}
        if wrong:
            more = f" (and {len(wrong) - TOLD_FILES} more)" if len(wrong) > TOLD_FILES else ""
            yield Finding(
                kind="data_file_damaged",
                about=name,
                what=f"table {name}: {len(wrong)} of its data files {'is' if len(wrong) == 1 else 'are'} damaged: "
                f"{'; '.join(list(wrong.values())[:TOLD_FILES])}{more}",
                meaning=f"Reads of {counted(sum(file.rows for file in files if file.path in wrong), 'row')} in there "
                "fail with history_gone; everything else goes on.",
                fix=f"put the files back from a backup of the warehouse, or {RESTORE}",
                since=_since(list(wrong)),
            )
        if look.deep:
            yield from _seqs(branch_table, [file for file in files if file.path not in wrong])


def _since(paths: Sequence[str]) -> str | None:
    """When the first of these was changed last; of one that is gone, its folder, which a bucket has none of."""
    times = []
    for uri in paths:
        system, path = open_uri(uri)
        own, folder = system.get_file_info([path, path.rpartition("/")[0]])
        changed_ns = own.mtime_ns if own.mtime_ns is not None else folder.mtime_ns
        if changed_ns is not None:
            times.append(changed_ns // 1000)
    return text_of(min(times)) if times else None


def _data_folder(look: Examination, branch_table: BranchTable) -> str:
    return f"{look.lake.config.warehouse}/{branch_table.table.iceberg_name.replace('.', '/')}/data"


def _listed_sizes(look: Examination, branch_table: BranchTable) -> Mapping[str, int]:
    """The sizes of a table's files in a bucket, where to ask for each would take long. A disk is quick to answer."""
    folder = _data_folder(look, branch_table)
    return {path: info.size for path, info in entries(folder).items() if info.is_file} if folder.startswith(S3) else {}


def _wrong(file: DataFile, sizes: Mapping[str, int], *, deep: bool) -> str | None:
    path = local_path(file.path)
    try:
        size_bytes = sizes[path] if path in sizes else size_of(file.path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if size_bytes != file.size_bytes:
        return f"{path}: {size_bytes:,} bytes instead of {file.size_bytes:,}"
    return _wrong_inside(file) if deep else None


def _wrong_inside(file: DataFile) -> str | None:
    from pyarrow import parquet

    system, place = open_uri(file.path)
    try:
        with parquet.ParquetFile(place, filesystem=system, page_checksum_verification=True) as opened:
            rows = sum(batch.num_rows for batch in opened.iter_batches())
    except (pa.ArrowException, OSError) as error:
        return f"{local_path(file.path)}: {error}"
    return None if rows == file.rows else f"{local_path(file.path)}: {rows:,} rows instead of {file.rows:,}"


def _seqs(branch_table: BranchTable, files: list[DataFile]) -> Iterator[Finding]:
    """Every seq is in its file's range, and none is there twice. Files whose ranges overlap are looked at together."""
    name = branch_table.table.name
    for run in disjoint_runs(files):
        seqs = [_read_seqs(file) for file in run]
        for file, seqs_of_file in zip(run, seqs, strict=True):
            bounds = pa.compute.min_max(seqs_of_file).as_py()
            if (bounds["min"], bounds["max"]) != (file.first_seq, file.last_seq):
                yield _wrong_seqs(name, f"{file.path} holds seqs {bounds['min']}..{bounds['max']} instead of "
                                  f"{file.first_seq}..{file.last_seq}")  # fmt: skip
        together = pa.chunked_array(seqs) if seqs else pa.chunked_array([pa.array([], pa.int64())])
        if (twice := len(together) - pa.compute.count_distinct(together).as_py()) > 0:
            yield _wrong_seqs(name, f"{twice:,} seqs between {run[0].first_seq} and {run[-1].last_seq} are there twice")


def _read_seqs(file: DataFile) -> pa.Array:
    from pyarrow import parquet

    system, place = open_uri(file.path)
    return parquet.read_table(place, columns=[SEQ], filesystem=system).column(SEQ).combine_chunks()


def _wrong_seqs(name: str, what: str) -> Finding:
    return Finding(
        kind="seqs_wrong",
        about=name,
        what=f"table {name}: {what}",
        meaning="Rows may be delivered twice, or not at all.",
        fix=RESTORE,
    )


# -- what no snapshot names --------------------------------------------------------------------------------------------


def orphans(look: Examination) -> Iterator[Finding]:
    """Data files that no snapshot names and working folders of no operation, older than a day."""
    oldest_s = look.now_us / 1e6 - YOUNG_S
    for branch_table in look.branch_tables():
        stored = entries(_data_folder(look, branch_table))
        with look.lake.ledger.read() as conn:
            named = {local_path(path) for path in known_paths(conn, branch_table.table.table_id)}
        old = {path: info for path, info in stored.items() if info.is_file and info.mtime_ns / 1e9 < oldest_s}
        sizes = [info.size for path, info in old.items() if path.endswith(".parquet") and path not in named]
        if sizes:
            name = branch_table.table.name
            belonging = f"{len(sizes):,} data files ({sum(sizes):,} bytes) belong to no snapshot of the lake"
            yield _garbage("orphan_files", name, f"table {name}: {belonging}")
    yield from _left_folders(look, oldest_s)


def _left_folders(look: Examination, oldest_s: float) -> Iterator[Finding]:
    """A folder is as old as the youngest in it; in a bucket it has no time of its own, and is nothing without files."""
    base = f"{look.lake.config.warehouse}/{FOLDER}"
    newest_s: dict[str, float] = {}
    for path, info in entries(base).items():
        if info.mtime_ns is not None:
            name = path.removeprefix(local_path(base)).lstrip("/").partition("/")[0]
            newest_s[name] = max(newest_s.get(name, 0.0), info.mtime_ns / 1e9)
    with look.lake.ledger.read() as conn:
        live = {intent.op_id for intent in read_intents(conn)} | {load.load_id for load in list_loads(conn)}
    left = [name for name, at_s in newest_s.items() if name not in live and at_s < oldest_s]
    if left:
        where = local_path(base)
        yield _garbage("orphan_folders", where, f"{len(left)} working folders in {where} belong to no operation")


def _garbage(kind: str, about: str, what: str) -> Finding:
    return Finding(
        kind=kind,
        about=about,
        what=what,
        meaning="They are what killed or abandoned operations wrote. Nobody reads them; they only take room.",
        fix="`strand sweep`",
        severity="warning",
    )
