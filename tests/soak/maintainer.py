"""A process that maintains the lake without a pause: merges every two files, removes old rows, expires, sweeps.

What it can't do because somebody else is at it, or because what it worked on has moved, it does in the next round. So
it does what is refused because its clock is behind the ledger's: nobody's word is given by a program.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from strandline.lake import Lake
from tests.soak.scene import PASSING, Scene

PAUSE_S = 0.2


def main(folder: str) -> None:
    """Maintain until told to stop; every round is a line."""
    scene = Scene(Path(folder))
    with Lake(scene.lake) as lake:
        while not scene.stop.exists():
            for work in (lake.compact, lake.retain, lake.expire, lake.sweep):
                try:
                    done = work()
                except PASSING as error:
                    print(f"{work.__name__}: not now: {error}", flush=True)
                    continue
                print(f"{work.__name__}: {[(one.table, one.before, one.after) for one in done]}", flush=True)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(sys.argv[1])
