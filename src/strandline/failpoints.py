"""Named places where a crash is simulated.

Every effect outside the ledger, and every ledger transaction that another step relies on, has a failpoint before and
after it. One test dies at each of them, reopens the lake and checks that nothing is lost, repeated or half-visible.

`STRAND_FAILPOINTS="name=action;…"` arms them, where an action is `raise`, `exit` (like kill -9), `hang` or
`sleep(ms)`, each optionally followed by `@n` for the n-th passage. When the variable is absent a failpoint costs one
attribute look-up.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from dataclasses import dataclass

from strandline.errors import BadRequest, nearest

NAMES: dict[str, str] = {
    "append.before_commit": "rows validated and inserted, transaction not yet committed",
    "append.after_commit": "rows durable, the caller not yet told",
    "mutate.before_store": "a mutation judged by what is there, nothing of it stored",
    "mutate.before_commit": "a mutation's versions and commit inserted, transaction not yet committed",
    "mutate.after_commit": "a mutation is durable, the caller not yet told",
    "inbound.before_commit": "a chunk's rows stored and its mark moved, transaction not yet committed",
    "inbound.after_commit": "a chunk is durable, its sender not yet told",
    "merge.before_store": "a merge planned, nothing stored",
    "merge.before_commit": "a branch moved forward, transaction not yet committed",
    "merge.after_commit": "a merge is stored, the caller not yet told",
    "branch.before_commit": "a branch made or deleted, transaction not yet committed",
    "branch.after_commit": "a branch made or deleted, the caller not yet told",
    "schema.before_store": "a schema change planned and looked at with the rows, nothing stored",
    "schema.before_commit": "schemas changed and their commit inserted, transaction not yet committed",
    "schema.after_commit": "schemas changed, the caller not yet told",
    "table.before_commit": "a new table described, transaction not yet committed",
    "table.after_commit": "a new table exists, the caller not yet told",
    "begin.before_commit": "leases and intent written, transaction not yet committed",
    "begin.after_commit": "intent durable, nothing staged",
    "stage.before_table": "before the Iceberg table is made sure of",
    "stage.before_branch": "before the private Iceberg branch is created",
    "stage.after_branch": "private branch created, no rows written",
    "stage.before_files": "before rows are written to the operation's own folder",
    "stage.after_files": "rows are in the operation's folder, not in Iceberg",
    "stage.before_append": "before Spark writes the private branch",
    "stage.after_append": "a snapshot is on the private branch, the ledger does not know it",
    "staged.before_commit": "phase `staged` written, transaction not yet committed",
    "staged.after_commit": "phase `staged` durable, nothing published",
    "publish.before_commit": "everything written in the publish transaction, not yet committed",
    "publish.after_commit": "published, the Iceberg ref not yet moved",
    "settle.before_ref": "before the Iceberg ref is moved and the private branch dropped",
    "settle.after_ref": "ref moved, the operation's folder not yet removed",
    "settle.after_folder": "folder removed, the intent not yet deleted",
    "settle.after_commit": "intent deleted, the caller not yet told",
    "expire.before_delete": "snapshots condemned, Iceberg still has them",
    "expire.after_delete": "Iceberg has forgotten condemned snapshots, the ledger has not",
    "expire.after_forget": "the ledger has forgotten expired snapshots and their files, the intent is there",
    "sweep.before_delete": "something that is nobody's was found, and is still there",
    "sweep.after_delete": "something that was nobody's is gone",
    "purge.before_forget": "no branch has purged rows of a keyed table any more, their hashes are still written down",
    "purge.after_forget": "a purge of a keyed table is over, the caller not yet told",
    "reserve.before_commit": "seqs of a large load or merge reserved, transaction not yet committed",
    "reserve.after_commit": "seqs of a large load or merge reserved and durable",
    "load.before_convert": "before a load's input is converted into its folder",
    "load.after_convert": "a load's input is converted, the ledger does not know it",
    "load.after_parts": "the ledger knows the converted parts",
    "load.between_bites": "one bite of a load published, the next not begun",
    "blob.before_write": "before a worker writes a unit's object",
    "blob.before_rename": "a unit's object is on the disk under its temporary name (a bucket has none: it is visible)",
    "blob.after_write": "a unit's object is visible, the ledger does not know it",
    "blob.before_manifest": "a stream's manifest was read, and is not yet written with the unit's line",
    "blob.after_manifest": "a unit's line is in its stream's manifest, the ledger does not know it",
    "blob.before_mark": "a unit is written, its stream's mark object was read and is not yet moved",
    "blob.after_mark": "a stream's mark object says that the unit is there, the ledger does not know it",
    "copy.before_append": "a unit's rows are in a working folder, nothing is in the target table",
    "copy.after_append": "a unit's rows are on a private branch of the target table",
    "copy.before_commit": "before the target's main and the stream's mark move together",
    "copy.after_commit": "rows and mark are in the target table, the ledger does not know it",
    "backup.after_hold": "what a backup will name is held, nothing is copied",
    "backup.before_ledger": "a backup has begun, the ledger is not copied",
    "backup.after_ledger": "the ledger is copied, the catalog is not",
    "backup.after_catalog": "ledger and catalog are copied, no file is",
    "backup.before_manifest": "everything is copied, and nothing says what it is",
    "backup.before_rename": "a backup is complete, under its temporary name",
    "backup.after_rename": "a backup is there, the caller not yet told",
    "restore.before_record": "a backup is verified and its ledger copied, the jump not yet recorded",
    "restore.after_record": "the jump is recorded beside the backup, the ledger not yet raised",
    "restore.after_raise": "the copied ledger is raised, files not yet put back",
    "restore.after_files": "files are put back, the lake that is there is still the old one",
    "restore.after_retire": "the old ledger is closed for good, and still in its place",
    "restore.after_aside": "the old lake is put aside, nothing is in its place",
    "restore.before_marker": "nothing is in the old lake's place, the warehouse's marker is the old one",
    "restore.after_marker": "the marker has the restored ledger's generation, the lake is not there yet",
    "restore.after_databases": "the restored ledger and catalog are in their place, the config is not",
    "restore.after_config": "the restored lake is there, no destination was asked",
    "clone.after_backup": "the lake is copied beside its clone's place, nothing is in there",
    "clone.after_files": "a clone's files are in its warehouse, its ledger is the first lake's still",
    "clone.after_config": "a clone is there, the caller not yet told",
    "relocate.after_metadata": "a moved lake's metadata is written for its new place, the catalog names the old one",
    "relocate.after_catalog": "the catalog names files in the new place, the ledger in the old one",
    "relocate.before_commit": "the ledger names files in the new place, transaction not yet committed",
    "relocate.after_commit": "a moved lake is at home in its new place, the fence not yet raised",
    "fence.before_marker": "the ledger notes who raises the fence, the warehouse's marker has the old number",
    "fence.after_marker": "the marker has the new number, the ledger has the old one",
    "fence.before_commit": "the new number is written to the ledger, transaction not yet committed",
    "fence.after_commit": "ledger and marker have the new number, nothing is deleted",
    "claim.before_marker": "a person has claimed the warehouse, its marker is as it was",
    "claim.after_marker": "the claimed warehouse has its marker, the ledger has the old number",
    "recover.before_commit": "a dead operation decided, transaction not yet committed",
    "recover.after_commit": "a dead operation decided and audited, its Iceberg half still open",
    "deliver.before_open": "a unit planned, its delivery not yet committed",
    "deliver.after_open": "a delivery durable, nothing sent",
    "deliver.before_close": "a unit sent, its watermark not yet committed",
    "deliver.after_close": "a watermark moved and durable",
    "mark.before_commit": "a destination told where it is, the watermark not yet committed",
    "mark.after_commit": "a stream has the watermark that its destination told, nothing sent",
    "forward.before_send": "before a chunk is sent",
    "forward.after_send": "a chunk was answered, nothing noted",
    "dead.before_commit": "refused rows written down, transaction not yet committed",
    "dead.after_commit": "refused rows are dead letters, their range not yet sent without them",
    "quarantine.before_commit": "an unreadable batch set aside, transaction not yet committed",
    "quarantine.after_commit": "an unreadable batch set aside",
}


class FailpointReached(BaseException):
    """A simulated crash. Not an Exception: no handler may tidy up after a process that is dead."""


@dataclass
class _Armed:
    action: str
    nth: int
    sleep_ms: int = 0
    passages: int = 0


_armed: dict[str, _Armed] | None = None
_lock = threading.Lock()


def parse(text: str) -> dict[str, _Armed]:
    """Read the variable's value; an unknown name or action is an error that names the nearest known one."""
    armed: dict[str, _Armed] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        match = re.fullmatch(r"([\w.]+)=(raise|exit|hang|sleep\((\d+)\))(?:@(\d+))?", part)
        if match is None:
            raise BadRequest(
                f"STRAND_FAILPOINTS: can't read {part!r}",
                hint="Write name=action, with action raise, exit, hang or sleep(ms), optionally @n.",
            )
        name, action, sleep_ms, nth = match.groups()
        if name not in NAMES:
            raise BadRequest(f"STRAND_FAILPOINTS: there is no failpoint {name!r}", hint=nearest(name, NAMES))
        armed[name] = _Armed(action.split("(")[0], int(nth or 1), int(sleep_ms or 0))
    return armed


def arm(text: str | None) -> None:
    """Arm these failpoints and no others; None or an empty text disarms all."""
    global _armed
    _armed = parse(text) or None if text else None


def passages(name: str) -> int:
    """How often an armed failpoint was passed: a test asks this to know that it really was on the way."""
    return _armed[name].passages if _armed and name in _armed else 0


def fail(name: str) -> None:
    """Pass the failpoint `name`; it does nothing unless it is armed."""
    if _armed is not None:
        _pass(name)


def _pass(name: str) -> None:
    assert name in NAMES, f"failpoint {name!r} is not listed"
    armed = _armed.get(name) if _armed else None
    if armed is None:
        return
    with _lock:
        armed.passages += 1
        due = armed.passages == armed.nth
    if not due:
        return
    if armed.action == "exit":
        sys.stderr.flush()
        os._exit(137)
    if armed.action == "hang":
        while True:
            time.sleep(3600)
    if armed.action == "sleep":
        time.sleep(armed.sleep_ms / 1000)
        return
    raise FailpointReached(name)


arm(os.environ.get("STRAND_FAILPOINTS"))
