"""What the tests of keyed tables share."""

from __future__ import annotations

from typing import Any

from strandline.lake import Lake

PEOPLE = {"id": "string", "name": "string?", "age": "long?", "tags": "list<string>?", "note": "json?"}


def make_people(lake: Lake, name: str = "person", **options: Any) -> None:
    """A keyed table of people."""
    lake.create_table(name, PEOPLE, key=["id"], **options)


def people(lake: Lake, columns: str = "id, name, age", table: str = "person") -> list[tuple[Any, ...]]:
    """The current rows, by key."""
    found: list[tuple[Any, ...]] = lake.view().sql(f"select {columns} from {table} order by id").rows()
    return found


def versions(lake: Lake, columns: str = "id, name, age, _removed", table: str = "person") -> list[tuple[Any, ...]]:
    """Every version, in the order in which they were written."""
    found: list[tuple[Any, ...]] = lake.view().sql(f'select {columns} from "{table}$log" order by _seq').rows()
    return found
