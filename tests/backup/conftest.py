"""What tests of backups share: how a ledger is lost, and where a restore puts the next one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from strandline import config
from tests.postgres import Server


@dataclass(frozen=True)
class Ledgers:
    """The ledgers of one test: files, or databases of a server, where none is replaced in place."""

    server: Server | None

    def next(self) -> str | None:
        """Where a restore puts the ledger; None is where it was."""
        return None if self.server is None else self.server.new_database()

    def named(self) -> list[str]:
        """The same, as the command is told."""
        url = self.next()
        return [] if url is None else ["--ledger", url]

    def lose(self, root: Path) -> None:
        """Destroy the ledger of the lake that is there."""
        if self.server is None:
            (root / "ledger.db").write_bytes(b"lost")
        else:
            name = config.load(root).ledger.rpartition("/")[2]
            self.server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def ledgers(ledger_kind: str, request: pytest.FixtureRequest) -> Ledgers:
    """Ledgers of the kind that this test runs on."""
    return Ledgers(request.getfixturevalue("postgres") if ledger_kind == "postgres" else None)
