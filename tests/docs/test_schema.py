"""The page about schema changes runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from strandline import create
from strandline.lake import Lake

PAGE = (Path(__file__).parents[2] / "docs" / "schema.md").read_text()


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a new lake, as it is written, and with what it says at the end."""
    create.create(tmp_path / "lake").close()
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert "person make required age needs validation" in capsys.readouterr().out
    with Lake(tmp_path / "lake", read_only=True) as lake:
        people = lake.view().table("person").to_pylist()
    assert people == [{"id": "a", "called": "Ann", "age": 0}, {"id": "b", "called": "Bob", "age": 0}]


def test_the_document_of_the_page_is_one(lake: Lake) -> None:
    """It is planned as it is written, by way of all that it changes."""
    lake.create_table("person", {"id": "string", "name": "string?", "age": "long?"}, key=["id"])
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert [step.what for step in lake.schema_apply(json.loads(text)).steps] == [
        "rename name to", "make required", "add column", "add range(age: 0..150)",
    ]  # fmt: skip
