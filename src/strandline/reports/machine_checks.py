"""Whether the machine offers what the lake needs: Java, jars, room, permissions, a clock, versions that fit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from strandline.engines.duck.relations import local_path
from strandline.errors import StrandError
from strandline.ledger import checks
from strandline.ledger.clock import Clock, read_clock, server_at_us
from strandline.model.times import span_of, text_of
from strandline.reports.findings import Examination, Finding

SKEW_S = 300
"""Clocks of one house differ by less."""

LOW_BYTES = 1 << 30
FULL_BYTES = 64 << 20


def java(_: Examination) -> Iterator[Finding]:
    """Spark needs a Java; appends and queries don't."""
    from strandline.engines.spark.java import find

    try:
        find()
    except StrandError as error:
        yield Finding(
            kind="java",
            about="java",
            what=error.message,
            meaning="flush, load, adopt and recover don't work here; append and sql do.",
            fix=error.hint,
            severity="warning",
        )


def jars(_: Examination) -> Iterator[Finding]:
    """The jars that the first flush would have to fetch."""
    from strandline.engines.spark.jars import cache_dir, pinned

    folder = cache_dir() / "jars"
    missing = [jar.file_name for jar in pinned() if not (folder / jar.file_name).is_file()]
    if missing:
        yield Finding(
            kind="jars",
            about="jars",
            what=f"{len(missing)} jars are not in {folder} yet: {', '.join(missing)}",
            meaning="The first flush fetches them, and needs the network for that.",
            fix="python -m strandline.engines.spark.jars",
            severity="warning",
        )


def room(look: Examination) -> Iterator[Finding]:
    """Room on the disks of the lake and its warehouse; told once where they are the same."""
    folders = [look.lake.root]
    if look.lake.config.warehouse.startswith("file:"):
        folders.append(Path(local_path(look.lake.config.warehouse)))
    disks = {folder.stat().st_dev: folder for folder in reversed(folders) if folder.exists()}
    for folder in disks.values():
        yield from _room(folder)


def _room(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < LOW_BYTES:
        yield Finding(
            kind="disk_room",
            about=str(folder),
            what=f"{free >> 20} MiB are left on the disk of {folder}",
            meaning="Appends fail when it is full; what was acked stays safe.",
            fix="free some room on that disk",
            severity="error" if free < FULL_BYTES else "warning",
        )


def permissions(look: Examination) -> Iterator[Finding]:
    """Whether this user may write the lake."""
    if not os.access(look.lake.root, os.W_OK):
        yield Finding(
            kind="permissions",
            about=str(look.lake.root),
            what=f"you may not write in {look.lake.root}",
            meaning="Commands that read work; those that write don't.",
            fix="run as the lake's owner, or change the folder's owner or mode",
            severity="warning",
        )


def clock(look: Examination) -> Iterator[Finding]:
    """The ledger's time, and that of its database's host, are not far from this machine's."""
    with look.lake.ledger.read() as conn:
        last_us, server_us = checks.counter_at_us(conn), server_at_us(conn)
        deleting = read_clock(conn)
    ahead_s = (last_us - look.now_us) / 1e6
    if ahead_s > SKEW_S:
        yield _ahead(last_us, look.now_us, deleting)
    elif server_us is not None and abs(server_us - look.now_us) / 1e6 > SKEW_S:
        skew_s = (look.now_us - server_us) / 1e6
        direction = "ahead of" if skew_s > 0 else "behind"
        yield Finding(
            kind="clock",
            about="host",
            what=f"this machine's clock is {span_of(abs(skew_s))} {direction} the database's",
            meaning="Rows that are appended from here get another _at than those from elsewhere. What deletes by time "
            "goes by the earlier of the two.",
            fix="compare both with a time server (`timedatectl`, `chronyc tracking`) and set the wrong one right",
        )


def _ahead(last_us: int, now_us: int, deleting: Clock) -> Finding:
    """The ledger's time is ahead of the clock, and deletions may wait for that."""
    if deleting.is_behind:
        waits = (
            "Until then nothing is deleted or forgotten by time: no retention, expiry or sweep, and keys and holds are "
            "kept. "
        )
        word = "; if this machine's clock is right, `strand doctor --fix` lets deletions go by it from then on"
    else:
        waits, word = "Deletions go by the clock. ", ""
    return Finding(
        kind="clock",
        about="ledger",
        what=f"the ledger's last write is of {text_of(last_us)}, and this machine's clock says {text_of(now_us)}: "
        f"{span_of((last_us - now_us) / 1e6)} less",
        meaning="A clock has jumped: this one is behind, or a writer's was ahead. Nothing is lost, and reads and "
        f"writes go on, but the _at of new rows stays near {text_of(last_us)} until the clock has passed it. {waits}",
        fix="compare the clocks of this machine and of the other writers with a time server (`timedatectl`, "
        f"`chronyc tracking`) and set the wrong one right{word}; if it was a writer's, it heals at that time by itself",
        severity="error" if deleting.is_behind else "warning",
        since=text_of(last_us),
    )


FITTING = {"pyspark": ((4, 1, 4), (4, 2)), "pandas": ((0,), (3,)), "duckdb": ((2,), (3,))}
"""From and up to which version each is known to work with the others."""


def versions(_: Examination) -> Iterator[Finding]:
    """Libraries whose version does not work with the others."""
    for name, (lowest, above) in FITTING.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        numbers = tuple(int(part) for part in installed.split(".")[:3] if part.isdigit())
        if not lowest <= numbers < above:
            fitting = f"from {'.'.join(map(str, lowest))} to below {'.'.join(map(str, above))}"
            yield Finding(
                kind="version",
                about=name,
                what=f"{name} {installed} is installed; strandline works with versions {fitting}",
                meaning="Operations may fail, or write what others can't read.",
                fix="install strandline into an environment of its own, with the versions it asks for",
            )
