"""Results become documents in one place: keys in the order of fields, nested results, users' values untouched."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from strandline.lake.documents import document
from strandline.model.results import optional


@dataclass(frozen=True)
class Size:
    """Nested in another result."""

    rows: int


@dataclass(frozen=True)
class Answer:
    """With everything that a result may have."""

    table: str
    from_: str
    sizes: tuple[Size, ...]
    by_name: Mapping[str, Size] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    tip: str | None = None
    note: str | None = optional()


def test_keys_are_the_fields_in_their_order() -> None:
    answer = Answer("b", "a", (Size(1), Size(2)), {"x": Size(3)})
    assert list(document(answer)) == ["table", "from", "sizes", "by_name", "row", "tip"]
    assert document(answer)["sizes"] == [{"rows": 1}, {"rows": 2}]
    assert document(answer)["by_name"] == {"x": {"rows": 3}}


def test_a_field_without_a_value_is_null_unless_it_is_optional() -> None:
    without, with_note = Answer("b", "a", ()), Answer("b", "a", (), note="look")
    assert document(without)["tip"] is None and "note" not in document(without)
    assert document(with_note)["note"] == "look"


def test_values_of_users_stay_as_they_are() -> None:
    """The bytes of a timestamp, a decimal or a list are decided where JSON is written."""
    row = {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "price": Decimal("1.10"), "tags": ["a", None], "raw": b"x"}
    assert document(Answer("b", "a", (), row=MappingProxyType(row)))["row"] == row


def test_several_results_are_a_list_and_plain_values_pass() -> None:
    assert document([Size(1)]) == document((Size(1),)) == [{"rows": 1}]
    assert document({"n": None}) == {"n": None} and document(7) == 7
