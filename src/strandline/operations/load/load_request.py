"""What is to be loaded: one request for every load, made and checked in one place.

Log tables and keyed ones, a table's files and lines that name their tables themselves, adoptions and micro-batches of
a stream: all of them are a `LoadRequest`. How much of it the ledger takes by itself is decided here too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from strandline.engines.files import Input, count_rows, find_inputs
from strandline.errors import BadRequest
from strandline.ledger.ledger import Ledger
from strandline.ledger.tables.tables import find_table

Mode = Literal["append", "merge", "overwrite"]
MODES = ("append", "merge", "overwrite")

NAMED = "-"
"""In place of a table's name: every line names its own keyed table, in a field `_table`."""

SMALL_BYTES = 64 << 20
"""What the ledger takes by itself; more than that is an operation."""


@dataclass(frozen=True)
class LoadRequest:
    """What to load into which table (or `NAMED`), for which actor, and the key under which it is loaded once.

    Without a key, as only keyed tables may have it, it is loaded every time. `digest` tells other files under the same
    key. `write_inputs` writes the files first, into the load's folder, and is called only when there is something to
    load. `query_mark` is (query id, batch) when a streaming query asks: its mark is then what remembers the load.
    """

    table: str
    branch: str
    actor: str
    key: str | None
    digest: str
    inputs: Sequence[Input] = ()
    write_inputs: Callable[[str], Sequence[Input]] | None = None
    mode: Mode = "append"
    again: bool = False
    is_keyed: bool = False
    kind: str = "load"
    query_mark: tuple[str, int] | None = None

    @property
    def only(self) -> str | None:
        """The one table, by the name it is looked up by; None where each line names its own."""
        return None if self.table == NAMED else self.table.lower()

    def inputs_in(self, folder: str) -> Sequence[Input]:
        """The files, which may have to be written to the load's folder first."""
        return self.inputs if self.write_inputs is None else self.write_inputs(folder)


def load_request(
    ledger: Ledger,
    table: str,
    files: Sequence[str],
    *,
    branch: str,
    mode: Mode,
    actor: str,
    key: str | None,
    again: bool,
) -> LoadRequest:
    """The request that a user makes, with its options checked."""
    if isinstance(files, str):  # its letters would be taken for paths
        raise BadRequest("files are given as one text", hint="Give a list, also of one file.")
    inputs = tuple(find_inputs(files))
    with ledger.read() as conn:
        target = find_table(conn, table) if table != NAMED else None
    is_keyed = target is None or bool(target.key)
    if not is_keyed and mode != "append":
        raise BadRequest(f"a log table has no {mode!r}", hint="Its rows don't change; append is what it takes.")
    if mode not in MODES:
        raise BadRequest(f"the mode is {mode!r}", hint="It is 'append', 'merge' or 'overwrite'.")
    digest = identity(NAMED if target is None else target.table_id, branch, inputs, mode)
    return LoadRequest(
        table=target.name if target is not None and is_keyed else table,
        branch=branch,
        actor=actor,
        key=key or (digest if mode == "append" else None),
        digest=digest,
        inputs=inputs,
        mode=mode,
        again=again,
        is_keyed=is_keyed,
    )


def identity(table_id: str, branch: str, inputs: Sequence[Input], mode: str = "append") -> str:
    """A digest of what is loaded and into what: the key of an appending load whose user gave none."""
    described = "\n".join([table_id, branch, mode, *sorted(source.identity for source in inputs)])
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def is_large(inputs: Sequence[Input], *, most_rows: int | None = None) -> bool:
    """Whether files are known to hold more than the ledger takes, before they are read."""
    if sum(source.size_bytes for source in inputs) > SMALL_BYTES:
        return True
    return most_rows is not None and sum(map(count_rows, inputs)) > most_rows
