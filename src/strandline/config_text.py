"""The `strand.toml` that a new lake gets: every key with its default, so that the file tells what can be set."""

from __future__ import annotations

import json
from collections.abc import Mapping

from strandline.config_keys import SECTIONS

_HEAD = """\
# The settings of this lake. This file makes the folder a lake: commands look for it upwards from where they run.
# Every key can be set by an environment variable too: STRAND_<SECTION>_<KEY>, such as STRAND_SPARK_MASTER.
"""


def default_file(values: Mapping[tuple[str, str], object]) -> str:
    """The file; what is given by (section, key) is set in it, and the other keys are comments with their defaults."""
    lines = [_HEAD]
    for name, section in SECTIONS.items():
        lines.append(f"[{name}]  # {section.about}" if section.about else f"[{name}]")
        for key_name, key in section.keys.items():
            is_given = (name, key_name) in values
            value = toml_value(values[name, key_name] if is_given else key.default)
            lines.append(f"{'' if is_given else '# '}{key_name} = {value}  # {key.meaning}")
        lines.append("")
    return "\n".join(lines)


def toml_value(value: object) -> str:
    """A text, a number, a truth or an empty table as TOML has it, which is as JSON has it."""
    return json.dumps(value, ensure_ascii=False)
