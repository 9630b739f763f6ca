"""Log lines, for the operator of a lake.

Most commands never log anything, and structlog takes a noticeable part of their time to import. So it is imported with
the first line that is really written. A Python program that configures structlog gets every line there; without that,
warnings go to stderr and the rest nowhere, because stdout belongs to the answer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from strandline.redaction import redacted_fields

Format = Literal["text", "json"]

_format: Format = "text"
_is_answering = False


@dataclass(frozen=True)
class Logger:
    """A named source of log lines; every line about an operation carries its id as `op`."""

    name: str

    def info(self, event: str, **fields: object) -> None:
        """What happened, for a record; kept only by a process that asked for it."""
        if _format == "json" or _is_configured():
            _write("info", self.name, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """What a person may want to look at."""
        _write("warning", self.name, event, fields)

    def outcome(self, event: str, **fields: object) -> None:
        """The same, of what the answer of a command says too: a person at a terminal is not told twice."""
        if not _is_answering or _format == "json" or _is_configured():
            self.warning(event, **fields)


def set_format(log_format: Format, *, is_answering: bool = False) -> None:
    """How lines look on stderr from now on: warnings as text, or everything as JSON.

    A process that `is_answering` ends with an answer for a person, which says what became of each thing.
    """
    global _format, _is_answering
    _format, _is_answering = log_format, is_answering


def _is_configured() -> bool:
    """Whether the program has told structlog where lines go."""
    is_configured = getattr(sys.modules.get("structlog"), "is_configured", None)
    return is_configured is not None and bool(is_configured())  # None also while another thread is importing it


def _write(level: str, name: str, event: str, fields: dict[str, object]) -> None:
    import structlog

    fields = redacted_fields(fields)
    if _is_configured():
        getattr(structlog.get_logger(name), level)(event, **fields)
        return
    line = {"event": event, "level": level, "logger": name, **fields}
    structlog.processors.TimeStamper(fmt="iso", utc=True)(None, level, line)
    if _format == "json":
        print(structlog.processors.JSONRenderer()(None, level, line), file=sys.stderr)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        print(renderer(None, level, line), file=sys.stderr)
