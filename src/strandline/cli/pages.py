"""Pages of the documentation that are made of the program's own descriptions: settings, errors, documents, and others.

`make pages` writes them; a test holds that the stored ones are these.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from strandline.cli.answers import described
from strandline.config_keys import OTHER_VARIABLES, SECTIONS, VARIABLES
from strandline.config_text import toml_value
from strandline.errors import CallerError, PersonError, StrandError, TransientError, kinds
from strandline.lake.operations import Declared, declared, listed, options
from strandline.settings_text import Key
from strandline.sinks.keys import OF_ALL
from strandline.sinks.registry import OURS

_SETTINGS = """\
# Settings

Every key of `strand.toml`, the file that makes a folder a lake. This page is made of the descriptions that the program
itself goes by (`make pages`). An unknown key, or a value of another type, is an error that says what was expected; a
key that is not there has its default.

A size is a text with its unit: `KiB`, `MiB`, `GiB` count by 1024, `KB`, `MB`, `GB` by 1000, a bare number is bytes. A
duration is a text with its unit: `ms`, `s`, `m`, `h` or `d`. A path that is relative starts at the file. An environment
variable wins over the file, and an empty one counts as absent; `STRAND_SPARK_CONF` is a JSON object, which is merged
over `[spark] conf`.
"""

_SINKS = """\
## `[sinks.NAME]`

A section of its own makes a sink, and governs it from then on ([Sinks](sinks.md)); `strand sink add` takes the same
keys, each as `--set KEY=VALUE`. `type` is one of {types}. These have no environment variables.
"""

_ERRORS = """\
# Errors

One list of codes for the command line, HTTP and Python. An error says what happened and what to do next: on the command
line `error[code]: …` and `hint: …`, with `--json` and over HTTP as `{"error": {"code", "message", "hint", "detail"}}`,
in Python as an exception of the class. This page is made of the classes themselves (`make pages`).
"""

_CASES = """\
## Cases with a class of their own

Their code, status and exit code are those of the class above them. Programs tell them by `detail`, and in Python they
can be caught apart. Other kinds and reasons stand in `detail` alone.
"""

_MAINTENANCE = """\
# Maintenance

