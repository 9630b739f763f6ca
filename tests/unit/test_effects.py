"""What a publish writes, stored and read: every class comes back as it was, and what is odd is refused in words."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.ledger.publish.effects import KINDS, NAME, VERSION, UnknownVersion, decode, decode_body, encode
from strandline.ledger.publish.intent_rows import WITHOUT_EFFECTS, body_of
from strandline.ledger.publish.publishing import Effect
from strandline.ledger.tables.heads import MoveTable
from strandline.model.operations import INTENT_FORMAT, TableScope
from strandline.model.schema.schema import Schema, from_json
from strandline.model.stored import NotStored, from_stored
from strandline.model.tables import DataFile

INT = st.integers(-(2**63), 2**63 - 1)
SCHEMA_OF_ID = from_json({"columns": [{"name": "id", "type": "string", "nullable": False}]})
SCHEMAS = st.sampled_from(
    [
        SCHEMA_OF_ID,
        from_json(
            {
                "columns": [
                    {"name": "id", "type": "string", "nullable": False},
                    {"name": "path", "type": "string", "nullable": True},
                ],
                "constraints": ["unique(path)"],
                "began": 7,
            }
        ),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | INT | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
PLAIN = {int: INT, str: st.text(), bool: st.booleans(), object: JSON, Schema: SCHEMAS, type(None): st.none()}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint in PLAIN:
        return PLAIN[hint]
    if is_dataclass(hint):
        return records(hint)
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if get_origin(hint) is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    assert issubclass(get_origin(hint), Mapping), hint
    return st.dictionaries(st.text(), values(arguments[1]), max_size=3)


def records(kind: Any) -> st.SearchStrategy[Any]:
    """Records of a class, with anything that its fields may hold."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields(kind)})


@pytest.mark.parametrize("name", KINDS)
def test_each_class_comes_back_as_it_was_stored(name: str) -> None:
    """Through the very bytes that the ledger keeps."""

    @given(st.lists(records(KINDS[name]), max_size=3))
    def check(effects: list[Effect]) -> None:
        assert decode(orjson.loads(orjson.dumps(encode(effects)))) == tuple(effects)

    check()


@given(st.lists(st.one_of([records(kind) for kind in KINDS.values()]), max_size=5))
def test_effects_come_back_in_their_order(effects: list[Effect]) -> None:
    """It is the order in which they are written."""
    scope = TableScope("b", "t", "lake.t", 1, None)
    body = decode_body(VERSION, orjson.loads(body_of([scope], encode(effects))))
    assert (body.scopes, body.effects) == ((scope,), tuple(effects))


def test_every_effect_there_is_can_be_stored() -> None:
    """A class that nobody has given a name would be found by the first publish that needs it."""
    assert set(KINDS.values()) == set(Effect.__subclasses__())
    assert not any(NAME in {field.name for field in fields(kind)} for kind in KINDS.values())
    assert VERSION == INTENT_FORMAT


FILE = {
    "path": "file:///p", "rows": 1, "size_bytes": 2, "first_seq": 1, "last_seq": 1, "partition": "", "origin": False,
    "oldest_us": None, "newest_us": None, "schema_version": 1,
}  # fmt: skip
MOVE = {
    "effect": "move_table", "branch_id": "b", "table_id": "t", "from_version": 1, "from_snapshot": None, "snapshot": 5,
    "files": [FILE], "removed": ["p"], "rows_added": 1, "rows_removed": 0, "rows_acked": 0, "rows_dropped": 0,
    "last_seq": 1, "barrier": False, "kept_from": 0,
}  # fmt: skip
SCOPE = {"branch_id": "b", "table_id": "t", "iceberg_name": "lake.t", "version": 1, "log_snapshot": None}
BRANCHED = {
    "effect": "take_merge", "base": 1, "shape": 1, "branch_id": "b", "tip": "c", "adopted": [], "barriers": {},
    "first_seq": None, "schemas": {"t": {"table": "t", "schema": {"columns": 3}, "version": None}},
}  # fmt: skip


def body(*effects: object, **more: object) -> dict[str, object]:
    """A body of version 2."""
    return {"scopes": [SCOPE], "effects": list(effects), **more}


