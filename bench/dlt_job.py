"""The same work done by dlt, to compare with: a JSONL file into an Iceberg table on the local file system.

It runs in an environment of its own (`locks/dlt.txt`), because dlt and Strandline pin different versions of what they
share. dlt is used as its documentation shows: its own JSONL reader by default, and with `--arrow` its fastest way in,
Arrow tables, which skips its inference of types row by row. Imports and the interpreter's start are not counted, nor
is a small job before the real one (`--warm-up`).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("RUNTIME__DLTHUB_TELEMETRY", "false")

import dlt
import pyarrow as pa
import pyarrow.json
from dlt.sources.filesystem import filesystem, read_jsonl


def rows_by_reader(source: Path) -> Any:
    """The file through dlt's own reader of JSON lines."""
    return filesystem(bucket_url=source.parent.as_uri(), file_glob=source.name) | read_jsonl(chunksize=10_000)


def rows_by_arrow(source: Path) -> Any:
    """The file as Arrow tables."""

    def tables() -> Iterator[pa.Table]:
        yield pyarrow.json.read_json(source)

    return dlt.resource(tables)


def run(source: Path, out: Path, arrow: bool) -> int:
    """Load the whole file, and return the number of rows that dlt says it has loaded."""
    pipeline = dlt.pipeline(
        "bench",
        pipelines_dir=str(out / "state"),
        destination=dlt.destinations.filesystem(bucket_url=out.as_uri()),
        dataset_name="bench",
    )
    rows = (rows_by_arrow if arrow else rows_by_reader)(source)
    rows.apply_hints(table_name="rows", table_format="iceberg", write_disposition="append")
    pipeline.run(rows.with_name("rows"), loader_file_format="parquet").raise_on_failed_jobs()
    return int(pipeline.last_trace.last_normalize_info.row_counts["rows"])


def main() -> None:
    """Print one JSON line with the rows and the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="JSONL file")
    parser.add_argument("out", type=Path, help="folder for the table and for dlt's state")
    parser.add_argument("--arrow", action="store_true", help="hand dlt Arrow tables instead of its own reader")
    parser.add_argument("--warm-up", type=Path, help="a small JSONL file to load first, elsewhere")
    args = parser.parse_args()
    if args.warm_up is not None:
        run(args.warm_up.absolute(), args.out.absolute() / "warm-up", args.arrow)
    begun = time.perf_counter()
    rows = run(args.source.absolute(), args.out.absolute(), args.arrow)
    print(json.dumps({"rows": rows, "seconds": round(time.perf_counter() - begun, 3)}))


if __name__ == "__main__":
    main()
