"""One flush or one load in a process of its own, for `memory` to look at from outside."""

from __future__ import annotations

import sys

import strandline
from bench.spark import spark_ends


def main() -> None:
    """Do it, and print how many rows are in Iceberg then."""
    job, root, table, *files = sys.argv[1:]
    with spark_ends(), strandline.open(root) as lake:
        if job == "load":
            lake.load(table, files, actor="bench")
        lake.flush(table, actor="bench")
        print(lake.view().state(table).head.books.log)


if __name__ == "__main__":
    main()
