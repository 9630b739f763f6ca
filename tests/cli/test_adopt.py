"""`strand adopt`: rows that exist elsewhere become a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.lake import Lake
from tests.kit import message, messages, part_ids, strand, strand_json


def test_a_parquet_folder_is_adopted_once(lake: Lake, tmp_path: Path) -> None:
    """The rows are there, stamped and in the order of the files; a second time it is done already."""
    folder = tmp_path / "old"
    folder.mkdir()
    for place in range(2):
        pq.write_table(pa.Table.from_pylist(messages(place * 5, place * 5 + 5)), folder / f"{place}.parquet")
    options = ("--row-key", "part_id", "--partition-by", "source", "--dedupe", "partition")
    done = strand_json(lake, "adopt", "old", str(folder), *options)
    assert (done["rows"], done["already_loaded"]) == (10, False)
    assert strand_json(lake, "adopt", "old", str(folder))["already_loaded"]
    assert part_ids(lake, "old") == [f"p{n}" for n in range(10)]
    assert strand_json(lake, "table", "show", "old")["dedupe"] == "partition"


def test_a_table_with_rows_of_its_own_is_not_adopted_into(lake: Lake, tmp_path: Path) -> None:
    """Two different things don't become one table by accident."""
    pq.write_table(pa.Table.from_pylist(messages(0, 3)), tmp_path / "a.parquet")
    lake.create_table("taken", {"part_id": "string", "source": "string?", "n": "long?", "body": "string?"})
    lake.append("taken", [message(9)])
    refused = strand(lake, "--json", "adopt", "taken", str(tmp_path / "a.parquet"))
    assert refused.code == 4
    assert refused.json["error"]["detail"]["kind"] == "table_exists"
    assert part_ids(lake, "taken") == ["p9"]


def test_what_is_not_there_or_not_parquet_is_said_clearly(lake: Lake, tmp_path: Path) -> None:
    """A wrong source changes nothing: no table is made."""
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert strand(lake, "adopt", "x", str(tmp_path / "nowhere")).code == 3
    assert strand(lake, "adopt", "x", str(tmp_path / "rows.csv")).code == 3
    assert lake.view().tables == []
