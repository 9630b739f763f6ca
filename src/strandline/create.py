"""Making a lake: a folder, a config, a ledger. Nothing else exists until it is needed."""

from __future__ import annotations

from pathlib import Path

from strandline import config as configuration
from strandline.errors import Conflict, Environment, Unsupported
from strandline.lake import Lake
from strandline.ledger.ledger import Ledger


def create(root: Path, *, ledger: str | None = None, warehouse: str | None = None) -> Lake:
    """Make a lake in a folder that is new or empty.

    The config is written last: a folder without one is no lake, so an init that was killed can simply be run again.
    """
    root = root.resolve()
    _refuse_occupied(root)
    if warehouse is not None and "://" in warehouse and not warehouse.startswith("file:"):
        raise Unsupported(f"a warehouse at {warehouse} is not supported yet", hint="Use a folder on a disk.")
    try:
        root.mkdir(parents=True, exist_ok=True)
        url = configuration.ledger_url(root, ledger or configuration.DEFAULT_LEDGER)
        Ledger.create(url).close()
        configuration.write_default(
            root, ledger or configuration.DEFAULT_LEDGER, warehouse or configuration.DEFAULT_WAREHOUSE
        )
    except PermissionError as error:
        raise Environment(
            f"no permission to write {error.filename}", hint="Pick a folder you may write to, or change its owner."
        ) from error
    return Lake(root)


def _refuse_occupied(root: Path) -> None:
    if (root / configuration.FILE_NAME).exists():
        raise Conflict(
            f"there is a lake in {root} already",
            kind="lake_exists",
            hint="Use it as it is, or pick another folder.",
            expected=None,
            actual=str(root),
        )
    if root.is_file() or (root.is_dir() and any(not _is_ours(entry) for entry in root.iterdir())):
        raise Conflict(
            f"{root} is not empty",
            kind="folder_not_empty",
            hint="Pick a new or an empty folder.",
            expected=None,
            actual=str(root),
        )


def _is_ours(entry: Path) -> bool:
    """What an init that was killed may have left."""
    return entry.name in _OURS or entry.name.startswith(f".{configuration.FILE_NAME}.")


_OURS = ("ledger.db", "ledger.db-wal", "ledger.db-shm")
