"""Where it decides a change, values are the same by their bits: 0.0 is not -0.0, and a NaN is a NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline as sl
from strandline.engines.duck import compare, relations, sandbox
from strandline.errors import MergeConflict
from strandline.lake import Lake
from strandline.operations.merge import merge

COLUMNS = {
    "id": "string",
    "n": "double?",
    "f": "float?",
    "many": "list<double>?",
    "deep": "struct<a:list<float?>?,b:string?>?",
    "along": "map<string,double>?",
    "other": "long?",
}
WITH: dict[str, Any] = {
    "n": lambda n: n,
    "f": lambda n: n,
    "many": lambda n: [1.0, n],
    "deep": lambda n: {"a": [n, None], "b": "-nan"},
    "along": lambda n: {"k": n},
}


def make(lake: Lake, value: float) -> None:
    """A row on main for each field, with a value in that, and a branch x of it."""
    lake.create_table("t", COLUMNS, key=["id"])
    lake.mutate([sl.put("t", {"id": name, name: shown(value)}) for name, shown in WITH.items()])
    lake.branch("x")


def there(lake: Lake, branch: str = "main") -> dict[str, tuple[str, int | None]]:
    """Each field as text, which tells zeros apart, and another one."""
    view = lake.view(branch)
    return {name: view.sql(f"select {name}::varchar, other from t where id = '{name}'").rows()[0] for name in WITH}


def change(lake: Lake, value: float, branch: str) -> None:
    lake.mutate([sl.patch("t", name, {name: shown(value)}) for name, shown in WITH.items()], branch=branch)


def test_f83_a_zero_that_lost_its_sign_is_merged(lake: Lake) -> None:
    """From 0.0 to -0.0 and back, beside a change of another field and alone; a diff tells of it."""
    make(lake, 0.0)
    before = there(lake)
    change(lake, -0.0, "x")
    lake.mutate([sl.patch("t", name, {"other": 1}) for name in WITH])
    assert {one.key["id"]: set(one.fields) for one in lake.diff("main", "x")} == {
        name: {name, "other"} for name in WITH
    }
    assert lake.merge("x").outcome == "merged"
    after, on_branch = there(lake), there(lake, "x")
    for name in WITH:
        assert after[name] == (on_branch[name][0], 1)
        assert after[name][0] != before[name][0] and "-0.0" in after[name][0]
    change(lake, 0.0, "x")
    lake.mutate([sl.put("t", {"id": "z"})])
    assert lake.merge("x").outcome == "merged"
    assert there(lake) == {name: (value, 1) for name, (value, _) in before.items()}
    assert lake.merge("main", "x").outcome == "merged"
    assert list(lake.diff("main", "x")) == []


def test_f83_two_zeros_are_a_conflict_where_both_sides_changed_the_value(lake: Lake) -> None:
    """One made it 0.0, the other -0.0; whose side decides is what is there."""
    make(lake, 5.0)
    change(lake, 0.0, "main")
    change(lake, -0.0, "x")
    with pytest.raises(MergeConflict) as told:
        lake.merge("x")
    found = {one.key["id"]: (one.kind, one.fields) for one in told.value.conflicts}
    assert found == {name: ("divergent_update", (name,)) for name in WITH}
    assert lake.merge("x", resolve="theirs").outcome == "merged"
    assert there(lake) == there(lake, "x")


@pytest.mark.parametrize(
    "type_", [pa.float64(), pa.float32(), pa.list_(pa.float64()), pa.struct([("a", pa.float32())])]
)
def test_f83_a_nan_is_the_same_as_any_other(type_: pa.DataType) -> None:
    """No row of a lake has one by itself, but a file that is compared might; nulls are the same too, and no zeros."""
    shown = {pa.float64(): lambda n: n, pa.float32(): lambda n: n, pa.list_(pa.float64()): lambda n: [n]}
    wrap = shown.get(type_, lambda n: {"a": n})
    values = [math.nan, -math.nan, 0.0, -0.0, None]
    one = pa.table({"id": range(25), "v": pa.array([wrap(n) for n in values for _ in values], type_)})
    other = pa.table({"id": range(25), "v": pa.array([wrap(n) for _ in values for n in values], type_)})
    told = compare.differences(one, other, ["id"], ["v"])["id"].to_pylist()
    alike = [{0, 1}, {0, 1}, {2}, {3}, {4}]
    assert told == [5 * a + b for a in range(5) for b in range(5) if b not in alike[a]]


@pytest.mark.parametrize("kind", ["arrow", "table", "parquet", "both"])
def test_f83_the_newest_version_of_a_row_has_its_bits(tmp_path: Path, kind: str) -> None:
    """DuckDB may find it by an aggregate that makes every zero a positive one; wherever rows are, ours does not."""
    rows = pa.table({"id": ["a", "a"], "v": [0.0, -0.0], "w": [[0.0], [-0.0]], "_seq": [1, 2], "_removed": [False] * 2})
    pq.write_table(rows, tmp_path / "rows.parquet")
    with sandbox.scratch() as connection:
        connection.register("arrow", rows)
        connection.execute("create table kept as select * from arrow")
        parquet = f"select * from read_parquet('{tmp_path / 'rows.parquet'}')"
        where = {
            "arrow": "select * from arrow",
            "table": "select * from kept",
            "parquet": parquet,
            "both": f"{parquet} where _seq = 1 union all select * from kept where _seq = 2",
        }
        (told,) = connection.sql(relations.latest(where[kind], ["id"])).to_arrow_table().to_pylist()
    assert [math.copysign(1, one) for one in (told["v"], told["w"][0])] == [-1, -1]


def test_f83_bases_that_differ_by_a_sign_do_differ(lake: Lake) -> None:
    """Each branch had merged the other: what both changed since is theirs to agree on, whatever DuckDB calls equal."""
    make(lake, 0.0)
    change(lake, -0.0, "x")
    lake.mutate([sl.patch("t", name, {"other": 1}) for name in WITH])
    lake.branch("x2", "x")
    lake.merge("main", "x")
    lake.merge("x2", "main")
    assert there(lake) == there(lake, "x")
    assert list(lake.diff("x", "main")) == []


def test_f83_a_zero_keeps_its_sign_through_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush, a large merge, fold and compaction: the files have its bits, and Spark shows them."""
    make(lake, 0.0)
    lake.flush("t")
    change(lake, -0.0, "x")
    lake.mutate([sl.patch("t", name, {"other": 1}) for name in WITH])
    on_branch = there(lake, "x")
    monkeypatch.setattr(merge, "MOST_ROWS", 0)
    assert lake.merge("x").outcome == "merged"
    lake.mutate([sl.put("t", {"id": "late", "n": -0.0, "f": 0.0})])
    lake.flush("t")
    lake.fold("t")
    lake.compact("t")
    assert there(lake) == {name: (value, 1) for name, (value, _) in on_branch.items()}
    (file,) = lake.view().files("t$state")
    stored = {row["id"]: row for row in pq.read_table(file.path.removeprefix("file://")).to_pylist()}
    assert {name: signs(stored[name][name]) for name in WITH} == {
        name: signs(shown(-0.0)) for name, shown in WITH.items()
    }
    assert (signs(stored["late"]["n"]), signs(stored["late"]["f"])) == ([-1], [1])
    for row in lake.view().spark("t").where("id in ('n', 'f')").collect():
        assert signs(row[row["id"]]) == [-1]


def signs(value: Any) -> list[float]:
    """Those of the zeros in a value; a map may come as a list of pairs."""
    if isinstance(value, float):
        return [math.copysign(1, value)] if value == 0 else []
    if isinstance(value, dict):
        value = list(value.values())
    return [sign for one in value for sign in signs(one)] if isinstance(value, list | tuple) else []
