"""One writer process: offers its share batch by batch; started again, it goes on after the last acked one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import strandline as sl
from examples.demo import acks
from examples.demo.messages import TABLE
from examples.demo.places import Places
from examples.demo.plan import Share, plan
from strandline import logs
from strandline.errors import TransientError
from strandline.model.tables import Ack

PATIENCE_S = 120.0


def write(lake: sl.Lake, share: Share, file: Path) -> None:
    """Offer what is not acked yet; stop early when the process that started this one is gone."""
    parent = os.getppid()
    for number in range(acks.count(file), share.batches):
        acks.note(file, number, offer(lake, share, number))
        if os.getppid() != parent:
            return


def offer(lake: sl.Lake, share: Share, number: int) -> Ack:
    """Append one batch; the key makes it safe to ask again, however the last try ended."""
    rows = share.batch(number)
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return lake.append(TABLE, rows, actor=share.writer, idempotency_key=f"{share.writer}/{number}")
        except TransientError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def main(arguments: list[str]) -> None:
    """`python -m examples.demo.writer LAKE NAME ROWS SEED`."""
    root, name, rows, seed = Path(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3])
    logs.set_format("text")
    with sl.open(root) as lake:
        write(lake, plan(rows, seed)[name], Places(root).acks(name))


if __name__ == "__main__":
    main(sys.argv[1:])
