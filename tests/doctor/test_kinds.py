"""The kinds of findings are a contract with scripts."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_docs_list_every_kind_of_finding() -> None:
    """docs/operations.md and the checks agree, in both directions."""
    sources = [path.read_text() for path in (ROOT / "src" / "strandline" / "reports").glob("*.py")]
    made = {
        kind
        for text in sources
        for kind in re.findall(r'kind="(\w+)"|_g(?:one|arbage)\(\s*(?:branch_table, )?"(\w+)"', text)
    }
    kinds = {one for pair in made for one in pair if one}
    chapter = (ROOT / "docs" / "operations.md").read_text().split("## Doctor")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", chapter, re.MULTILINE)
    assert {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} == kinds
