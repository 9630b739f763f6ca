"""The Postgres of a soak: it is restarted, killed, made read-only, and replaced by its standby.

Everybody reaches it through a gate, whose address stays while the server behind it changes. A standby takes over only
what the server has acknowledged to nobody but with it: from the moment that it is wanted, replication is synchronous.
"""

from __future__ import annotations

import itertools
import os
import pwd
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from tests.kit import free_port, wait_until
from tests.postgres import Server
from tests.soak.gate import Gate

SETTINGS = {"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"}


class Standby(Server):
    """A server that follows another one until it is promoted."""

    def __init__(self, primary: Server) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strand-postgres-"))
        self.port = free_port()
        self._fsync = False
        self._process = None
        self._numbers = itertools.count(1)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        source = primary.url("postgres")
        self._run("pg_basebackup", "--no-sync", "-c", "fast", "-R", "-X", "stream", "-d", source, "-D", str(self.data))


class Databases:
    """The server of the moment, and the gate before it."""

    def __init__(self) -> None:
        self._server = Server()
        self._server.start(**SETTINGS)
        self.gate = Gate(self._server.port)
        self._numbers = itertools.count(1)

    def new_database(self) -> str:
        """The URL of an empty database, by the gate."""
        name = f"lake_{next(self._numbers)}"
        self._server.execute(f"CREATE DATABASE {name}")
        return self._server.url(name, port=self.gate.port)

    def restart(self, how: signal.Signals, wait: Callable[[], None]) -> None:
        """Stop it in a way, wait, and start it again."""
        self._server.stop(how)
        wait()
        self._start_again()

    def be_read_only(self, wait: Callable[[], None]) -> None:
        """Everybody is thrown out, and finds a server that writes nothing (25006), as one that is being replaced."""
        self._set("default_transaction_read_only", "on")
        self.gate.cut_all()
        try:
            wait()
        finally:
            self._set("default_transaction_read_only", "off")
            self.gate.cut_all()

    def fail_over(self, wait: Callable[[], None]) -> None:
        """Kill the server; its standby has its address at once, and is promoted some time later."""
        old, standby = self._server, Standby(self._server)
        standby.start(**SETTINGS)
        try:
            wait_until(lambda: self._following() == ["streaming"])
            self._set("synchronous_standby_names", "*")
            # What was acknowledged before that is on its way too; from now on nobody hears of what is not there.
            at = old.execute("SELECT pg_current_wal_lsn()::text")[0][0]
            behind = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= %s::pg_lsn"
            wait_until(lambda: bool(old.execute(behind, (at,))))
            time.sleep(1)
        except BaseException:
            standby.remove()
            raise
        old.stop(signal.SIGQUIT)
        self._server = standby
        self.gate.lead_to(standby.port)
        wait()
        standby.execute("SELECT pg_promote()")
        self.gate.cut_all()
        old.remove()

    def remove(self) -> None:
        """Stop everything."""
        self.gate.close()
        self._server.remove()

    def _following(self) -> list[str]:
        return [row[0] for row in self._server.execute("SELECT state FROM pg_stat_replication")]

    def _start_again(self) -> None:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                self._server.start(**SETTINGS)
                return
            except AssertionError:  # what a killed server left may still be ending, and holds its memory
                self._server.stop(signal.SIGQUIT)
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.5)

    def _set(self, name: str, value: str) -> None:
        with psycopg.connect(self._server.url("postgres"), autocommit=True) as conn:
            conn.execute("SET default_transaction_read_only = off")
            conn.execute("SET synchronous_commit = local")
            conn.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            conn.execute("SELECT pg_reload_conf()")
