"""What each command answers with `--json`: its result class, of which docs/documents.json is made.

Only the page and its test import this: it brings all results along, and a command should not wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.cli.quarantine import SavedBatch
from strandline.cli.serve import Listening
from strandline.cli.service import ServiceFile
from strandline.cli.setup import SetUp
from strandline.cli.up import Running
from strandline.cli.worker import Stopped, Worked
from strandline.copies import CloneReport, LakeContents, RestoreReport
from strandline.create import NewLake
from strandline.json_types import Json, JsonObject
from strandline.lake.backups import BackupReport
from strandline.lake.branches import (
    BranchEntry,
    ChangesPage,
    CommitEntry,
    Deleted,
    Differences,
    NewBranch,
    NewTag,
    Protection,
    Renamed,
    ShownCommit,
    TagEntry,
)
from strandline.lake.dead_letters import OpenLetter
from strandline.lake.document_schema import Definitions
from strandline.lake.export import Exported
from strandline.lake.jobs import Retried
from strandline.lake.quarantine import GivenUp, Repaired
from strandline.lake.queries import QueryRows
from strandline.lake.recovery import RecoveredOperation
from strandline.lake.schemas import SchemaChanged, SchemaPlan
from strandline.lake.sinks import RemovedSink, RetriedDeliveries, TickedStream
from strandline.lake.tables import DroppedTable, KeptTable, NewTable
from strandline.lake.tokens import NewToken, TokenEntry
from strandline.lake.versions import Versions
from strandline.model.history.merge import Merged
from strandline.model.maintenance import Maintained
from strandline.model.operations import Flushed, Loaded
from strandline.model.tables import Ack
from strandline.reports.audit import AuditEntry
from strandline.reports.doctor import Diagnosis
from strandline.reports.quarantine import QuarantineEntry
from strandline.reports.sinks import SinkStatus
from strandline.reports.status import Status
from strandline.reports.tables import TableHistory, TableReport
from strandline.sinks.continuing import Continued
from strandline.sinks.repair import PreviewedStream, Rewound, SettledLetter

MAINTENANCE = "maintenance"
"""Every command of docs/maintenance.md: operations declare themselves, and answer alike."""

ANSWERS: dict[str, Any] = {
    "init": NewLake,
    "version": Versions,
    "setup": SetUp,
    "table create": NewTable,
    "table list": list[TableReport],
    "table show": TableHistory,
    "table set": KeptTable,
    "table drop": DroppedTable,
    "schema plan": SchemaPlan,
    "schema apply": SchemaChanged,
    "schema show": Mapping[str, Any],  # a document that a person edits, described in docs/schema.md
    "append": Ack,
    "load": Loaded,
    "adopt": Loaded,
    "flush": list[Flushed],
    "sql": QueryRows,
    "export": Exported,
    "branch create": NewBranch,
    "branch list": list[BranchEntry],
    "branch rename": Renamed,
    "branch delete": Deleted,
    "branch protect": Protection,
    "log": list[CommitEntry],
    "show": ShownCommit,
    "tag": list[TagEntry] | NewTag | Deleted,
    "merge": Merged,
    "diff": Differences,
    "changes": ChangesPage,
    "status": Status,
    "doctor": Diagnosis | Mapping[str, str],  # the places of --failpoints by their names
    "recover": list[RecoveredOperation],
    "audit": list[AuditEntry],
    "quarantine list": list[QuarantineEntry],
    "quarantine save": SavedBatch,
    "quarantine restore": Repaired,
    "quarantine discard": GivenUp,
    MAINTENANCE: list[Maintained],
    "backup": BackupReport,
    "restore": RestoreReport,
    "clone": CloneReport,
    "relocate": LakeContents,
    "sink add": SinkStatus,
    "sink list": list[SinkStatus],
    "sink show": SinkStatus,
    "sink set": SinkStatus,
    "sink rename": SinkStatus,
    "sink pause": SinkStatus,
    "sink resume": SinkStatus,
    "sink remove": RemovedSink,
    "sink tick": list[TickedStream],
    "sink preview": list[PreviewedStream],
    "sink retry": RetriedDeliveries,
    "sink continue": list[Continued],
    "sink rewind": Rewound,
    "sink dead": list[OpenLetter] | list[SettledLetter],
    "token create": NewToken,
    "token list": list[TokenEntry],
    "token revoke": TokenEntry,
    "serve": Listening,
    "worker": Stopped | Worked,
    "worker retry": Retried,
    "up": Running,
    "service print": ServiceFile,
}
"""By the words of the command. `tail` prints rows and no document."""


def described() -> dict[str, Json]:
    """docs/documents.json: for each command the schema of its document, and of the error that any of them may print."""
    definitions = Definitions()
    commands = {command: definitions.answer(kind) for command, kind in ANSWERS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What commands print with --json",
        "commands": commands,
        "error": {"type": "object", "properties": {"error": ERROR}, "required": ["error"]},
        "$defs": dict(sorted(definitions.schemas.items())),
    }


ERROR: JsonObject = {
    "type": "object",
    "properties": {
        "code": {"type": "string"},
        "message": {"type": "string"},
        "hint": {"type": ["string", "null"]},
        "detail": {"type": "object"},
    },
    "required": ["code", "message", "hint", "detail"],
}
"""An error's document: see docs/errors.md."""
