"""One flush, load, export or forward in a process of its own, for `memory` to look at from outside."""

from __future__ import annotations

import json
import sys

import strandline
from bench.spark import spark_ends
from strandline.lake import Lake

SINKS = {"export": "blob", "forward": "forward"}


def main() -> None:
    """Do it, and print how many rows were moved."""
    job, root, table, *arguments = sys.argv[1:]
    with spark_ends(), strandline.open(root) as lake:
        print(deliver(lake, job, arguments[0]) if job in SINKS else put(lake, job, table, arguments))


def put(lake: Lake, job: str, table: str, files: list[str]) -> int:
    """Load, or only flush; the rows that are in Iceberg then."""
    if job == "load":
        lake.load(table, files, actor="bench")
    lake.flush(table, actor="bench")
    return lake.view().branch_table(table).head.books.log


def deliver(lake: Lake, job: str, settings: str) -> int:
    """Everything, to a new sink."""
    lake.add_sink(job, SINKS[job], json.loads(settings))
    return sum(done.rows for done in lake.tick(job, actor="bench"))


if __name__ == "__main__":
    main()
