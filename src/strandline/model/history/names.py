"""Names of branches and tags, by git's rules."""

from __future__ import annotations

import re

from strandline.errors import BadRequest

MAX_LENGTH = 200
_REFUSED = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/]|[/.]$|(^|/)\.|\.lock(/|$)|^@$")


class Holder(str):
    """The name of a branch, or that of a tag as the ledger has it, for work that is done to both alike.

    A name that a caller gives is plain text, and never means a tag: nothing may be committed there.
    """


def check_ref_name(name: str, what: str = "a branch") -> None:
    """BadRequest unless git would take it as the name of a branch."""
    if not name or len(name) > MAX_LENGTH or _REFUSED.search(name):
        raise BadRequest(
            f"{name!r} can't be the name of {what}",
            hint="As in git: no spaces, no ~ ^ : ? * [ \\, no '..', no '@{', no leading '-', '/' or '.', no '.lock'.",
        )
