"""Ids, made once; names only point at them.

An id starts with the millisecond it was made in, so ids sort by age ("oldest intent first" needs no second column), and
ends in random bits, so that two hosts never make the same one.
"""

from __future__ import annotations

import secrets
import time


def new_id() -> str:
    """A fresh id: 12 hex digits of time, 12 of chance."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


def state_id(table_id: str) -> str:
    """The id of the table that holds a keyed table's state."""
    return f"{table_id}-state"


def table_of(table_id: str) -> str:
    """The table whose state has this id; a table itself is its own."""
    return table_id.removesuffix("-state")


def lease_of_table(branch_id: str, table_id: str) -> str:
    """The name of the lease that every operation on a (branch, table) holds."""
    return f"table:{branch_id}:{table_id}"


def lease_of_operation(op_id: str) -> str:
    """The name of the lease that says an operation is alive."""
    return f"op:{op_id}"


def lease_of_stream(sink_id: str, stream: str) -> str:
    """The name of the lease that every tick of a (sink, stream) holds."""
    return f"stream:{sink_id}:{stream}"


def lease_of_worker(worker_id: str) -> str:
    """The name of the lease that says a worker is alive."""
    return f"worker:{worker_id}"


def lease_of_job(key: str) -> str:
    """The name of the lease that whichever worker does a job holds."""
    return f"job:{key}"


def lease_of_load(scope: str, key: str) -> str:
    """The name of the lease of the process that runs a load."""
    return f"{scope}:{key}"


def branch_ref(branch_id: str) -> str:
    """The Iceberg ref under which outside engines find a branch of the lake that is not main."""
    return f"b_{branch_id}"


def private_branch(op_id: str) -> str:
    """The Iceberg branch that an operation stages on, where no reader looks."""
    return f"op_{op_id}"
