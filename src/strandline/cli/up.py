"""`strand up`: a server and a worker together, watched over.

Each is a process of its own, so that neither can take the other with it. One that ends, for whatever reason, is started
again, later each time; only one that could not even begin, because the command line or the machine is wrong, ends it
all: a person is waiting for the message. The two lead their own process groups, so Ctrl-C reaches this process alone,
and it stops them in order.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import typer

from strandline.cli import output
from strandline.cli.session import Session, session_of
from strandline.cli.supervised import SUPERVISED, tell_ready

POLL_S = 0.1
BACKOFF_S = 0.5
BACKOFF_MAX_S = 30.0
STEADY_S = 60.0
GRACE_S = 25.0
HOPELESS = (2, 3, 6)
"""Exit codes of a child that it would have again: a wrong command line or input, or a person is needed."""


@dataclass(frozen=True)
class Running:
    """A server and a worker that are ready, by their process ids."""

    listen: str
    server: int | None
    worker: int | None


def register(app: typer.Typer) -> None:
    """Put this command into the tree."""
    app.command("up", short_help="Run a server and a worker, and start again whichever ends.")(up)


def up(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the server listens; port 0 picks a free one.")
    ] = None,
) -> None:
    """Run a server and a worker, start again whichever ends, and stop both on Ctrl-C or SIGTERM.

    \b
    Example: strand up --listen 127.0.0.1:8400
    """
    from strandline.config import find_root, load, read_listen

    session = session_of(context)
    root = find_root(Path(session.lake) if session.lake is not None else None)
    where = load(root).server.listen if listen is None else read_listen(listen)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="strand-up-") as folder:
        prefixed = session.log_format == "text"
        base = [sys.executable, "-m", "strandline", "--lake", str(root), "--log-format", session.log_format]
        server = Child("server", [*base, "serve", "--listen", where], Path(folder), prefixed=prefixed)
        worker = Child("worker", [*base, "worker"], Path(folder), prefixed=prefixed)
        code = supervise([server, worker], stop, lambda: _ready(session, server, worker))
    if code:
        raise typer.Exit(code)


def _ready(session: Session, server: Child, worker: Child) -> None:
    address = server.status.rpartition(" ")[2]
    server.command[-1] = address.removeprefix("http://")  # a port that was picked stays the same when it starts again
    running = Running(address.removeprefix("http://"), server.pid, worker.pid)
    session.emit(running, lambda: output.say(f"Ready: {address}, and a worker. Ctrl-C stops both."))
    output.flush()
    tell_ready(f"listening on {address}")


@dataclass
class Child:
    """A process that is kept running."""

    name: str
    command: list[str]
    folder: Path
    prefixed: bool
    status: str = ""
    ready: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _notify: socket.socket | None = None
    _began_s: float = 0.0
    _next_s: float = 0.0
    _failures: int = 0
    _readers: list[threading.Thread] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        """Its id, while it runs."""
        return None if self._process is None else self._process.pid

    def look(self) -> int | None:
        """Start it when it is time to, hear whether it is ready; its exit code when it can never be."""
        now_s = time.monotonic()
        if self._process is None:
            if now_s >= self._next_s:
                self._start(now_s)
            return None
        self._hear()
        code = self._process.poll()
        if code is None:
            return None
        self._process = None
        if not self.status and code in HOPELESS:
            return code
        self._failures = 1 if now_s - self._began_s >= STEADY_S else self._failures + 1
        wait_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (self._failures - 1))
        self._next_s, self.ready = now_s + wait_s, False
        output.to_stderr(f"up | the {self.name} ended with {code}; it is started again in {wait_s:g} s")
        return None

    def ask_to_end(self) -> None:
        """SIGTERM: it may finish what it is doing."""
        if self._process is not None:
            self._process.terminate()

    def end(self, deadline_s: float) -> None:
        """Wait until it is gone, and see to it."""
        if self._process is not None:
            try:
                self._process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        for reader in self._readers:
            reader.join(timeout=5)
        if self._notify is not None:
            self._notify.close()

    def _start(self, now_s: float) -> None:
        if self._notify is None:
            self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._notify.bind(str(self.folder / self.name))
            self._notify.setblocking(False)
        self._began_s = now_s
        self._process = subprocess.Popen(
            self.command,
            env={**os.environ, "NOTIFY_SOCKET": str(self.folder / self.name), SUPERVISED: "1"},
            stdin=subprocess.PIPE,  # never written to: it closes when this process ends, and the child notices
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        reader.start()
        self._readers = [*(thread for thread in self._readers if thread.is_alive()), reader]

    def _hear(self) -> None:
        assert self._notify is not None
        with suppress(BlockingIOError):
            while True:
                news = dict(line.partition("=")[::2] for line in self._notify.recv(4096).decode().splitlines())
                # What a JVM or a child of an earlier life says does not count.
                if news.get("READY") == "1" and news.get("MAINPID") == str(self.pid):
                    self.ready, self.status = True, news.get("STATUS", "ready")

    def _read(self, pipe: IO[bytes]) -> None:
        """Its lines, under its name; JSON lines as they are, because they name the process that logs."""
        with pipe:
            for line in pipe:
                text = line.decode(errors="replace").rstrip("\n")
                output.to_stderr(f"{self.name} | {text}" if self.prefixed else text)


def supervise(children: Sequence[Child], stop: threading.Event, on_ready: Callable[[], None]) -> int:
    """Keep them running until told to stop; the exit code of one that can't be run at all, else 0."""
    is_announced, hopeless = False, 0
    try:
        while not stop.is_set() and not hopeless:
            hopeless = next((code for code in [child.look() for child in children] if code), 0)
            if not is_announced and all(child.ready for child in children):
                is_announced = True
                on_ready()
            stop.wait(POLL_S)
    finally:
        for child in children:
            child.ask_to_end()
        deadline_s = time.monotonic() + GRACE_S
        for child in children:
            child.end(deadline_s)
    return hopeless
