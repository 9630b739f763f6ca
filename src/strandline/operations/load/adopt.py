"""Adopt: rows that exist elsewhere as an Iceberg table or as Parquet files become a table of the lake.

Every row gets a `_seq`, so the adopted backlog reaches every reader as if it had been appended here. It is a load in
all else, and as safe to run again. The source is read and left as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.engines.files import Input, find_inputs, shape_of
from strandline.engines.spark import source
from strandline.errors import BadRequest, NotFound, TableExists, Unsupported
from strandline.ledger.publish.loads import LoadName, find_load
from strandline.ledger.rows.idempotency import recall
from strandline.ledger.tables.tables import read_shown
from strandline.model.operations import Loaded
from strandline.model.schema.schema import Schema
from strandline.model.values.arrow import from_arrow
from strandline.operations.core.context import Context
from strandline.operations.core.failures import outages_typed
from strandline.operations.load.load import load
from strandline.operations.load.load_request import LoadRequest


@dataclass(frozen=True)
class AdoptionSource:
    """Something to adopt: Parquet files, or an Iceberg table pinned at a snapshot."""

    schema: Schema
    digest: str
    inputs: tuple[Input, ...] = ()
    iceberg: source.IcebergSource | None = None


@outages_typed
def find_source(ctx: Context, name: str) -> AdoptionSource:
    """What `name` means: a folder of Parquet files, a folder or metadata file of an Iceberg table, or
    `namespace.table`.
    """
    metadata = _metadata_file(name)
    is_path = "/" in name or Path(name).exists() or name.endswith(".json")
    if metadata is not None or not is_path:
        table = source.find(ctx.iceberg(), metadata or name)
        if table is None:
            raise NotFound(
                f"there is neither a file nor an Iceberg table {name!r}",
                hint="Give a Parquet folder, an Iceberg table's folder or metadata file, or namespace.table.",
            )
        return AdoptionSource(from_arrow(table.schema), table.identity, iceberg=table)
    inputs = tuple(find_inputs([name]))
    if any(file.format != "parquet" for file in inputs):
        raise Unsupported(f"{name} holds other files than Parquet", hint="Use `strand load` for other formats.")
    shapes = {shape_of(file).remove_metadata() for file in inputs}
    if len(shapes) > 1:
        raise BadRequest(f"the Parquet files in {name} have {len(shapes)} different schemas", hint="Adopt them apart.")
    identities = "\n".join(sorted(file.identity for file in inputs))
    return AdoptionSource(
        from_arrow(shapes.pop()), hashlib.blake2b(identities.encode(), digest_size=16).hexdigest(), inputs
    )


def _metadata_file(name: str) -> str | None:
    """The newest metadata file, when `name` is a folder of an Iceberg table or such a file itself."""
    path = Path(name).expanduser()
    if path.is_file() and path.name.endswith(".metadata.json"):
        return str(path.absolute())
    versions = sorted(
        (path / "metadata").glob("*.metadata.json"), key=lambda file: (file.stat().st_mtime_ns, file.name)
    )
    return str(versions[-1].absolute()) if versions else None


def refuse_other_rows(ctx: Context, table: str, branch: str, adopted: AdoptionSource) -> None:
    """A table that has rows already is adopted into only by the adoption that made it."""
    with ctx.ledger.write() as txn:
        branch_table = read_shown(txn.conn, branch, [table])[0]
        load_name = LoadName(branch_table.head.branch_id, branch_table.table.table_id, _key(adopted))
        ours = recall(txn, load_name.scope, load_name.key, adopted.digest) is not None
        begun = find_load(txn.conn, load_name) is not None
    if branch_table.head.books.acked and not ours and not begun:
        raise TableExists(
            f"table {branch_table.table.name!r} has rows of its own",
            hint="Adopt under another name.",
            expected=None,
            actual=branch_table.table.name,
        )


def _key(adopted: AdoptionSource) -> str:
    return f"adopt:{adopted.digest}"


@outages_typed
def adopt(ctx: Context, table: str, branch: str, adopted: AdoptionSource, actor: str) -> Loaded:
    """Load a source into the table that was made for it."""

    def inputs(folder: str) -> Sequence[Input]:
        if adopted.iceberg is None:
            return adopted.inputs
        ctx.report(f"reading {adopted.iceberg.name}", 0, None)
        source.export(ctx.iceberg(), adopted.iceberg, folder)
        return source.exported(folder)

    request = LoadRequest(
        table=table,
        branch=branch,
        actor=actor,
        key=_key(adopted),
        digest=adopted.digest,
        write_inputs=inputs,
        kind="adopt",
    )
    return load(ctx, request)
