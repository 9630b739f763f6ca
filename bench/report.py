"""The table for people, and JSON for machines."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import Line


def show(lines: Sequence[Line]) -> None:
    """Print the table."""
    table = Table("what", "against", "ours", "baseline", "ratio", "reach", "reached")
    for line in lines:
        reached = "[green]yes[/green]" if line.reached else "[red]no[/red]"
        table.add_row(
            line.what,
            line.against,
            number(line.ours, line.unit),
            number(line.baseline, line.unit),
            f"{line.ratio:.2f}",
            str(line.reach),
            reached,
        )
    Console(width=None if os.isatty(1) else 160).print(table)


def number(value: float, unit: str) -> str:
    """A number that a person can read."""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def write(path: Path, lines: Sequence[Line], *, quick: bool) -> None:
    """Write the same as JSON, with what it was measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(lines, quick=quick), indent=2, ensure_ascii=False) + "\n")


def document(lines: Sequence[Line], *, quick: bool) -> dict[str, Any]:
    """Everything about a run."""
    return {
        "quick": quick,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("strandline", "pyspark", "duckdb", "pyarrow")},
        "lines": [line.to_json() for line in lines],
    }