def test_a_body_that_is_whole_is_read() -> None:
    """So what is refused below is refused for its damage."""
    (move,) = decode_body(VERSION, body(MOVE)).effects or ()
    assert isinstance(move, MoveTable) and move.files == (DataFile("file:///p", 1, 2, 1, 1, "", schema_version=1),)


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        ([], "body is not an object"),
        ("x", "body is not an object"),
        ({"scopes": []}, "body lacks 'effects'"),
        (body(MOVE, version=3), "body has an unknown field 'version'"),
        ({"scopes": {}, "effects": None}, "body.scopes is not a list"),
        ({"scopes": [{"branch_id": "b"}], "effects": None}, r"body.scopes\[0\] lacks 'table_id'"),
        ({"scopes": [], "effects": {"tables": []}}, "effects are not a list"),
        (body("x"), r"effects\[0\] is not an object"),
        (body(MOVE, {}), r"effects\[1\] is of an unknown kind: None"),
        (body({**MOVE, "effect": "drop_table"}), r"effects\[0\] is of an unknown kind: 'drop_table'"),
        (body({**MOVE, "effect": []}), r"effects\[0\] is of an unknown kind: \[\]"),
        (body({**MOVE, "hurry": True}), r"effects\[0\] has an unknown field 'hurry'"),
        (body({key: MOVE[key] for key in MOVE if key != "barrier"}), r"effects\[0\] lacks 'barrier'"),
        (body({**MOVE, "rows_added": True}), r"effects\[0\].rows_added is not a whole number"),
        (body({**MOVE, "rows_added": 1.0}), r"effects\[0\].rows_added is not a whole number"),
        (body({**MOVE, "rows_added": None}), r"effects\[0\].rows_added is not a whole number"),
        (body({**MOVE, "snapshot": "5"}), r"effects\[0\].snapshot is not a whole number"),
        (body({**MOVE, "barrier": 1}), r"effects\[0\].barrier is not true or false"),
        (body({**MOVE, "table_id": 7}), r"effects\[0\].table_id is not text"),
        (body({**MOVE, "files": "p"}), r"effects\[0\].files is not a list"),
        (body({**MOVE, "removed": [1]}), r"effects\[0\].removed\[0\] is not text"),
        (body({**MOVE, "files": [{**FILE, "rows": "1"}]}), r"effects\[0\].files\[0\].rows is not a whole number"),
        (body({**MOVE, "files": [{**FILE, "sorted": 1}]}), r"effects\[0\].files\[0\] has an unknown field 'sorted'"),
        (
            body({"effect": "move_streams", "branch_id": "b", "table_id": "t", "last_seqs": [1]}),
            r"effects\[0\].last_seqs is not an object",
        ),
        (
            body({"effect": "move_streams", "branch_id": "b", "table_id": "t", "last_seqs": {"p": "1"}}),
            r"effects\[0\].last_seqs\['p'\] is not a whole number",
        ),
        (body(BRANCHED), r"effects\[0\].schemas\['t'\].schema is no schema"),
    ],
)
def test_what_is_damaged_is_refused_and_named(damaged: object, words: str) -> None:
    with pytest.raises(NotStored, match=f"^{words}"):
        decode_body(VERSION, damaged)


@pytest.mark.parametrize("version", [0, 3, 99])
def test_another_version_is_refused_unread(version: int) -> None:
    with pytest.raises(UnknownVersion, match=f"its format is {version}, and this strandline knows formats up to 2"):
        decode_body(version, body(MOVE))


def test_defaults_fill_only_what_an_older_version_did_not_know() -> None:
    """The reader says so; and never for what has no default."""
    short = {"path": "p", "rows": 1, "size_bytes": 2, "first_seq": 1, "last_seq": 1, "partition": ""}
    assert from_stored(DataFile, short, "file", older=True) == DataFile("p", 1, 2, 1, 1, "")
    with pytest.raises(NotStored, match="lacks 'origin'"):
        from_stored(DataFile, short, "file")
    with pytest.raises(NotStored, match="lacks 'path'"):
        from_stored(DataFile, {"rows": 1}, "file", older=True)


