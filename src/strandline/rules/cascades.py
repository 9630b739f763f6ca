"""Cascades: the rows that go with one that a statement deletes, decided at that statement.

A row that is deleted and put again in one mutation is another row by then: what referred to the old one has gone with
it, and what refers to the new one was put after it. So what goes is decided by what is there at the statement, not by
what is left at the end; the rules are judged at the end. Loads, merges and purges never cascade.

Rows are looked up for all statements at once, and for what follows from them level by level: a look at the branch costs
more than the rows that it finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from strandline.model.schema.constraints import Reference
from strandline.model.schema.declarations import Declarations, Link
from strandline.model.values.row_versions import ValueHolder
from strandline.rules.changes import Changes, Claims, JudgedRow, LookUp, Values, key_values, values_of

_Which: TypeAlias = tuple[str, Reference]
"""A reference, by the table that makes it."""


class Cascades:
    """What refers to the rows that a mutation deletes, while its statements are applied to `changes`."""

    def __init__(self, declared: Declarations, changes: Changes, look: LookUp, claims: Claims) -> None:
        self._declared = declared
        self._changes = changes
        self._look = look
        self._claims = claims
        self._stored: dict[_Which, dict[Values, list[ValueHolder]]] = {}
        self._given: dict[_Which, dict[Values, dict[bytes, None]]] = {}

    def expect(self, deletes: Iterable[JudgedRow]) -> None:
        """Look up what refers to rows that statements delete, and what refers to that."""
        waiting: dict[str, list[Values]] = {}
        for change in deletes:
            waiting.setdefault(change.branch_table.table.table_id, []).append(key_values(change.key))
        while waiting:
            table_id, keys = waiting.popitem()
            for link in self._links_to(table_id):
                rows = self._look_up(link, keys)
                if rows:
                    waiting.setdefault(link.source.table.table_id, []).extend(key_values(row.key) for row in rows)

    def note(self, change: JudgedRow) -> None:
        """Remember what a row refers to after a statement: a later one may delete that."""
        for link in self._declared.links_from(change.branch_table.table.table_id):
            if link.reference.on_delete == "cascade":
                (value,) = values_of([change.after], link.source, link.reference.columns)
                if value is not None:
                    self._given.setdefault(_which(link), {}).setdefault(value, {})[change.hash] = None

    def follow(self, deleted: JudgedRow) -> None:
        """Delete what refers to a row that a statement has just deleted, and what refers to that."""
        waiting = [deleted]
        while waiting:
            gone = waiting.pop()
            for link in self._links_to(gone.branch_table.table.table_id):
                for row in list(self._referring(link, key_values(gone.key))):
                    row.after = None
                    waiting.append(row)

    def _links_to(self, table_id: str) -> list[Link]:
        return [link for link in self._declared.links_to(table_id) if link.reference.on_delete == "cascade"]

    def _look_up(self, link: Link, keys: Iterable[Values]) -> list[ValueHolder]:
        """The stored rows that refer to keys which were not looked up yet."""
        rows_by_key = self._stored.setdefault(_which(link), {})
        unknown = [key for key in dict.fromkeys(keys) if key not in rows_by_key]
        if not unknown:
            return []
        columns = link.reference.columns
        self._claims.read(link.source, "reference", columns, unknown)
        rows = self._look.having(link.source, columns, unknown)
        rows_by_key.update((key, []) for key in unknown)
        for row in rows:
            rows_by_key[row.value].append(row)
        self._look.ask(link.source, {row.hash: row.key for row in rows})
        return rows

    def _referring(self, link: Link, key: Values) -> Iterator[JudgedRow]:
        """The rows that refer to a key now: stored ones, as statements so far have left them, and those they gave."""
        self._look_up(link, [key])
        table_id, columns = link.source.table.table_id, link.reference.columns
        stored = {row.hash: row for row in self._stored[_which(link)][key]}
        for row_hash in {**stored, **self._given.get(_which(link), {}).get(key, {})}:
            change = self._changes.get((table_id, row_hash))
            if change is None:
                version = self._look.get(table_id, row_hash)
                # Not there: it came after what this commit starts from, and the claim that was read tells.
                if version is None or version.row is None:
                    continue
                change = JudgedRow(link.source, row_hash, stored[row_hash].key, version.row, version.row)
                self._changes[change.at] = change
            if values_of([change.after], link.source, columns)[0] == key:
                yield change


def _which(link: Link) -> _Which:
    return link.source.table.table_id, link.reference