What keeps reads fast and disks small, and what takes rows away. Each operation is declared once; the command, what a
worker does by itself and this page are made of that (`make pages`). [Operations](operations.md#keep-it-tidy) says how
they go together.

All take `--branch` and `--here`, and but for `sweep` `--actor`. Their JSON is `[{"table", "before", "after", "dry_run",
"complete", "operations", "warnings", "detail"}]`. A worker does what is due at most every `[maintenance] every` (10
min; `off`), so much of it at a time.
"""

_COMMAND_LINE = (
    ("`usage`", "", "2", "", "The command line itself is wrong."),
    (
        "`interrupted`",
        "",
        "130",
        "",
        "Ctrl-C: what was acked is safe; the rest is undone or finished later.",
    ),
)
"""Codes that only the command line has."""

_VARIABLES = """\
## Variables that are no key of the file
"""


def settings() -> str:
    """docs/settings.md."""
    variables = {place: variable for variable, place in VARIABLES.items()}
    parts = [_SETTINGS]
    for name, section in SECTIONS.items():
        about = f"{section.about[0].upper()}{section.about[1:]}.\n\n" if section.about else ""
        rows = [
            (f"`{key_name}`", key.expects, _shown(key.default), key.meaning, f"`{variables[name, key_name]}`")
            for key_name, key in section.keys.items()
        ]
        parts.append(f"## `[{name}]`\n\n{about}{_table(('key', 'type', 'default', 'meaning', 'variable'), rows)}")
    parts.append(_SINKS.format(types=", ".join(f"`{kind}`" for kind in OURS)))
    parts.append(f"### Every type\n\n{_sink_table(OF_ALL, ())}")
    parts += [f'### `type = "{kind.name}"`\n\n{_sink_table(kind.keys, kind.required)}' for kind in OURS.values()]
    others = [(f"`{name}`", meaning) for name, meaning in OTHER_VARIABLES.items()]
    parts.append(f"{_VARIABLES}\n{_table(('variable', 'meaning'), others)}")
    return "\n".join(parts)


def errors() -> str:
    """docs/errors.md."""
    parts = [_ERRORS]
    for family in (CallerError, TransientError, PersonError):
        rows = [_error_row(kind) for kind in kinds(family)]
        parts.append(f"## {_first_sentence(family)}\n\n{_table(_ERROR_HEADS, rows)}")
    cases = [_case_row(case) for kind in kinds(StrandError) for case in kind.__subclasses__() if case.marks]
    parts.append(f"{_CASES}\n{_table(('code', 'in `detail`', 'Python', 'meaning'), cases)}")
    return "\n".join([*parts, f"## On the command line alone\n\n{_table(_ERROR_HEADS, _COMMAND_LINE)}"])


def maintenance() -> str:
    """docs/maintenance.md."""
    heads = ("command", "takes away", "never", "a worker does it when")
    rows = [
        (f"[`strand {operation.name}`](#strand-{operation.name})", docs.takes_away, docs.never, docs.when)
        for operation, docs in ((operation, operation.docs) for operation in map(declared, listed()))
    ]
    return "\n".join([_MAINTENANCE, _table(heads, rows), *map(_operation, map(declared, listed()))])


def _operation(operation: type[Declared]) -> str:
    text = inspect.cleandoc(operation.__doc__ or "")
    description, _, example = text.partition("\b\nExample: ")
    lines = "\n".join(line.strip() for line in example.splitlines())
    rows = [
        (f"`{' '.join(filter(None, (meant.flag, meant.metavar)))}`", meant.help)
        for _, meant in options(operation)
        if meant.flag
    ]
    return (
        f"## `strand {operation.name}`\n\n{description}```bash\n{lines}\n```\n\n{_table(('option', 'meaning'), rows)}"
    )


_ERROR_HEADS = ("code", "HTTP", "exit code", "Python", "meaning")


def _error_row(kind: type[StrandError]) -> tuple[str, ...]:
    cells = (f"`{kind.code}`", str(kind.http_status), str(kind.exit_code), f"`{kind.__name__}`")
    return (*cells, " ".join((kind.__doc__ or "").split()))


def _case_row(case: type[StrandError]) -> tuple[str, ...]:
    marks = ", ".join(f"`{name}`: `{value}`" for name, value in case.marks.items())
    return (f"`{case.code}`", marks, f"`{case.__name__}`", " ".join((case.__doc__ or "").split()))


def _first_sentence(kind: type[StrandError]) -> str:
    return (kind.__doc__ or "").strip().partition(".")[0]


def _sink_table(keys: Mapping[str, Key], required: Iterable[str]) -> str:
    rows = [
        (f"`{name}`", key.expects, "required" if name in required else _sink_default(key), key.meaning)
        for name, key in keys.items()
    ]
    return _table(("key", "type", "default", "meaning"), rows)


def _sink_default(key: Key) -> str:
    """A sink's defaults are in plain units: a size is a number of bytes, a duration one of seconds."""
    if key.default is None:
        return ""
    if key.unit == "s":
        return _shown(f"{key.default:g}s")
    if key.unit == "bytes" and isinstance(key.default, int):
        return _shown(f"{key.default >> 20}MiB")
    return _shown(key.default)


def _shown(default: object) -> str:
    return f"`{toml_value(default)}`"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def documents() -> str:
    """docs/documents.json."""
    return orjson.dumps(described(), option=orjson.OPT_INDENT_2).decode() + "\n"


PAGES = {"settings.md": settings, "errors.md": errors, "maintenance.md": maintenance, "documents.json": documents}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for file_name, write in PAGES.items():
        (folder / file_name).write_text(write(), encoding="utf-8")
