"""The first pass of a large load, without Spark: what one task makes of its chunks, and how bad rows are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.engines import files
from strandline.engines.files import FilePart, Placed, RowShape, cut, find_inputs, unchanged
from strandline.engines.spark import convert as converting
from strandline.engines.spark.convert import CHUNK, LINE, Conversion, Converted, NumberedChunk, convert_chunks
from strandline.errors import BadRequest, Damaged, InvalidRows
from strandline.ledger.publish.loads import Part
from strandline.model.schema.schema import parse_mapping
from strandline.operations.load.parts import numbered, require_stored
from strandline.operations.load.steps import collected

PEOPLE = RowShape(parse_mapping({"id": "string", "age": "long?"}))
PETS = RowShape(parse_mapping({"id": "string"}))
OF_LOG = Conversion({"person": PEOPLE}, "person", keeps_places=False)
OF_KEYED = Conversion({"person": PEOPLE, "pet": PETS}, None, keeps_places=True)


def chunks(tmp_path: Path, *files: Sequence[str], first: int = 0) -> list[NumberedChunk]:
    """A chunk for each of these files of lines."""
    for number, lines in enumerate(files):
        (tmp_path / f"{number}.jsonl").write_text("".join(line + "\n" for line in lines))
    inputs = find_inputs([str(tmp_path / f"{number}.jsonl") for number in range(len(files))])
    return [NumberedChunk(first + at, FilePart(source)) for at, source in enumerate(inputs)]


def converted(tmp_path: Path, work: Sequence[NumberedChunk], conversion: Conversion) -> Converted:
    folder = tmp_path / "parts"
    folder.mkdir(exist_ok=True)
    return convert_chunks(work, conversion=conversion, folder=f"file://{folder}", stores={})


def rows(path: str) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = pq.read_table(path.removeprefix("file://")).to_pylist()
    return read


def test_rows_of_a_log_table_become_one_file_without_places(tmp_path: Path) -> None:
    """Lines of other tables are left out, counted, and keep their numbers."""
    work = chunks(
        tmp_path, ['{"_table":"person","id":"a"}', '{"_table":"pet","id":"p"}', ""], ['{"id": "b", "age": 3}']
    )
    done = converted(tmp_path, work, OF_LOG)
    (part,) = done.parts
    assert (part.table, part.rows, part.chunk, done.skipped, done.lines) == ("person", 2, None, 1, {0: 3, 1: 1})
    assert rows(part.path) == [{"id": "a", "age": None}, {"id": "b", "age": 3}]
    assert part.size_bytes == Path(part.path.removeprefix("file://")).stat().st_size


def test_rows_of_keyed_tables_become_a_file_for_each_with_their_places(tmp_path: Path) -> None:
    work = chunks(tmp_path, ["", '{"_table": "pet", "id": "p"}'], ['{"_table": "Person", "id": "a"}'], first=7)
    done = converted(tmp_path, work, OF_KEYED)
    by_table = {part.table: rows(part.path) for part in done.parts}
    assert by_table["pet"] == [{"id": "p", CHUNK: 7, LINE: 1}]
    assert by_table["person"] == [{"id": "a", "age": None, CHUNK: 8, LINE: 0}]
    assert done.lines == {7: 2, 8: 1}


@pytest.mark.parametrize("conversion", [OF_LOG, OF_KEYED], ids=["log", "keyed"])
def test_bad_rows_are_told_by_their_chunk_and_line(tmp_path: Path, conversion: Conversion) -> None:
    """All of them, in every chunk; nothing is written any more when there are some."""
    bad = '{"_table":"person","id":"x","age":"many"}'
    good = '{"_table":"person","id":"a"}'
    done = converted(tmp_path, chunks(tmp_path, [good, bad], [bad, "", bad], [good], first=3), conversion)
    assert [(row.chunk, row.entry["index"], row.entry["field"]) for row in done.bad] == [
        (3, 1, "age"), (4, 0, "age"), (4, 2, "age"),
    ]  # fmt: skip
    assert (done.bad_count, done.error, done.parts) == (3, None, ())


def test_a_table_that_there_is_not_is_named(tmp_path: Path) -> None:
    done = converted(tmp_path, chunks(tmp_path, ['{"_table": "Pest", "id": "a"}']), OF_KEYED)
    assert (done.unknown, done.parts) == ("pest", ())


def test_a_mistake_of_ours_is_not_taken_for_an_unknown_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyError says many things."""

    def mistaken(*_: Any) -> Iterator[Placed]:
        raise KeyError("person")
        yield  # it is a generator, like the function that it stands for

    monkeypatch.setattr(converting, "read_placed", mistaken)
    with pytest.raises(KeyError):
        converted(tmp_path, chunks(tmp_path, ['{"_table": "person", "id": "a"}']), OF_KEYED)


