"""Ways to lose, double or hide a row that were found by looking for them; each is closed, and stays so."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from strandline import create, failpoints
from strandline.engines.duck.relations import local_path
from strandline.errors import BadRequest, Conflict
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.ledger import Ledger
from strandline.ledger.rows import reservations
from strandline.ledger.tables.files import read_files
from tests.kit import (
    assert_recovered,
    crash,
    intents_of,
    log_part_ids,
    make_table,
    message,
    messages,
    part_ids,
    reopened,
    strand,
    strand_json,
)


def test_init_never_touches_a_ledger_that_is_in_use(lake: Lake, tmp_path: Path) -> None:
    """A second lake on the same ledger is refused; the first one's rows are all there."""
    make_table(lake)
    lake.append("messages", messages(0, 3))
    done = strand(tmp_path, "init", str(tmp_path / "other"), "--ledger", lake.config.ledger)
    assert done.code == 4, done.out + done.err
    with pytest.raises(Conflict, match="belongs to a lake"):
        Ledger.create(lake.config.ledger)
    assert part_ids(lake) == ["p0", "p1", "p2"]


def test_an_init_that_was_killed_is_run_again(tmp_path: Path) -> None:
    """What it left behind, a ledger without a config, is taken over as it is."""
    root = tmp_path / "lake"
    root.mkdir()
    Ledger.create(f"sqlite:///{root}/ledger.db", f"file://{root}/warehouse").close()
    (root / "warehouse").mkdir()
    (root / ".strand.toml.123").write_text("half a fil")
    with create.create(root) as made:
        make_table(made)
        assert made.append("messages", [message(1)]).rows == 1


def test_a_forked_child_is_refused_and_loses_nothing(lake: Lake) -> None:
    """SQLite's locks don't survive a fork: the child is told to open the lake anew, which works."""
    make_table(lake)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lake.append("messages", [message(1)])
        except BadRequest:
            with Lake(lake.root) as own:
                own.append("messages", [message(2)])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lake.append("messages", [message(3)])
    assert part_ids(lake) == ["p2", "p3"]


def _write(path: Path, start: int, stop: int) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in messages(start, stop)))
    return str(path)


@pytest.mark.usefixtures("bulky")
def test_a_load_key_belongs_to_its_files_also_while_the_load_is_unfinished(lake: Lake, tmp_path: Path) -> None:
    """Other files under the key of a load that died are refused; that load goes on, and --again waits for its end."""
    make_table(lake, row_key=[])
    first, second = _write(tmp_path / "a.jsonl", 0, 30), _write(tmp_path / "b.jsonl", 100, 130)
    failpoints.arm("load.between_bites=raise")
    with crash(lake):
        lake.load("messages", [first], key="k")
    with reopened(lake) as again:
        with pytest.raises(Conflict, match="other files"):
            again.load("messages", [second], key="k")
        with pytest.raises(Conflict, match="stopped in the middle"):
            again.load("messages", [first], key="k", again=True)
        assert again.load("messages", [first], key="k").rows == 30
        assert part_ids(again) == [f"p{n}" for n in range(30)]
        assert again.load("messages", [first], key="k", again=True).rows == 30
        assert len(part_ids(again)) == 60


def test_names_with_brackets_are_names(tmp_path: Path) -> None:
    """`d[1].jsonl` is a file and no pattern, and a lake may live in a folder with brackets in its name."""
    with create.create(tmp_path / "lake [1]{a}") as lake:
        make_table(lake)
        _write(tmp_path / "d1.jsonl", 10, 12)
        lake.load("messages", [_write(tmp_path / "d[1].jsonl", 0, 3)])
        assert part_ids(lake) == ["p0", "p1", "p2"]
        lake.flush("messages")
        assert log_part_ids(lake) == ["p0", "p1", "p2"]
        lake.load("messages", [str(tmp_path / "d?.jsonl")])
        assert part_ids(lake) == ["p0", "p1", "p2", "p10", "p11"]
        assert_recovered(lake)


def test_two_lakes_whose_ledgers_share_a_folder_have_two_catalogs(tmp_path: Path) -> None:
    """The catalog's file is named after the ledger's, so the tables of one are not the tables of the other."""
    with (
        create.create(tmp_path / "a", ledger=f"sqlite:///{tmp_path}/one.db") as one,
        create.create(tmp_path / "b", ledger=f"sqlite:///{tmp_path}/two.db") as two,
    ):
        assert one.config.catalog_uri != two.config.catalog_uri


