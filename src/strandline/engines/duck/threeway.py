"""The three-way merge of rows, as one query: what a side changed, against what the other has and what both began with.

Values are compared by DuckDB, so a merge of many rows costs one scan of them and no Python for each; `equality` says
what is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.engines.duck.compare import differences
from strandline.engines.duck.equality import differ, same
from strandline.engines.duck.sandbox import interruptible, quote_name, quote_text, scratch
from strandline.model.schema.types import REMOVED

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

VERDICT, UNDECIDED, FIELDS = "strand_verdict", "strand_found", "strand_fields"
"""What becomes of a row; what it would be if no side decided; the fields that differ."""

BLENDED = "blended"
TAKEN, STAYS = "taken", "stays"
"""The verdicts on a row that is written and on one that stays as the target has it; any other one names a conflict."""

CHANGED = "theirs"
PRESENT = "ours"
BEFORE = "base"
"""The three relations: the rows that the source changed, the target's rows with these keys, and their rows at the base.

A row that is not in one of them was not there; in the first, `_removed` says so.
"""


def merge_rows(
    connection: duckdb.DuckDBPyConnection,
    sides: Mapping[str, pa.Table],
    both: pa.Table,
    choices: pa.Table,
    key: Sequence[str],
    values: Sequence[str],
) -> pa.Table:
    """What becomes of each row that the source changed, but for those that are the same on both sides.

    `both` are the keys that the target changed too, with a column `unsure` where there is more than one base and they
    differ; of all others the base has what the target has. `choices` says whose side decides a conflict, where one
    does: columns of the key, and `side`.
    """
    for name, rows in [*sides.items(), ("both", both), ("choices", choices)]:
        connection.register(f"strand_{name}", rows)
    with interruptible():
        types = [sides[CHANGED].schema.field(name).type for name in values]
        return connection.sql(_Query(key, values, types).text()).to_arrow_table()


def shared_keys(keys: pa.Table, others: pa.Table) -> pa.Table:
    """The keys that are in both; the tables have the key's columns alone."""
    with scratch() as connection:
        connection.register("strand_keys", keys)
        connection.register("strand_others", others.cast(keys.schema))
        return connection.sql(
            f"SELECT * FROM strand_keys SEMI JOIN strand_others {_using(keys.schema.names)}"
        ).to_arrow_table()


