"""Seven ways to damage a lake behind its back, and how each is repaired. `python -m tests.doctor` shows them all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from strandline.lake import Lake
from strandline.ledger.place.iceberg_catalog import metadata_locations
from tests import files
from tests.kit import call, in_ledger, make_table, messages, read_only_fingerprint

Undo = Callable[[], None]


def scene(lake: Lake, folder: Path) -> Lake:
    """Two flushes, rows in the tail, and a sink that has delivered the first of them."""
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


def data_file(lake: Lake) -> str:
    """The first data file of the table."""
    return str(lake.view().files("messages")[0].path)


def metadata_file(lake: Lake) -> str:
    """The current metadata file of the table."""
    return metadata_locations(lake.config.catalog_database, "strand")["lake.messages"].current


def fingerprint(lake: Lake) -> dict[str, Any]:
    """Whatever would look different if anything was changed."""
    with lake.ledger.read() as conn:
        counter = conn.execute(text("SELECT last_seq, last_at_us, writes FROM counter")).one()
    return {**read_only_fingerprint(lake.root), **files.listing(lake.config.warehouse), "counter": counter}


def delete_file(lake: Lake) -> tuple[str, bytes]:
    uri = data_file(lake)
    content = files.read(uri)
    files.remove(uri)
    return uri, content


def truncate_metadata(lake: Lake) -> None:
    uri = metadata_file(lake)
    files.write(uri, files.read(uri)[:100])


def flip_byte(lake: Lake) -> str:
    ((batch, payload),) = in_ledger(lake, "SELECT batch_id, payload FROM batches ORDER BY first_seq DESC LIMIT 1")
    broken = bytearray(payload)
    broken[len(broken) // 2] ^= 0xFF
    in_ledger(lake, "UPDATE batches SET payload = :payload WHERE batch_id = :batch", payload=bytes(broken), batch=batch)
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
    in_ledger(lake, "UPDATE counter SET last_at_us = :at_us", at_us=(time.time_ns() // 1000) + 2 * 3_600_000_000)
    return int(before)


def put_back(_lake: Lake, taken: tuple[str, bytes]) -> None:
    files.write(*taken)


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
    in_ledger(lake, "UPDATE counter SET last_at_us = :at_us", at_us=before)


DAMAGES = (
    Damage("a deleted data file", "data_file_damaged", delete_file, put_back),
    Damage("a truncated metadata file", "metadata_unreadable", truncate_metadata, fix),
    Damage("a flipped byte in a payload", "payload_damaged", flip_byte, set_aside),
    Damage("a moved Iceberg ref", "ref_moved", move_ref, fix),
    Damage("a foreign commit on main", "foreign_commit", commit_from_outside, take_back),
    Damage("a watermark past its head", "watermark_ahead", raise_watermark, fix),
    Damage("a clock that jumped", "clock", jump_clock, set_clock),
)
