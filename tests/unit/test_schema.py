"""Schemas: the text syntax, what is refused and how it is said, and the way to and from Arrow, Iceberg and Spark."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import BadRequest, Unsupported
from strandline.model.schema import engine_types as fo
from strandline.model.schema import schema as sc
from strandline.model.schema import types as ty
from strandline.model.schema.schema import Schema
from strandline.model.schema.types import (
    KEY_TYPES,
    MAX_DEPTH,
    PRIMITIVES,
    Column,
    Decimal,
    List,
    Map,
    Primitive,
    Struct,
)
from strandline.model.tables import Table
from strandline.model.values import arrow as ar

EVERYTHING = (
    "part_id:string,source:string,ts:timestamp,body:string?,tags:list<string>?,"
    "meta:struct<a:string,b:long?>,m:map<string,long>,price:decimal(10,2)"
)

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,12}", fullmatch=True)


def columns_of(types: st.SearchStrategy[ty.Type]) -> st.SearchStrategy[tuple[Column, ...]]:
    column = st.builds(Column, NAMES, types, st.booleans())
    return st.lists(column, min_size=1, max_size=4, unique_by=lambda c: c.name.lower()).map(tuple)


DECIMALS = st.integers(1, 38).flatmap(lambda p: st.builds(Decimal, st.just(p), st.integers(0, p)))
PRIMITIVE_TYPES = st.sampled_from(PRIMITIVES).map(Primitive)
KEYS = st.sampled_from(sorted(KEY_TYPES)).map(Primitive) | DECIMALS


def nested(inner: st.SearchStrategy[ty.Type]) -> st.SearchStrategy[ty.Type]:
    return (
        st.builds(List, inner, st.booleans())
        | st.builds(Struct, columns_of(inner))
        | st.builds(Map, KEYS, inner, st.booleans())
    )


TYPES: st.SearchStrategy[ty.Type] = st.recursive(PRIMITIVE_TYPES | DECIMALS, nested, max_leaves=6)
SCHEMAS = columns_of(TYPES).map(Schema)
NOT_JSON = PRIMITIVE_TYPES.filter(lambda type_: type_ != Primitive("json"))
ARROW_SCHEMAS = columns_of(st.recursive(NOT_JSON | DECIMALS, nested, max_leaves=6)).map(Schema)


@given(TYPES)
def test_every_type_has_a_text_that_parses_back_to_it(type_: ty.Type) -> None:
    """The ledger stores types as text, so the text must say all of the type."""
    assert ty.parse_type(ty.type_text(type_)) == type_


@given(SCHEMAS)
def test_a_schema_survives_text_json_mapping_and_pickle(schema: Schema) -> None:
    """All the ways to write a schema down mean the same schema."""
    assert sc.parse_columns(schema.text()) == schema
    assert sc.from_json(schema.to_json()) == schema
    assert sc.parse_mapping({c.name: ty.type_text(c.type) + "?" * c.nullable for c in schema.columns}) == schema
    again = pickle.loads(pickle.dumps(schema))
    assert again == schema
    assert hash(again) == hash(schema)


@given(ARROW_SCHEMAS)
def test_adopting_the_arrow_schema_of_a_table_gives_its_schema(schema: Schema) -> None:
    """Arrow can say all types but json, which it has as text; requirements are kept at every depth."""
    assert ar.from_arrow(ar.required_arrow(schema)) == schema


def test_json_is_adopted_as_text() -> None:
    """A json column is a string column to Arrow."""
    assert ar.from_arrow(ar.required_arrow(sc.parse_columns("j:json?"))) == sc.parse_columns("j:string?")


def test_columns_are_parsed_from_text() -> None:
    """`?` marks what is nullable, at any depth; spaces don't matter."""
    schema = sc.parse_columns(EVERYTHING.replace(",", " , ").replace("<", "< "))
    assert schema.names == ("part_id", "source", "ts", "body", "tags", "meta", "m", "price")
    assert schema.column("body") == Column("body", Primitive("string"), True)
    assert schema.column("tags") == Column("tags", List(Primitive("string")), True)
    meta = Struct((Column("a", Primitive("string")), Column("b", Primitive("long"), True)))
    assert schema.column("meta") == Column("meta", meta)
    assert schema.column("m").type == Map(Primitive("string"), Primitive("long"))
    assert schema.column("price").type == Decimal(10, 2)
    assert schema.text() == EVERYTHING
    assert ty.parse_type("list<string?>") == List(Primitive("string"), nullable=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a column's name but found the end"),
        ("a", "expected ':'"),
        ("a:", "expected a type"),
        ("a:string,", "expected a column's name"),
        ("a:string b:long", "expected the end but found 'b'"),
        ("a:strin", "no such type 'strin'"),
        ("a:String", "no such type 'String'"),
        ("a:list<string", "expected '>'"),
        ("a:list", "expected '<'"),
        ("a:struct<>", "expected a column's name"),
        ("a:struct<x:string,X:long>", "a struct has both 'x' and 'X'"),
        ("a:map<string>", "expected ','"),
        ("a:map<list<string>,long>", "a map's key can't be list<string>"),
        ("a:map<json,long>", "a map's key can't be json"),
        ("a:map<string?,long>", "expected ','"),
        ("a:decimal(39,0)", "decimal(39,0) is not a type"),
        ("a:decimal(0,0)", "decimal(0,0) is not a type"),
        ("a:decimal(5,6)", "decimal(5,6) is not a type"),
        ("a:decimal(5)", "expected ','"),
        ("a:decimal(x,1)", "expected a number"),
        ("a:decimal(99999,1)", "expected a number"),
        ("a:string??", "expected the end"),
        ("a:string,A:long", "a table has both 'a' and 'A'"),
        ("_a:string", "'_a' can't be a column's name"),
        ("1a:string", "expected a column's name"),
        ("a-b:string", "expected ':'"),
        ("é:string", "'é' can't be a column's name"),
        (f"{'a' * 129}:string", "can't be a column's name"),
        (f"a:{'list<' * (MAX_DEPTH + 1)}string{'>' * (MAX_DEPTH + 1)}", "nested too deeply"),
        (f"a:{'list<' * 100_000}", "nested too deeply"),
    ],
)
def test_bad_column_texts_are_refused_with_a_hint(text: str, says: str) -> None:
    """A caller learns what is wrong and what to write instead."""
    with pytest.raises(BadRequest) as caught:
        sc.parse_columns(text)
    assert says in caught.value.message
    assert caught.value.hint


