"""A lake that was moved: made at home in its new place.

Its files came along, and everything still names them where they were. The metadata of its tables is written for the new
place, beside the old; then the catalog names it, then the ledger names the new place. A relocation that was killed is
run again: up to its last transaction the ledger is at home nowhere else than before.

Only a lake that was moved as a whole may go on as itself. Where the first one is still in its place this is a copy, and
two lakes with one id would deliver everything twice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strandline import config as configuration
from strandline.config import LakeConfig
from strandline.engines.moving import Move, at
from strandline.engines.storage import know
from strandline.engines.warehouse import ObjectPlace, canonical, is_same_place, read_marker
from strandline.errors import BadRequest, Conflict, StrandError
from strandline.failpoints import fail
from strandline.ledger.ledger import Ledger, Txn
from strandline.ledger.place.moving import set_locations
from strandline.ledger.place.places import Home, read_home, set_place
from strandline.model.ids import new_id
from strandline.operations.change.moving import move_metadata
from strandline.operations.core.context import Report, silent
from strandline.operations.core.fence import Fence, agrees, refusal
from strandline.operations.core.placing import judge, real_path


def relocate(root: Path, *, report: Report = silent) -> list[str]:
    """Make a lake that was moved at home where it is; the names of its tables in Iceberg. Nothing when it is there."""
    config = configuration.load(root)
    ledger = Ledger.open(config.ledger)
    try:
        with ledger.read() as conn:
            home = read_home(conn)
        if judge(config, home) is None:
            return []
        know(config.warehouse, config.store)
        place = ObjectPlace(canonical(config.warehouse), config.store)
        _refuse_copy(config, home, place)
        marker = read_marker(place)
        if not agrees(home, marker):
            raise refusal(home, marker, place)
        return _settle_in(ledger, replace(config, warehouse=place.uri), home, report)
    finally:
        ledger.close()


def _refuse_copy(config: LakeConfig, home: Home, place: ObjectPlace) -> None:
    """Conflict when the first lake is still in its place."""
    was = _ledger_at(home) if home.place != real_path(config) else None
    if was is None and not is_same_place(home.warehouse, place.uri):
        try:
            marker = read_marker(ObjectPlace(home.warehouse, config.store))
        except StrandError:
            return  # nothing that can be asked is there
        was = home.warehouse if marker is not None and marker.lake == home.lake_id else None
    if was is not None:
        raise Conflict(
            f"this lake was copied, and not moved: the first one is still at {was}",
            kind="original_there",
            hint="Remove this copy: `strand clone LAKE DIR` makes another lake, with an id of its own. If the first "
            "one is to be given up, remove it, or move it away, and run this again.",
            expected=None,
            actual=was,
        )


def _ledger_at(home: Home) -> str | None:
    """The old place of a SQLite ledger, when this lake's ledger is still there."""
    if not home.place or not Path(home.place).exists():
        return None
    try:
        other = Ledger.open(f"sqlite:///{home.place}", read_only=True, older=True)
    except StrandError:
        return None
    try:
        return home.place if other.lake_id() == home.lake_id else None
    finally:
        other.close()


def _settle_in(ledger: Ledger, config: LakeConfig, home: Home, report: Report) -> list[str]:
    move = Move(home.warehouse, config.warehouse)
    if move.new.startswith(f"{move.old}/"):
        raise BadRequest(
            f"the warehouse was moved into itself: from {move.old} to {move.new}",
            hint="Move it to a folder beside its old one.",
        )
    is_moved = not is_same_place(move.old, move.new)
    moved = None
    if is_moved:
        moved = move_metadata(config.catalog_database, move, at(move), report, name=new_id())
        fail("relocate.after_metadata")
        if moved.locations:
            set_locations(config.catalog_database, moved.locations)
    fail("relocate.after_catalog")

    def settle_in(txn: Txn) -> None:
        if moved is not None:
            moved.write(txn)
        set_place(txn, real_path(config), move.new if is_moved else home.warehouse)
        fail("relocate.before_commit")

    ledger.run(settle_in)
    fail("relocate.after_commit")
    Fence.of(ledger, config).raise_()
    return [] if moved is None else sorted(moved.locations)
