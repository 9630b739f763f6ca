"""The quick ways of columns: what they give is what the rule gives, value by value."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from strandline.errors import InvalidRows
from strandline.model.schema.schema import parse_mapping
from strandline.model.schema.types import Primitive
from strandline.model.values.columns import SHORT, quick_for
from strandline.model.values.rows import from_dicts
from strandline.model.values.values import take_timestamp

BERLIN = ZoneInfo("Europe/Berlin")
MOMENT = dt.datetime(2025, 10, 26, 2, 30, 0, 123_456)


@pytest.mark.parametrize(
    "moment",
    [
        MOMENT.replace(tzinfo=dt.UTC),
        MOMENT.replace(tzinfo=BERLIN, fold=0),
        MOMENT.replace(tzinfo=BERLIN, fold=1),
        MOMENT.replace(tzinfo=dt.timezone(dt.timedelta(hours=-9, minutes=-30, microseconds=7))),
        dt.datetime(1, 1, 3, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC),
    ],
)
def test_datetimes_in_any_zone_are_taken_as_the_rule_takes_them(moment: dt.datetime) -> None:
    """Also in the hour that a zone has twice; nulls stay null."""
    array = quick_for(Primitive("timestamp"), True)([moment, None] * SHORT)
    assert array is not None
    assert array.view(pa.int64()).to_pylist() == [take_timestamp(moment), None] * SHORT


@pytest.mark.parametrize("moment", [MOMENT, dt.datetime.max.replace(tzinfo=dt.UTC), dt.date(2025, 1, 2), 5])
def test_what_is_no_certain_moment_is_left_to_the_rule(moment: Any) -> None:
    """One without a zone, at the end of time, or of another type."""
    good = [MOMENT.replace(tzinfo=dt.UTC)] * SHORT
    assert quick_for(Primitive("timestamp"), False)([*good, moment]) is None


def test_rows_with_as_many_fields_as_columns_may_still_have_wrong_ones() -> None:
    """A misspelt field is found also where the number of fields is right."""
    schema = parse_mapping({"a": "long", "b": "long?"})
    with pytest.raises(InvalidRows) as caught:
        from_dicts([{"a": 1, "b": 2}, {"a": 1, "c": 2}], schema)
    assert [(row["index"], row["field"]) for row in caught.value.detail["rows"]] == [(1, "c")]
    assert from_dicts([{"a": 1, "b": 2}, {"a": 1}], schema).to_pylist() == [{"a": 1, "b": 2}, {"a": 1, "b": None}]
