"""What was acked, written down outside the lake: the record that the lake is compared with.

One line per batch, written after the answer came. A writer that is killed in between has a stored batch without a line;
it offers that batch again under the same idempotency key, gets the first answer, and then there is a line.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from strandline.model.tables import Ack


@dataclass(frozen=True)
class AckedBatch:
    """One batch whose answer arrived; `repeated` when it had been stored by an earlier try."""

    batch: int
    first_seq: int
    last_seq: int
    rows: int
    repeated: bool


def note(file: Path, batch: int, ack: Ack) -> None:
    """Write one line, with one system call: a killed process leaves it out or leaves it whole."""
    assert ack.first_seq is not None and ack.last_seq is not None, "a batch of the plan has rows"
    line = AckedBatch(batch, ack.first_seq, ack.last_seq, ack.rows, ack.repeated)
    with file.open("ab", buffering=0) as out:
        out.write(orjson.dumps(asdict(line)) + b"\n")


def read(file: Path) -> list[AckedBatch]:
    """All lines of a writer."""
    if not file.exists():
        return []
    return [
        AckedBatch(**orjson.loads(line)) for line in file.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"
    ]


def count(file: Path) -> int:
    """How many batches have been acked."""
    return file.read_bytes().count(b"\n") if file.exists() else 0