def test_an_error_about_the_file_ends_the_task(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"no Parquet")
    (source,) = find_inputs([str(tmp_path / "rows.parquet")])
    done = converted(tmp_path, [NumberedChunk(0, FilePart(source))], OF_LOG)
    assert isinstance(done.error, BadRequest) and done.parts == ()


@pytest.mark.parametrize("keeps_places", [False, True])
def test_a_large_parquet_file_of_the_right_shape_is_its_own_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_places: bool
) -> None:
    """Its rows have no places beside them: they are its lines. One of another shape is written anew."""
    monkeypatch.setattr(converting, "AS_IT_IS_BYTES", 0)
    conversion = Conversion({"person": PEOPLE}, "person", keeps_places=keeps_places)
    pq.write_table(pa.table({"id": ["a", "b"], "age": [1, 2]}), tmp_path / "same.parquet")
    pq.write_table(pa.table({"id": ["a", "b"]}), tmp_path / "other.parquet")
    same, other = find_inputs([str(tmp_path / "same.parquet"), str(tmp_path / "other.parquet")])
    (kept,) = converted(tmp_path, [NumberedChunk(5, FilePart(same))], conversion).parts
    assert (kept.path, kept.rows, kept.size_bytes, kept.chunk) == (same.uri, 2, same.size_bytes, 5)
    (anew,) = converted(tmp_path, [NumberedChunk(6, FilePart(other))], conversion).parts
    places = [{CHUNK: 6, LINE: 0}, {CHUNK: 6, LINE: 1}] if keeps_places else [{}, {}]
    assert anew.chunk is None and rows(anew.path) == [
        {"id": "a", "age": None, **places[0]},
        {"id": "b", "age": None, **places[1]},
    ]


def test_bad_rows_of_all_tasks_are_one_error_by_the_lines_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is cut into chunks that several tasks read: its lines are counted through all of them."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 10)
    lines = ['{"id": "a"}', "", '{"id": "b"}', '{"id": "c", "age": "many"}', '{"id": "d"}', '{"age": 1}']
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    inputs = find_inputs([str(tmp_path / "rows.jsonl")])
    work = cut(inputs)
    assert len(work) > 2, "it is not cut"
    done = [converted(tmp_path, [NumberedChunk(at, chunk) for chunk in task], OF_LOG) for at, task in enumerate(work)]
    with pytest.raises(InvalidRows) as caught:
        collected(done, work, inputs)
    assert [(row["index"], row["line"], row["field"]) for row in caught.value.detail["rows"]] == [
        (3, 4, "age"), (5, 6, "id"),
    ]  # fmt: skip
    assert caught.value.detail["bad"] == 2 and caught.value.detail["rows"][0]["file"] == inputs[0].uri


def test_a_file_that_changes_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    """Its rows were validated as they were before, and may be read again as they are now."""
    source = tmp_path / "rows.jsonl"
    source.write_text('{"id": "a"}\n')
    inputs = find_inputs([str(source)])
    unchanged(inputs)
    source.write_text('{"id": "bb"}\n')
    with pytest.raises(BadRequest, match="changed while it was loaded"):
        unchanged(inputs)


def test_no_row_more_or_less_than_were_judged_is_published() -> None:
    """A part may be the user's own file, which changed behind the last look at it."""
    require_stored(3, 3, "rows should have been loaded")
    for stored in (2, 4):
        with pytest.raises(Damaged, match=f"3 rows should have been loaded, and {stored} were: a part of the load"):
            require_stored(stored, 3, "rows should have been loaded")


def test_the_seqs_of_parts_follow_each_other() -> None:
    parts = [Part("a", 3, 10, 1), Part("b", 2, 10, 1), Part("c", 1, 10, 1)]
    assert [(file.path, file.first_seq) for file in numbered(parts, 11)] == [("a", 11), ("b", 14), ("c", 16)]
