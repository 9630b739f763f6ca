"""`python -m tests.fuzz --streams 100000`: 0 when nothing crashed, nothing foreign was stored and nothing is a bug."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.fuzz.judge import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for the streams that found something")
    options = parser.parse_args()
    verdict = fuzz(options.seed, options.streams, jobs=options.jobs, keep=options.keep)
    print(f"{verdict.streams} streams: {dict(sorted(verdict.counts.items()))}")
    for (kind, base, way), count in Counter((f["kind"], f["seed"], f["way"]) for f in verdict.findings).most_common():
        first = next(f for f in verdict.findings if (f["kind"], f["seed"], f["way"]) == (kind, base, way))
        print(f"{kind}: {count} by {way} of {base!r}; first is number {first['number']}: {first['what'][:300]}")
    return 1 if verdict.findings else 0


if __name__ == "__main__":
    sys.exit(main())
