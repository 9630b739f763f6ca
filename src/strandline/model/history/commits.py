"""Commits: what changed logically, by which actor, and on top of what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MERGE = "merge"
"""The kind of a commit with two parents, the first of them the target's."""


@dataclass(frozen=True)
class Commit:
    """One commit. Its own `seq` orders it among all that the lake has recorded; `tables` counts the rows it wrote."""

    commit_id: str
    branch: str
    kind: str
    actor: str
    message: str
    seq: int
    at_us: int
    parents: tuple[str, ...]
    tables: Mapping[str, int]
