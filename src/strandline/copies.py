"""Lakes that are made of backups and of other lakes, or that were moved: `restore`, `clone` and `relocate`, reported.

None of them has an open lake to begin with. Each opens the lake that it made, sees what is in it, and says so; after a
restore it is examined too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strandline.clone import clone
from strandline.config import FILE_NAME
from strandline.lake import Lake
from strandline.model.backups import BackupContents, Manifest, contents_of
from strandline.operations.core.context import Report, silent
from strandline.relocate import relocate
from strandline.reports.doctor import Diagnosis, diagnose
from strandline.reports.findings import Finding
from strandline.reports.repairs import follow
from strandline.restore import Restoration, restore
from strandline.sinks.marks import StreamAnswer


@dataclass(frozen=True, kw_only=True)
class LakeContents:
    """What a lake has, by name."""

    lake: str
    tables: tuple[str, ...]
    sinks: tuple[str, ...]

    @classmethod
    def of(cls, lake: Lake) -> LakeContents:
        """Those of an open lake."""
        sinks = sorted(sink.name for sink in lake.sinks())
        return LakeContents(lake=str(lake.root), tables=tuple(lake.view().tables), sinks=tuple(sinks))


@dataclass(frozen=True)
class AskedStream:
    """What a destination said of a stream: how far it is, or why it can't be asked now."""

    sink: str
    table: str
    partition: str
    watermark: int | None
    epoch: int | None
    error: str | None

    @classmethod
    def of(cls, answer: StreamAnswer) -> AskedStream:
        """What asking gave."""
        mark = answer.mark
        return cls(
            sink=answer.sink,
            table=answer.table,
            partition=answer.partition,
            watermark=None if mark is None else mark.seq,
            epoch=None if mark is None else mark.epoch,
            error=answer.error,
        )


@dataclass(frozen=True, kw_only=True)
class RestoreReport(BackupContents, LakeContents):
    """What a restore made, and of which backup. The fields of the last base come first."""

    raised_to: int
    replaced: str | None
    asked: tuple[AskedStream, ...]
    followed: tuple[str, ...]
    ok: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class RestoredLake:
    """A restore, and where the lake of the backup may still be: as itself, beside the restored one."""

    report: RestoreReport
    twin: Path | None


@dataclass(frozen=True)
class CloneReport:
    """The tables and rows of a clone, and its sinks, all of them paused."""

    lake: str
    tables: tuple[str, ...]
    rows: int
    sinks: tuple[str, ...]


@dataclass(frozen=True)
class ClonedLake:
    """A clone, and what has to be given again because it is secret."""

    report: CloneReport
    left_out: tuple[str, ...]


def restore_lake(
    backup: Path,
    to: Path,
    *,
    replace: bool = False,
    ledger: str | None = None,
    warehouse: str | None = None,
    report: Report = silent,
) -> RestoredLake:
    """Put a backup in the place of a lost lake, let Iceberg follow its ledger, and examine it."""
    root = to.expanduser().resolve()
    restoration = restore(backup, root, replace=replace, ledger=ledger, warehouse=warehouse, report=report)
    with Lake(root, report=report) as lake:
        diagnosis = diagnose(lake, fixed=follow(lake))
        contents = LakeContents.of(lake)
    restored = _restored(restoration, contents, diagnosis)
    return RestoredLake(restored, _twin(restoration.manifest, root))


def _restored(restoration: Restoration, contents: LakeContents, diagnosis: Diagnosis) -> RestoreReport:
    return RestoreReport(
        **vars(contents),
        **vars(contents_of(restoration.manifest)),
        raised_to=restoration.restored.seq,
        replaced=None if restoration.aside is None else str(restoration.aside),
        asked=tuple(map(AskedStream.of, restoration.answers)),
        followed=diagnosis.fixed,
        ok=diagnosis.ok,
        findings=diagnosis.findings,
    )


def _twin(manifest: Manifest, root: Path) -> Path | None:
    """The folder of the backup's own lake, where that is another one and holds a lake."""
    first = Path(manifest.root)
    return first if first != root and (first / FILE_NAME).exists() else None


def clone_lake(
    source: Path, to: Path, *, ledger: str | None = None, warehouse: str | None = None, report: Report = silent
) -> ClonedLake:
    """Make a lake of its own out of another lake, which goes on meanwhile, or out of a backup."""
    root = to.expanduser().resolve()
    cloned = clone(source, root, ledger=ledger, warehouse=warehouse, report=report)
    made = CloneReport(str(root), tuple(sorted(cloned.rows)), sum(cloned.rows.values()), cloned.sinks)
    return ClonedLake(made, cloned.manifest.left_out)


def relocate_lake(root: Path, *, report: Report = silent) -> LakeContents:
    """Make a lake that was moved, with its files, at home in its new place."""
    relocate(root, report=report)
    with Lake(root) as lake:
        return LakeContents.of(lake)
