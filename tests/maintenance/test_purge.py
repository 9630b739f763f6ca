"""Purge: the rows that a condition names are nowhere any more, and don't come back."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, update

from strandline import failpoints
from strandline.errors import BadRequest
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.rows.batches import list_quarantined, quarantine
from strandline.ledger.tables.tables import create_table
from strandline.model.schema.schema import parse_mapping
from tests import files
from tests.acceptance.test_failpoints import FLUSH_POINTS
from tests.delivery import Receiver, forward, refuse_part
from tests.kit import assert_recovered, crash, log_part_ids, make_table, message, messages, part_ids, reopened, swept
from tests.maintenance.test_expire import data_files
from tests.proxy import Proxy

ODD = "n % 2 = 1"
EVEN = [f"p{n}" for n in range(0, 20, 2)]


def with_rows(lake: Lake, **options: object) -> None:
    """Ten rows in the log, in two files, and ten in the tail."""
    make_table(lake, **options)
    for start in (0, 5):
        lake.append("messages", messages(start, start + 5))
        lake.flush("messages")
    lake.append("messages", messages(10, 20))


def tombstones(lake: Lake) -> list[tuple[object, ...]]:
    """What is recorded of purges."""
    query = "select table_name, predicate, rows, _actor from strand_purges order by _seq"
    return [tuple(row) for row in lake.view().sql(query).rows()]


def test_a_purge_covers_the_log_and_the_tail_and_is_recorded(lake: Lake) -> None:
    """Rows go wherever they are, others keep their seqs, the books and the tombstone say how many."""
    with_rows(lake)
    seqs = dict(lake.view().sql("select part_id, _seq from messages").rows())
    planned = lake.purge("messages", ODD, dry_run=True)
    assert (planned.before["rows"], planned.after["rows"], planned.detail["rows"]) == (20, 10, 10)
    assert len(part_ids(lake)) == 20, "a dry run changes nothing"
    done = lake.purge("messages", ODD, actor="the law")
    assert (done.before["rows"], done.after["rows"]) == (20, 10)
    assert part_ids(lake) == log_part_ids(lake) == EVEN
    assert dict(lake.view().sql("select part_id, _seq from messages").rows()) == {key: seqs[key] for key in EVEN}
    assert lake.view().branch_table("messages").head.books.pruned == 10
    assert tombstones(lake) == [("messages", ODD, 10, "the law")]
    again = lake.purge("messages", ODD)
    assert again.operations == () and len(tombstones(lake)) == 1, "again, there is nothing to do"
    assert_recovered(lake)


def test_f83_a_purge_is_recorded_beside_a_table_of_a_user_that_has_its_name(lake: Lake) -> None:
    """The user's table stays as it is, and sinks get the tombstone from another one."""
    create_table(lake.ledger, "strand_purges", parse_mapping({"id": "string"}), branch="main", actor="tester")
    lake.append("strand_purges", [{"id": "mine"}])
    with_rows(lake)
    lake.purge("messages", ODD)
    assert part_ids(lake) == EVEN
    assert lake.view().sql("select id from strand_purges").rows() == [("mine",)]
    assert lake.view().sql("select table_name, rows from strand_purges_2").rows() == [("messages", 10)]


@pytest.mark.parametrize("dedupe", ["table", "partition"])
def test_a_backfill_does_not_bring_purged_rows_back(lake: Lake, dedupe: str, tmp_path: Path) -> None:
    """Their keys count as seen, for a reader of the tail, for a flush and for a load."""
    with_rows(lake, dedupe=dedupe, partition_by=["source"])
    lake.purge("messages", ODD)
    lake.append("messages", messages(0, 22))
    assert part_ids(lake) == [*EVEN, "p20", "p21"], "a reader sees what the flush will keep"
    assert lake.flush("messages")[0].duplicates_dropped == 20
    lake.append("messages", [message(1, source="another")])
    lake.flush("messages")
    expected = [*EVEN, "p20", "p21", *(["p1"] if dedupe == "partition" else [])]
    assert part_ids(lake) == log_part_ids(lake) == expected
    source = tmp_path / "in.parquet"
    import pyarrow as pa

    pq.write_table(pa.Table.from_pylist(messages(0, 24)), source)
    lake.load("messages", [str(source)])
    lake.flush("messages")
    assert part_ids(lake) == [*expected, "p22", "p23"]


