"""The commands of docs/backup.md are run as they are written, and what they show is compared with what they print."""

from __future__ import annotations

from pathlib import Path

from tests.docs.test_readme import ROOT, missing, run, steps_of


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """Who types what is written gets the lake back."""
    folder = tmp_path / "empty"
    folder.mkdir()
    found = steps_of((ROOT / "docs" / "backup.md").read_text(), 0)
    assert len(found) == 4
    for step in found:
        folder, printed = run(step, folder)
        line = missing(step.shown, printed)
        assert line is None, f"docs/backup.md, line {step.line}: {line!r} is shown, and was not printed:\n{printed}"
