"""The counter process: what Spark sees when it knows nothing of Strandline.

It is a plain Spark query on the Iceberg table in the catalog, as any other engine would run it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

import strandline as sl
from examples.demo.messages import TABLE
from examples.demo.places import Places
from strandline import logs


def count(lake: sl.Lake) -> dict[str, int]:
    """Count with Spark through the catalog alone."""
    name = lake.view().branch_table(TABLE).table.iceberg_name
    row = lake.spark.sql(f"SELECT count(*) AS n, count(DISTINCT part_id) AS keys FROM strand.{name}").first()
    assert row is not None, "a count has a row"
    return {"rows": row.n, "keys": row.keys}


def main(arguments: list[str]) -> None:
    """`python -m examples.demo.counter LAKE`."""
    from strandline.engines.spark import session

    root = Path(arguments[0])
    logs.set_format("text")
    with sl.open(root, read_only=True) as lake:
        Places(root).counted.write_bytes(orjson.dumps(count(lake)))
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
