"""A lake knows its place: the address of its warehouse, and the real path of a SQLite ledger.

A folder that was copied or moved takes its ledger along, and the ledger names files of the place where it was made. So
every open compares; elsewhere the lake can be read, with a warning, and nothing is written. The root folder is not
compared: it differs between hosts and containers that share a lake.

A symlink leads to the same real path. A bind mount has another path, and the very same file: device and inode decide
then. A hard link is no bind mount: SQLite keeps its journal beside the name that was opened, so a ledger with two names
would be written through two journals.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from strandline import config as configuration
from strandline.config import LakeConfig
from strandline.engines.storage import know
from strandline.engines.warehouse import is_same_place
from strandline.errors import Displaced
from strandline.ledger.ledger import Ledger
from strandline.ledger.place.places import Home, read_home, set_place
from strandline.operations.core.deletion_time import store_us
from strandline.operations.core.staging import Staging


class DisplacedWarning(UserWarning):
    """A lake is read elsewhere than where it was made."""


class Opened(NamedTuple):
    """A lake's config, with the warehouse's address as its files are named by it; its ledger; and what is wrong."""

    config: LakeConfig
    ledger: Ledger
    displaced: Displaced | None


def open_at_home(root: Path, *, read_only: bool) -> Opened:
    """Open a lake's ledger where it is at home; elsewhere Displaced, or a warning when it is only read."""
    config = configuration.load(root)
    ledger = Ledger.open(config.ledger, read_only=read_only)
    try:
        with ledger.read() as conn:
            home = read_home(conn)
        displaced = judge(config, home)
        if displaced is not None and not read_only:
            raise displaced
        if displaced is None and not read_only and config.ledger_path is not None and not home.place:
            # An older lake: its ledger says nothing of its own path, and its warehouse is where it says.
            ledger.run(lambda txn: set_place(txn, real_path(config), home.warehouse or config.warehouse))
        if displaced is None and home.warehouse:
            config = replace(config, warehouse=home.warehouse)  # by a bind mount files would get names of the mount
        know(config.warehouse, config.store)
        ledger.elsewhere_us = partial(store_us, Staging(config.warehouse))
    except BaseException:
        ledger.close()
        raise
    if displaced is not None:
        warnings.warn(f"{displaced}. What was flushed is read from there", DisplacedWarning, stacklevel=3)
    return Opened(config, ledger, displaced)


def real_path(config: LakeConfig) -> str:
    """The real path of a SQLite ledger; '' on Postgres."""
    return "" if config.ledger_path is None else os.path.realpath(config.ledger_path)


def judge(config: LakeConfig, home: Home) -> Displaced | None:
    """What is wrong with the place of a lake, going by its config and its ledger; None when it is at home."""
    same_warehouse = not home.warehouse or is_same_place(home.warehouse, config.warehouse)
    if config.ledger_path is not None and not _is_same_ledger(config.ledger_path, home.place, same_warehouse):
        was = home.place or home.warehouse
        return Displaced(
            f"this lake was copied (or moved) from {was}: its ledger is {real_path(config)} now, and its files are "
            f"named in {home.warehouse}",
            hint="Nothing was written. If it was moved, `strand relocate` makes it at home here. If it is a copy, "
            "remove it: `strand clone LAKE DIR` makes another lake of the original, which shares no file with it.",
            kind="copied",
            expected=was,
            actual=real_path(config),
        )
    if not same_warehouse:
        return Displaced(
            f"the warehouse of this ledger is {home.warehouse}, and this config says {config.warehouse}",
            hint="Nothing was written. Write the ledger's warehouse into [lake] of strand.toml. If the warehouse was "
            "moved as it is, `strand relocate` makes the lake at home in its new place.",
            kind="other_warehouse",
            expected=home.warehouse,
            actual=config.warehouse,
        )
    return None


def _is_same_ledger(path: Path, place: str, same_warehouse: bool) -> bool:
    if not place:
        return same_warehouse
    if os.path.realpath(path) == place:
        return True
    try:
        return path.samefile(place) and path.stat().st_nlink == 1
    except OSError:
        return False
