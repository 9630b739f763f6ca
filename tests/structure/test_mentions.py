"""What no file of the repository may mention: somebody's machine, somebody's registry, work left for later."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.structure.source import ROOT

# Written so that this file does not find itself.
FORBIDDEN = {
    "a path of somebody's machine": re.compile(
        r"(?<![\w.}~*/-])/(?:root|work|home/[a-z]\w*|Users/[A-Za-z]\w*)(?:/|\b)"
    ),
    "a package registry": re.compile(
        r"(?:pythonhosted|(?:test\.)?pypi|repo1?\.maven(?:\.apache)?|registry\.npmjs|\bghcr|(?:[\w-]+\.)?(?:artifactory"
        r"|jfrog|codeartifact|sonatype)[\w.-]*)\.(?:org|com|io)\b"
        r"|--?(?:extra-)?index[-]url\b|--trusted[-]host\b|[\w-]+\.(?:internal|corp|lan)(?::\d+|/)",
        re.IGNORECASE,
    ),
    "work left for later": re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|NotImplemented[E]rror|x[f]ail)\b"),
}


def mentions(text: str) -> list[tuple[int, str, str]]:
    """Each forbidden thing in a text: its line, what it is, and its words."""
    return [
        (number, what, match[0])
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        for match in pattern.finditer(line)
    ]


def repository() -> list[Path]:
    """What is tracked, and what would be after `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is not a clone, so nobody knows what is tracked")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file() and path.name != "LICENSE"]


def test_no_file_mentions_what_it_must_not() -> None:
    """It would not work on another machine, tells where it was made, or says that something is not finished."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}: {words}"
        for path in repository()
        for line, what, words in mentions(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        'LAKE = "/ro' + 'ot/lake"',
        "cd /wo" + "rk/main",
        "/ho" + "me/ann/lake",
        "(/Us" + "ers/Ann/lake)",
        "--index" + "-url https://example.org/simple",
        "https://files.python" + "hosted.org/packages/x",
        "https://repo1.mav" + "en.org/maven2",
        "https://acme.jf" + "rog.io/artifact",
        "http://mirror.in" + "ternal/simple",
        "# TO" + "DO: later",
        "raise NotImplemented" + "Error",
        "@pytest.mark.x" + "fail",
    ],
)
def test_a_mention_is_found(planted: str) -> None:
    assert len(mentions(planted)) == 1


@pytest.mark.parametrize(
    "fine",
    ["/usr/lib/jvm/*", "tmp_path / 'work' / 'out'", "make PYTHON=/path/to/python3.12", "homework/rootless", "~/.m2"],
)
def test_other_words_are_not(fine: str) -> None:
    assert mentions(fine) == []
