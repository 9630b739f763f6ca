"""Seven ways to damage a lake behind its back, and how each is repaired. `python -m tests.doctor` shows them all."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline import create
from strandline.lake import Lake
from strandline.ledger.catalog import metadata_locations
from tests.cli.conftest import call
from tests.kit import make_table, messages

Undo = Callable[[], None]


def scene(folder: Path) -> Lake:
    """A lake with two flushes, rows in the tail, and a sink that has delivered the first of them."""
    lake = create.create(folder / "lake")
    make_table(lake)
    lake.append("messages", messages(0, 10))
    lake.flush("messages")
    lake.add_sink("archive", "blob", {"uri": f"file://{folder}/archive"})
    assert [ticked.outcome for ticked in lake.tick()] == ["delivered"]
    lake.append("messages", messages(10, 20))
    lake.flush("messages")
    lake.append("messages", messages(20, 25))
    return lake


@dataclass(frozen=True)
class Damage:
    """What is done to a lake, the one finding it must cause, and what then makes doctor say that all is well."""

    name: str
    kind: str
    plant: Callable[[Lake], Any]
    repair: Callable[[Lake, Any], None]


def data_file(lake: Lake) -> Path:
    """The first data file of the table."""
    return Path(lake.view().files("messages")[0].path.removeprefix("file:"))


def metadata_file(lake: Lake) -> Path:
    """The current metadata file of the table."""
    found = metadata_locations(f"sqlite:///{lake.config.catalog_path}", "strand")["lake.messages"].current
    return Path(found.removeprefix("file://").removeprefix("file:"))


def in_ledger(lake: Lake, statement: str, *values: Any) -> list[Any]:
    """Reach into the ledger."""
    path = lake.config.ledger_path
    assert path is not None
    with sqlite3.connect(path, timeout=30) as connection:
        found = connection.execute(statement, values).fetchall()
    connection.close()
    return found


def delete_file(lake: Lake) -> tuple[Path, bytes]:
    path = data_file(lake)
    content = path.read_bytes()
    path.unlink()
    return path, content


def truncate_metadata(lake: Lake) -> None:
    path = metadata_file(lake)
    path.write_bytes(path.read_bytes()[:100])


def flip_byte(lake: Lake) -> str:
    ((batch, payload),) = in_ledger(lake, "SELECT batch_id, payload FROM batches ORDER BY first_seq DESC LIMIT 1")
    broken = bytearray(payload)
    broken[len(broken) // 2] ^= 0xFF
    in_ledger(lake, "UPDATE batches SET payload = ? WHERE batch_id = ?", bytes(broken), batch)
    return str(batch)


def move_ref(lake: Lake) -> None:
    (first, *_) = in_ledger(lake, "SELECT snapshot_id FROM snapshots ORDER BY version")
    lake.spark.sql(f"CALL strand.system.set_current_snapshot('lake.messages', {first[0]})").collect()


def commit_from_outside(lake: Lake) -> None:
    lake.spark.sql("DELETE FROM strand.lake.messages WHERE n < 3")


def raise_watermark(lake: Lake) -> None:
    in_ledger(lake, "UPDATE watermarks SET seq = 1000000")


def jump_clock(lake: Lake) -> int:
    ((before,),) = in_ledger(lake, "SELECT last_at_us FROM counter")
    in_ledger(lake, "UPDATE counter SET last_at_us = ?", (time.time_ns() // 1000) + 3_600_000_000)
    return int(before)


def put_back(_lake: Lake, taken: tuple[Path, bytes]) -> None:
    taken[0].write_bytes(taken[1])


def fixed(lake: Lake, *arguments: str) -> list[str]:
    """`strand doctor --fix`, and what it says it did."""
    done = call("--lake", lake.root, "--json", "doctor", "--fix", *arguments)
    return list(done.json["fixed"])


def fix(lake: Lake, _planted: Any) -> None:
    assert len(fixed(lake)) >= 1


def set_aside(lake: Lake, batch: str) -> None:
    assert any(batch in line for line in fixed(lake))
    assert call("--lake", lake.root, "quarantine", "discard", batch).code == 0


def take_back(lake: Lake, _planted: None) -> None:
    assert any("taken back" in line for line in fixed(lake, "--take-back", "messages"))


def set_clock(lake: Lake, before: int) -> None:
    in_ledger(lake, "UPDATE counter SET last_at_us = ?", before)


DAMAGES = (
    Damage("a deleted data file", "data_file_damaged", delete_file, put_back),
    Damage("a truncated metadata file", "metadata_unreadable", truncate_metadata, fix),
    Damage("a flipped byte in a payload", "payload_damaged", flip_byte, set_aside),
    Damage("a moved Iceberg ref", "ref_moved", move_ref, fix),
    Damage("a foreign commit on main", "foreign_commit", commit_from_outside, take_back),
    Damage("a watermark past its head", "watermark_ahead", raise_watermark, fix),
    Damage("a clock that jumped", "clock", jump_clock, set_clock),
)
