"""Names of branches and tags, by git's rules."""

from __future__ import annotations

import re

from strandline.errors import BadRequest

MAX_LENGTH = 200
_REFUSED = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/]|[/.]$|(^|/)\.|\.lock(/|$)|^@$")


def check_ref_name(name: str, what: str = "a branch") -> None:
    """BadRequest unless git would take it as the name of a branch."""
    if not name or len(name) > MAX_LENGTH or _REFUSED.search(name):
        raise BadRequest(
            f"{name!r} can't be the name of {what}",
            hint="As in git: no spaces, no ~ ^ : ? * [ \\, no '..', no '@{', no leading '-', '/' or '.', no '.lock'.",
        )
