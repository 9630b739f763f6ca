"""What commands print with --json is held to docs/documents.json, wherever a test reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from strandline.cli.session import hoist
from strandline.lake import operations

MAINTENANCE = "maintenance"
STORED = Path(__file__).parents[1] / "docs" / "documents.json"


def faults(arguments: Sequence[str], document: Any) -> list[str]:
    """Where a document is not as the page says; nothing for a line that asked for none, or names no command."""
    command = command_of(arguments)
    if "--json" not in arguments or command is None:
        return []
    is_error = isinstance(document, dict) and set(document) == {"error"}
    validator = _validator("error" if is_error else command)
    return [f"{command}: {error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def command_of(arguments: Sequence[str]) -> str | None:
    """The command that a line names, as the page does: one word or two."""
    _, line = hoist(arguments)  # without the flags of every command, and their values
    if line and line[0] in operations.listed():
        return MAINTENANCE
    return next((name for name in (" ".join(line[:2]), line[0] if line else "") if name in _page()["commands"]), None)


@cache
def _page() -> Any:
    return json.loads(STORED.read_text(encoding="utf-8"))


@cache
def _validator(name: str) -> Any:
    from jsonschema import Draft202012Validator

    schema = _page()["error"] if name == "error" else _page()["commands"][name]
    return Draft202012Validator({**schema, "$defs": _page()["$defs"]})
