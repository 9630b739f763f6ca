"""Packages beside ours: what `pip install` would leave of them on the path, made in a folder."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from strandline.sinks import registry

PAGE = Path(__file__).parents[1] / "docs" / "own-sinks.md"


def blocks(language: str) -> list[str]:
    """The page's examples in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def install(monkeypatch: pytest.MonkeyPatch, site: Path, name: str, entries: Mapping[str, str], **modules: str) -> Path:
    """Put a distribution with entry points for types of sinks onto the path; it is gone again after the test."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{registry.GROUP}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text, encoding="utf-8")
    if str(site) not in sys.path:
        monkeypatch.syspath_prepend(site)
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    look_anew()
    return info


def look_anew() -> None:
    """Forget which packages were there."""
    importlib.invalidate_caches()
    registry._brought.cache_clear()


def install_shelf(monkeypatch: pytest.MonkeyPatch, site: Path, code: str | None = None) -> Path:
    """The package of the page, or another one in its place."""
    (project,) = map(tomllib.loads, blocks("toml"))
    entries = project["project"]["entry-points"][registry.GROUP]
    return install(monkeypatch, site, project["project"]["name"], entries, strand_shelf=code or blocks("python")[0])
