"""Copies behind a real REST catalog: what holds with a JDBC catalog holds here, and another client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline import failpoints
from strandline.lake import Lake
from tests.delivery import assert_once, wipe_marks
from tests.kit import crash, make_table, messages, reopened, strand_json
from tests.sinks.rest_catalog import rest_catalog


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as address:
        yield address


def add(lake: Lake, server: str, namespace: str, name: str = "copy", drop: str = "_actor", **how: bool) -> None:
    settings = {"catalog": "rest", "uri": server, "namespace": namespace, "max_attempts": 1}
    lake.add_sink(name, "iceberg", {**settings, "drop_columns": drop}, **how)


def table(server: str, namespace: str) -> Any:
    """The copy, as PyIceberg sees it."""
    from pyiceberg.catalog.rest import RestCatalog

    return RestCatalog("reader", uri=server).load_table(f"{namespace}.messages")


def rows(server: str, namespace: str) -> list[str]:
    return list(table(server, namespace).scan().to_arrow().column("part_id").to_pylist())


def expected(stop: int) -> list[str]:
    return [f"p{n}" for n in range(stop)]


def test_ticks_idle_ticks_and_new_columns_arrive_once(lake: Lake, server: str) -> None:
    """Three ticks, a snapshot each; an idle one makes none; a column that comes later is added."""
    make_table(lake)
    add(lake, server, "ticks", drop="body")
    for start in (0, 5):
        lake.append("messages", messages(start, start + 5))
        (done,) = lake.tick("copy")
        assert (done.rows, done.outcome) == (5, "delivered")
    location = table(server, "ticks").metadata_location
    assert lake.tick("copy") == []
    assert table(server, "ticks").metadata_location == location, "an idle tick committed something"
    strand_json(lake, "sink", "set", "copy", "--set", "drop_columns=_at")
    lake.append("messages", messages(10, 13))
    lake.tick("copy")
    copy = table(server, "ticks")
    assert len(copy.history()) == 3 and set(copy.metadata.refs) == {"main"}
    assert_once(expected(13), rows(server, "ticks"))
    bodies = {row["part_id"]: (row["body"], row["_at"] is None) for row in copy.scan().to_arrow().to_pylist()}
    assert (bodies["p0"], bodies["p12"]) == ((None, False), ("body of p12", True))


@pytest.mark.parametrize("point", ["copy.before_commit", "copy.after_commit"])
def test_a_crash_beside_the_commit_appends_once(lake: Lake, server: str, point: str) -> None:
    """What is in the table decides: behind the commit the unit is there, before it nobody sees it."""
    namespace = point.replace(".", "_")
    make_table(lake)
    lake.append("messages", messages(0, 5))
    add(lake, server, namespace)
    failpoints.arm(f"{point}=raise")
    with crash(lake):
        lake.tick("copy")
    with reopened(lake) as again:
        again.append("messages", messages(5, 8))
        again.tick("copy")
        assert_once(expected(8), rows(server, namespace))
        copy = table(server, namespace)
        assert len(copy.history()) == 2 and set(copy.metadata.refs) == {"main"}


def test_a_sink_without_its_marks_goes_on_and_another_owner_is_refused(lake: Lake, server: str, tmp_path: Path) -> None:
    """The mark in the table is found again; a sink of another name, or another lake's, may not append there."""
    make_table(lake)
    lake.append("messages", messages(0, 5))
    add(lake, server, "marks")
    lake.tick("copy")
    wipe_marks(lake)
    lake.append("messages", messages(5, 8))
    (done,) = lake.tick("copy")
    assert done.rows == 3
    location = table(server, "marks").metadata_location
    add(lake, server, "marks", "second", check=False)
    (refused,) = lake.tick("second")
    assert refused.outcome in ("failed", "parked") and "belongs" in (refused.error or "")
    assert table(server, "marks").metadata_location == location
    assert_once(expected(8), rows(server, "marks"))
    add(lake, server, "marks", "third", take_over=True)
    lake.append("messages", messages(8, 9))
    (done,) = lake.tick("third")
    assert done.rows == 1, "a sink of the same lake goes on where the one before ended"
    assert_once(expected(9), rows(server, "marks"))
