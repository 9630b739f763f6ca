"""Constraints: the text syntax, and what is refused and how it is said."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import BadRequest
from strandline.model.schema import constraints as cn
from strandline.model.schema.constraints import Cardinality, Check, Constraint, OneOf, Range, Reference, Unique
from strandline.model.schema.schema import Schema, from_json, parse_columns

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,12}", fullmatch=True)
COLUMNS = st.lists(NAMES, min_size=1, max_size=3, unique=True).map(tuple)
ONE = NAMES.map(lambda name: (name,))
ENDS = st.sampled_from(["0", "-7", "1.5", "1e9", "2026-01-01", "2026-01-01T00:00:00.5+01:00"])
CONSTRAINTS: st.SearchStrategy[Constraint] = st.one_of(
    st.builds(Unique, COLUMNS),
    st.builds(OneOf, ONE, st.lists(st.text(max_size=8), min_size=1, max_size=4).map(tuple)),
    st.builds(Range, ONE, ENDS, ENDS | st.just("")),
    st.builds(Range, ONE, st.just(""), ENDS),
    st.builds(Check, ONE, st.text(min_size=1, max_size=12)),
    st.builds(Reference, COLUMNS, NAMES, st.sampled_from(["restrict", "cascade"])),
    st.builds(Cardinality, COLUMNS, st.integers(0, 5), st.integers(5, 9) | st.none()),
)


@given(CONSTRAINTS)
def test_every_constraint_has_a_text_that_parses_back_to_it(constraint: Constraint) -> None:
    """The ledger stores constraints as text, so the text must say all of them."""
    assert cn.parse_constraint(constraint.text()) == constraint


@given(st.lists(CONSTRAINTS, max_size=4, unique=True))
def test_a_schema_keeps_its_constraints(constraints: list[Constraint]) -> None:
    """They are there again after the way through the ledger, and through another process."""
    schema = Schema(parse_columns("id:string").columns, tuple(constraints))
    assert from_json(schema.to_json()) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("unique( a ,b )", Unique(("a", "b"))),
        ('one_of(status:open,"in work", "a\\"b")', OneOf(("status",), ("open", "in work", 'a"b'))),
        ("range(age: 0..)", Range(("age",), "0", "")),
        ("range(age:..1.5)", Range(("age",), "", "1.5")),
        ("check(path: /^/a/b$/)", Check(("path",), "^/a/b$")),
        ("reference(team_id->team)", Reference(("team_id",), "team", "restrict")),
        ("reference(a, b -> pair, cascade)", Reference(("a", "b"), "pair", "cascade")),
        ("cardinality(team_id: 1..)", Cardinality(("team_id",), 1, None)),
    ],
)
def test_what_is_written_by_hand_is_read(text: str, parsed: Constraint) -> None:
    """Blanks don't matter, and what has a usual value may be left out."""
    assert cn.parse_constraint(text) == parsed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("uniqe(email)", "'unique'"),
        ("email", "unique(email)"),
        ("", "unique(email)"),
        ("unique()", "unique(email)"),
        ("unique(a, a)", "unique(email)"),
        ("one_of(status)", "one_of(status: open, done)"),
        ("one_of(status: a b)", "one_of(status: open, done)"),
        ('one_of(status: "\\q")', "one_of(status: open, done)"),
        ("range(age: ..)", "range(age: 0..150)"),
        ("range(age: 5)", "range(age: 0..150)"),
        ("range(a, b: 0..5)", "range(age: 0..150)"),
        ("check(email: @)", "check(email: /@/)"),
        ("reference(team_id, team)", "reference(team_id -> team, restrict)"),
        ("reference(team_id -> team, ignore)", "reference(team_id -> team, restrict)"),
        ("cardinality(team_id: ..5)", "cardinality(team_id: 0..10)"),
        ("cardinality(team_id: 5..4)", "the least"),
        ("unique(" + "a" * 20_000 + ")", "unique(email)"),
    ],
)
def test_what_is_no_constraint_is_refused_with_how_it_is_written(text: str, said: str) -> None:
    """The nearest rule, or an example of the one that was meant."""
    with pytest.raises(BadRequest) as caught:
        cn.parse_constraint(text)
    assert said in caught.value.hint


def test_the_same_constraint_twice_is_refused() -> None:
    """It would be checked and told twice."""
    with pytest.raises(BadRequest, match="twice"):
        cn.parse_constraints(["unique(a,b)", "unique(a, b)"])
