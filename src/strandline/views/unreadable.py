"""Batches whose bytes can't be read, and what a read does with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from strandline.errors import Damaged
from strandline.model.tables import BatchRef, BranchTable
from strandline.model.wording import counted


class UnreadableBatchWarning(UserWarning):
    """A read left a batch out because its bytes are damaged; `strand doctor` tells the rest."""


def on_unreadable(branch_table: BranchTable) -> Callable[[BatchRef, str], None]:
    """What a read does with a batch that can't be read: a log's is left out, and said to be.

    Of a keyed table none is: an older version would look like the row.
    """

    def warn(ref: BatchRef, reason: str) -> None:
        refuse_unreadable(branch_table, ref, reason)
        warnings.warn(
            f"table {branch_table.table.name!r}: batch {ref.batch_id} (seqs {ref.first_seq}..{ref.last_seq}, "
            f"{counted(ref.rows, 'row')}) was left out: {reason}. `strand doctor` says what to do.",
            UnreadableBatchWarning,
            stacklevel=2,
        )

    return warn


def refuse_unreadable(branch_table: BranchTable, ref: BatchRef, reason: str) -> None:
    """Damaged where a batch of a keyed table can't be read."""
    if branch_table.table.key:
        raise Damaged(
            f"batch {ref.batch_id} of table {branch_table.table.name!r} (seqs {ref.first_seq}..{ref.last_seq}) can't "
            f"be read: {reason}",
            hint="Restore the lake from a backup: the newest versions of rows are in it.",
            table=branch_table.table.name,
        )
