"""Names that other programs and other versions read: stored, sent or printed, they stay what they are.

Many of them are names of Python fields, because records are stored and printed by `asdict`: a rename that looks like
one of the code alone would leave a lake unreadable. So the list is kept beside this file, and a difference is a
decision. A name is added with `STRAND_KEEP_NAMES=1 pytest tests/structure/test_stored_names.py`; one that goes needs a
migration.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from strandline import put
from strandline.engines.warehouse import Marker
from strandline.errors import Busy
from strandline.lake import Lake
from strandline.ledger.changes.mutations import Brought
from strandline.ledger.changes.purges import Shortened, Tombstone
from strandline.ledger.database import schema as db
from strandline.ledger.place.restores import Restored
from strandline.ledger.publish.effects import KINDS
from strandline.ledger.publish.effects_version_1 import CommitOf1, EffectsOf1, TableEffectOf1
from strandline.ledger.publish.loads import Load, Part
from strandline.ledger.publish.owner import Owner
from strandline.ledger.tables.adoption import Adoption
from strandline.model.backups import Manifest, StoredFile
from strandline.model.delivery.inbound import Received
from strandline.model.delivery.sinks import Replayed, SentChunk
from strandline.model.history.changes import RowChange, RowDiff
from strandline.model.history.commits import Commit
from strandline.model.history.merge import Merged, RowConflict
from strandline.model.maintenance import Maintained
from strandline.model.operations import Flushed, Loaded, Recovered, TableScope
from strandline.model.schema.steps import Step
from strandline.model.schema.violations import Violation
from strandline.model.tables import Ack, DataFile, TableSettings
from strandline.reports.findings import Finding
from strandline.sinks.keys import OF_ALL
from strandline.sinks.registry import OURS
from strandline.sinks.tick import Ticked
from strandline.worker import delegation
from tests.kit import Ran, call

KEPT = Path(__file__).with_name("stored_names.json")
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}|[0-9A-HJKMNP-TV-Z]{26}")

RECORDS: dict[str, type] = {
    "intent, version 1: scope": TableScope,
    "intent, version 1: effects": EffectsOf1,
    "intent, version 1: effect on a table": TableEffectOf1,
    "intent, version 1: commit": CommitOf1,
    **{f"intent, version 2: {name}": kind for name, kind in KINDS.items()},
    "intent, version 2: schema that a merge brings": Brought,
    "intent, version 2: quarantined batch that a purge shortens": Shortened,
    "intent, version 2: tombstone of a purge": Tombstone,
    "intent: table that a merge takes over": Adoption,
    "data file": DataFile,
    "settings of a table": TableSettings,
    "owner": Owner,
    "load": Load,
    "load: part": Part,
    "restore": Restored,
    "backup: manifest": Manifest,
    "backup: stored file": StoredFile,
    "marker of a warehouse": Marker,
    "chunk that was sent": SentChunk,
    "dead letters that were replayed": Replayed,
    "chunk that was received": Received,
    "ack": Ack,
    "commit": Commit,
    "step of a schema": Step,
    "row that differs": RowDiff,
    "row that changed": RowChange,
    "conflict of rows": RowConflict,
    "merge": Merged,
    "violation": Violation,
    "finding": Finding,
    "answer of a flush": Flushed,
    "answer of a load": Loaded,
    "answer of recovery": Recovered,
    "answer of maintenance": Maintained,
    "answer of a tick": Ticked,
}
"""Classes whose fields are names in stored bytes or in documents. A class may be renamed; its fields may not."""

BRANCHED = ("branch", "create", "trial")
"""After it a row of the branch changes, so that a diff, changes and a merge have one to show."""

STORY: tuple[tuple[str, ...], ...] = (
    ("table", "create", "messages", "--columns", "id:string,ts:timestamp?", "--row-key", "id"),
    ("table", "create", "people", "--columns", "id:string,name:string?", "--key", "id"),
    ("append", "messages"),
    ("table", "list"),
    ("table", "show", "messages"),
    ("table", "show", "people"),
    ("table", "set", "messages", "retention=30d", "time_column=ts", "--yes"),
    ("schema", "show"),
    ("sql", "select id from messages"),
    BRANCHED,
    ("branch", "list"),
    ("diff", "main", "trial"),
    ("changes", "people", "--branch", "trial"),
    ("log",),
    ("show", "trial"),
    ("merge", "trial", "--dry-run"),
    ("merge", "trial"),
    ("branch", "protect", "trial"),
    ("branch", "protect", "trial", "--off"),
    ("branch", "rename", "trial", "probe"),
    ("tag", "first"),
    ("tag",),
    ("sink", "add", "central", "--type", "forward", "--set", "url=http://127.0.0.1:9", "--no-check"),
    ("sink", "list"),
    ("sink", "show", "central"),
    ("sink", "preview", "central"),
    ("sink", "pause", "central", "--reason", "a test"),
    ("sink", "resume", "central"),
    ("sink", "dead", "central"),
    ("token", "create", "writer"),
    ("token", "list"),
    ("quarantine", "list"),
    ("status",),
    ("doctor",),
    ("recover", "--dry-run"),
    ("audit",),
    ("version",),
    ("flush",),
    ("load", "messages", "{rows}"),
    ("adopt", "other", "{folder}"),
    ("sink", "tick"),
    ("compact",),
    ("fold",),
    ("retain",),
    ("expire",),
    ("sweep",),
    ("purge", "messages", "--where", "id = '1'", "--yes"),
    ("backup", "{backup}"),
    ("table", "drop", "messages", "--yes"),
    ("branch", "delete", "probe", "--force", "--yes"),
)
"""Commands that need no Spark, in an order in which their documents have something to say."""


def paths(value: Any, at: str = "") -> Iterator[str]:
    """Every name in a document, with those above it; ids that are keys are no names."""
    if isinstance(value, dict):
        for key, item in value.items():
            path = f"{at}.{ID.sub('<id>', str(key))}".lstrip(".")
            yield path
            yield from paths(item, path)
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, f"{at}[]")


def differences(kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What went, and what came, in words."""
    listed = [f"{name} is new: {now[name]}" for name in now if name not in kept]
    listed += [f"{name} is gone" for name in kept if name not in now]
    for name in kept.keys() & now.keys():
        listed += [f"{name}: {path} is gone" for path in kept[name] if path not in now[name]]
        listed += [f"{name}: {path} is new" for path in now[name] if path not in kept[name]]
    return sorted(listed)


