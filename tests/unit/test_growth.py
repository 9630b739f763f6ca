"""What a condition can build is bounded by its row and its text, whatever it calls and however it is nested (F88)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import environment

from strandline.engines.duck.functions import OF_A_ROW, names_in
from strandline.engines.duck.growth import OF_A_CONDITION
from strandline.engines.duck.predicates import check_predicate
from strandline.errors import BadRequest
from strandline.model.schema.schema import parse_columns

COLUMNS = parse_columns("source:string,ts:timestamp,n:long?,tags:list<string>,doc:json").columns
PEAK_BYTES = 300 * 1024 * 1024

OTHERWISE = names_in(
    "!__postfix -> <> == bit_position get_bit union_extract union_tag struct_extract_at make_time "
    "array_slice list_slice struct_contains struct_has struct_indexof struct_position "
    "uuid_extract_timestamp uuid_extract_version <-> <=> map_contains_entry"
)
"""Written in another way by people, or of types that no table has."""


def test_f88_all_that_a_condition_may_call_builds_no_more_than_it_says() -> None:
    """Each function with the largest constants and with hostile letters, and nested as deeply as is allowed."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.growing"], cwd=root, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads(done.stdout)
    assert report["too_large"] == []
    assert OF_A_CONDITION - set(report["computed"]) <= OTHERWISE
    assert report["peak_bytes"] < PEAK_BYTES


def test_f88_a_condition_calls_what_answers_the_same_every_time() -> None:
    assert set() == OF_A_CONDITION - OF_A_ROW


BUILDING = [
    "list_filter() = tags",
    "list_filter(tags) = tags",
    "lpad(source) = 'a'",
    "replace(source, 'a') = 'a'",
    "concat_ws() = 'a'",
    "repeat('a', 2000000000) = source",
    "list_sort(range(300000000)) = [1]",
    "lpad(source, 2000000000, 'x') = 'a'",
    "rpad('a', n, 'x') = 'a'",
    "source.repeat(1000000000) = 'a'",
    "len(range(n)) > 3",
    "bar(n, 0, 1, 1000000) = 'a'",
    "len(generate_series(1, 900000000)) > 1",
    "list_resize(tags, 900000000) = tags",
    "array_resize([1], n) = [1]",
    "format('{:>2000000000}', n) = 'a'",
    "printf('%2000000000d', n) = 'a'",
    "to_base(n, 2, 2000000000) = 'a'",
    "replace(replace(source, 'a', 'bbbbbbbbbbb'), 'b', 'ccccccccccccccccccccc') = 'a'",
    "replace(source, 'a', source) = 'a'",
    "regexp_replace(source, '', source, 'g') = 'a'",
    "array_to_string(tags, source) = 'a'",
    "concat_ws(source, tags) = 'a'",
    "hex(hex(hex(hex(hex(hex(hex(source))))))) = 'a'",
    "bin(bin(bin(source))) = 'a'",
    "url_encode(url_encode(url_encode(url_encode(url_encode(source))))) = 'a'",
    "[[[[[source]::varchar]::varchar]::varchar]::varchar]::varchar = 'a'",
    "len(list_transform(tags, lambda x: source)) > 1",
    "len(list_reduce(tags, lambda x, y: x || x)) > 1",
    "len([source for x in tags]) > 1",
    "len(list_filter(tags, lambda x: concat(source, x) = 'a')) > 1",
    "len(list_filter(tags, lambda x: len(list_filter(tags, lambda y: y = x)) > 1)) > 1",
    "n::int[1000000] is null",
    "cast(null as integer[1000][1000][1000]) is null",
    "source::bit::varchar = 'a'",
    "bitstring('1', 2000000000) is null",
    "tags::struct(a_long_name_for_little varchar)[]::varchar = 'a'",
    "len(json_extract(doc, '$..*')) > 1",
    "len(json_extract(doc, '$[*]')) > 1",
    "json_extract(doc, source) is null",
    "json_pretty(doc) = 'a'",
    "list_select(tags, [1, 1, 1]) = tags",
    "levenshtein(source, source) = 1",
    "damerau_levenshtein(source, source) = 1",
    "regexp_extract(source, '((((a))))', ['a', 'b', 'c', 'd']) is null",
    "len(list_zip(tags, tags)) > 1",
    "list_aggregate(tags, 'string_agg') = 'a'",
    "string_agg(source) = 'a'",
    "map_from_entries([]) is null",
    "to_json(source) = 'a'",
    " || ".join(["source"] * 101) + " = 'a'",
    "source in (" + "'x', " * 20_000 + "'y')",
    "-" * 90 + " " + "- " * 300 + "n > 1",
    "not " * 150 + "flag",
    "array_value(1, 2) is null",
    "enum_range(null) is null",
    "json_structure(doc) is null",
]


@pytest.mark.parametrize("text", BUILDING, ids=range(len(BUILDING)))
def test_f88_a_condition_that_builds_much_is_refused_before_it_is_planned(text: str) -> None:
    with pytest.raises(BadRequest):
        check_predicate(text, COLUMNS, "t")


USEFUL = [
    "replace(lower(source), '&amp;', '&') like '%a%'",
    "regexp_replace(source, '[0-9]+', '#', 'g') = '#'",
    "list_contains(string_split(source, ','), 'a')",
    "array_to_string(tags, ', ') like '%a, b%'",
    "lpad(n::varchar, 10, '0') > '0000000100'",
    "(doc ->> '$.a.b') = 'x' and json_extract_string(doc, 'c') is not null",
    "source in (" + ", ".join(f"'{n}'" for n in range(5_000)) + ")",
    "list_contains(['a', 'b'], source)",
    "list_contains([" + ", ".join(f"'{n}'" for n in range(2_000)) + "], source)",
    "md5(concat(source, n)) < 'f'",
    "strftime(ts, '%Y-%m') = '2026-01' and date_diff('day', ts, timestamptz '2026-01-01') < 3",
    "len(list_filter(tags, lambda x: lower(x) = 'a' and x <> source)) > 0",
    "split_part(source, '@', 2) = 'example.com'",
    "substr(source, 1, 3) || right(source, 2) = 'abcde'",
    "coalesce(try_cast(source as bigint), 0) > n",
    "hex(sha256(source)::blob) < 'f'",
    "tags::varchar ilike '%a%'",
    "case when n > 1 then source else 'x' end = 'x'",
    "(source, n) = ('a', 1) or {'a': source}.a = 'b' or n + 1 - 2 * 3 / 4 > 1",
    "regexp_extract(source, 'a(b)', 1) = 'b'",
]


@pytest.mark.parametrize("text", USEFUL, ids=range(len(USEFUL)))
def test_what_people_ask_of_a_row_is_taken(text: str) -> None:
    check_predicate(text, COLUMNS, "t")
