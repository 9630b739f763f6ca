"""A process that appends to a lake when it is told to: `python -m bench.postgres_writer LAKE SIZE BATCHES NUMBER`."""

from __future__ import annotations

import sys

import strandline
from bench import rows
from bench.appends import TABLE


def main() -> None:
    """Say that we are ready, wait for a line, append, and say that we are done; once for every line."""
    root, size, batches, number = sys.argv[1], *map(int, sys.argv[2:])
    own_batches = [rows.dicts((number * batches + at) * size, size) for at in range(batches)]
    with strandline.open(root) as lake:
        lake.append(TABLE, own_batches[0], actor=f"bench{number}")
        print("ready", flush=True)
        for _ in sys.stdin:
            for batch in own_batches:
                lake.append(TABLE, batch, actor=f"bench{number}")
            print("done", flush=True)


if __name__ == "__main__":
    main()
