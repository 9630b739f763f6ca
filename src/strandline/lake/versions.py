"""Which versions are at work, and which formats they read."""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class Formats:
    """The newest formats that this version writes."""

    ledger: int
    intent: int


@dataclass(frozen=True)
class Versions:
    """What made a lake, and what reads it."""

    strandline: str
    python: str
    spark: str
    iceberg: str
    duckdb: str
    formats: Formats


def installed(own: str) -> Versions:
    """This version, and those of others: read from package metadata, since importing PySpark takes half a second."""
    from strandline.engines.spark.jars import pinned
    from strandline.ledger.database.schema import FORMAT
    from strandline.model.operations import INTENT_FORMAT

    iceberg = next((jar.revision for jar in pinned() if "iceberg" in jar.name), "unknown")
    formats = Formats(FORMAT, INTENT_FORMAT)
    return Versions(own, platform.python_version(), _of("pyspark"), iceberg, _of("duckdb"), formats)


def _of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
