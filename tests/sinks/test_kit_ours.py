"""Our own types of sinks, held to what the acceptance kit asks of every destination."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from strandline import testing
from strandline.sinks import registry
from strandline.testing import COLUMNS, Check, Subject, checks
from tests.acceptance.places import Blobs
from tests.delivery import GATEWAY, Receiver


class Archive(Subject):
    """A folder of blobs."""

    type = "blob"
    lines = 6
    failpoints = ("blob.before_write", "blob.before_rename", "blob.after_write", "blob.before_mark", "blob.after_mark")

    def settings(self) -> dict[str, object]:
        return {"uri": f"file://{self.folder}"}

    def ids(self) -> list[str]:
        return Blobs(self.folder).column("id")


class Copy(Subject):
    """A table in another Iceberg catalog."""

    type = "iceberg"
    lines = 6
    failpoints = ("copy.before_append", "copy.after_append", "copy.before_commit", "copy.after_commit")

    def settings(self) -> dict[str, object]:
        return {"uri": f"jdbc:sqlite:{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/warehouse"}

    def ids(self) -> list[str]:
        properties = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/warehouse"}
        table = SqlCatalog("strand", **properties).load_table(f"lake.{testing.TABLE}")
        return list(table.scan().to_arrow().column("id").to_pylist())


class Central(Subject):
    """Another lake, with a server before it, whose table takes no row without a body."""

    type = "forward"
    lines = 6
    failpoints = ("forward.before_send", "forward.after_send")
    refused = {"body": None}  # noqa: RUF012

    @contextmanager
    def running(self) -> Iterator[None]:
        self._receiver = Receiver(self.folder / "lake")
        self._receiver.make_table(testing.TABLE, {**COLUMNS, "body": "string"})
        self._receiver.start()
        yield
        self._receiver.stop()

    def settings(self) -> dict[str, object]:
        return {"url": self._receiver.url, "gateway": GATEWAY, "token": self._receiver.token, "chunk_rows": 2}

    def ids(self) -> list[str]:
        return [str(id_) for id_ in self._receiver.rows(f"select id from {testing.TABLE}")]

    def copy_to(self, aside: Path) -> None:
        self._receiver.stop()
        super().copy_to(aside)
        self._receiver.start()

    def put_back(self, aside: Path) -> None:
        self._receiver.stop()
        super().put_back(aside)
        self._receiver.start()


OURS = [
    pytest.param(subject, check, id=f"{subject.type}-{check.__name__}")
    for subject in (Archive, Copy, Central)
    for check in checks(subject)
]


@pytest.mark.parametrize(("subject", "check"), OURS)
def test_our_own_destinations_pass(subject: type[Subject], check: Check, tmp_path: Path) -> None:
    check(subject, tmp_path)


def test_every_type_of_ours_is_tried() -> None:
    assert {subject.type for subject in (Archive, Copy, Central)} == registry.OURS.keys()
