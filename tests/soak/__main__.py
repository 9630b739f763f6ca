"""`python -m tests.soak --minutes N [--seed S]`: writers, workers, a receiver and chaos; then the oracle's verdict.

Exit code 0 when every destination holds every acked row once, 1 when one does not.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.soak.soak import Outcome, Settings, soak
from tests.soak.troubles import KINDS


def main(arguments: list[str] | None = None) -> int:
    """Run a soak; returns the exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(stderr=options.json, highlight=False)
    began_s = time.monotonic()

    def tell(text: str) -> None:
        console.print(f"{time.monotonic() - began_s:7.1f} s  {text}", markup=False, soft_wrap=True)

    folder = Path(options.folder or tempfile.mkdtemp(prefix="strand-soak-")).resolve()
    settings = Settings(
        folder,
        options.minutes * 60,
        options.seed,
        options.writers,
        options.workers,
        options.drain,
        options.ledger,
        options.warehouse,
        frozenset(options.trouble),
        kills=not options.no_kills,
    )
    try:
        outcome = soak(settings, tell)
    except KeyboardInterrupt:
        print(f"interrupted: the processes are stopped; what they left is in {folder}", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(outcome.document(), indent=2))
    else:
        _show(console, outcome, settings)
    return 0 if outcome.is_right else 1


def _show(console: Console, outcome: Outcome, settings: Settings) -> None:
    console.print(_destinations(outcome))
    offered = outcome.offered
    console.print(
        f"{offered.calls:,} calls by {settings.writers} writers; the answer to {offered.lost_calls:,} was lost."
    )
    lists = outcome.lists
    console.print(f"{lists.acked:,} changes of lists were acked, on main and on branches; {lists.merges:,} merges.")
    console.print(
        "Chaos: " + ", ".join(f"{what} {times:,}" for what, times in sorted(outcome.chaos.items())) + ".",
        soft_wrap=True,
    )
    troubles = ", ".join(f"{what} {times:,}" for what, times in sorted(outcome.troubles.items()))
    console.print(f"Troubles: {troubles or 'none'}.", soft_wrap=True, markup=False)
    console.print(
        f"{outcome.gone:,} acked rows are gone with a ledger that went back; "
        f"{outcome.too_old:,} rows were too old to be stored."
    )
    for text in outcome.wrong:
        console.print(f"wrong: {text}", style="red", markup=False, soft_wrap=True)
    lost, repeated = (sum(getattr(one, what) for one in outcome.verdicts.values()) for what in ("lost", "repeated"))
    console.print(f"Lost {lost:,}, repeated {repeated:,}.")
    verdict = "Every acked row is everywhere, once." if outcome.is_right else f"Look into {settings.folder}."
    console.print(f"Seed {settings.seed}. {verdict}", markup=False)


def _destinations(outcome: Outcome) -> Table:
    table = Table(title="Acked against stored", title_justify="left")
    table.add_column("")
    for name in outcome.verdicts:
        table.add_column(name, justify="right")
    rows: dict[str, str] = {
        "acked": "acked",
        "stored": "stored",
        "lost": "lost",
        "repeated": "repeated",
        "altered": "altered",
        "from_nowhere": "from nowhere",
        "answer_lost": "from calls whose answer was lost",
        "gone": "of a ledger that went back",
        "retained": "past their retention",
    }
    for name, title in rows.items():
        table.add_row(title, *(f"{getattr(verdict, name):,}" for verdict in outcome.verdicts.values()))
    return table


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _kinds(text: str) -> tuple[str, ...]:
    kinds = () if text == "none" else tuple(text.split(","))
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(KINDS)}, none")
    return kinds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n\n")[1])
    more: dict[str, Any] = {"type": int}
    parser.add_argument("--minutes", type=float, default=10.0, help="how long chaos lasts (default: 10)")
    parser.add_argument("--seed", default=1, help="another number makes other trouble", **more)
    parser.add_argument("--writers", default=4, **more)
    parser.add_argument("--workers", default=2, help="how many workers share the lake (default: 2)", **more)
    parser.add_argument("--ledger", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--warehouse", choices=("local", "s3"), default="local")
    which = f"which troubles there are beside kills and pauses: {','.join(KINDS)}, or none (default: all)"
    parser.add_argument("--trouble", type=_kinds, default=KINDS, metavar="KINDS", help=which)
    parser.add_argument("--no-kills", action="store_true", help="nobody is killed or paused: troubles alone")
    parser.add_argument("--drain", type=float, default=300.0, metavar="SECONDS", help="how long it may take afterwards")
    parser.add_argument("--folder", help="where to make the lakes (default: a temporary folder, which is kept)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout; the steps go to stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