def test_an_unknown_type_suggests_the_nearest_one() -> None:
    """`strin` is a typing error, and the error knows what was meant."""
    with pytest.raises(BadRequest, match="strin") as caught:
        ty.parse_type("strin")
    assert caught.value.hint == "Did you mean 'string'?"


@pytest.mark.parametrize("name", ["", "_x", "a b", "a\n", "a.b", "9", "a" * 129, "naïve", "a`b"])
def test_bad_names_are_refused_in_mappings(name: str) -> None:
    """Names that a text could not even carry are refused as well; a trailing newline is no way in."""
    with pytest.raises(BadRequest):
        sc.parse_mapping({name: "string"})


def test_names_may_have_128_characters_and_a_leading_underscore_is_reserved() -> None:
    """The limit is exact, and the hint says why `_x` is not taken."""
    assert sc.parse_mapping({"a" * 128: "string"}).names == ("a" * 128,)
    for text in ("_seq:long", "_at:timestamp", "_actor:string", "_extra:json", "_x:string", "s:struct<_seq:long>"):
        with pytest.raises(BadRequest) as caught:
            sc.parse_columns(text)
        assert "reserved" in caught.value.hint


def test_a_mapping_needs_columns_and_texts() -> None:
    """No columns, a type that is not text and a stored schema of another shape are bad requests, not crashes."""
    with pytest.raises(BadRequest, match="at least one column"):
        sc.parse_mapping({})
    bad: Any = {"a": 1}
    with pytest.raises(BadRequest):
        sc.parse_mapping(bad)
    for columns in (None, [1], [{"name": "a"}], [{"name": "a", "type": 1, "nullable": True}]):
        for doc in (columns, {"columns": columns}):
            with pytest.raises(BadRequest):
                sc.from_json(doc)


def test_an_unknown_column_suggests_the_nearest_one() -> None:
    """Looking up a column that is not there is a bad request with a hint."""
    with pytest.raises(BadRequest) as caught:
        sc.parse_columns(EVERYTHING).column("part_ids")
    assert caught.value.hint == "Did you mean 'part_id'?"


