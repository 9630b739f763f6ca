"""Tails that are read again and again: only what came since is decoded, and what is gone is not remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import strandline as sl
from strandline.errors import HistoryGone
from strandline.lake import Lake
from strandline.ledger.rows import batches
from strandline.views import tail_memory
from tests.versions.kit import make_people

ALL = "select id, age from person order by id"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each read decoded."""
    found: list[int] = []
    read = tail_memory.read_batches

    def counting(ledger: Any, state: Any, refs: Sequence[Any], *more: Any, **how: Any) -> Any:
        found.append(len(refs))
        return read(ledger, state, refs, *more, **how)

    monkeypatch.setattr(tail_memory, "read_batches", counting)
    return found


def test_a_read_decodes_what_came_since_the_last(lake: Lake, decoded: list[int]) -> None:
    """Of each branch by itself; and rows are those of the view, also of an older one."""
    make_people(lake)
    for n in range(5):
        lake.mutate([sl.put("person", {"id": f"p{n}", "age": n})])
    old = lake.view()
    assert len(old.sql(ALL).rows()) == 5
    lake.mutate([sl.patch("person", "p0", {"age": 9}), sl.delete("person", "p1")])
    assert lake.view().sql(ALL).rows() == [("p0", 9), ("p2", 2), ("p3", 3), ("p4", 4)]
    assert decoded == [5, 1]
    lake.branch("x")
    lake.mutate([sl.put("person", {"id": "p1", "age": 1})], branch="x")
    assert lake.view("x").sql(ALL).rows() == [("p0", 9), *((f"p{n}", n) for n in range(1, 5))]
    assert old.sql(ALL).rows() == [(f"p{n}", n) for n in range(5)]
    assert lake.view().sql(ALL).rows() == [("p0", 9), ("p2", 2), ("p3", 3), ("p4", 4)]


def test_rows_are_read_anew_under_another_schema(lake: Lake) -> None:
    """A column that came has its default in rows that were read without it."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    assert lake.view().sql(ALL).rows() == [("a", 1)]
    wanted = lake.schema()
    wanted["tables"]["person"]["columns"]["city"] = {"type": "string?", "default": "Rome"}
    lake.schema_apply(wanted)
    assert lake.view().sql("select id, age, city from person").rows() == [("a", 1, "Rome")]


def test_what_was_taken_away_is_not_shown_from_memory(lake: Lake) -> None:
    """A view that names batches which are gone for good says so, though this process has read them."""
    make_people(lake)
    lake.mutate([sl.put("person", {"id": "a", "age": 1})])
    old = lake.view()
    assert old.sql(ALL).rows() == [("a", 1)]
    lake.flush("person")
    assert old.sql(ALL).rows() == [("a", 1)], "it is within its grace"
    batches.sweep(lake.ledger, grace_s=0)
    with pytest.raises(HistoryGone):
        old.sql(ALL).rows()
    assert lake.view().sql(ALL).rows() == [("a", 1)]


def test_what_is_remembered_is_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch, decoded: list[int]) -> None:
    """The tail that was not read for longest is forgotten; one that is too large is never remembered."""
    make_people(lake)
    make_people(lake, "other")
    for name in ("person", "other"):
        lake.mutate([sl.put(name, {"id": "a", "age": 1})])
    assert lake.view().sql(ALL).rows() == [("a", 1)]
    (one,) = tail_memory._recent[lake.ledger].values()
    monkeypatch.setattr(tail_memory, "MOST_BYTES", one.size_bytes)
    for name in ("other", "person"):
        assert lake.view().sql(f"select id from {name}").rows() == [("a",)]
    assert decoded == [1, 1, 1]
    monkeypatch.setattr(tail_memory, "TAIL_BYTES", 1)
    for _ in range(2):
        assert lake.view().sql(ALL).rows() == [("a", 1)]
    assert decoded == [1, 1, 1, 1, 1]
