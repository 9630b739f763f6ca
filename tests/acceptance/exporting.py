"""One unit of a log, exported or cut into chunks in a process that does nothing else, which then says its peak memory.

`python -m tests.acceptance.exporting HOW FILE FOLDER` is started by a small process and not by the tests: the kernel
counts what a process had in memory before it became another program, and the one that runs the tests has much.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.config import Store
from strandline.engines.duck.ranges import Select, SeqRange, read_range
from strandline.engines.duck.sandbox import quote_name
from strandline.engines.objects import ObjectPlace
from strandline.engines.spark import export
from strandline.model.schema.schema import parse_mapping
from strandline.model.values.arrow import column_from_arrow
from strandline.sinks.bodies import compress, uncompressed
from strandline.sinks.chunks import Considered, cut

COLUMNS = {"part_id": "string", "body": "string"}
CHUNK_ROWS, CHUNK_BYTES = 5000, 4 << 20
"""A forward sink's, when nobody says otherwise."""
GROUP_BYTES = 8 << 20
"""Smaller than it is, so that a peak is reached with few rows."""


def main() -> None:
    """Move all rows of a file, and print how many they were and the peak in MiB."""
    how, file, folder = sys.argv[1:]
    export.GROUP_BYTES = GROUP_BYTES
    unit = whole(Path(file))
    rows = forwarded(unit) if how == "forward" else exported(unit, how, Path(folder))
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"rows": rows, "peak_mib": size / (1 << 20 if sys.platform == "darwin" else 1 << 10)}))


def whole(file: Path) -> SeqRange:
    """The range that a delivery of everything in a file reads."""
    schema = pq.read_schema(file)
    return SeqRange(
        runs=((str(file),),),
        stored=tuple(column_from_arrow(field) for field in schema),
        since=0,
        until=pq.read_metadata(file).num_rows,
        select=Select(tuple((name, quote_name(name)) for name in schema.names)),
        schema=pa.schema(schema),
    )


def exported(unit: SeqRange, form: str, folder: Path) -> int:
    """What Spark's worker does for a blob sink."""
    place = ObjectPlace(folder.as_uri(), Store())
    done = export.write_object(
        export.ObjectToWrite(unit, parse_mapping(COLUMNS), form, "zstd", place, "messages/all/x", ".tmp-x")
    )
    assert done.error is None, done.error
    (folder / ".tmp-x").unlink()
    return done.rows


def forwarded(unit: SeqRange) -> int:
    """What a forward sink does before it sends."""
    sent = 0
    for chunk in cut(
        read_range(unit),
        schema=unit.schema,
        since=unit.since,
        until=unit.until,
        rows=CHUNK_ROWS,
        size_bytes=CHUNK_BYTES,
        dead=frozenset(),
        considered=Considered(),
    ):
        assert compress(uncompressed(chunk.rows, "arrow", None), "zstd")
        sent += chunk.rows.num_rows
    return sent


if __name__ == "__main__":
    main()
