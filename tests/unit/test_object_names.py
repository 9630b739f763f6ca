"""Names of objects: each stream has one path, each path means one stream, and none leaves the prefix."""

from __future__ import annotations

import datetime as dt
import posixpath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import BadRequest
from strandline.model.delivery.object_names import (
    MAX_PARTITION,
    MAX_SEGMENT,
    ObjectName,
    epoch_folder,
    is_digest,
    object_name,
    parse_epoch,
    parse_object_name,
    parse_partition_path,
    partition_path,
    stream_path,
)
from strandline.model.schema.partitions import partition_text


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


NASTY = [None, "", ".", "..", "...", "a.", "/", "../..", "a/b", "=", "a=b", "%", "%41", "~", "A", "a", "Aa", "aA", "é",
         "e\u0301", "\0", "\n", " ", "*", "?", "\\", "con", "e2", "all", "null", "__HIVE_DEFAULT_PARTITION__", "日本",
         "x" * 300, "X" * 5000, "_manifest.jsonl", ".tmp-1", "1", "true"]  # fmt: skip
TEXTS = st.one_of(st.none(), st.sampled_from(NASTY), st.text(max_size=400).filter(_encodes))


@given(value=TEXTS, other=TEXTS)
@example(value="A", other="a")
@example(value=None, other="__HIVE_DEFAULT_PARTITION__")
@example(value="", other=None)
def test_two_values_never_share_a_folder(value: str | None, other: str | None) -> None:
    """Not even on a disk that ignores case, or one that composes accents: streams would overwrite each other."""
    one, two = (partition_path(["source"], partition_text([each])) for each in (value, other))
    assert one.isascii()
    assert (one.lower() == two.lower()) == (value == other)


@given(TEXTS)
def test_a_path_stays_inside_the_prefix_and_fits_a_disk(value: str | None) -> None:
    """No value can name a folder above, a hidden file, one of our own files, or more than a disk takes."""
    path = stream_path("messages", ["source"], partition_text([value]))
    assert posixpath.normpath(f"/prefix/{path}") == f"/prefix/{path}"
    segments = path.split("/")
    assert segments[0] == "messages"
    assert all(0 < len(segment) <= MAX_SEGMENT and segment[0] not in "._" for segment in segments)
    assert all(parse_object_name(segment) is None and parse_epoch(segment) is None for segment in segments[1:])
    assert len(path) <= len("messages/") + MAX_PARTITION


@given(
    text=TEXTS,
    number=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    flag=st.one_of(st.none(), st.booleans()),
    day=st.one_of(st.none(), st.dates()),
)
def test_a_path_says_which_partition_it_is(
    text: str | None, number: int | None, flag: bool | None, day: dt.date | None
) -> None:
    """From a listing alone, whoever restores an archive gets the values back, nulls and all."""
    partition = partition_text([text, number, flag, day])
    path = partition_path(["t", "n", "f", "d"], partition)
    found = parse_partition_path(path, ["string", "long", "boolean", "date"])
    assert found == (None if is_digest(path) else partition)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        (["claude"], "source=claude"),
        (["gpt-4.1_mini"], "source=gpt-4.1_mini"),
        (["Claude"], "source=%43laude"),
        ([None], "source=__HIVE_DEFAULT_PARTITION__"),
        ([""], "source="),
        (["a/b"], "source=a%2fb"),
        ([7], "source=7"),
        ([dt.date(2026, 1, 2)], "source=2026-01-02"),
        ([True], "source=true"),
    ],
)
def test_plain_values_stay_readable(values: list[object], path: str) -> None:
    assert partition_path(["source"], partition_text(values)) == path


def test_a_table_without_partition_columns_has_one_folder() -> None:
    assert partition_path([], "all") == "all"
    assert parse_partition_path("all", []) == "all"


def test_a_long_value_goes_on_in_the_next_folder_and_a_very_long_one_is_its_digest() -> None:
    long, longer = (partition_path(["s"], partition_text(["x" * size])) for size in (500, 5000))
    assert long.count("/~") == 2
    assert is_digest(longer) and len(longer) == 65


def test_a_partition_of_another_shape_is_refused() -> None:
    with pytest.raises(BadRequest):
        partition_path(["a", "b"], partition_text(["x"]))


SEQS = st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(SEQS, SEQS).filter(lambda pair: pair[0] < pair[1]), max_size=5))
def test_names_sort_as_their_ranges_do(ranges: list[tuple[int, int]]) -> None:
    names = [object_name(since, until, "parquet") for since, until in ranges]
    assert [name for _, name in sorted(zip(ranges, names, strict=True))] == sorted(names)
    assert [parse_object_name(name) for name in names] == [ObjectName(*each) for each in ranges]


@pytest.mark.parametrize(
    "name",
    ["", "1-2.parquet", "_manifest.jsonl", ".tmp-0000000000000000000-0000000000000000001.parquet",
     "0000000000000000000-0000000000000000001.csv", "0000000000000000000-0000000000000000001.parquet.bak"],
)  # fmt: skip
def test_other_files_are_not_taken_for_objects(name: str) -> None:
    assert parse_object_name(name) is None


def test_a_range_that_runs_backwards_has_no_name() -> None:
    with pytest.raises(BadRequest):
        object_name(5, 5, "parquet")


def test_an_epoch_has_a_folder_from_the_second_on() -> None:
    assert [epoch_folder(epoch) for epoch in (1, 2, 30)] == ["", "e2", "e30"]
    assert [parse_epoch(folder) for folder in ("e2", "e30", "e1", "e02", "all", "")] == [2, 30, None, None, None, None]
