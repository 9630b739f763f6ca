"""`python -m bench`: measure everything, or one group of it."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import (
    against_dlt,
    appends,
    cluster,
    deliveries,
    exports,
    flushes,
    maintenance,
    memory,
    postgres,
    receiver,
    report,
    starts,
    statuses,
    versions,
)
from bench.measure import Line, Scale, tell

Group = Callable[[Scale, Path], Iterator[Line]]

GROUPS: dict[str, Group] = {
    "appends": appends.lines,
    "postgres": postgres.lines,
    "starts": starts.lines,
    "statuses": statuses.lines,
    "flushes": flushes.lines,
    "late": flushes.late_lines,
    "maintenance": maintenance.lines,
    "beside": maintenance.beside_lines,
    "cluster": cluster.lines,
    "dlt": against_dlt.lines,
    "memory": memory.lines,
    "deliveries": deliveries.lines,
    "exports": exports.lines,
    "receiver": receiver.lines,
    "delivery_memory": memory.delivery_lines,
    "versions": versions.lines,
    "changes": versions.thread_lines,
}
RESULTS = Path(__file__).parent / "results" / "latest.json"


def run(names: list[str], scale: Scale) -> Iterator[Line]:
    """Measure these groups, each in a folder of its own that is gone afterwards."""
    for name in names:
        folder = Path(tempfile.mkdtemp(prefix=f"strandline-bench-{name}-"))
        try:
            tell(f"{name} …")
            for line in GROUPS[name](scale, folder):
                tell(f"  {line.what}: {line.ratio:.2f} ({line.reach})")
                yield line
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Speed and memory, as ratios.")
    parser.add_argument("--only", action="append", choices=[*GROUPS], help="this group; may be given more than once")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and two rounds: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    args = parser.parse_args()
    lines: list[Line] = []
    try:
        lines.extend(run(args.only or [*GROUPS], Scale(10, quick=True) if args.quick else Scale()))
    finally:  # what was measured before something failed is still worth having
        report.show(lines)
        report.write(args.out, lines, quick=args.quick)
        tell(f"written to {args.out}")


if __name__ == "__main__":
    main()
