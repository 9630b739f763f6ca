"""Generations of a lake's ledger: made when it is made, restored or cloned, and kept by its destinations.

A destination's mark means that it has every row up to it of the ledger that set it. Whether that ledger had the rows of
this one too is what a restore has to know. So the id of a restored generation names its backup: another ledger that was
restored from the same one, however often it was put back since, has all rows of the backup. The ledger that made the
backup is no proof: it may have been put back by hand to a time before.
"""

from __future__ import annotations

from strandline.model.ids import new_id


def new_generation(backup_id: str | None = None) -> str:
    """An id that no ledger has; for a ledger that is restored from a backup, one that says so."""
    return new_id() if backup_id is None else f"{new_id()}.{backup_id}"


def are_of_one_backup(generation: str | None, other: str | None) -> bool:
    """Whether two ledgers were restored from the same backup."""
    backups = [(text or "").partition(".")[2] for text in (generation, other)]
    return bool(backups[0]) and backups[0] == backups[1]