# -- version 1 ---------------------------------------------------------------------------------------------------------

TABLE_OF_1: dict[str, object] = {
    "branch_id": "b", "table_id": "t", "from_version": 1, "from_snapshot": 4, "snapshot": 5, "batches": ["x"],
    "files": [FILE], "rows_added": 1, "rows_acked": 2, "rows_dropped": 3, "rows_stale": 0, "last_seq": 9,
    "stream_heads": {"": 9}, "removed": ["p"], "rows_removed": 4, "pruned": {"": 8}, "past_sinks": True,
    "condemned": [3], "barrier": True, "unhashed": True, "kept_from": 6,
}  # fmt: skip
RELIED = {"branch_id": "b", "number": 1, "shape": 2, "claims": {"t": ["ff"]}, "barriers": {"t": 3}}
RECORD = {
    "branch_id": "b", "table_id": "t", "actor": "ann", "letters": ["l"],
    "quarantined": [{"batch_id": "q", "rows": 1, "payload": "AA=="}],
    "tombstone": {"table_name": "t", "table_id": "t", "predicate": "true", "rows": 1, "upto_seq": 9},
}  # fmt: skip
SCHEMA = SCHEMA_OF_ID.to_json()
EVERYTHING_OF_1: dict[str, object] = {
    "tables": [TABLE_OF_1, {**TABLE_OF_1, "table_id": "u", "unhashed": False}],
    "commit": {"kind": "load", "message": "m", "tables": {"t": 1}, "commit_id": "c"},
    "answer": {"scope": "s", "key": "k", "digest": "d", "answer": {"rows": 1}},
    "progress": {"load_id": "l", "since": 0, "parts_done": 1, "finished": True, "answer": {"rows": 1}},
    "stream": {"query_id": "q", "table_id": "t", "batch": 3},
    "purge": {**RECORD, "relied": RELIED},
    "judged": {"written": ["t"], "schemas": {"t": 1}},
    "merge": {
        "base": 1, "first_seq": 2, "shape": 3, "branch_id": "x", "tip": "c2", "barriers": {"t": 1},
        "adopted": [{"table_id": "t", "table": "t", "rows": 1, "last_seq": None}],
        "schemas": {"t": {"table": "t", "schema": SCHEMA, "version": 4}},
    },
}  # fmt: skip
NOTHING_OF_1: dict[str, object] = {"tables": [], "commit": None, "answer": None, "progress": None, "stream": None}


def of_1(effects: object) -> list[dict[str, Any]]:
    """What version 1 says, as version 2 says it."""
    return encode(decode_body(WITHOUT_EFFECTS, {"scopes": [SCOPE], "effects": effects}).effects or ())


def test_version_1_is_read_in_the_order_in_which_it_was_published() -> None:
    """All parts at once: what rows were judged by, tables, purge, commit, and what needs the commit."""
    of_table = ["move_table", "condemn_snapshots", "move_streams", "prune_streams", "release_batches"]
    assert [effect["effect"] for effect in of_1(EVERYTHING_OF_1)] == [
        "keep_schemas", "stay_unreferred", *of_table, *of_table, "record_purge", "write_commit", "take_merge",
        "pass_over", "advance_load", "keep_answer", "move_query_mark",
    ]  # fmt: skip


