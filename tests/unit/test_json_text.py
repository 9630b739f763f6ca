"""Keys that are there twice in a JSON object: refused in every way in, and never in a text that has none."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.engines.files import FilePart, RowShape, Skipped, find_inputs, read_chunk
from strandline.errors import BadRequest, InvalidRows
from strandline.model.delivery import chunk_rows
from strandline.model.schema.schema import parse_columns
from strandline.model.values import rows
from strandline.model.values.json_text import DoubledKey, parsed
from strandline.model.values.sound import sound
from strandline.model.values.values import RefusedValue, take_json_text

SCHEMA = parse_columns("a:string,n:long?,doc:json?")

DOUBLED = {
    b'{"a":"x","n":1,"n":2}': "n",
    b'{"a":"x","n":1,"n":1}': "n",
    b'{"a" :"x","a":"y"}': "a",
    b'{"a"\t:"x","a"  :"y"}': "a",
    b'{"a":"x","\\u0061":"y"}': "a",
    b'{"a":"\\u0022:","a":"y"}': "a",
    b'{"a":"\\":","a":"y"}': "a",
    b'{"n":1,"n":2,"a":"\\u0022:"}': "n",
    b'{"a":"x","doc":{"k":1,"k":2}}': "k",
    b'{"a":"x","doc":[1,{"z":":","k":{"k":1},"k":2}]}': "k",
    b'{"a\\\\":"x","a\\\\":"y"}': "a\\",
}
SINGLE = [
    b'{"a":"x","n":1,"doc":{"n":1,"a":{"a":[{"a":1},{"a":2}]}}}',
    b'{"a" : "x : y", "n" : 1}',
    b'{"a":":smile:","n":1}',
    b'{"a":"{\\"k\\":1,\\"k\\":2}","doc":"\\":"}',
    b'{"a":"\\u0022:\\u0022:","n":123456789012345678}',
    b'\t{"a":"x",\r"n":\t1}',
]


@pytest.mark.parametrize("text", DOUBLED)
def test_a_doubled_key_is_refused_in_every_way_in(text: bytes, tmp_path: Path) -> None:
    """Lines, arrays small and in pieces, chunks, JSON text in Arrow: by the index of the row, and the key."""
    good = b'{"a":"x","n":1}'
    attempts = [
        lambda: rows.from_json_lines([good, text], SCHEMA, extra=True),
        lambda: rows.read_objects([good, text]),
        lambda: rows.from_dicts(rows.read_array(b"[%b, %b]" % (good, text)), SCHEMA, extra=True),
        lambda: chunk_rows.from_lines(b'{"_seq":1,"a":"x"}\n' + text),
    ]
    for attempt in attempts:
        with pytest.raises((InvalidRows, BadRequest)) as caught:
            attempt()
        assert repr(DOUBLED[text])[1:-1] in caught.value.message, caught.value.message
        if isinstance(caught.value, InvalidRows):
            listed = [(row["index"], row["field"]) for row in caught.value.detail["rows"]]
            assert listed == [(1, DOUBLED[text])], listed
    with pytest.raises(InvalidRows, match="more than once"):
        rows.from_arrow(sound(pa.table({"a": ["x"], "doc": [text.decode()]})), SCHEMA)


@pytest.mark.parametrize("text", SINGLE)
def test_a_text_without_doubled_keys_is_what_it_was(text: bytes) -> None:
    assert parsed(text) == json.loads(text)


def test_text_that_no_json_can_have_is_refused() -> None:
    """Half of a surrogate pair: what is wrong with it is told, and not by an error of its own."""
    with pytest.raises(RefusedValue, match="is not JSON text"):
        take_json_text("\ud800")


def test_an_object_is_no_array_even_if_a_key_is_doubled() -> None:
    with pytest.raises(BadRequest, match="not an array"):
        rows.read_array(b'{"a":1,"a":2}')


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text() | st.sampled_from(['":', '\\":', " :", '"']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(_VALUES, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :"), (",\n", "\t:")]))
def test_what_any_writer_writes_is_read(value: Any, ascii_only: bool, separators: tuple[str, str]) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    assert parsed(text.encode()) == json.loads(text)


@given(st.text(max_size=4), _VALUES, _VALUES, st.booleans(), st.sampled_from([(",", ":"), (", ", " : ")]))
def test_a_key_that_any_writer_doubles_is_seen(
    key: str, first: Any, second: Any, ascii_only: bool, separators: tuple[str, str]
) -> None:
    """Wherever the object is, whatever stands in its values, and however the key is written."""
    pairs = [
        json.dumps({key: value}, ensure_ascii=escaped, separators=separators)[1:-1]
        for value, escaped in ((first, ascii_only), (second, True))
    ]
    for text in (f"{{{','.join(pairs)}}}", f'[1,{{"x":{{{",".join(pairs)}}}}}]', f'{{"y":"\\":",{",".join(pairs)}}}'):
        if key == "y" and text.startswith('{"y"'):
            continue
        assert orjson.loads(text) is not None
        with pytest.raises(DoubledKey) as caught:
            parsed(text.encode())
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lines.jsonl", b'{"a":"x"}\n{"a":"x","n":1,"n":2}\n'),
        ("named.jsonl", b'{"_table":"t","a":"x"}\n{"_table":"t","a":"x","n":1,"n":2}\n'),
        ("fields.csv", b'a,doc\nx,1\ny,"{""k"":1,""k"":2}"\n'),
    ],
)
def test_a_doubled_key_in_a_file_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    """A load and an append of a file read it by the same rule."""
    path = tmp_path / name
    path.write_bytes(content)
    file = find_inputs([str(path)])[0]
    judged = [
        batch for _, batch in read_chunk(FilePart(file), RowShape(SCHEMA, False, ()), table="t", skipped=Skipped())
    ]
    assert isinstance(judged[0], InvalidRows) and "more than once" in judged[0].message
    assert [row["index"] for row in judged[0].detail["rows"]] == [1]


def test_a_long_number_keeps_its_digits_beside_the_name_of_a_table(tmp_path: Path) -> None:
    """The name is taken off the line, which is written anew: a number beyond 64 bits had become a float."""
    path = tmp_path / "named.jsonl"
    path.write_bytes(b'{"_table":"t","d":123456789012345678901234}\n')
    shape = RowShape(parse_columns("d:decimal(38,0)"), False, ())
    [(_, batch)] = read_chunk(FilePart(find_inputs([str(path)])[0]), shape, table="t", skipped=Skipped())
    assert not isinstance(batch, InvalidRows)
    assert batch.column("d").to_pylist() == [Decimal("123456789012345678901234")]
