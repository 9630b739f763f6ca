"""The page about keyed tables runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strandline import create

PAGE = Path(__file__).parents[2] / "docs" / "branches.md"


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new lake, as it is written, and with what it says at the end."""
    create.create(tmp_path / "lake").close()
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(code + "    rows = lake.view().table('person').to_pylist()\n    commits = lake.log()\n", names)
    assert names["rows"] == [{"id": "a", "name": "Ann", "age": 30}]
    assert names["commits"][0] == names["commit"]  # type: ignore[index]
