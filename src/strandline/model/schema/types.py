"""Column types, and the one text syntax they are written in.

A type is a value: it is compared, hashed, stored as text and read back. The same syntax serves the command line
(`tags:list<string>?`), the Python API, the ledger and error messages, so it is parsed in one place and every type has
exactly one text. `?` marks what may be null, at any depth; everything else is required.

A leading underscore in a name is reserved for the columns that Strandline adds; names are unique ignoring case because
Spark is not case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from strandline.errors import BadRequest, nearest

PRIMITIVES = ("string", "long", "int", "double", "float", "boolean", "date", "timestamp", "binary", "json")
"""`timestamp` is UTC in microseconds; `json` is any JSON value, kept as text."""

KEY_TYPES = frozenset({"string", "long", "int", "boolean", "date", "timestamp", "binary"})
"""What a map's key may be, besides decimals: types whose values compare the same in Python, Arrow and Spark."""

T = TypeVar("T")

MAX_DEPTH = 32
MAX_PRECISION = 38

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_TOKEN = re.compile(r"\s*([^\W\d]\w*|[0-9]+|[<>():,?]|\S)")


@dataclass(frozen=True)
class Primitive:
    """A type without parameters."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in PRIMITIVES:
            raise BadRequest(f"no such type {self.name!r}", hint=nearest(self.name, TYPE_NAMES))


@dataclass(frozen=True)
class Decimal:
    """An exact number of `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= MAX_PRECISION and 0 <= self.scale <= self.precision):
            raise BadRequest(
                f"decimal({self.precision},{self.scale}) is not a type",
                hint=f"The precision is 1 to {MAX_PRECISION}, and the scale 0 to the precision.",
            )


@dataclass(frozen=True)
class List:
    """Values of one type, in order."""

    element: Type
    nullable: bool = False


@dataclass(frozen=True)
class Struct:
    """Named values, each of its own type."""

    fields: tuple[Column, ...]

    def __post_init__(self) -> None:
        check_names([field.name for field in self.fields], "a struct")


@dataclass(frozen=True)
class Map:
    """Values by key; a key is never null, and occurs once."""

    key: Type
    value: Type
    nullable: bool = False

    def __post_init__(self) -> None:
        if is_exact(self.key):
            return
        raise BadRequest(
            f"a map's key can't be {type_text(self.key)}", hint=f"Use one of {', '.join(sorted(KEY_TYPES))}, decimal."
        )


Type = Primitive | Decimal | List | Struct | Map

FILTERED = frozenset(map(Primitive, ("string", "long", "int", "date", "timestamp", "binary")))
"""The types for which data files may have filters: every engine makes the same bytes of their values."""

SEQ = "_seq"
AT = "_at"
ACTOR = "_actor"
EXTRA = "_extra"
COMMIT = "_commit"
REMOVED = "_removed"

GATEWAY = "_gateway"
ORIGIN_SEQ = "_origin_seq"
ORIGIN_AT = "_origin_at"
ORIGIN_ACTOR = "_origin_actor"
ORIGIN_COMMIT = "_origin_commit"
ORIGIN_REMOVED = "_origin_removed"

ORIGIN: dict[str, Type] = {
    GATEWAY: Primitive("string"),
    ORIGIN_SEQ: Primitive("long"),
    ORIGIN_AT: Primitive("timestamp"),
    ORIGIN_ACTOR: Primitive("string"),
    ORIGIN_COMMIT: Primitive("string"),
    ORIGIN_REMOVED: Primitive("boolean"),
}
"""Where a forwarded row comes from. Only tables that have received such rows have these columns.

The last two are null for a row that was no version of a keyed table's row.
"""

OURS: dict[str, Type] = {
    EXTRA: Primitive("json"),
    REMOVED: Primitive("boolean"),
    SEQ: Primitive("long"),
    AT: Primitive("timestamp"),
    ACTOR: Primitive("string"),
    COMMIT: Primitive("string"),
    **ORIGIN,
}
"""The columns that Strandline adds, in the order they have behind the user's."""

TYPE_NAMES = (*PRIMITIVES, "decimal", "list", "struct", "map")


OPEN = (1 << 63) - 1
"""The end of a range of seqs that goes on until a merge has its number."""


@dataclass(frozen=True)
class Fill:
    """A default, and which rows of a branch have it where they have no value: those below a seq, and later `gaps`.

    Rows have it that were written under a version of the branch's schema without the column, or that did not require it
    yet. A branch's log is in the order of the versions that it has had, so these rows are ranges of seqs: of its own
    log, and of no other branch's. In a gap, from one seq to below another, the branch was without the column again.
    `adds` says that the default came with the column; then what rewrites such rows writes it out. One that came when
    the column was made required never is: a read of an earlier moment still finds no value. `value` is text, as the
    type's values are written.
    """

    below: int
    value: str
    gaps: tuple[tuple[int, int], ...] = ()
    adds: bool = False

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The seqs from one to below another."""
        return ((0, self.below), *self.gaps)

    def condition(self, seq: str) -> str:
        """The rows that have it, as SQL of any engine."""
        gaps = "".join(f" OR ({seq} >= {first} AND {seq} < {end})" for first, end in self.gaps)
        return f"({seq} < {self.below}{gaps})"

    def numbered(self, number: int) -> Fill:
        """The same, with the seq at which what was open ends."""
        gaps = tuple((first, _closed(end, number)) for first, end in self.gaps)
        return replace(self, below=_closed(self.below, number), gaps=gaps)


def _closed(end: int, number: int) -> int:
    return number if end == OPEN else end


@dataclass(frozen=True)
class Column:
    """A name, a type, and whether a row may lack it.

    `stored` is its name in data files, made once and never changed: by it a column is the same one after a rename, and
    another one when it was dropped and added again. `fills` are the defaults of rows that were there before it, or
    before it was required, oldest first. `default` is what rows get that come now and lack it, as text in the way of a
    fill's value.
    """

    name: str
    type: Type
    nullable: bool = False
    stored: str = ""
    fills: tuple[Fill, ...] = ()
    default: str | None = None

    def __post_init__(self) -> None:
        if not self.stored:
            object.__setattr__(self, "stored", self.name)
        if _NAME.fullmatch(self.name) or OURS.get(self.name) == self.type:
            return
        raise _bad_name(self.name)

    @property
    def declared(self) -> Column:
        """What a person has said of it: which rows of a branch have its defaults is left out."""
        return replace(self, fills=tuple(Fill(0, fill.value) for fill in self.fills))

    def text(self) -> str:
        """`name:type`, with `?` where it is nullable."""
        return f"{self.name}:{type_text(self.type)}{'?' * self.nullable}"


def _bad_name(name: str) -> BadRequest:
    if name.startswith("_"):
        hint = "A leading underscore is reserved for the columns that Strandline adds."
    else:
        hint = "A name starts with a letter from a to z and has up to 128 of these, digits and underscores."
    return BadRequest(f"{name!r} can't be a column's name", hint=hint)


def check_names(names: Iterable[str], where: str) -> None:
    """At least one name, no two that differ only in case, and none of ours: a user can't declare `_seq`."""
    seen: dict[str, str] = {}
    for name in names:
        if name in OURS:
            raise _bad_name(name)
        if name.lower() in seen:
            first = seen[name.lower()]
            what = f"{name!r} twice" if name == first else f"both {first!r} and {name!r}"
            raise BadRequest(f"{where} has {what}", hint="Names are unique, whatever their case.")
        seen[name.lower()] = name
    if not seen:
        raise BadRequest(f"{where} needs at least one column", hint="For example: id:string,body:string?")


def is_exact(type_: Type) -> bool:
    """Whether values of a type are equal in one way only, in every engine: what keys and unique values are made of."""
    return isinstance(type_, Decimal) or (isinstance(type_, Primitive) and type_.name in KEY_TYPES)


def type_text(type_: Type) -> str:
    """The type as text; `parse_type` is its inverse."""
    match type_:
        case Primitive(name):
            return name
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case List(element, nullable):
            return f"list<{type_text(element)}{'?' * nullable}>"
        case Struct(fields):
            return f"struct<{','.join(field.text() for field in fields)}>"
        case Map(key, value, nullable):
            return f"map<{type_text(key)},{type_text(value)}{'?' * nullable}>"


def parse_type(text: str) -> Type:
    """A type from its text, such as `list<string?>`."""
    parser = _Parser(text)
    return parser.whole(parser.type())


def parse_nullable(text: str) -> tuple[Type, bool]:
    """A type and whether a `?` follows it, such as `string?`."""
    parser = _Parser(text)
    return parser.whole(parser.nullable())


def parse_column_list(text: str) -> tuple[Column, ...]:
    """Columns from `name:type,name:type?`."""
    parser = _Parser(text)
    return parser.whole(parser.columns())


class _Parser:
    """Recursive descent over one text. A library would be longer: the grammar is five rules."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        self.depth = 0

    def whole(self, parsed: T) -> T:
        """Nothing may follow what was parsed."""
        if self.at < len(self.tokens):
            raise self.unexpected("the end")
        return parsed

    def columns(self) -> tuple[Column, ...]:
        """column ("," column)*"""
        columns = [self.column()]
        while self.accept(","):
            columns.append(self.column())
        return tuple(columns)

    def column(self) -> Column:
        """name ":" nullable"""
        name = self.word("a column's name")
        self.expect(":")
        type_, nullable = self.nullable()
        return Column(name, type_, nullable)

    def nullable(self) -> tuple[Type, bool]:
        """type "?"?"""
        return self.type(), self.accept("?")

    def type(self) -> Type:
        """A primitive's name, or a name and its parameters."""
        name = self.word("a type")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BadRequest("the type is nested too deeply", hint=f"At most {MAX_DEPTH} levels.")
        parse: dict[str, Callable[[], Type]] = {
            "decimal": self.decimal, "list": self.list, "struct": self.struct, "map": self.map,
        }  # fmt: skip
        parsed = parse[name]() if name in parse else Primitive(name)
        self.depth -= 1
        return parsed

    def decimal(self) -> Decimal:
        """ "(" number "," number ")" """
        self.expect("(")
        precision = self.number()
        self.expect(",")
        scale = self.number()
        self.expect(")")
        return Decimal(precision, scale)

    def list(self) -> List:
        """ "<" nullable ">" """
        self.expect("<")
        element, nullable = self.nullable()
        self.expect(">")
        return List(element, nullable)

    def struct(self) -> Struct:
        """ "<" columns ">" """
        self.expect("<")
        fields = self.columns()
        self.expect(">")
        return Struct(fields)

    def map(self) -> Map:
        """ "<" type "," nullable ">" """
        self.expect("<")
        key = self.type()
        self.expect(",")
        value, nullable = self.nullable()
        self.expect(">")
        return Map(key, value, nullable)

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def accept(self, token: str) -> bool:
        is_next = self.peek() == token
        self.at += is_next
        return is_next

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.unexpected(repr(token))

    def word(self, expected: str) -> str:
        token = self.peek()
        if not (token[:1].isalpha() or token[:1] == "_"):
            raise self.unexpected(expected)
        self.at += 1
        return token

    def number(self) -> int:
        token = self.peek()
        if not (token.isascii() and token.isdigit() and len(token) < 4):
            raise self.unexpected("a number")
        self.at += 1
        return int(token)

    def unexpected(self, expected: str) -> BadRequest:
        actual = repr(self.peek()) if self.peek() else "the end"
        return BadRequest(
            f"expected {expected} but found {actual} in {_shown(self.text)}",
            hint="For example: id:string,body:string?,tags:list<string>,price:decimal(10,2)",
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else text[:119] + "…")
