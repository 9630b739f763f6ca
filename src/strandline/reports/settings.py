"""The page of all settings, `docs/settings.md`, made of the settings' own descriptions.

`make settings` writes it; a test holds that the stored one is this one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from strandline.config_keys import OTHER_VARIABLES, SECTIONS, VARIABLES, Key
from strandline.config_text import toml_value
from strandline.sinks.settings import OF_ALL, OF_TYPE, REQUIRED

_HEAD = """\
# Settings

Every key of `strand.toml`, the file that makes a folder a lake. This page is made of the descriptions that the program
itself goes by (`make settings`). An unknown key, or a value of another type, is an error that says what was expected; a
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

_VARIABLES = """\
## Variables that are no key of the file
"""


def page() -> str:
    """The whole page."""
    variables = {place: variable for variable, place in VARIABLES.items()}
    parts = [_HEAD]
    for name, section in SECTIONS.items():
        about = f"{section.about[0].upper()}{section.about[1:]}.\n\n" if section.about else ""
        rows = [
            (f"`{key_name}`", key.expects, _shown(key.default), key.meaning, f"`{variables[name, key_name]}`")
            for key_name, key in section.keys.items()
        ]
        parts.append(f"## `[{name}]`\n\n{about}{_table(('key', 'type', 'default', 'meaning', 'variable'), rows)}")
    parts.append(_SINKS.format(types=", ".join(f"`{one}`" for one in OF_TYPE)))
    parts.append(f"### Every type\n\n{_sink_table(OF_ALL, ())}")
    parts += [f'### `type = "{name}"`\n\n{_sink_table(keys, REQUIRED[name])}' for name, keys in OF_TYPE.items()]
    others = [(f"`{name}`", meaning) for name, meaning in OTHER_VARIABLES.items()]
    parts.append(f"{_VARIABLES}\n{_table(('variable', 'meaning'), others)}")
    return "\n".join(parts)


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
    if isinstance(key.default, float):
        return _shown(f"{key.default:g}s")
    if key.expects.startswith("a size") and isinstance(key.default, int):
        return _shown(f"{key.default >> 20}MiB")
    return _shown(key.default)


def _shown(default: object) -> str:
    return f"`{toml_value(default)}`"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