def test_the_arrow_schema_is_made_once_and_marks_what_is_required() -> None:
    """Appends ask for it every time; building it each time would be most of their cost."""
    schema = sc.parse_columns(EVERYTHING)
    arrow = ar.required_arrow(schema)
    assert ar.required_arrow(schema) is arrow
    assert arrow.field("ts").type == pa.timestamp("us", "UTC")
    assert not arrow.field("part_id").nullable
    assert arrow.field("body").nullable
    assert arrow.field("price").type == pa.decimal128(10, 2)


def test_stored_and_log_schemas_are_nullable_all_the_way_down() -> None:
    """Files are shared by branches whose requirements differ, so none are written into them."""
    schema = sc.parse_columns("id:string,meta:struct<a:string,b:list<long>>,m:map<string,long>")
    stored = ar.stored_schema(schema, False)
    assert stored.names == ["id", "meta", "m"]
    assert all(field.nullable for field in stored)
    assert stored.field("meta").type.field("a").nullable
    assert stored.field("meta").type.field("b").type.value_field.nullable
    assert stored.field("m").type.item_field.nullable
    assert ar.stored_schema(schema, True).names == ["id", "meta", "m", "_extra"]
    table = Table("t1", "t", "log", "lake.t", (), (), "table", extra=True, created_at_us=0)
    log = ar.log_arrow(schema, table)
    assert log.names == ["id", "meta", "m", "_extra", "_seq", "_at", "_actor"]
    keyed = replace(table, kind="keyed", key=("id",))
    assert ar.batch_arrow(schema, keyed).names == ["id", "meta", "m", "_extra", "_removed"]
    assert ar.log_arrow(schema, keyed).names == [
        *ar.batch_arrow(schema, keyed).names,
        "_seq",
        "_at",
        "_actor",
        "_commit",
    ]
    assert [log.field(n).type for n in ("_seq", "_at", "_actor")] == [
        pa.int64(), pa.timestamp("us", "UTC"), pa.string(),
    ]  # fmt: skip
    assert all(field.nullable for field in log)


def iceberg(*fields: Any) -> dict[str, Any]:
    return {"type": "struct", "schema-id": 0, "fields": list(fields)}


def test_iceberg_json_becomes_a_schema() -> None:
    """Names, types and requirements at every depth; timestamptz is our timestamp."""
    doc = iceberg(
        {"id": 1, "name": "x", "required": True, "type": "string"},
        {"id": 2, "name": "ts", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "p", "required": True, "type": "decimal(10, 2)"},
        {"id": 4, "name": "l", "required": True,
         "type": {"type": "list", "element-id": 5, "element": "long", "element-required": False}},
        {"id": 6, "name": "m", "required": False,
         "type": {"type": "map", "key-id": 7, "key": "string", "value-id": 8, "value": "int", "value-required": True}},
        {"id": 9, "name": "s", "type": {"type": "struct", "fields": [
            {"id": 10, "name": "a", "required": True, "type": "boolean"}]}},
    )  # fmt: skip
    text = "x:string,ts:timestamp?,p:decimal(10,2),l:list<long?>,m:map<string,int>?,s:struct<a:boolean>?"
    assert sc.from_iceberg_json(doc) == sc.parse_columns(text)


@pytest.mark.parametrize(
    ("type_", "hint"),
    [
        ("timestamp", "timestamptz"),
        ("timestamptz_ns", "timestamptz"),
        ("uuid", "string"),
        ("time", "string"),
        ("fixed[16]", "binary"),
        ("strng", "Did you mean 'string'?"),
        ({"type": "list"}, "Known"),
        ({"type": "timestamp"}, "timestamptz"),
        (None, ""),
        (7, ""),
    ],
)
def test_iceberg_types_that_do_not_fit_are_refused_with_what_to_use(type_: Any, hint: str) -> None:
    """A timestamp without a zone is the important one: it must never be taken for UTC."""
    with pytest.raises(BadRequest) as caught:
        sc.from_iceberg_json(iceberg({"id": 1, "name": "x", "required": True, "type": type_}))
    assert hint in caught.value.hint
    assert "'x'" in caught.value.message


@pytest.mark.parametrize(
    "doc",
    [
        None, [], {}, {"type": "struct"}, {"type": "struct", "fields": {}}, iceberg(), iceberg(1),
        iceberg({"name": "a"}), iceberg({"name": 1, "type": "string"}),
        iceberg({"name": "a", "type": "string", "required": "yes"}), iceberg({"name": "_a", "type": "string"}),
    ],
)  # fmt: skip
def test_documents_that_are_no_iceberg_schema_are_bad_requests(doc: Any) -> None:
    """Somebody else's file may hold anything, and none of it is a crash."""
    with pytest.raises(BadRequest):
        sc.from_iceberg_json(doc)


