"""The README's first steps are run as they are written, and what they show is compared with what they print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit import free_port

ROOT = Path(__file__).parents[2]
PORT = str(free_port())
README = (ROOT / "README.md").read_text()


@dataclass(frozen=True)
class Step:
    """A fenced block to run, and the lines that the block after it shows."""

    language: str
    code: str
    shown: tuple[str, ...]
    line: int


def section(title: str) -> tuple[str, int]:
    """The text of a section of second level, and the line it begins at."""
    start = README.index(f"\n## {title}\n")
    end = README.find("\n## ", start + 1)
    return README[start : end if end != -1 else None], README[:start].count("\n") + 1


def steps() -> list[Step]:
    """The blocks that run, in order."""
    return steps_of(*section("First steps"))


def steps_of(text: str, offset: int) -> list[Step]:
    """The same of any text, which begins at a line."""
    blocks = [
        (match[1], match[2], offset + text[: match.start()].count("\n"))
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    found: list[Step] = []
    for at, (language, code, line) in enumerate(blocks):
        if language in ("bash", "python"):
            follows = blocks[at + 1] if at + 1 < len(blocks) else ("", "", 0)
            shown = tuple(follows[1].splitlines()) if follows[0] == "text" else ()
            found.append(Step(language, code, shown, line))
    return found


def run(step: Step, folder: Path) -> tuple[Path, str]:
    """Run a block where the one before it ended; returns where this one ended, and what it printed."""
    where = folder.parent / "where"
    where.write_text(str(folder))
    code = f'{step.code}\npwd > "{where}"\n'
    command = ["bash", "-euo", "pipefail", "-c", code] if step.language == "bash" else [sys.executable, "-c", step.code]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {key: value for key, value in os.environ.items() if key not in ("STRAND_LAKE", "STRAND_FAILPOINTS")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"PATH": path, "PORT": PORT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"README.md, the block at line {step.line}:\n{step.code}\nprinted\n{done.stdout}"
    return Path(where.read_text().strip()), done.stdout


def missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first shown line that was not printed, in order; `…` stands for anything."""
    lines = iter(printed.splitlines())
    for line in shown:
        pattern = re.compile(".*".join(re.escape(piece) for piece in line.rstrip().split("…")))
        if not any(pattern.fullmatch(candidate.rstrip()) for candidate in lines):
            return line
    return None


def test_the_first_steps_run_and_print_what_the_readme_shows(tmp_path: Path) -> None:
    """A newcomer who types what is written sees what is written."""
    folder = tmp_path / "empty"
    folder.mkdir()
    found = steps()
    assert len(found) >= 10, "the blocks of the first steps were not found"
    server = folder / "central.pid"
    try:
        for step in found:
            folder, printed = run(step, folder)
            line = missing(step.shown, printed)
            assert line is None, (
                f"README.md, the block at line {step.line}: {line!r} is shown, and was not printed:\n{printed}"
            )
    finally:  # the last steps stop the server that they start, unless they were not reached
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(int(server.read_text()), signal.SIGTERM)


@pytest.mark.parametrize(("shown", "found"), [(("a…c", "d"), None), (("d", "abc"), "abc"), (("ab",), "ab")])
def test_a_shown_line_must_be_printed_in_its_place(shown: tuple[str, ...], found: str | None) -> None:
    """The check itself: whole lines, in order, with `…` for what differs from run to run."""
    assert missing(shown, "abc\nd\n") == found


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_between_documents_lead_somewhere(document: str) -> None:
    """A relative link names a file of the project."""
    text = (ROOT / document).read_text()
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", text)
    assert [target for target in targets if not (ROOT / target).exists()] == []
