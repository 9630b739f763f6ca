"""How large a value a condition can build, told by its parts alone.

A condition is computed for every row, its constants when it is planned, and neither DuckDB's clock nor its limit of
memory sees what happens inside one call. So no call may make much out of little. Each function that a condition may
call is listed here with what its result is bounded by; what pads, repeats, counts up or transforms lists is not. The
bounds multiply where calls are nested. What comes out says how many times the row and the condition's own text a value
can be as large, but for a factor that does not grow with the nesting (`SLACK`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.engines.duck import wall
from strandline.engines.duck.functions import names_in
from strandline.errors import BadRequest
from strandline.model.schema.types import Column, Decimal, Primitive

TEXT_BYTES = 64 * 1024
"""The longest condition."""
DEPTH = 100
"""How deeply its parts are nested at most."""
MOST = 100
"""A value of a condition is at most so many times as large as the row and the text together."""
SLACK = 16
"""What letters become at most in another case or form, a date in a format, a letter as an element of a list."""
PADDED = 1_000
"""How long `lpad` and `rpad` may make a text."""
CHUNK = 2_048
"""For so many elements at once DuckDB computes a lambda: of a value from around it there may be as many copies."""

FIXED = names_in(
    "!= !__postfix !~~ !~~* && < <-> <= <=> <@ <> = == > >= @> ^@ ~~ ~~* ~~~ like_escape not_like_escape ilike_escape "
    "not_ilike_escape abs acos acosh asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees even "
    "exp factorial fdiv floor fmod gamma gcd greatest_common_divisor isfinite isinf isnan lcm least_common_multiple "
    "lgamma ln log log10 log2 nextafter pi pow power radians round round_even roundbankers sign signbit sin sinh sqrt "
    "tan tanh trunc",
    "ascii bit_length bit_position char_length character_length chr contains ends_with formatReadableDecimalSize "
    "formatReadableSize format_bytes get_bit hamming instr len length length_grapheme md5 md5_number md5_number_lower "
    "md5_number_upper mismatches octet_length ord parse_formatted_bytes position prefix regexp_full_match "
    "regexp_matches sha1 sha256 starts_with strlen strpos suffix unicode",
    "age century date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname "
    "dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear "
    "julian last_day make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz "
    "microsecond millennium millisecond minute month monthname nanosecond normalized_interval quarter second strptime "
    "time_bucket timezone timezone_hour timezone_minute to_centuries to_days to_decades to_hours to_microseconds "
    "to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years "
    "try_strptime uuid_extract_timestamp uuid_extract_version week weekday weekofyear year yearweek",
    "array_contains array_has array_has_all array_has_any array_indexof array_length array_position array_unique "
    "cardinality list_avg list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_contains "
    "list_cosine_distance list_cosine_similarity list_count list_distance list_dot_product list_has list_has_all "
    "list_has_any list_indexof list_inner_product list_negative_dot_product list_negative_inner_product list_position "
    "list_product list_sum list_unique map_contains map_contains_entry map_contains_value struct_contains struct_has "
    "struct_indexof struct_position union_tag typeof pg_typeof json_contains json_valid",
)
"""The result has a size of its own, whatever the arguments are."""

PARTS = names_in(
    "% & * ** + - / // << >> @ ^ | || ~ add subtract multiply divide mod xor date_add",
    "concat decode encode from_base64 from_binary from_hex lcase left left_grapheme lower ltrim nfc_normalize overlay "
    "parse_dirname parse_dirpath parse_filename regexp_extract reverse right right_grapheme rtrim split_part "
    "strftime strip_accents substr substring substring_grapheme translate trim ucase unbin unhex upper url_decode",
    "array_append array_cat array_concat array_distinct array_extract array_intersect array_pop_back array_pop_front "
    "array_prepend array_push_back array_push_front array_reverse array_reverse_sort array_slice array_sort element_at "
    "flatten list_any_value list_append list_cat list_concat list_distinct list_element list_extract list_first "
    "list_intersect list_last list_max list_min list_prepend list_reverse list_reverse_sort list_slice list_sort "
    "list_value list_pack map map_entries map_extract map_extract_value map_keys map_values row struct_extract "
    "struct_extract_at struct_pack union_extract",
    "json json_array_length json_exists json_extract json_extract_path json_extract_path_text json_extract_string "
    "json_keys json_type json_value -> ->>",
    "coalesce constant_or_null greatest if ifnull least nullif try",
)
"""The result is made of the arguments, each of them once."""

FACTORS = {
    "base64": 2,
    "bin": 8,
    "hex": 2,
    "regexp_escape": 4,
    "regexp_split_to_array": 2,
    "split": 2,
    "str_split": 2,
    "str_split_regex": 2,
    "string_split": 2,
    "string_split_regex": 2,
    "string_to_array": 2,
    "to_base64": 2,
    "to_binary": 8,
    "to_hex": 2,
    "url_encode": 3,
}
"""The same, and so many times as large."""

TIMES_A_TEXT = {"array_to_string": 1, "concat_ws": 0, "regexp_replace": 2, "replace": 2}
"""The argument that may stand in the result for every letter or element of the others: a text, not an expression."""

FILTERS = names_in("array_filter filter list_filter")
PADDING = names_in("lpad rpad")
PATHS = names_in(
    "json_array_length json_exists json_extract json_extract_path json_extract_path_text json_extract_string json_keys "
    "json_type json_value -> ->>"
)
"""They take a path, which with a wildcard gives nested values over and over."""

OF_A_CONDITION = FIXED | PARTS | FACTORS.keys() | TIMES_A_TEXT.keys() | FILTERS | PADDING
"""What a condition may call."""

CASTS = dict.fromkeys(
    names_in(
        "bigint int64 int8 long dec numeric decimal double float8 float float4 real guid uuid hugeint int128 int "
        "integral signed int32 int4 integer int1 tinyint int2 smallint int16 short interval timestamptz_ns timestamp_s "
        "uinteger uint32 usmallint uint16 bool boolean logical date time datetime timestamp_us timestamp timestamptz "
        "timestamp_ns time_ns uint128 uhugeint uint64 ubigint timetz timestamp_ms uint8 utinyint"
    )
    | {"timestamp with time zone", "time with time zone"},
    0,
) | dict.fromkeys(names_in("bpchar nvarchar char string text varchar binary blob varbinary bytea json"), 6)
"""What values may be cast to, and how many times as large that can be: bytes and quotes are written with others."""

_HINT = "A condition may compare, look into and cut what the row holds; it can't build much more than that."


def check_growth(tree: wall.Node, text: str, columns: Sequence[Column]) -> float:
    """How large the value of a parsed expression can be; BadRequest where it, or one inside of it, can be too large."""
    _check_depth(tree)
    return _Growth({column.name.lower(): _of_column(column) for column in columns}, len(text)).of(tree)


def _of_column(column: Column) -> int:
    is_small = isinstance(column.type, Decimal) or (
        isinstance(column.type, Primitive) and column.type.name not in ("string", "binary", "json")
    )
    return 0 if is_small else 1


def _check_depth(tree: wall.Node) -> None:
    """With a stack: until this has passed, how deep the tree is was the user's choice."""
    left: list[tuple[object, int]] = [(tree, 0)]
    while left:
        part, depth = left.pop()
        if depth > DEPTH:
            raise BadRequest(f"the condition has parts in {DEPTH} others", hint="Write it with fewer nested parts.")
        if isinstance(part, dict):
            depth += "class" in part
            left.extend((value, depth) for value in part.values())
        elif isinstance(part, list):
            left.extend((value, depth) for value in part)


