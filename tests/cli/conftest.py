"""`strand` in this process, which is quick, with its streams caught; real processes where only they will do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.create import create
from strandline.lake import Lake
from tests.kit import Ran, call

SOURCES = str(Path(__file__).parents[2] / "src")


Strand = Callable[..., Ran]


def process(
    *arguments: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a command line in a process of its own."""
    return subprocess.run(
        command(*arguments), input=stdin, env=environment(**(env or {})), capture_output=True, timeout=180, check=False,
        **options,
    )  # fmt: skip


def command(*arguments: str | Path) -> list[str]:
    """The real command."""
    return [sys.executable, "-m", "strandline", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """Ours, with the sources on the path."""
    return {**os.environ, "PYTHONPATH": SOURCES, **more}


@pytest.fixture
def root(tmp_path: Path, places: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake with a table of messages and three rows, which every command finds by itself."""
    with create(tmp_path / "lake", **places()) as lake:
        lake.create_table(
            "messages",
            {"id": "string", "n": "long?", "small": "int?", "x": "double?", "ts": "timestamp?", "body": "string?"},
            row_key=["id"],
        )
        lake.append("messages", [{"id": str(n), "n": n, "body": f"body {n}"} for n in range(3)], actor="fixture")
    monkeypatch.setenv("STRAND_LAKE", str(tmp_path / "lake"))
    yield tmp_path / "lake"


@pytest.fixture
def strand(root: Path) -> Strand:
    """Run a command on the lake of this test."""
    return call


def lines(*rows: Any) -> bytes:
    """Rows as JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def content(root: Path) -> list[tuple[Any, ...]]:
    """Everything a reader can see, and where the counter stands."""
    with Lake(root, read_only=True) as lake:
        view = lake.view()
        rows = [
            row
            for name in view.tables
            for row in view.sql(f"select *, _seq, _at, _actor from {name} order by _seq").rows()
        ]
        return [*rows, tuple(view.branch_table(name).head.last_seq for name in view.tables)]


@pytest.fixture
def unchanged(root: Path) -> Iterator[None]:
    """Whatever the test does, the lake is as it was before."""
    before = content(root)
    yield
    assert content(root) == before
