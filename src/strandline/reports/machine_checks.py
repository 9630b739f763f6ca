"""Whether the machine offers what the lake needs: Java, jars, room, permissions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from strandline.errors import StrandError
from strandline.reports.findings import Finding, Look

LOW_BYTES = 1 << 30
FULL_BYTES = 64 << 20


def java(_: Look) -> Iterator[Finding]:
    """Spark needs a Java; appends and queries don't."""
    from strandline.engines.spark.java import find

    try:
        find()
    except StrandError as error:
        yield Finding(
            what=error.message,
            meaning="flush, load, adopt and recover don't work here; append and sql do.",
            fix=error.hint,
            severity="warning",
        )


def jars(_: Look) -> Iterator[Finding]:
    """The jars that the first flush would have to fetch."""
    from strandline.engines.spark.jars import cache_dir, pinned

    folder = cache_dir() / "jars"
    missing = [jar.file_name for jar in pinned() if not (folder / jar.file_name).is_file()]
    if missing:
        yield Finding(
            what=f"{len(missing)} jars are not in {folder} yet: {', '.join(missing)}",
            meaning="The first flush fetches them, and needs the network for that.",
            fix="python -m strandline.engines.spark.jars",
            severity="warning",
        )


def room(look: Look) -> Iterator[Finding]:
    """Room on the lake's disk."""
    free = shutil.disk_usage(look.lake.root).free
    if free < LOW_BYTES:
        yield Finding(
            what=f"{free >> 20} MiB are left on the disk of {look.lake.root}",
            meaning="Appends fail when it is full; what was acked stays safe.",
            fix="free some room on that disk",
            severity="error" if free < FULL_BYTES else "warning",
        )


def permissions(look: Look) -> Iterator[Finding]:
    """Whether this user may write the lake."""
    if not os.access(look.lake.root, os.W_OK):
        yield Finding(
            what=f"you may not write in {look.lake.root}",
            meaning="Commands that read work; those that write don't.",
            fix="run as the lake's owner, or change the folder's owner or mode",
            severity="warning",
        )
