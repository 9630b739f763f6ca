"""Rows that are found by their values in files: by the filters of those, and never missed for one that is not there."""

from __future__ import annotations

import strandline as sl
from strandline.engines.duck import relations, sandbox
from strandline.lake import Lake
from tests.versions.test_constraints import refused

FILTERED = {"s": "string?", "l": "long?", "i": "int?", "at": "timestamp?", "day": "date?", "raw": "binary?"}
UNFILTERED = {"d": "decimal(9,2)?", "big": "decimal(30,2)?", "f": "boolean?"}
VALUES = {
    "s": "É", "l": 2**40, "i": -7, "at": "1969-12-31T23:59:59.999999Z", "day": "1969-01-01", "raw": "AAE=",
    "d": "-1.50", "big": "12345678901234567890.25", "f": True,
}  # fmt: skip
OTHERS = {
    "s": "e", "l": 2**40 + 1, "i": 0, "at": "1970-01-01T00:00:00Z", "day": "1970-01-01", "raw": "AAI=",
    "d": "-1.51", "big": "12345678901234567890.26", "f": False,
}  # fmt: skip


def test_rows_are_found_by_value_in_a_state_whatever_the_type(lake: Lake) -> None:
    """Its files have filters that tell where a value is not, and never leave out where one is; in a tail there is none.

    What a row had before it was replaced is free again.
    """
    columns = {**FILTERED, **UNFILTERED}
    rules = [f"unique({name})" for name in columns]
    lake.create_table("t", {"id": "long", **columns}, key=["id"], constraints=rules)
    lake.mutate([sl.put("t", {"id": 1, **VALUES})])
    lake.flush("t")
    lake.fold("t")
    (file,) = lake.view().files("t$state")
    with sandbox.connect() as connection:
        query = "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL ORDER BY 1"
        found = connection.execute(query, [relations.local_path(file.path)]).fetchall()
    assert [name for (name,) in found] == sorted(FILTERED)
    for name, value in VALUES.items():
        assert refused(lake, sl.put("t", {"id": 2, name: value})) == [("t", "'2'", name, "unique")]
    lake.mutate([sl.put("t", {"id": 2, **OTHERS})])
    for name, value in OTHERS.items():
        assert refused(lake, sl.put("t", {"id": 3, name: value})) == [("t", "'3'", name, "unique")]
    lake.mutate([sl.put("t", {"id": 1})])
    lake.mutate([sl.put("t", {"id": 3, **VALUES})])


def test_what_is_declared_later_holds_of_files_that_were_there_before(lake: Lake) -> None:
    """They have no filter for it, and a narrower column; those that are written from then on have, and all are read."""
    lake.create_table("t", {"id": "long", "n": "int?", "m": "int?"}, key=["id"], constraints=["unique(m)"])
    for first in (1, 100):
        lake.mutate([sl.put("t", {"id": n, "n": n, "m": -n}) for n in (first, first + 1)])
        lake.flush("t")
        lake.fold("t")
    wider = {"columns": {"id": "long", "n": "long?", "m": "long?"}, "key": ["id"]}
    lake.schema_apply({"tables": {"t": {**wider, "constraints": ["unique(m)", "unique(n)"]}}})
    both = [("t", "'3'", "m", "unique"), ("t", "'3'", "n", "unique")]
    assert refused(lake, sl.put("t", {"id": 3, "n": 1, "m": -101})) == both
    lake.mutate([sl.put("t", {"id": 200, "n": 2**40, "m": -(2**40)})])
    lake.flush("t")
    lake.fold("t")
    lake.mutate([sl.patch("t", 2, {"n": 7, "m": -7})])
    for value in (1, 7, 101, 2**40):
        assert refused(lake, sl.put("t", {"id": 3, "n": value, "m": -value})) == both
    lake.mutate([sl.put("t", {"id": 3, "n": 2, "m": -2})])
