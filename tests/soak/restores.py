"""Ends of a delivery that go back in time: restored from a backup, or put back by hand as a disk's snapshot is.

Backups are taken while everybody runs. Copies by hand are taken while nobody does, because a copy of files that are
being written is no copy. Whoever uses a place is stopped while it is put back, and started again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.children import Child
from tests.soak.losses import Contents, read_contents
from tests.soak.stage import Done, Stage, copy_folder, put_folder_back

ATTEMPTS = 3
NEEDS_A_PERSON = 6
EXPECTED_FINDINGS = frozenset({"clock", "not_asked", "parked", "sink_paused"})
"""What doctor may say of a lake that was just restored: clocks are moved, and the rest of the soak sees to these."""


LEDGER_FILES = "ledger.db*"


def _move_ledger(source: Path, to: Path) -> None:
    """A ledger with whatever SQLite keeps beside it."""
    for file in source.glob(LEDGER_FILES):
        shutil.move(file, to)


@dataclass(frozen=True)
class Kept:
    """A backup or a copy, and what the log had to hold when it was begun."""

    folder: Path
    acked: Mapping[str, set[str]]
    gone: Mapping[str, set[str]]


@dataclass
class Restores:
    """What was kept so far, and the troubles that put it back."""

    stage: Stage
    backups: list[Kept] = field(default_factory=list)
    received: list[Path] = field(default_factory=list)
    copies: list[Kept] = field(default_factory=list)
    number: int = 0

    # -- keeping -------------------------------------------------------------------------------------------------------

    def back_up(self) -> None:
        """Back both ends up while everybody runs."""
        stage, scene = self.stage, self.stage.scene
        kept = self.kept_now(self._new("lake"))
        if self._backed_up(scene.lake, kept.folder):
            self.backups.append(kept)
            stage.note("lake backed up")
        folder = self._new("receiver")
        if self._backed_up(scene.receiver, folder):
            self.received.append(folder)
            stage.note("receiver backed up")

    def _backed_up(self, lake: Path, folder: Path) -> bool:
        for _ in range(ATTEMPTS):
            done = self.stage.strand(lake, "backup", str(folder), "--with-data", "--link")
            if done.code == 0:
                return True
            if done.code != 5:
                break
        self.stage.wrong.append(f"{lake.name} can't be backed up: {done.error}")
        return False

    def copy_by_hand(self) -> None:
        """Stop everybody, and copy both lakes and both other destinations as they lie."""
        stage, scene = self.stage, self.stage.scene
        with stage.chaos.stopped(stage.chaos.children):
            kept = self.kept_now(self._new("by-hand"))
            for place in self._folders().values():
                if place.exists():
                    copy_folder(place, kept.folder / place.name)
            contents = read_contents(scene.lake)
            stage.check_log(contents, dict(kept.acked), dict(kept.gone), "stopped for a copy")
        self.copies.append(kept)
        stage.note("everything stopped and copied by hand")

    def _folders(self) -> dict[str, Path]:
        scene = self.stage.scene
        folders = {"receiver": scene.receiver, "blobs": scene.blobs, "copy": scene.catalog.parent}
        return {"lake": scene.lake, **folders} if self.stage.places.are_local else folders

    # -- the lake that sends -------------------------------------------------------------------------------------------

    def restore_lake(self) -> None:
        """Restore the sending lake, while its receiver runs."""
        with self.stage.chaos.stopped(self.stage.chaos.senders):
            self._restore_lake()

    def restore_both(self) -> None:
        """Restore both ends while nobody runs, in either order."""
        steps = [self._restore_lake, self._restore_receiver]
        self.stage.random.shuffle(steps)
        with self.stage.chaos.stopped(self.stage.chaos.children):
            for step in steps:
                step()

    def _restore_lake(self) -> None:
        stage, scene = self.stage, self.stage.scene
        kept = stage.random.choice(self.backups[-3:])
        before = self._stopped_contents()
        ledger = [] if stage.places.databases is None else ["--ledger", stage.places.databases.new_database()]
        done = self._restored(kept.folder, scene.lake, *ledger)
        raised = (done.document or {}).get("raised_to")
        self._went_back(before, kept, f"lake restored from {kept.folder.name}, counter raised to {raised}")

    def put_lake_back(self) -> None:
        """Put a copy of the whole lake back by hand, as a machine's snapshot is, while its receiver runs."""
        stage, scene = self.stage, self.stage.scene
        kept = stage.random.choice(self.copies[-2:])
        with stage.chaos.stopped(stage.chaos.senders):
            before = self._stopped_contents()
            put_folder_back(kept.folder / scene.lake.name, scene.lake, self._new("aside-lake"))
            self._went_back(before, kept, f"lake put back by hand from {kept.folder.name}")

    def put_ledger_back(self) -> None:
        """Put a copy of the ledger alone back by hand, beside a catalog and a warehouse that went on.

        Where files that it names were deleted since, the lake refuses to write, and the newer ledger is put in its
        place again; else it goes on as after a snapshot of the whole.
        """
        stage, scene = self.stage, self.stage.scene
        kept = stage.random.choice(self.copies[-2:])
        with stage.chaos.stopped(stage.chaos.senders):
            before = self._stopped_contents()
            newer = self._new("newer-ledger")
            newer.mkdir()
            _move_ledger(scene.lake, newer)
            for file in (kept.folder / scene.lake.name).glob(LEDGER_FILES):
                shutil.copy2(file, scene.lake)
            done = stage.strand(scene.lake, "flush")
            if done.code == 0:
                self._went_back(before, kept, f"ledger alone put back by hand from {kept.folder.name}")
                return
            stage.tell(f"the older ledger is refused: {done.error}")
            if "newer ledger" not in done.words:
                stage.wrong.append(f"a ledger that was put back alone ends with {done.code}: {done.error}")
            refused = self._new("refused-ledger")
            refused.mkdir()
            _move_ledger(scene.lake, refused)
            _move_ledger(newer, scene.lake)
            stage.note("ledger alone put back by hand, and refused")
            if read_contents(scene.lake) != before:
                stage.wrong.append("the newer ledger does not show what it did, after the older one was refused")

    def _stopped_contents(self) -> Contents:
        stage = self.stage
        before = read_contents(stage.scene.lake)
        stage.check_log(before, stage.offered().acked, stage.losses.rows, "before the ledger went back")
        return before

    def _went_back(self, before: Contents, kept: Kept, what: str) -> None:
        stage = self.stage
        after = read_contents(stage.scene.lake)
        stage.check_log(after, dict(kept.acked), dict(kept.gone), what)
        gone = stage.losses.went_back(before, after)
        stage.next_era()
        stage.note(what.split(" from ", maxsplit=1)[0])
        stage.tell(f"{what}: {gone:,} rows are gone with the ledger")

    # -- destinations --------------------------------------------------------------------------------------------------

    def restore_receiver(self) -> None:
        """Restore the receiver, while everybody else runs."""
        with self.stage.chaos.stopped([self.stage.chaos.receiver]):
            self._restore_receiver()

    def _restore_receiver(self) -> None:
        stage = self.stage
        folder = stage.random.choice(self.received[-3:])
        self._restored(folder, stage.scene.receiver)
        stage.losses.put_back("receiver", stage.offered().acked)
        stage.note("receiver restored")

    def put_receiver_back(self) -> None:
        """Put a copy of the receiver back by hand."""
        self._put_back("receiver", [self.stage.chaos.receiver])

    def put_blobs_back(self) -> None:
        """Put an older copy of the blob folder back: objects, owner and marks."""
        self._put_back("blobs", self.stage.chaos.workers)

    def put_copy_back(self) -> None:
        """Put an older copy of the other catalog and its warehouse back."""
        self._put_back("copy", self.stage.chaos.workers)

    def _put_back(self, name: str, users: Sequence[Child]) -> None:
        stage, place = self.stage, self._folders()[name]
        kept = [copy.folder / place.name for copy in self.copies[-2:] if (copy.folder / place.name).exists()]
        if not kept:
            return
        with stage.chaos.stopped(users):
            put_folder_back(stage.random.choice(kept), place, self._new(f"aside-{name}"))
            stage.losses.put_back(name, stage.offered().acked)
        stage.note(f"{name} put back by hand")

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _restored(self, folder: Path, lake: Path, *more: str) -> Done:
        """Run a restore, and again if it did not come to its end, as its page says."""
        for _ in range(ATTEMPTS):
            done = self.stage.strand(lake, "restore", str(folder), str(lake), "--replace", *more)
            if done.code in (0, NEEDS_A_PERSON) and done.document and "findings" in done.document:
                break
        else:
            raise RuntimeError(f"{lake.name} can't be restored: {done.error}")
        for finding in done.document["findings"]:
            if finding["severity"] == "error" and finding["kind"] not in EXPECTED_FINDINGS:
                self.stage.wrong.append(f"after restoring {lake.name} doctor says: {finding}")
        return done

    def kept_now(self, folder: Path) -> Kept:
        """What a backup, a copy or a clone that is begun now must hold."""
        return Kept(folder, self.stage.offered().acked, self.stage.losses.copy_of_rows())

    def _new(self, name: str) -> Path:
        self.number += 1
        self.stage.scene.backups.mkdir(exist_ok=True)
        return self.stage.scene.backups / f"{self.number:03}-{name}"
