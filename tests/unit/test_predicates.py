"""A sink's predicate sees one row, and decides the same every time."""

from __future__ import annotations

import pytest

from strandline.engines.duck.predicates import check_predicate
from strandline.errors import BadRequest
from strandline.model.schema import parse_columns

COLUMNS = parse_columns("source:string,ts:timestamp,n:long?,tags:list<string>").columns


@pytest.mark.parametrize(
    "text",
    [
        "source = 'claude'",
        "n > 3 and length(source) < 10 or n is null",
        "source like 'a%' or regexp_matches(source, 'x+')",
        "ts >= timestamptz '2026-01-01 00:00:00+00'",
        "list_contains(tags, 'a')",
        "source in ('a', 'b')",
    ],
)
def test_conditions_pass(text: str) -> None:
    check_predicate(text, COLUMNS, "t")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "source =",
        "sorce = 'x'",
        "source = 'x'; drop table t",
        "true) or (true",
        "true union select 1",
        "true order by 1",
        "true limit 1",
        "n in (select 1)",
        "exists (select 1 from t)",
        "random() < 0.5",
        "ts < now()",
        "ts < current_timestamp",
        "ts < get_current_timestamp()",
        "count(*) > 1",
        "row_number() over () < 3",
        "uuid() is not null",
        "nextval('x') > 1",
        "source",
        "getenv('HOME') = ''",
        "read_text('/etc/passwd') is not null",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        check_predicate(text, COLUMNS, "t")