class _Growth:
    """How many times as large as the row and the text the value of an expression can be; 0 for a size of its own."""

    def __init__(self, sizes: Mapping[str, float], text_length: int) -> None:
        self._sizes = sizes
        self._text_length = text_length

    def of(self, node: wall.Node) -> float:
        """Of one expression; BadRequest where it, or one inside of it, can be too large."""
        match node["class"]:
            case "CONSTANT":
                return len(_literal(node)) / self._text_length  # all constants together are not longer than the text
            case "COLUMN_REF" | "LAMBDA_REF":
                return self._sizes.get(str(node["column_names"][0]).lower(), 1)
            case "CASE":
                checks = node["case_checks"]
                self._all([check["when_expr"] for check in checks])
                return max(self._all([*(check["then_expr"] for check in checks), node["else_expr"]]))
            case "CAST":
                return self._cast(node)
            case "FUNCTION":
                return self._call(node)
            case "LAMBDA":  # outside of a call it is the arrow of JSON
                return self._bounded("->", [node["lhs"], node["expr"]], 1)
            case "OPERATOR":
                sizes = self._all(node["children"])
                return 0 if node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN") else sum(sizes)
            case "COLLATE":
                return self.of(node["child"])
        self._all([part for part in node.values() if isinstance(part, dict) and "class" in part])
        self._all(node.get("children", []))
        return 0

    def _all(self, nodes: Sequence[wall.Node]) -> list[float]:
        return [self.of(node) for node in nodes]

    def _cast(self, node: wall.Node) -> float:
        kind = node.get("type_expr") or {}
        name = str(kind.get("type_name", "")).lower()
        if name not in CASTS:
            raise BadRequest(
                f"the condition casts to {name or 'an unknown type'}, whose values can be larger than the row",
                hint=_HINT,
            )
        return _checked(f"a cast to {name}", CASTS[name] * self.of(node["child"]))

    def _call(self, node: wall.Node) -> float:
        name = str(node["function_name"]).lower()
        path = [str(part) for part in node.get("qualified_name", {}).get("path", [name])]
        before = [{"class": "COLUMN_REF", "column_names": path[:-1]}] if len(path) > 1 else []  # x.f(y) is f(x, y)
        arguments = [*before, *(argument["expression"] for argument in node["arguments"])]
        if name in FIXED:
            self._all(arguments)
            return 0
        if name in PARTS:
            return self._bounded(name, arguments, 1)
        if name in FACTORS:
            return self._bounded(name, arguments, FACTORS[name])
        if name in TIMES_A_TEXT:
            return self._times_a_text(name, arguments)
        if name in FILTERS:
            return self._filter(arguments)
        if name in PADDING:
            return self._padded(name, arguments)
        raise BadRequest(f"the condition calls {name}(), which can build more than the row holds", hint=_HINT)

    def _bounded(self, name: str, arguments: Sequence[wall.Node], factor: int) -> float:
        if name in PATHS and not all(map(_is_plain_path, arguments[1:])):
            raise BadRequest(
                f"the condition has a path for {name} that is no text, or has a wildcard",
                hint="Write the path of one value, such as '$.a.b'; an arrow in parentheses: (x ->> '$.a') = 'b'.",
            )
        if name == "regexp_extract" and not all(map(_is_constant, arguments[2:])):
            raise BadRequest("the condition extracts several groups at once", hint="Extract one group, by its number.")
        return _checked(f"{name}()", factor * sum(self._all(arguments)))

    def _times_a_text(self, name: str, arguments: Sequence[wall.Node]) -> float:
        place = TIMES_A_TEXT[name]
        if len(arguments) <= place:  # DuckDB says which it lacks
            return sum(self._all(arguments))
        if not _is_constant(arguments[place]):
            raise BadRequest(
                f"the condition calls {name}() with a text that is computed", hint="Write the text itself there."
            )
        length = len(_literal(arguments[place]).encode())
        factor = 1 + length
        if name == "replace" and _is_constant(arguments[1]) and _literal(arguments[1]):
            factor = max(1, -(-length // len(_literal(arguments[1]).encode())))
        others = [argument for number, argument in enumerate(arguments) if number != place]
        return _checked(f"{name}()", factor * sum(self._all(others)))

    def _filter(self, arguments: Sequence[wall.Node]) -> float:
        *lists, condition = arguments or [{"class": "CONSTANT"}]
        if condition["class"] != "LAMBDA" or not lists:
            raise BadRequest("the condition filters a list by no lambda", hint="list_filter(tags, lambda x: x = 'a')")
        if any(part.get("class") == "LAMBDA" for part in wall.nodes(condition["expr"])):
            raise BadRequest("the condition has a lambda in a lambda", hint="Write it with one.")
        own = {str(name).lower() for ref in wall.nodes(condition["lhs"]) for name in ref.get("column_names", [])}
        around = {name: size * CHUNK for name, size in self._sizes.items()}
        _Growth(around | dict.fromkeys(own, 1.0), self._text_length).of(condition["expr"])
        return sum(self._all(lists))

    def _padded(self, name: str, arguments: Sequence[wall.Node]) -> float:
        length = _literal(arguments[1]) if len(arguments) > 1 and _is_constant(arguments[1]) else ""
        if not length.isdigit() or int(length) > PADDED:
            raise BadRequest(
                f"the condition calls {name}() with a length that is not a number up to {PADDED}", hint=_HINT
            )
        return _checked(f"{name}()", 1 + sum(self._all(arguments)))


def _checked(what: str, growth: float) -> float:
    if growth > MOST:
        raise BadRequest(
            f"the condition could build a value of {growth:,.0f} times the row's size, by {what}",
            hint=f"Up to {MOST} times are taken. {_HINT}",
        )
    return growth


def _is_constant(node: wall.Node) -> bool:
    return bool(node["class"] == "CONSTANT")


def _literal(node: wall.Node) -> str:
    return str((node.get("literal") or {}).get("text", ""))


def _is_plain_path(node: wall.Node) -> bool:
    path = _literal(node)
    return _is_constant(node) and "*" not in path and ".." not in path
