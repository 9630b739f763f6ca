"""What a table has of the rows that a gateway forwards: so that a row which is here is not stored again.

The mark of a stream answers that for nearly every chunk. It does not where a dead letter is replayed, and where a
sender whose ledger was put back sends what this lake lacks: then the rows themselves are looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from strandline.engines.duck.sandbox import quote_name
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows import inbound
from strandline.model.delivery.chunk_rows import ChunkRows
from strandline.model.delivery.inbound import Chunk, Received
from strandline.model.schema.types import GATEWAY, ORIGIN, ORIGIN_SEQ
from strandline.model.tables import BranchTable
from strandline.model.values.arrow import stored_schema
from strandline.views.view import View


def receive(
    ledger: Ledger, look: Callable[[], View], branch_table: BranchTable, chunk: Chunk, rows: ChunkRows, gateway: str
) -> Received:
    """Store a chunk; `look` shows the lake as it is, and is only asked where the mark says too little."""

    def held(since: int, until: int) -> pa.Table:
        return held_rows(look(), branch_table, gateway, since, until)

    return inbound.receive(ledger, branch_table, chunk, rows, gateway, held)


def held_rows(view: View, branch_table: BranchTable, gateway: str, since: int, until: int) -> pa.Table:
    """The rows of a gateway in a range of its lake's seqs, as they are stored but for this lake's own stamps."""
    names = [*stored_schema(branch_table.schema, branch_table.table.extra).names, *ORIGIN]
    if not view.branch_table(branch_table.table.name).table.inbound:  # nothing was ever forwarded to it
        return pa.table({name: pa.array([], pa.null()) for name in names})
    literal = gateway.replace("'", "''")
    return view.ask(
        f"SELECT {', '.join(quote_name(name) for name in names)} FROM {quote_name(branch_table.table.name)} "
        f"WHERE {GATEWAY} = '{literal}' AND {ORIGIN_SEQ} > {since} AND {ORIGIN_SEQ} <= {until}"
    ).arrow()