def test_nothing_that_version_1_says_is_lost() -> None:
    """Every value of it is in one of the effects, where it belongs."""
    by_name = {effect["effect"]: effect for effect in reversed(of_1(EVERYTHING_OF_1))}
    at = {"branch_id": "b", "table_id": "t"}
    assert by_name["move_table"] == {
        "effect": "move_table", **at, "from_version": 1, "from_snapshot": 4, "snapshot": 5, "files": [FILE],
        "removed": ["p"], "rows_added": 1, "rows_removed": 4, "rows_acked": 2, "rows_dropped": 3, "last_seq": 9,
        "barrier": True, "kept_from": 6,
    }  # fmt: skip
    assert by_name["condemn_snapshots"] == {"effect": "condemn_snapshots", "table_id": "t", "snapshots": [3]}
    assert by_name["move_streams"] == {"effect": "move_streams", **at, "last_seqs": {"": 9}}
    assert by_name["prune_streams"] == {"effect": "prune_streams", **at, "upto": {"": 8}, "past_sinks": True}
    assert by_name["release_batches"] == {"effect": "release_batches", **at, "batches": ["x"]}
    assert by_name["pass_over"] == {"effect": "pass_over", **at}
    assert by_name["keep_schemas"] == {"effect": "keep_schemas", "written": ["t"], "schemas": {"t": 1}}
    assert by_name["stay_unreferred"] == {"effect": "stay_unreferred", **RELIED}
    assert by_name["record_purge"] == {"effect": "record_purge", **RECORD}
    commit = {"kind": "load", "message": "m", "tables": {"t": 1}, "commit_id": "c", "merged": "c2"}
    assert by_name["write_commit"] == {"effect": "write_commit", **commit}
    merge, stored = EVERYTHING_OF_1["merge"], by_name["take_merge"]
    assert stored == {"effect": "take_merge", **merge}  # type: ignore[dict-item]
    for name, part in (("advance_load", "progress"), ("keep_answer", "answer"), ("move_query_mark", "stream")):
        document = EVERYTHING_OF_1[part]
        assert isinstance(document, dict) and by_name[name] == {"effect": name, **document}


def test_what_older_versions_of_version_1_did_not_know_may_be_missing() -> None:
    """Their intents are in lakes still."""
    names = ("branch_id", "table_id", "from_version", "from_snapshot", "snapshot", "files")
    table = {name: TABLE_OF_1[name] for name in names}
    (move,) = of_1({**NOTHING_OF_1, "tables": [table]})
    assert (move["effect"], move["snapshot"], move["barrier"]) == ("move_table", 5, False)
    merge = {key: value for key, value in EVERYTHING_OF_1["merge"].items() if key != "first_seq"}  # type: ignore[attr-defined]
    commit, taken = of_1({**NOTHING_OF_1, "merge": merge, "commit": EVERYTHING_OF_1["commit"]})
    assert (commit["merged"], taken["first_seq"]) == ("c2", None)


def test_rows_that_an_older_version_left_out_for_their_age_are_refused_yet() -> None:
    (_, stale) = of_1({**NOTHING_OF_1, "tables": [{**TABLE_OF_1, "rows_stale": 2, **NO_MORE}]})
    assert stale == {"effect": "refuse_stale", "table_id": "t", "rows": 2}


NO_MORE = {"batches": [], "stream_heads": {}, "pruned": {}, "condemned": [], "unhashed": False}


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ([], "effects is not an object"),
        ("x", "effects is not an object"),
        ({"tables": []}, "effects lacks 'answer'|effects lacks 'commit'"),
        ({**NOTHING_OF_1, "tables": {}}, "effects.tables is not a list"),
        ({**NOTHING_OF_1, "tables": [[]]}, r"effects.tables\[0\] is not an object"),
        ({**NOTHING_OF_1, "later": 1}, "effects has an unknown field 'later'"),
        ({**NOTHING_OF_1, "tables": [{**TABLE_OF_1, "later": 1}]}, r"effects.tables\[0\] has an unknown field 'later'"),
        ({**NOTHING_OF_1, "tables": [{**TABLE_OF_1, "snapshot": "x"}]}, r"effects.tables\[0\].snapshot is not"),
        ({**NOTHING_OF_1, "purge": {"relied": {"number": 1}}}, "effects.purge.relied lacks"),
        ({**NOTHING_OF_1, "purge": {"tombstone": RECORD["tombstone"]}}, "effects.purge lacks what its tombstone"),
        ({**NOTHING_OF_1, "tables": [TABLE_OF_1]}, "effects need a commit, and have none"),
        ({**NOTHING_OF_1, "merge": EVERYTHING_OF_1["merge"]}, "effects need a commit, and have none"),
    ],
)
def test_damage_in_version_1_is_refused_and_named(effects: object, words: str) -> None:
    with pytest.raises(NotStored, match=f"^{words}"):
        of_1(effects)
