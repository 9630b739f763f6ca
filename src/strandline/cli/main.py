"""`strand`: parse, call, print; and one place where errors become messages and exit codes.

A message on stderr (or the error document on stdout, with `--json`) says what happened and what to do. A traceback is
for developers, and they ask for it with `--debug`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer

from strandline.cli import output
from strandline.cli.app import Interrupted, PipeClosed, app
from strandline.cli.interrupts import interrupts_kept
from strandline.cli.session import Session, hoist
from strandline.errors import ErrorRecord, in_our_words
from strandline.model.reporting import MAX_REPORTED, listed_lines, reporting
from strandline.redaction import redacted

USAGE = 2
INTERRUPTED = 130

# Typer keeps the root of its own errors to itself; BadParameter is one of them.
_UsageError: type[Exception] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main() -> NoReturn:
    """Run this process's command line."""
    # PySpark logs an interrupted call to the root logger, with a traceback. No person should see it.
    logging.getLogger().addHandler(logging.NullHandler())
    code = run(sys.argv[1:], own_process=True)
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    if code == INTERRUPTED:
        # PySpark's own goodbye to a JVM that is gone is a traceback; and an interpreter that met the interrupt while it
        # ran code for a library (an import does) ends by the signal instead of the code, though it was handled.
        _end_children()
        with suppress(BrokenPipeError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _end_children() -> None:
    """End the JVM that this process has started: interrupted while it starts, it would wait for us for ever."""
    for pid, parent in _processes():
        if parent == os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _processes() -> Iterator[tuple[int, int]]:
    """Every process and its parent, from /proc where there is one."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
        yield from ((int(pid), int(parent)) for pid, parent in map(str.split, listing.stdout.splitlines()))
        return
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield int(stat.parent.name), int(stat.read_text().rsplit(")", 1)[1].split()[1])


def run(arguments: Sequence[str], *, own_process: bool = False) -> int:
    """Run one command line and return its exit code."""
    session, rest = hoist(arguments)
    session.own_process = own_process
    session.tell = lambda error: _failed(session, error)
    with session.catching_warnings(), reporting(MAX_REPORTED), interrupts_kept():
        try:
            answer = app(args=rest, prog_name="strand", standalone_mode=False, obj=session)
            return answer if isinstance(answer, int) else 0
        except PipeClosed:
            _forget_stdout()
            return 0
        except (Interrupted, KeyboardInterrupt):
            return _interrupted(session)
        except _UsageError as error:
            return _usage(session, error)
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else 0
        except Exception as error:
            return _failed(session, error)


def _failed(session: Session, error: Exception) -> int:
    known_error = in_our_words(error)
    if session.debug:
        output.to_stderr(redacted("".join(traceback.format_exception(error))))
    return _tell(session, known_error.as_dict(), known_error.exit_code)


def _usage(session: Session, error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and not session.json:
        output.say(error.format_message())
        return 0
    if type(error).__name__ == "NoArgsIsHelpError":
        error = typer.BadParameter("Missing command.", ctx=context)
    path = context.command_path if context is not None else "strand"
    message = error.format_message().replace("Value error, ", "")  # Pydantic's own words
    document: ErrorRecord = {"code": "usage", "message": message, "hint": f"`{path} --help` shows how.", "detail": {}}
    return _tell(session, document, USAGE)


def _interrupted(session: Session) -> int:
    document: ErrorRecord = {
        "code": "interrupted",
        "message": "interrupted",
        "hint": "What was acked is safe; what was not finished is undone or finished by the next command.",
        "detail": {},
    }
    return _tell(session, document, INTERRUPTED)


def _tell(session: Session, document: ErrorRecord, exit_code: int) -> int:
    try:
        if session.json:
            output.write_json({"error": document})
        else:
            for line in error_lines(document):
                output.to_stderr(line)
    except BrokenPipeError:
        _forget_stdout()
    return exit_code


def error_lines(document: ErrorRecord) -> list[str]:
    """An error for people: what happened, the rows or conflicts that it lists, and what to do."""
    lines = [f"error[{document['code']}]: {document['message']}"]
    lines += [f"  {line}" for line in listed_lines(document["detail"])]
    return [*lines, f"hint: {document['hint']}"] if document["hint"] else lines


def _forget_stdout() -> None:
    """Our reader is gone: what is still buffered goes nowhere, instead of failing again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
