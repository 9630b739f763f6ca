"""What a ledger that went back has taken with it, by name: the oracle holds nobody else to it.

Rows that were acked after a backup are gone from the log when that is restored. They are known, because the log is read
before and after, while nobody writes. A destination may have got such a row or not, but not twice; and a row that came
back with a later backup is a row like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strandline.lake import Lake
from tests.soak.scene import LISTS, TABLES, TIMED

VERSION = ["id", "changes", "_removed", "_commit", "_seq"]


@dataclass(frozen=True)
class Contents:
    """All that a lake holds: ids of rows by table, versions of the lists on main, and tokens on any branch."""

    rows: Mapping[str, Counter[str]]
    versions: frozenset[tuple[Any, ...]] = frozenset()
    tokens: frozenset[str] = frozenset()


def read_contents(root: Path) -> Contents:
    """Read a lake that nobody writes to at the moment."""
    with Lake(root, read_only=True) as lake:
        view = lake.view()
        rows = {table: Counter(i for (i,) in view.sql(f"select part_id from {table}").rows()) for table in TABLES}
        versions = view.sql(f'select {", ".join(VERSION)} from "{LISTS}$log"').rows()
        lists = [lake.view(branch.name).sql(f"select tokens from {LISTS}").rows() for branch in lake.branches()]
    tokens = frozenset(token for branch in lists for (tokens,) in branch for token in tokens)
    return Contents(rows, frozenset(versions), tokens)


@dataclass
class Losses:
    """What is gone now, and what was ever gone for a while."""

    rows: dict[str, set[str]] = field(default_factory=lambda: {table: set() for table in TABLES})
    tokens: set[str] = field(default_factory=set)
    ever_rows: dict[str, set[str]] = field(default_factory=lambda: {table: set() for table in TABLES})
    ever_versions: set[tuple[Any, ...]] = field(default_factory=set)
    holes: dict[str, set[str]] = field(default_factory=dict)
    """By destination: rows of the timed table that were acked when it was last put back. Those of them that retention
    had removed from the log by then nobody can send again."""

    def went_back(self, before: Contents, after: Contents) -> int:
        """A ledger held this before and holds that now; returns how many rows went."""
        gone = 0
        for table in TABLES:
            lost = before.rows[table].keys() - after.rows[table].keys()
            gone += len(lost)
            self.ever_rows[table] |= lost
            self.rows[table] = (self.rows[table] | lost) - after.rows[table].keys()
        self.tokens = (self.tokens | before.tokens) - after.tokens
        self.ever_versions |= before.versions - after.versions
        return gone

    def copy_of_rows(self) -> dict[str, set[str]]:
        """What is gone now, kept for later."""
        return {table: set(ids) for table, ids in self.rows.items()}

    def put_back(self, destination: str, acked: Mapping[str, set[str]]) -> None:
        """A destination holds what it held some time ago."""
        self.holes[destination] = set(acked[TIMED])