def test_what_is_visible_is_exported_also_beside_a_reserved_range(lake: Lake) -> None:
    """A resumable read stays below a load's range; an export and a DataFrame give all that SQL shows."""
    make_table(lake)
    lake.append("messages", [message(1)])
    state = lake.view().branch_table("messages")
    with lake.ledger.write() as txn:
        reservations.reserve(txn, "op", state.head.branch_id, state.table.table_id, 5)
    lake.append("messages", [message(2)])
    assert part_ids(lake) == ["p1", "p2"]
    assert sum(batch.num_rows for batch in lake.view().read("messages")) == 1
    exported = strand(lake, "export", "--tables", "messages").out.splitlines()
    assert [json.loads(line)["part_id"] for line in exported] == ["p1", "p2"]
    assert lake.view().spark("messages").count() == 2


def test_discarding_an_unreadable_operation_frees_its_range(lake: Lake) -> None:
    """A range that nobody will publish any more must not hold readers back for ever."""
    make_table(lake)
    lake.append("messages", [message(1)])
    failpoints.arm("begin.after_commit=raise")
    with crash(lake):
        lake.flush("messages")
    with reopened(lake, recovering=False) as writer:
        (intent,) = intents_of(writer)
        state = writer.view().branch_table("messages")
        with writer.ledger.write() as txn:
            reservations.reserve(txn, intent.op_id, state.head.branch_id, state.table.table_id, 5)
            txn.conn.execute(update(schema.intents).values(format=99))
        writer.append("messages", [message(2)])
    strand_json(lake, "recover", "--discard", intent.op_id)
    with Lake(lake.root) as again:
        assert sum(batch.num_rows for batch in again.view().read("messages")) == 2
        again.flush("messages")
        assert log_part_ids(again) == ["p1", "p2"]


@pytest.mark.parametrize("body", ['{"scopes": [], "effects": null}', '{"scopes": [], "effects": {"tables": []}}', "[]"])
def test_f30_no_intent_keeps_the_lake_from_opening(lake: Lake, body: str) -> None:
    """Whatever is written in one: the lake opens, appends and reads."""
    make_table(lake)
    failpoints.arm("begin.after_commit=raise")
    lake.append("messages", [message(1)])
    with crash(lake):
        lake.flush("messages")
    with reopened(lake, recovering=False) as writer, writer.ledger.write() as txn:
        txn.conn.execute(update(schema.intents).values(phase="staged", body=body))
    with Lake(lake.root) as again:
        again.append("messages", [message(2)])
        assert part_ids(again) == ["p1", "p2"]


def test_one_member_of_a_group_that_cannot_be_stored_costs_the_others_nothing(lake: Lake) -> None:
    """Eight threads append at once, one of them nonsense: it gets the error, the other rows are stored."""
    make_table(lake)

    def append(n: int) -> object:
        try:
            return lake.append("messages", [message(n)], actor="\ud800" if n == 3 else "fine").rows
        except BadRequest as error:
            return error

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(append, range(8)))
    assert isinstance(answers[3], BadRequest)
    assert sorted(part_ids(lake)) == sorted(f"p{n}" for n in range(8) if n != 3)


def test_f61_the_same_rows_are_the_same_whatever_they_come_as(lake: Lake) -> None:
    """Dicts, an Arrow table, a slice of one, other chunks: one key, one answer."""
    make_table(lake)
    rows = messages(0, 4)
    first = lake.append("messages", rows, idempotency_key="k")
    table = pa.Table.from_pylist([*messages(90, 92), *rows, *messages(95, 97)], schema=_arrow())
    pieces = pa.Table.from_batches([*table.slice(2, 1).to_batches(), *table.slice(3, 3).to_batches()])
    for again in (table.slice(2, 4), pieces, pa.Table.from_pylist(rows, schema=_arrow())):
        ack = lake.append("messages", again, idempotency_key="k")
        assert (ack.repeated, ack.first_seq) == (True, first.first_seq)
    assert part_ids(lake) == ["p0", "p1", "p2", "p3"]


def _arrow() -> pa.Schema:
    text = pa.string()
    return pa.schema([("part_id", text), ("source", text), ("n", pa.int64()), ("body", text)])


def test_a_flush_that_touches_many_partitions_writes_them_one_after_another(lake: Lake) -> None:
    """With a file open for each, a thousand partitions ended a JVM of 2 GiB. Every file is in seq order still."""
    make_table(lake, partition_by=["source"])
    lake.append("messages", [message(n, source=f"s{n % 100}") for n in range(300)])
    lake.flush("messages")
    assert log_part_ids(lake) == [f"p{n}" for n in range(300)]
    state = lake.view().branch_table("messages")
    with lake.ledger.read() as conn:
        files = read_files(conn, state.head.branch_id, state.table.table_id, state.head.version)
    assert (len(files), len({file.partition for file in files})) == (100, 100)
    for file in files:
        seqs = pq.read_table(local_path(file.path), columns=["_seq"]).column(0).to_pylist()
        assert seqs == sorted(seqs)
        assert (file.first_seq, file.last_seq, file.rows) == (seqs[0], seqs[-1], 3)
