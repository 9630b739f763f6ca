"""The scene of a soak: a lake with three sinks, a receiver, and where everybody writes down what happened.

The tables of the receiver have no row key, so a row that arrives twice is there twice. One table of the lake has none
either; the other has one, is partitioned, and is offered some of its rows by every writer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from strandline import create
from strandline.config import Store
from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from tests import s3
from tests.kit import COLUMNS

PLAIN, KEYED = "events", "messages"
TABLES = (PLAIN, KEYED)
LISTS = "lists"
"""A keyed table, which is changed on branches and merged."""
GATEWAY = "soak"
SINKS = ("central", "archive", "copy")

# A pause is often longer than this, so a process wakes up to find that another has gone on.
LEASE_TTL_S = 3.0
ENVIRONMENT = {
    "STRAND_LEASE_TTL": f"{LEASE_TTL_S:g}s",
    "STRAND_FLUSH_MAX_AGE": "2s",
    # Short enough that snapshots go and batches are swept while everybody is at work.
    "STRAND_MAINTENANCE_GRACE": "20s",
    "STRAND_SPARK_MASTER": "local[2]",
    "STRAND_SPARK_CONF": json.dumps(
        {
            "spark.driver.memory": "1g",
            "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
        }
    ),
}


@dataclass(frozen=True)
class Scene:
    """The folders and files of one soak."""

    folder: Path

    @property
    def lake(self) -> Path:
        """The lake that is written to."""
        return self.folder / "lake"

    @property
    def receiver(self) -> Path:
        """The lake that it forwards to."""
        return self.folder / "receiver"

    @property
    def blobs(self) -> Path:
        """The folder that it writes Parquet to."""
        return self.folder / "blobs"

    @property
    def catalog(self) -> Path:
        """The catalog that it copies its tables to."""
        return self.folder / "copy" / "catalog.db"

    @property
    def copied(self) -> str:
        """The warehouse of that catalog."""
        return f"file://{self.folder}/copy/warehouse"

    @property
    def stop(self) -> Path:
        """When this file is there, writers stop after the call they are in."""
        return self.folder / "stop"

    def calls(self, writer: str) -> Path:
        """What a writer offered, and what it was told."""
        return self.folder / f"{writer}.calls"

    def log(self, name: str) -> Path:
        """What a process printed."""
        return self.folder / f"{name}.log"


@dataclass(frozen=True)
class Places:
    """Where the lake that is written to keeps its ledger and its files; by default both are in its folder."""

    ledger: str | None = None
    warehouse: str | None = None
    store: Store | None = None


@contextmanager
def places(folder: Path, ledger: str, warehouse: str) -> Iterator[Places]:
    """The servers that a soak needs, for as long as it lasts."""
    with ExitStack() as servers:
        url = store = uri = None
        if ledger == "postgres":
            from tests import postgres

            url = servers.enter_context(postgres.serving()).new_database()
        if warehouse == "s3":
            (folder / "s3").mkdir(parents=True)
            os.environ.update(AWS_ACCESS_KEY_ID="strandline", AWS_SECRET_ACCESS_KEY="strandline-soak-alone")
            bucket = s3.new_bucket(servers.enter_context(s3.serving(folder / "s3")))
            uri, store = bucket.uri, bucket.store
        yield Places(url, uri, store)


def make(scene: Scene, at: Places) -> str:
    """Make both lakes; returns the token for the receiver."""
    with create.create(scene.lake, ledger=at.ledger, warehouse=at.warehouse, store=at.store) as lake:
        lake.create_table(PLAIN, COLUMNS)
        lake.create_table(KEYED, COLUMNS, row_key=["part_id"], partition_by=["source"])
        lake.create_table(LISTS, {"id": "string", "tokens": "list<string>", "changes": "long"}, key=["id"])
    with create.create(scene.receiver) as receiver:
        for table in TABLES:
            receiver.create_table(table, COLUMNS)
        receiver.create_table(LISTS, {"id": "string", "tokens": "list<string>?", "changes": "long?"})
        return create_token(receiver.ledger, GATEWAY)[1]


def connect(scene: Scene, url: str, token: str) -> None:
    """Let the lake deliver to all three destinations, in small pieces, and never give up."""
    patience = {"every": "1s", "max_attempts": 1_000_000, "unit_rows": 3_000, "tables": [*TABLES, LISTS]}
    scene.catalog.parent.mkdir()
    with Lake(scene.lake) as lake:
        forward = {"url": url, "gateway": GATEWAY, "token": token, "chunk_rows": 300, "timeout": "4s"}
        blob = {"uri": f"file://{scene.blobs}"}
        copy = {"catalog": "jdbc", "uri": f"jdbc:sqlite:{scene.catalog}", "warehouse": scene.copied}
        for name, kind, settings in zip(SINKS, ("forward", "blob", "iceberg"), (forward, blob, copy), strict=True):
            lake.add_sink(name, kind, {**settings, **patience}, check=False)
