"""What may be asked of Spark by users who write SQL.

Two walls. The plan that Spark's parser makes is walked whole: not by `children` and `expressions`, which leave out
named windows and whatever else a node merely holds, but by every field of every node. Each class that turns up must be
on a list, each relation a table of the lake (or a name that the query itself gave), and each function on a list. Then
the plan that Spark has analysed is walked: besides the tables of the lake it may read from nothing that lies anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from strandline.engines.spark.classes import JavaObject
from strandline.errors import BadRequest, TooLarge, Unsupported, nearest
from strandline.views.spark_functions import FUNCTIONS, TABLE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT_BYTES = 256 * 1024
"""The longest statement."""
PARTS = 20_000
"""How many parts a plan may have: each costs a word with Java."""
ALONE = "A query sees the lake alone."

PLANS = frozenset(
    {
        "Aggregate", "Deduplicate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join",
        "LateralJoin", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "Pivot", "Project",
        "RepartitionByExpression", "Repartition", "Sample", "Sort", "SubqueryAlias", "Union", "UnresolvedHaving",
        "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases",
        "UnresolvedTVFAliases", "UnresolvedTableValuedFunction", "UnresolvedWith", "Unpivot", "Window", "UnionLoop",
        "WithWindowDefinition",
    }
)  # fmt: skip

EXPRESSIONS = frozenset(
    {
        "Add", "Alias", "And", "AttributeReference", "BaseGroupingSets", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
        "BitwiseXor", "CaseWhen", "Cast", "Coalesce", "Concat", "CreateArray", "CreateNamedStruct", "CreateStruct",
        "Cube", "CurrentDate", "CurrentTime", "CurrentTimestamp", "CurrentRow$", "DateAdd", "DateAddInterval",
        "DateSub", "Divide", "EqualNullSafe", "EqualTo", "Exists", "Extract", "GreaterThan", "GreaterThanOrEqual",
        "GroupingSets", "ILike", "In", "InSubquery", "IntegralDivide", "IsNotNull", "IsNotUnknown", "IsNull",
        "IsUnknown", "LambdaFunction", "LateralSubquery", "LessThan", "LessThanOrEqual", "Like", "LikeAll", "LikeAny",
        "ListQuery", "Literal", "LocalTimestamp", "Lower", "MultiAlias", "Multiply", "NamedArgumentExpression", "Not",
        "NotLikeAll", "NotLikeAny", "NullIf", "Or", "Overlay", "PipeExpression", "PipeOperator", "RLike", "Remainder",
        "Rollup", "ScalarSubquery", "ShiftLeft", "ShiftRight", "ShiftRightUnsigned", "SortOrder",
        "SpecifiedWindowFrame", "StringInstr", "StringLocate", "StringTrim", "StringTrimLeft", "StringTrimRight",
        "Substring", "Subtract", "TimestampAdd", "TimestampDiff", "TryCast", "UnaryMinus", "UnaryPositive",
        "UnboundedFollowing$", "UnboundedPreceding$", "UnresolvedAlias", "UnresolvedAttribute",
        "UnresolvedExtractValue",
        "UnresolvedFunction", "UnresolvedGenerator", "UnresolvedNamedLambdaVariable", "UnresolvedOrdinal",
        "UnresolvedRegex", "UnresolvedStar", "UnresolvedStarExceptOrReplace", "UnresolvedSubqueryColumnAliases",
        "UnresolvedWindowExpression", "UnspecifiedFrame$", "Upper", "WindowExpression", "WindowSpecDefinition",
        "WindowSpecReference",
    }
)  # fmt: skip

HELD = frozenset(
    {
        "AliasIdentifier", "Ascending$", "CalendarInterval", "CaseInsensitiveStringMap", "Cross$", "Descending$",
        "ExprId",
        "FullOuter$", "FunctionIdentifier", "GenericInternalRow", "Inner$", "JoinHint", "LeftAnti$", "LeftOuter$",
        "LeftSemi$", "Metadata", "NaturalJoin", "NullsFirst$", "NullsLast$", "RangeFrame$", "RightOuter$", "RowFrame$",
        "UTF8String", "UUID", "UnresolvedJoin", "UsingJoin", "NumericEvalContext",
    }
)  # fmt: skip
"""What nodes hold besides other nodes."""

LEAVES = frozenset({"CTERelationRef", "LocalRelation", "OneRowRelation", "Range", "UnionLoopRef", "EmptyRelation"})
"""Where the rows of an analysed plan may come from, besides the tables of the lake: from the query itself."""

ANALYSED = PLANS | frozenset(
    {"CTERelationDef", "Expand", "PipeOperator", "RebalancePartitions", "ResolvedHint", "WithCTE"}
)

REACHING = (
    "Reflect", "UDF", "UDAF", "UDTF", "Udf", "Aggregator", "InputFile", "CurrentUser", "CurrentDatabase",
    "CurrentCatalog",
    "SparkVersion", "Protobuf", "Avro", "XPath", "Xml", "VariableReference", "V2Expression", "ApplyFunction", "Xslt",
)  # fmt: skip
"""Parts of the names of expressions that call code, or tell of the process."""


def check_parsed(session: SparkSession, query: str, tables: Iterable[str]) -> set[str]:
    """The tables of the lake that a query reads; an error when it does anything else than read them."""
    size_bytes = len(query.encode("utf-8", "surrogatepass"))
    if size_bytes > TEXT_BYTES:
        raise TooLarge(f"the SQL has {size_bytes:,} bytes, and at most {TEXT_BYTES:,} are taken", hint="Write less.")
    try:
        plan = session._jsparkSession.sessionState().sqlParser().parsePlan(query)
    except Exception as error:
        raise BadRequest(f"can't parse the query: {first_line(error)}", hint="It is Spark's dialect.") from error
    walk = _SparkWalk({name.lower(): name for name in tables})
    walk.whole(plan)
    return walk.tables()


def check_analysed(plan: JavaObject, tables: Iterable[str]) -> None:
    """Refuse a plan that reads from anything but these tables of the lake, or whose expressions reach further."""
    names = {name.lower() for name in tables}
    left = [plan]
    while left:
        node = left.pop()
        kind = _kind(node)
        if kind == "View":
            if not node.isTempView() or node.desc().identifier().table().lower() not in names:
                raise Unsupported("the query reads from another relation than the lake's", hint=ALONE)
            continue
        children = _listed(node.children())
        if kind not in LEAVES and (kind not in ANALYSED or not (children or _listed(node.innerChildren()))):
            raise Unsupported(f"the query reads from {kind}, which is not the lake's", hint=ALONE)
        left += [*children, *_listed(node.innerChildren()), *_listed(node.subqueries())]
        _check_expressions(_listed(node.expressions()))


def first_line(error: Exception) -> str:
    """The first line of what Java or Spark says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _check_expressions(expressions: list[JavaObject]) -> None:
    left = expressions
    while left:
        expression = left.pop()
        kind = _kind(expression)
        if any(part in kind for part in REACHING):
            raise Unsupported(f"the query has {kind}, which reaches out of the lake", hint=ALONE)
        left += _listed(expression.children())


