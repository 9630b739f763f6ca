"""The second pass of a large load: the rows of its parts, numbered, in the shape that the log stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from strandline.engines.spark.stage import NumberedFile, read_numbered, stored_frame
from strandline.errors import Damaged
from strandline.ledger.publish.loads import Part
from strandline.model.schema.engine_types import column_ddl
from strandline.model.schema.types import EXTRA
from strandline.model.tables import BranchTable
from strandline.operations.core.context import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strandline.engines.spark.convert import ConvertedPart


def numbered(parts: Sequence[Part | ConvertedPart], first_seq: int) -> list[NumberedFile]:
    """Files with the seqs that their rows get."""
    files: list[NumberedFile] = []
    for part in parts:
        files.append(NumberedFile(part.path, first_seq))
        first_seq += part.rows
    return files


def parts_frame(
    ctx: Context,
    branch_table: BranchTable,
    version: int,
    files: Sequence[NumberedFile],
    *,
    at_us: int,
    actor: str,
    without: str | None,
) -> DataFrame:
    """The rows of files that were validated by the table's schema of this version, as they are stored now."""
    written = branch_table.schemas[version]
    columns = [*written.columns, *(column for column in branch_table.table.added_columns if column.name == EXTRA)]
    ddl = ", ".join(column_ddl(column) for column in columns)
    rows = read_numbered(ctx.iceberg().session, ddl, files, at_us=at_us, actor=actor, without=without)
    return stored_frame(rows, written, branch_table.schema, version)


def require_stored(stored: int, expected: int, what: str) -> None:
    """Damaged where another number of rows came out of the parts than was judged: nothing of it is published."""
    if stored != expected:
        raise Damaged(
            f"{expected} {what}, and {stored} were: a part of the load has changed",
            hint="Put the file back as it was, and run the load again.",
        )
