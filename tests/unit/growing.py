"""Try all that a condition may call with large values, and nested, in a process that may not grow: see test_growth.

It prints, as JSON, which functions were computed at least once, and every expression whose value was larger than
`check_growth` says.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
from tests import slices

from strandline.engines.duck import growth, wall
from strandline.engines.duck.functions import names_in
from strandline.errors import BadRequest
from strandline.model.schema.schema import parse_columns

ROOM_BYTES = 512 * 1024 * 1024
FIXED_BYTES = 4096
"""How long a value is that has a size of its own."""

COLUMNS = parse_columns(
    "source:string,n:long,x:double,ts:timestamp,day:date,flag:boolean,bytes:binary,tags:list<string>,"
    "numbers:list<double>,doc:json"
).columns
LETTERS = {
    "quotes": "'\"\\", "controls": "\x01\x1f\n", "growing letters": "ɐßİǰ", "decomposed": "\U0001d160\u0958",
    "markup": "%&+/.*( ", "dates": "%c%x%A", "plain": "aB",
}  # fmt: skip
LENGTH = 4_000
NUMBERS = ("DOUBLE", "FLOAT", "DECIMAL", "BIGNUM")
LITERAL = "'" + "ab" * (LENGTH // 2) + "'"
SAMPLES = {
    "VARCHAR": ("source", LITERAL, "','", "'year'"),
    "JSON": ("doc", "doc"),
    "BLOB": ("bytes", "bytes"),
    "DATE": ("day", "date '294247-01-01'"),
    "TIMESTAMP": ("ts", "timestamptz '294247-01-01 00:00:00+00'"),
    "INTERVAL": ("interval 1 day", "interval 1 microsecond"),
    "BOOLEAN": ("flag", "false"),
    "VARCHAR[]": ("tags", "[source, source]"),
    "DOUBLE[]": ("numbers", "[1e300, 1e300]"),
    "MAP": ("map([source], [tags])", "map(['a'], [source])"),
    "STRUCT": ("struct_pack(a := source)", "struct_pack(a := tags)"),
    "number": ("2000000000", "9223372036854775807", "-1", "n", "1000", "7"),
    "ANY": ("source", "tags", "n", "doc", "ts", "7", "'a'"),
}
"""Large and odd values of the types that functions take."""
FAMILIES = {
    "T": "ANY",
    "K": "ANY",
    "V": "ANY",
    "T[]": "VARCHAR[]",
    "ANY[]": "VARCHAR[]",
    "FLOAT[]": "DOUBLE[]",
    "TUPLE": "STRUCT",
}
PLAIN = (
    ["numbers"], ["numbers", "numbers"], ["tags", "tags"], ["tags", "'a'"], ["'a'", "tags"], ["tags", "1", "2"],
    ["source", "','", "1"], ["source", "'a'"], ["[flag]"], ["[n]"], ["x", "7"], ["day", "interval 1 day"],
    ["12", "30", "1"], ["'01'"], ["'12 MB'"], ["[tags]"], ["map(['a'], [source])"], ["map(['a'], [source])", "source"],
)  # fmt: skip
"""Values that most functions take in one way or another."""
SPECIAL = {
    "list_filter": ["list_filter(tags, lambda e: lower(e) = 'a')", "list_filter(tags, lambda e: contains(source, e))"],
    "array_filter": ["array_filter(tags, lambda e: e <> source)"],
    "filter": ["filter(numbers, lambda e: e > n)"],
    "replace": ["replace(source, 'a', 'bbbbbbbbbb')", "replace(source, '', 'bbbb')", "replace(source, '\\', '--')"],
    "regexp_replace": [r"regexp_replace(source, '', '<\0\0>', 'g')", r"regexp_replace(source, '(.)', '\1\1', 'g')"],
    "array_to_string": [f"array_to_string(tags, '{'-' * 90}')"],
    "concat_ws": [f"concat_ws('{'-' * 40}', tags, source)"],
    "struct_pack": ["struct_pack(a := source, b := tags)"],
    "struct_extract": ["struct_extract(struct_pack(a := source), 'a')"],
    "map": ["map([source], [tags])"],
    "strftime": ["strftime(ts, '%c%c%c%A%B%x')", "strftime(day, source)"],
    "strptime": ["strptime('2026-01-01', '%Y-%m-%d')"],
    "try_strptime": ["try_strptime('2026-01-01', '%Y-%m-%d')"],
    "json_extract": ["json_extract(doc, '$.a')", "json_extract(doc, 'a')"],
    "translate": ["translate(source, 'aB', '😀😀')"],
    "time_bucket": ["time_bucket(interval 1 day, ts)"],
    "coalesce": ["coalesce(source, 'x')"], "try": ["try(upper(source))"], "ifnull": ["ifnull(source, 'x')"],
    "position": ["position('a' in source)"],
    "days_in_month": ["days_in_month(day)"],
    "<<": ["(7 << 3)"],
    "->": ["(doc -> '$.a')"], "->>": ["(doc ->> '$.a')"],
}  # fmt: skip


def expressions(connection: duckdb.DuckDBPyConnection, name: str) -> set[str]:
    """Calls of a function with large values of the types that it takes, and with others."""
    query = "SELECT parameter_types, varargs IS NOT NULL FROM duckdb_functions() WHERE lower(function_name) = ?"
    overloads = {(tuple(map(_family, types)), more) for types, more in connection.execute(query, [name]).fetchall()}
    texts = {_called(name, values) for values in PLAIN} | set(SPECIAL.get(name, []))
    for families, takes_more in overloads:
        taken = [SAMPLES[family] for family in (*families, *(["ANY"] * (2 * takes_more)))]
        for turn in range(4):
            values = [samples[(turn + place) % len(samples)] for place, samples in enumerate(taken)]
            texts.add(_called(name, values))
    return texts


def _family(kind: str | None) -> str:
    kind = FAMILIES.get(str(kind), str(kind))
    if kind in SAMPLES:
        return kind
    if kind.startswith(("TIMESTAMP", "TIME")):
        return "TIMESTAMP"
    if kind.startswith(("MAP", "STRUCT")):
        return kind.split("(")[0]
    return "ANY" if kind == "None" else "number" if kind.endswith(("INT", "INTEGER")) or kind in NUMBERS else "ANY"


def _called(name: str, values: list[str]) -> str:
    if name[0].isalpha():
        return f"{name}({', '.join(values)})"
    return f"({values[0]} {name} {values[1]})" if len(values) > 1 else f"({name} {values[0]})"


def nested(name: str) -> Iterator[list[str]]:
    """A call in itself, again and again, for each way to hand it a text."""
    shapes = [text.replace("source", "{}", 1) for text in SPECIAL.get(name, []) if "source" in text]
    for shape in [f"{name}({{}})", f"{name}({{}}, source)", f"CAST({name}({{}}) AS VARCHAR)", *shapes]:
        yield _levels(shape)


def _levels(shape: str) -> list[str]:
    levels = ["source"]
    for _ in range(8):
        levels.append(shape.replace("{}", levels[-1]))
    return [levels[depth] for depth in (1, 2, 3, 5, 8) if len(levels[depth]) < growth.TEXT_BYTES]


CASTS = ("CAST([{}] AS VARCHAR)", "CAST(CAST([{}] AS JSON) AS VARCHAR)", "CAST(encode({}) AS VARCHAR)", "({} || {})")
ON_TEXTS = (
    names_in(
        "concat decode from_base64 from_hex lcase left lower ltrim nfc_normalize overlay parse_filename regexp_extract "
        "reverse strftime strip_accents substr translate trim unhex upper url_decode lpad"
    )
    | growth.FACTORS.keys()
    | growth.TIMES_A_TEXT.keys()
)


class Trial:
    """Computes expressions over one row, and notes what is larger than it may be."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET threads = 1")
        self.computed: set[str] = set()
        self.too_large: list[str] = []
        self.row_bytes = 0

    def row(self, letters: str) -> None:
        """The row that expressions see from now on."""
        text = (letters * LENGTH)[:LENGTH]
        values = {"source": text, "tags": list(text[:500]), "doc": json.dumps({"a": [text, {"b": 1e300}]})}
        self.row_bytes = sum(len(json.dumps(value, ensure_ascii=False).encode()) for value in values.values()) + 5_000
        self.connection.execute(
            "CREATE OR REPLACE TABLE t AS SELECT $source AS source, 2000000000::BIGINT AS n, 1e300::DOUBLE AS x, "
            "timestamptz '2026-11-18 12:00:00+00' AS ts, date '2026-09-30' AS day, true AS flag, "
            "encode($source) AS bytes, $tags::VARCHAR[] AS tags, "
            "[v::DOUBLE FOR v IN range(500)] AS numbers, $doc::JSON AS doc", values,
        )  # fmt: skip

    def _bound(self, text: str) -> float | None:
        """How large it can be; None where a condition may not have it."""
        tree = wall.serialized(self.connection, f"SELECT 1 WHERE {text}")
        if tree.get("error"):
            return None
        try:
            return growth.check_growth(tree["statements"][0]["node"]["where_clause"], text, COLUMNS)
        except BadRequest:
            return None

    def try_out(self, name: str, text: str) -> None:
        """Compute an expression, unless a condition may not have it."""
        bound = self._bound(text)
        if bound is None:
            return
        try:
            query = f"SELECT max(octet_length(encode(CAST(({text}) AS VARCHAR)))) FROM t"
            ((size,),) = self.connection.execute(query).fetchall()
        except MemoryError:
            self.too_large.append(text[:200])
            return
        except (duckdb.Error, UnicodeDecodeError) as error:
            if isinstance(error, duckdb.OutOfMemoryException):
                self.too_large.append(text[:200])
            return
        self.computed.add(name)
        if (size or 0) > FIXED_BYTES + growth.SLACK * bound * (self.row_bytes + len(text)):
            self.too_large.append(f"{size} {bound} {text[:200]}")

    def deepest(self, name: str, levels: list[str]) -> None:
        """Compute the first level and the deepest one that a condition may have."""
        allowed = [level for level in levels if self._bound(level) is not None]
        for text in {*allowed[:1], *allowed[-1:]}:
            self.try_out(name, text)


def main() -> dict[str, Any]:
    """Try out everything."""
    trial = Trial()
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    trial.row(LETTERS["plain"])
    for name in sorted(growth.OF_A_CONDITION):
        for text in expressions(trial.connection, name):
            trial.try_out(name, text)
    for number, letters in enumerate(LETTERS.values()):
        trial.row(letters)
        for name in slices.share(sorted(ON_TEXTS), 3, shift=number):  # each meets every third kind of letters
            for levels in nested(name):
                trial.deepest(name, levels)
        for shape in CASTS:
            trial.deepest("cast", _levels(shape))
    # Not by getrusage: a process begins there with the peak of the one that started it.
    status = Path("/proc/self/status").read_text()
    peak_bytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
    return {"computed": sorted(trial.computed), "too_large": trial.too_large, "peak_bytes": peak_bytes}


if __name__ == "__main__":
    json.dump(main(), sys.stdout)
