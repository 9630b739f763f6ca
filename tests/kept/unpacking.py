"""Kept lakes: what commit ec31a67 wrote, put back where it was written.

A lake's files name each other by absolute paths, so there is one place on a machine for each of them, which tests take
turns in. Who held what in such a lake is dead: its owners are replaced by a process of this machine that has ended.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psycopg

from strandline.lake import Lake
from tests.delivery import Receiver
from tests.kit import in_ledger
from tests.postgres import Server

ARCHIVES = Path(__file__).parent
KEPT = Path("/tmp/strandline-kept")
SHAPE = ARCHIVES / "postgres.sql"
"""What the old code makes in an empty database of Postgres."""
LEDGERS = ("/strand.toml", "/ledger.db", "/catalog.db", "/_strand.json")


@dataclass(frozen=True)
class Kept:
    """A folder with lakes that the old code wrote, and what it noted of them."""

    name: str
    folder: Path
    noted: dict[str, Any]

    @property
    def root(self) -> Path:
        """The lake."""
        return self.folder / "lake"

    @property
    def central(self) -> Path:
        """The lake that receives from it."""
        return self.folder / "central"

    @property
    def lakes(self) -> list[Path]:
        """Both, or the one that there is."""
        return [root for root in (self.root, self.central) if root.exists()]


def noted(name: str) -> dict[str, Any]:
    """What the old code found in a lake."""
    found: dict[str, Any] = json.loads((ARCHIVES / f"{name}.json").read_text())
    return found


@contextmanager
def unpacked(name: str, server: Server | None = None, *, ledgers_alone: bool = False) -> Iterator[Kept]:
    """A kept lake in its place, for as long as the block runs; no other process has it meanwhile.

    With `ledgers_alone` there is no warehouse: its many small files take most of the time.
    """
    KEPT.mkdir(exist_ok=True)
    folder = KEPT / name
    with (KEPT / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
                every = archive.getmembers()
                members = [one for one in every if not ledgers_alone or one.name.endswith(LEDGERS)]
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 brought it
                archive.extractall(KEPT, map(_as_if_new, members))
            kept = Kept(name, folder, noted(name))
            for root in kept.lakes:
                if server is not None:
                    _move_to_postgres(server, root)
                _bury(root)
            yield kept
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _as_if_new(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file of a warehouse as young as on the day that it was kept: doctor names what is left after a day."""
    return member.replace(mtime=time.time()) if "/warehouse/" in member.name else member


def _move_to_postgres(server: Server, root: Path) -> None:
    """Let a lake have its ledger and its catalog in a new database, with the rows that it has in files."""
    url = server.new_database()
    copy_rows(root, url)
    for name in ("ledger.db", "catalog.db"):
        (root / name).unlink(missing_ok=True)
    config = root / "strand.toml"
    config.write_text(config.read_text().replace("sqlite:///ledger.db", url))


def copy_rows(root: Path, url: str) -> None:
    """Put the rows of a lake's ledger and catalog into tables that the old code, and Iceberg, make in Postgres."""
    with psycopg.connect(url) as target:
        target.execute(SHAPE.read_text().encode())
        target.execute("SET search_path = public")
        target.execute("SET session_replication_role = replica")  # references are to be whole at the end alone
        for name in ("ledger.db", "catalog.db"):
            if not (root / name).exists():
                continue
            with closing(sqlite3.connect(root / name)) as source:
                made = source.execute("select name, sql from sqlite_master where type = 'table'").fetchall()
                for table, statement in made:
                    if name == "catalog.db":  # Iceberg makes it with the same words everywhere
                        target.execute(statement.encode())
                    rows = source.execute(f'select * from "{table}"')
                    columns = [column[0] for column in rows.description]
                    values = ", ".join(["%s"] * len(columns))
                    insert = f"insert into {table} ({', '.join(map(_quoted, columns))}) values ({values})"
                    target.cursor().executemany(insert.encode(), rows.fetchall())
        target.execute("SELECT setval('audit_audit_id_seq', coalesce(max(audit_id), 0) + 1, false) FROM audit")


def _quoted(name: str) -> str:
    return f'"{name}"'


def _bury(root: Path) -> None:
    """Everything that was held is held by a dead process of this machine."""
    dead = _dead_owner()
    in_ledger(root, "update intents set owner = :dead where owner <> ''", dead=dead)
    in_ledger(root, "update leases set owner = :dead where owner is not null", dead=dead)


@lru_cache(maxsize=1)
def _dead_owner() -> str:
    code = "from strandline.ledger.publish import owner; print(owner.register().text())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def shown(lake: Lake) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Every row of every table on every branch, as the old code noted them: by seq, without times and actors."""
    found = {}
    for branch in sorted(one.name for one in lake.branches()):
        view = lake.view(branch)
        found[branch] = {
            table: _rows(view.sql(f'select _seq, * from "{table}" order by _seq').arrow().to_pylist())
            for table in view.tables
            if branch == "main" or view.branch_table(table).table.key
        }
    return found


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(row, default=lambda value: value.isoformat())) for row in rows]


def serving_again(kept: Kept) -> Receiver:
    """The kept receiver, served by today's code."""
    receiver = Receiver.__new__(Receiver)
    receiver.root, receiver.token, receiver.port = kept.central, kept.noted["token"], 0
    receiver._process = None
    receiver.start()
    return receiver