@pytest.mark.parametrize("name", swept(FLUSH_POINTS))
def test_a_purge_that_dies_anywhere_is_done_or_undone(lake: Lake, name: str) -> None:
    """Rows, hashes and tombstone are all there or none is; run again, it is done."""
    make_table(lake)
    lake.append("messages", messages(0, 6))
    lake.flush("messages")
    lake.purge("messages", "n = 100")  # finds nothing, and makes nothing
    failpoints.arm(f"{name}=raise")
    with crash(lake):
        lake.purge("messages", ODD)
    with reopened(lake) as again:
        there = part_ids(again)
        assert there in (["p0", "p2", "p4"], [f"p{n}" for n in range(6)])
        again.append("messages", [message(1)])
        assert part_ids(again) == there, "its key is in the log, or counts as seen"
        assert_recovered(again, FLUSH_POINTS[name])
        again.purge("messages", ODD)
        assert part_ids(again)[:3] == ["p0", "p2", "p4"]
        assert [row[2] for row in tombstones(again)] == [3]
        again.append("messages", messages(0, 6))
        assert part_ids(again)[:4].count("p1") == 0


def test_out_of_history_too_nothing_of_the_rows_is_left(lake: Lake) -> None:
    """No file on the disk and no batch in the ledger holds them, once nobody reads the past any more."""
    with_rows(lake)
    with lake.view().held():
        done = lake.purge("messages", ODD, and_history=True)
        assert "stay" in done.warnings[0], "a held view still reads them"
    done = lake.purge("messages", ODD, and_history=True)
    assert done.warnings == ()
    for path in data_files(lake):
        table = files.rows(path)
        if "part_id" in table.column_names:
            assert set(table.column("part_id").to_pylist()) <= set(EVEN)
    with lake.ledger.read() as conn:
        payloads = conn.execute(select(schema.batches.c.payload)).scalars().all()
    assert not any(b"body of p1" in bytes(payload) for payload in payloads)
    assert part_ids(lake) == EVEN


def test_dead_letters_are_emptied_and_their_unit_goes_on_without_them(
    source: Lake, receiver: Receiver, proxy: Proxy
) -> None:
    """A purged dead letter has no bytes left and can't be replayed; the tombstone reaches the receiver."""
    proxy.rule = refuse_part("p3")
    forward(source, receiver, url=proxy.url)
    source.append("messages", messages(0, 6))
    source.tick()
    with source.ledger.read() as conn:
        (before,) = conn.execute(select(schema.dead_letters)).all()
    assert b"body of p3" in before.payload
    done = source.purge("messages", "part_id = 'p3'")
    assert done.detail["dead_letters"] == 1
    with source.ledger.read() as conn:
        (after,) = conn.execute(select(schema.dead_letters)).all()
    assert (after.payload, after.state, after.seq) == (b"", "discarded", before.seq)


def test_quarantine_is_purged_as_far_as_it_can_be_read(lake: Lake) -> None:
    """A batch that can be decoded loses its rows; one that can't is named, with what to type."""
    make_table(lake)
    lake.append("messages", messages(0, 4))
    lake.append("messages", messages(4, 6))
    state = lake.view().branch_table("messages")
    for ref in state.tail:
        quarantine(lake.ledger, state.head.branch_id, state.table.table_id, ref.batch_id, "a test")
    with lake.ledger.write() as txn:
        torn = schema.quarantine.c.batch_id == state.tail[1].batch_id
        txn.conn.execute(update(schema.quarantine).where(torn).values(payload=b"torn"))
    done = lake.purge("messages", ODD)
    assert done.detail["quarantined_rows"] == 2
    assert f"strand quarantine discard {state.tail[1].batch_id}" in done.warnings[0]
    with lake.ledger.read() as conn:
        assert [batch.rows for batch in list_quarantined(conn)] == [2, 2]
    books = lake.view().branch_table("messages").head.books
    assert (books.quarantined, books.pruned, books.acked) == (4, 2, 6)
    assert [row[2] for row in tombstones(lake)] == [2]


def test_a_condition_that_is_none_changes_nothing(lake: Lake) -> None:
    """A column that is not there, a subquery, a function that changes: refused before anything is begun."""
    with_rows(lake)
    for where in ("nn = 1", "n in (select 1)", "random() > 0.5", "true; drop table messages", "n = 1) or (true"):
        with pytest.raises(BadRequest):
            lake.purge("messages", where)
    with pytest.raises(BadRequest, match="nn") as refused:
        lake.purge("messages", "nn = 1")
    assert "part_id" in str(refused.value.hint) and "`tables`" not in str(refused.value.hint)
    assert len(part_ids(lake)) == 20 and "strand_purges" not in lake.view().tables
