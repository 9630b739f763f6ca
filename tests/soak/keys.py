"""The keys of the soak's S3 server, which roll over: the server has new ones, and the file of keys follows later."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests import s3
from tests.soak.gate import Gate

USER = "strandline"


class RollingKeys:
    """A server whose account changes, behind a gate whose address stays."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder / "s3", folder / "credentials"
        self._folder.mkdir(parents=True)
        self._numbers = itertools.count(1)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # they would go before the file
            os.environ.pop(name, None)
        os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(self._file)
        self._secret = self._next_secret()
        self._server, port = self._serve()
        self._write()
        self.gate = Gate(port)

    def roll_over(self, wait: Callable[[], None]) -> None:
        """Another secret at once, and the file after a wait."""
        self._secret = self._next_secret()
        old, (self._server, port) = self._server, self._serve()
        self.gate.lead_to(port)
        old.close()
        try:
            wait()
        finally:
            self._write()

    def close(self) -> None:
        """Stop everything."""
        self.gate.close()
        self._server.close()

    def _next_secret(self) -> str:
        return f"strandline-soak-alone-{next(self._numbers)}"

    def _serve(self) -> tuple[ExitStack, int]:
        server = ExitStack()
        endpoint = server.enter_context(s3.serving(self._folder, keys=(USER, self._secret)))
        return server, int(endpoint.rpartition(":")[2])

    def _write(self) -> None:
        """All at once, as whoever rolls keys over should."""
        new = self._file.with_suffix(".new")
        new.write_text(f"[default]\naws_access_key_id = {USER}\naws_secret_access_key = {self._secret}\n")
        new.replace(self._file)