def shared_rows(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """The rows that have one of these keys."""
    return _joined("SEMI", rows, keys)


def other_keys(keys: pa.Table, others: pa.Table) -> pa.Table:
    """The keys that are not among the others."""
    return _joined("ANTI", keys, others)


def _joined(how: str, rows: pa.Table, keys: pa.Table) -> pa.Table:
    with scratch() as connection:
        connection.register("strand_rows", rows)
        connection.register("strand_keys", keys)
        query = f"SELECT * FROM strand_rows {how} JOIN strand_keys {_using(keys.schema.names)}"
        return connection.sql(query).to_arrow_table().cast(rows.schema)


def differing_keys(left: pa.Table, other: pa.Table, key: Sequence[str]) -> pa.Table:
    """The keys of rows that are not the same in both."""
    values = [name for name in left.schema.names if name not in key]
    return differences(left, other, key, values).select(list(key))


def _using(names: Sequence[str]) -> str:
    return f"USING ({', '.join(map(quote_name, names))})"


@dataclass(frozen=True)
class _Query:
    """The query over the three relations; fields go by their places among the `values`."""

    key: Sequence[str]
    values: Sequence[str]
    types: Sequence[pa.DataType]

    def text(self) -> str:
        key, values = self.key, self.values
        on = _using(key)
        first = quote_name(key[0])
        images = [
            f"coalesce(NOT s.{REMOVED}, false) AS s_there",
            f"p.{first} IS NOT NULL AS p_there",
            f"CASE WHEN x.{first} IS NULL THEN p.{first} ELSE b.{first} END IS NOT NULL AS b_there",
            f"x.{first} IS NOT NULL AND coalesce(x.unsure, false) AS unsure",
            "c.side AS side",
        ]
        for place, name in enumerate(map(quote_name, values)):
            base = f"CASE WHEN x.{first} IS NULL THEN p.{name} ELSE b.{name} END"
            images += [f"s.{name} AS s_{place}", f"p.{name} AS p_{place}", f"{base} AS b_{place}"]
        joined = (
            f"SELECT {', '.join(f's.{quote_name(name)}' for name in key)}, {', '.join(images)} FROM strand_{CHANGED} s "
            f"LEFT JOIN strand_{PRESENT} p {on} LEFT JOIN strand_both x {on} "
            f"LEFT JOIN strand_{BEFORE} b {on} LEFT JOIN strand_choices c {on}"
        )
        places = range(len(values))
        clashing = [self._clash(place) for place in places]
        fields = ", ".join(f"CASE WHEN {clashing[place]} THEN {quote_text(values[place])} END" for place in places)
        judged = f"""
            SELECT *, s_there AND p_there AS two_there, CASE
                WHEN {self._same("s", "p", places)} THEN 'same'
                WHEN unsure THEN 'divergent_update'
                WHEN {self._same("s", "b", places)} THEN 'same'
                WHEN {self._same("p", "b", places)} THEN '{TAKEN}'
                WHEN NOT b_there THEN 'divergent_insert'
                WHEN NOT s_there OR NOT p_there THEN 'delete_vs_update'
                WHEN {" OR ".join(clashing) or "false"} THEN 'divergent_update'
                ELSE '{BLENDED}' END AS found
            FROM ({joined})"""
        whole = "(found IN ('divergent_insert', 'delete_vs_update') OR (found = 'divergent_update' AND NOT two_there))"
        by_field = "(side IS NOT NULL AND found = 'divergent_update' AND two_there)"
        decided = f"""
            SELECT *, CASE
                WHEN found = '{BLENDED}' OR {by_field} THEN '{TAKEN}'
                WHEN side = 'theirs' AND {whole} THEN '{TAKEN}'
                WHEN side = 'ours' AND {whole} THEN '{STAYS}'
                ELSE found END AS {VERDICT}
            FROM ({judged}) WHERE found <> 'same'"""
        listed = f"list_filter([{fields}], lambda field: field IS NOT NULL)" if values else "[]::VARCHAR[]"
        unchanged = " AND ".join(self._equal(self._value(place), f"p_{place}", place) for place in places) or "true"
        stays = f"CASE WHEN {VERDICT} = '{TAKEN}' AND two_there AND {unchanged} THEN '{STAYS}' ELSE {VERDICT} END"
        columns = [quote_name(name) for name in key]
        columns += [f"{self._value(place)} AS {quote_name(name)}" for place, name in enumerate(values)]
        return f"""
            SELECT {", ".join(columns)}, NOT s_there AS {REMOVED}, found AS {UNDECIDED},
                {stays} AS {VERDICT},
                CASE WHEN two_there THEN {listed} ELSE [] END AS {FIELDS}
            FROM ({decided}) ORDER BY {", ".join(map(quote_name, key))}"""

    def _same(self, left: str, other: str, places: range) -> str:
        equal = " AND ".join(self._equal(f"{left}_{place}", f"{other}_{place}", place) for place in places) or "true"
        return f"({left}_there = {other}_there AND (NOT {left}_there OR ({equal})))"

    def _clash(self, place: int) -> str:
        """Whether both sides changed a field, each to another value; without a base to go by, whether they differ."""
        ours, theirs, base = f"p_{place}", f"s_{place}", f"b_{place}"
        type_ = self.types[place]
        changed = f"{differ(theirs, base, type_)} AND {differ(ours, base, type_)}"
        return f"({differ(theirs, ours, type_)} AND (unsure OR NOT b_there OR ({changed})))"

    def _value(self, place: int) -> str:
        """A field of the row that is written: the source's, unless only the target changed it or its side decides."""
        stays = f"{self._equal(f's_{place}', f'b_{place}', place)} AND b_there AND p_there AND NOT unsure"
        ours = f"two_there AND side = 'ours' AND {self._clash(place)}"
        return f"CASE WHEN ({stays}) OR ({ours}) THEN p_{place} ELSE s_{place} END"

    def _equal(self, left: str, other: str, place: int) -> str:
        return same(left, other, self.types[place])
