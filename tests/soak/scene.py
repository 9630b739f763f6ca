"""The scene of a soak: a lake with three sinks, a receiver, and where everybody writes down what happened.

The tables of the receiver have no row key, so a row that arrives twice is there twice. Two tables of the lake have none
either, and one of these has a retention; the third has a row key, is partitioned, and is offered some of its rows by
every writer. One sink was added by a command, the two others are sections of `strand.toml`, which are edited meanwhile.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline import create
from strandline.config import Store
from strandline.errors import Displaced, Environment, HistoryGone, StrandError, TransientError
from strandline.lake import Lake
from strandline.ledger.tokens import create_token
from tests import s3
from tests.kit import COLUMNS

if TYPE_CHECKING:
    from tests.soak.databases import Databases
    from tests.soak.gate import Gate
    from tests.soak.keys import RollingKeys

PLAIN, KEYED, TIMED = "events", "messages", "readings"
TABLES = (PLAIN, KEYED, TIMED)
TIME = "ts"
"""The column by which rows of the timed table grow old."""
RETENTION_S = 3600.0
LISTS = "lists"
"""A keyed table, which is changed on branches and merged."""
GATEWAY = "soak"
ADDED, WRITTEN = "central", ("archive", "copy")
"""The sink that a command added, and those that are sections of `strand.toml`, by their first names."""

DISK_MIB = 256

PASSING: tuple[type[StrandError], ...] = (TransientError, HistoryGone, Displaced, Environment)
"""What a program tries again: also what it is told while the warehouse is not mounted, or does not let it in."""

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

    @property
    def backups(self) -> Path:
        """Where backups and copies lie that are put back later."""
        return self.folder / "backups"

    @property
    def era(self) -> Path:
        """How often the lake's ledger has gone back so far; writers offer no row of an older era again."""
        return self.folder / "era"

    def read_era(self) -> int:
        """The era that a writer writes in."""
        return int(self.era.read_text()) if self.era.exists() else 0

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
    databases: Databases | None = None
    """The server of a ledger that is no file."""
    keys: RollingKeys | None = None
    """The S3 server, where the warehouse is in one."""
    disk: Path | None = None
    """A small disk of its own that a local warehouse is on, which can be filled."""

    @property
    def store_gate(self) -> Gate | None:
        """What stands before the S3 server."""
        return None if self.keys is None else self.keys.gate

    @property
    def are_local(self) -> bool:
        """Whether the whole lake is one folder, which can be copied."""
        return self.ledger is None and self.warehouse is None


@contextmanager
def places(folder: Path, ledger: str, warehouse: str, *, small: bool = False) -> Iterator[Places]:
    """The servers that a soak needs, for as long as it lasts; `small` is a local warehouse that can be filled."""
    with ExitStack() as servers:
        url = store = uri = databases = keys = disk = None
        if ledger == "postgres":
            from tests.soak.databases import Databases

            databases = Databases()
            servers.callback(databases.remove)
            url = databases.new_database()
        if warehouse == "s3":
            from tests.soak.keys import RollingKeys

            keys = RollingKeys(folder)
            servers.callback(keys.close)
            bucket = s3.new_bucket(f"http://127.0.0.1:{keys.gate.port}")
            uri, store = bucket.uri, bucket.store
        elif small and (disk := _mount(folder / "disk", servers)) is not None:
            uri = f"file://{disk}/warehouse"
        yield Places(url, uri, store, databases, keys, disk)


def _mount(folder: Path, servers: ExitStack) -> Path | None:
    """A disk in memory; None where this process may not mount one."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        return None
    servers.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False)
    return folder


def make(scene: Scene, at: Places) -> str:
    """Make both lakes; returns the token for the receiver."""
    with create.create(scene.lake, ledger=at.ledger, warehouse=at.warehouse, store=at.store) as lake:
        lake.create_table(PLAIN, COLUMNS)
        lake.create_table(KEYED, COLUMNS, row_key=["part_id"], partition_by=["source"])
        lake.create_table(TIMED, {**COLUMNS, TIME: "timestamp"})
        lake.set_table(TIMED, retention_s=RETENTION_S, time_column=TIME)
        lake.create_table(LISTS, {"id": "string", "tokens": "list<string>", "changes": "long"}, key=["id"])
    with create.create(scene.receiver) as receiver:
        for table in (PLAIN, KEYED):
            receiver.create_table(table, COLUMNS)
        receiver.create_table(TIMED, {**COLUMNS, TIME: "timestamp"})
        receiver.create_table(LISTS, {"id": "string", "tokens": "list<string>?", "changes": "long?"})
        return create_token(receiver.ledger, GATEWAY)[1]


PATIENCE: Mapping[str, Any] = {
    "every": "1s",
    "max_attempts": 1_000_000,
    "unit_rows": 3_000,
    "tables": [*TABLES, LISTS],
}


def connect(scene: Scene, url: str, token: str) -> None:
    """Let the lake deliver to a receiver, in small pieces, and never give up; `sections` are the other two sinks."""
    scene.catalog.parent.mkdir()
    with Lake(scene.lake) as lake:
        forward = {"url": url, "gateway": GATEWAY, "token": token, "chunk_rows": 300, "timeout": "4s"}
        lake.add_sink(ADDED, "forward", {**forward, **PATIENCE}, check=False)


def sections(scene: Scene) -> dict[str, dict[str, Any]]:
    """The sinks that are written in `strand.toml`."""
    blob = {"type": "blob", "uri": f"file://{scene.blobs}"}
    copy = {"type": "iceberg", "catalog": "jdbc", "uri": f"jdbc:sqlite:{scene.catalog}", "warehouse": scene.copied}
    return {name: {**section, **PATIENCE} for name, section in zip(WRITTEN, (blob, copy), strict=True)}
