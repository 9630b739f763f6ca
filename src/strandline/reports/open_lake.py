"""What a report needs of a lake that is open.

Reports stand below the services that hand them out, so they know a lake by what they use of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strandline.ledger.ledger import MAIN

if TYPE_CHECKING:
    from strandline.config import LakeConfig
    from strandline.engines.spark.iceberg import Iceberg
    from strandline.errors import Displaced
    from strandline.ledger.ledger import Ledger
    from strandline.model.operations import Recovered
    from strandline.operations.core.context import Context
    from strandline.sinks.instances import Surroundings
    from strandline.views.view import View


class OpenLake(Protocol):
    """A lake that is open: what it is made of, views of it, and recovery."""

    root: Path
    config: LakeConfig
    ledger: Ledger
    displaced: Displaced | None
    recovered: list[Recovered]

    @property
    def context(self) -> Context:
        """What operations on it run in."""
        ...

    @property
    def surroundings(self) -> Surroundings:
        """What sinks need to know of it."""
        ...

    def view(self, branch: str = MAIN, at: str | None = None) -> View:
        """A pinned view of a branch."""
        ...

    def iceberg(self) -> Iceberg:
        """Its Iceberg tables; starts Spark when it is not running."""
        ...

    def recover(self, *, dry_run: bool = False) -> list[Recovered]:
        """Finish or undo what dead processes left, in Iceberg too."""
        ...
