"""Rows that break what their table declares."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.model.wording import judged


@dataclass(frozen=True)
class Violation:
    """A row that breaks a rule: which field, and with what value. `index` is its statement's place, if it has one."""

    table: str
    key: str
    field: str
    rule: str
    value: str
    reason: str
    index: int | None = None

    def text(self) -> str:
        """As the error's message says it."""
        return f"{self.table} {self.key}, field {self.field!r}: {judged(self.value, self.reason)}"