class _SparkWalk:
    """One pass over all that a parsed plan holds."""

    def __init__(self, tables_by_name: dict[str, str]) -> None:
        self._tables = tables_by_name
        self._own: set[str] = set()
        self._named: list[list[str]] = []
        self._seen = 0

    def whole(self, plan: JavaObject) -> None:
        """Look at every part; what is not on a list is refused."""
        left = [plan]
        while left:
            part = left.pop()
            self._seen += 1
            if self._seen > PARTS:
                raise BadRequest("the query has too many parts", hint="Write it shorter.")
            if hasattr(part, "getClass"):
                left += self._parts_of(part)

    def tables(self) -> set[str]:
        """The tables that were named; an error if one of them is not the lake's, nor the query's own."""
        tables: set[str] = set()
        for parts in self._named:
            name = parts[0].lower()
            if len(parts) != 1 or name not in self._tables.keys() | self._own:
                raise BadRequest(
                    f"there is no table {'.'.join(parts)!r} in this lake",
                    hint=nearest(parts[-1], self._tables.values()),
                )
            if name in self._tables:
                tables.add(self._tables[name])
        return tables

    def _parts_of(self, part: JavaObject) -> list[JavaObject]:
        kind, package = _kind(part), part.getClass().getPackageName()
        if package == "scala" or package.startswith("scala."):
            return _held_by(part, kind)
        if package == "org.apache.spark.sql.types":
            return []
        if kind not in PLANS | EXPRESSIONS | HELD:
            raise Unsupported(f"only a single query can be run here, and this has {kind}", hint="Write one SELECT.")
        self._check(part, kind)
        return [] if kind in HELD and kind not in ("UsingJoin", "NaturalJoin") else _fields(part)

    def _check(self, part: JavaObject, kind: str) -> None:
        match kind:
            case "UnresolvedRelation":
                self._named.append(_listed(part.multipartIdentifier()))
                if not part.options().isEmpty() or part.isStreaming():
                    raise Unsupported("a table can't be read with options, nor as a stream", hint=ALONE)
            case "UnresolvedWith":
                self._own |= {str(entry.productElement(0)).lower() for entry in _listed(part.cteRelations())}
            case "UnresolvedFunction":
                _check_name(_listed(part.nameParts()), FUNCTIONS, "function")
            case "UnresolvedTableValuedFunction":
                _check_name(_listed(part.name()), TABLE_FUNCTIONS, "table function")
            case "UnresolvedGenerator":
                parts = [*_optional(part.name().catalog()), *_optional(part.name().database()), part.name().funcName()]
                _check_name(parts, TABLE_FUNCTIONS, "generator")


def _check_name(parts: list[str], allowed: frozenset[str], what: str) -> None:
    if len(parts) != 1 or parts[0].lower() not in allowed:
        raise Unsupported(f"the {what} {'.'.join(parts)!r} can't be used here", hint=ALONE)


def _held_by(part: JavaObject, kind: str) -> list[JavaObject]:
    """What a collection of Scala's holds; any other thing of Scala's is a value, or a function, which no plan needs."""
    if kind.startswith("Tuple") or kind in ("Some", "Left", "Right"):
        return _fields(part)
    if kind in ("None$", "Enumeration$Val", "BigDecimal", "BigInt"):
        return []
    if "Function" in kind or "Lambda" in kind or "anonfun" in kind:
        raise Unsupported("the query names things by expressions", hint="Write the names themselves.")
    return list(_iterated(part))


def _fields(part: JavaObject) -> list[JavaObject]:
    return [part.productElement(place) for place in range(part.productArity())]


def _iterated(collection: JavaObject) -> Iterator[JavaObject]:
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _optional(option: JavaObject) -> list[str]:
    return [str(option.get())] if option.isDefined() else []


def _kind(part: JavaObject) -> str:
    """A class by its own name; an object of Scala's has a $ behind it."""
    return str(part.getClass().getName()).rsplit(".", 1)[-1]


def _listed(sequence: JavaObject) -> list[JavaObject]:
    return [sequence.apply(place) for place in range(sequence.size())]
