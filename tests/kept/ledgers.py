"""What a ledger says after recovery, in words that another run of the same recovery comes to as well.

Times and fresh ids differ from run to run, so times are left out and a commit is known by its seq. What remains are the
seqs and their order, books, pins, files, marks and keys: all that publishing writes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from tests.kit import in_ledger

TABLES = {
    "audit": "audit_id",
    "branches": "branch_id",
    "claims": "table_id, branch_id, hash",
    "commits": "seq",
    "dead_letters": "letter_id",
    "files": "branch_id, table_id, path",
    "heads": "branch_id, table_id",
    "idempotency": "scope, key",
    "intents": "op_id",
    "late_ranges": "table_id, first_seq",
    "leases": "name",
    "loads": "load_id",
    "purged_keys": "table_id, hash, op_id",
    "quarantine": "batch_id",
    "query_marks": "query_id, table_id",
    "reservations": "op_id, table_id",
    "schemas": "table_id, version",
    "snapshots": "branch_id, table_id, version",
    "stream_heads": "branch_id, table_id, partition",
    "tail": "branch_id, table_id, first_seq",
}
LEFT_OUT = {
    "audit": {"audit_id"},
    "commits": {"commit_id"},
    "leases": {"fence", "beat", "owner"},
    "tail": {"batch_id"},
}
"""Numbers of rows, fresh ids, which process it was and how often it has looked."""


def recovered_ledger(root: Any) -> dict[str, list[list[Any]]]:
    """The rows of every table that publishing writes."""
    seqs = {row.commit_id: row.seq for row in in_ledger(root, "select commit_id, seq from commits")}
    return {name: _rows(root, name, order, seqs) for name, order in TABLES.items()}


def _rows(root: Any, name: str, order: str, seqs: dict[str, int]) -> list[list[Any]]:
    rows = in_ledger(root, f"select * from {name} order by {order}")
    without = LEFT_OUT.get(name, set())
    kept = [
        [
            _plain(key, value, seqs)
            for key, value in sorted(row._mapping.items())
            if key not in without and not key.endswith("_us")
        ]
        for row in rows
    ]
    return sorted(kept, key=str) if order != "seq" and name != "audit" else kept


def _plain(key: str, value: Any, seqs: dict[str, int]) -> Any:
    if key == "rewrites":  # the number of a write transaction, of which there may be more or fewer
        return bool(value)
    if isinstance(value, bytes | memoryview):
        return hashlib.sha256(value).hexdigest()[:16]
    if isinstance(value, str):
        return re.sub(r"[0-9a-z]{12,}", lambda match: _commit(match[0], seqs), value)
    return value


def _commit(text: str, seqs: dict[str, int]) -> str:
    return f"commit {seqs[text]}" if text in seqs else text