def check(section: str, now: dict[str, Any]) -> None:
    """Compare with the kept list, or keep this one where a person says so."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if os.environ.get("STRAND_KEEP_NAMES"):
        KEPT.write_text(json.dumps({**kept, section: now}, indent=1, sort_keys=True) + "\n")
        return
    assert differences(kept[section], now) == []


def test_stored_records_keep_the_names_of_their_fields() -> None:
    """An older lake, a destination and a script know them."""
    check("records", {name: [field.name for field in fields(record)] for name, record in RECORDS.items()})  # type: ignore[arg-type]


def test_tables_of_the_ledger_keep_the_names_of_their_columns() -> None:
    """They change by a migration, which raises the ledger's format."""
    check("columns", {table.name: [column.name for column in table.columns] for table in db.metadata.sorted_tables})


def test_settings_of_sinks_keep_their_names() -> None:
    """They are stored as a person typed them."""
    check("settings of sinks", settings_of_sinks())


def settings_of_sinks() -> dict[str, list[str]]:
    """By type of sink, the names of what can be set."""
    return {kind.name: sorted({**OF_ALL, **kind.keys}) for kind in OURS.values()}


def test_documents_and_requests_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands print with --json, and what they ask a worker for: through the ledger, maybe of another version."""
    requests: dict[str, list[str]] = {}

    def ask(_lake: Any, kind: str, arguments: dict[str, Any], **_options: Any) -> Any:
        requests[kind] = sorted(paths(arguments))
        raise Busy("it was only looked at", reason="looked_at")

    monkeypatch.setattr(delegation, "carry_out", ask)
    monkeypatch.setenv("STRAND_LAKE", str(tmp_path / "lake"))
    documents = {"init": sorted(set(paths(call("--json", "init", str(tmp_path / "lake")).json)))}
    for command in STORY:
        documents[" ".join(command)] = sorted(set(paths(tell(tmp_path, command).json)))
        if command == BRANCHED:
            with Lake(tmp_path / "lake") as lake:
                lake.mutate([put("people", {"id": "2", "name": "Ann"})], branch="trial", actor="a test")
    check("documents", documents)
    check("requests", requests)


def tell(folder: Path, command: tuple[str, ...]) -> Ran:
    """Run one command of the story."""
    rows = folder / "rows.jsonl"
    rows.write_text('{"id": "9"}\n')
    places = {"rows": rows, "folder": folder / "parquet", "backup": folder / "backup"}
    return call("--json", *(word.format(**places) for word in command), stdin=b'{"id": "1"}\n')


@pytest.mark.parametrize(
    ("kept", "now", "words"),
    [
        ({"a": ["x"]}, {"a": ["y"]}, ["a: x is gone", "a: y is new"]),
        ({"a": ["x"]}, {}, ["a is gone"]),
        ({}, {"a": ["x"]}, ["a is new: ['x']"]),
        ({"a": ["x"]}, {"a": ["x"]}, []),
    ],
)
def test_a_name_that_changed_is_seen(kept: dict[str, Any], now: dict[str, Any], words: list[str]) -> None:
    assert differences(kept, now) == words


def test_ids_are_no_names() -> None:
    assert list(paths({"tables": {"0123456789abcdef0123": [{"n": 1}]}})) == [
        "tables",
        "tables.<id>",
        "tables.<id>[].n",
    ]