def test_a_deeply_nested_iceberg_schema_is_refused() -> None:
    """A limit on everything: no recursion error from a hostile file."""
    type_: Any = "string"
    for _ in range(200):
        type_ = {"type": "list", "element": type_, "element-required": True}
    with pytest.raises(BadRequest, match="nested too deeply"):
        sc.from_iceberg_json(iceberg({"name": "a", "type": type_}))


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.string(), "string"), (pa.large_string(), "string"), (pa.string_view(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"), (pa.json_(), "json"),
        (pa.int8(), "int"), (pa.int16(), "int"), (pa.int32(), "int"), (pa.uint8(), "int"), (pa.uint16(), "int"),
        (pa.uint32(), "long"), (pa.int64(), "long"),
        (pa.float16(), "float"), (pa.float32(), "float"), (pa.float64(), "double"), (pa.bool_(), "boolean"),
        (pa.date32(), "date"), (pa.date64(), "date"),
        (pa.timestamp("s", "UTC"), "timestamp"), (pa.timestamp("ns", "Europe/Paris"), "timestamp"),
        (pa.binary(), "binary"), (pa.large_binary(), "binary"), (pa.binary(4), "binary"), (pa.binary_view(), "binary"),
        (pa.decimal128(10, 2), "decimal(10,2)"), (pa.decimal64(9, 0), "decimal(9,0)"),
        (pa.decimal256(38, 4), "decimal(38,4)"),
        (pa.list_(pa.field("item", pa.int64(), nullable=False)), "list<long>"),
        (pa.large_list(pa.int64()), "list<long?>"), (pa.list_(pa.float32(), 3), "list<float?>"),
        (pa.map_(pa.string(), pa.int64()), "map<string,long?>"),
        (pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]), "struct<a:int,b:string?>"),
    ],
)  # fmt: skip
def test_arrow_types_are_adopted_as_the_narrowest_type_that_takes_all_values(arrow: pa.DataType, text: str) -> None:
    """Existing Parquet and Iceberg data keeps its values; nullable comes from the field."""
    schema = ar.from_arrow(pa.schema([pa.field("c", arrow), pa.field("d", arrow, nullable=False)]))
    assert schema.text() == f"c:{text}?,d:{text}"


@pytest.mark.parametrize(
    ("arrow", "hint"),
    [
        (pa.uint64(), "Cast"), (pa.timestamp("us"), "zone"), (pa.time64("us"), "Cast"), (pa.duration("s"), "Cast"),
        (pa.null(), "Cast"), (pa.decimal256(50, 2), "precision"), (pa.decimal128(5, -2), "scale"),
        (pa.list_(pa.timestamp("us")), "zone"), (pa.uuid(), "Cast"),
    ],
)  # fmt: skip
def test_arrow_types_that_do_not_fit_are_unsupported_with_a_hint(arrow: pa.DataType, hint: str) -> None:
    """Nothing is adopted that could fail, or change, later."""
    with pytest.raises(Unsupported) as caught:
        ar.from_arrow(pa.schema([pa.field("c", arrow)]))
    assert hint in caught.value.hint
    assert "'c" in caught.value.message


@pytest.mark.parametrize("names", [["_seq"], ["_x"], ["a", "A"], ["a b"], []])
def test_arrow_names_follow_the_same_rules(names: list[str]) -> None:
    """Adopted columns are columns like any other."""
    with pytest.raises(BadRequest):
        ar.from_arrow(pa.schema([pa.field(name, pa.string()) for name in names]))


def test_spark_ddl_says_every_type_and_quotes_names() -> None:
    """What CREATE TABLE gets: Spark's words, no NOT NULL, and names that may be its keywords."""
    schema = sc.parse_columns(EVERYTHING + ",order:json,f:float,i:int?,bin:binary,ok:boolean,d:date,x:double")
    assert [fo.column_ddl(column) for column in schema.columns] == [
        "`part_id` string", "`source` string", "`ts` timestamp", "`body` string", "`tags` array<string>",
        "`meta` struct<`a`:string,`b`:bigint>", "`m` map<string,bigint>", "`price` decimal(10,2)",
        "`order` string", "`f` float", "`i` int", "`bin` binary", "`ok` boolean", "`d` date", "`x` double",
    ]  # fmt: skip
