"""How the kept lake of ledger format 2 was made: by the code of commit 2841525, whose intents have bodies of version 1.

No test runs this. It makes the archive again in a clone of that commit, beside `make.py`, whose manners it has:
`git clone … OLD && cd OLD && git checkout 2841525`, and there
`PYTHONPATH=$PWD/src python …/tests/kept/make_second.py …/tests/kept`.

Operations of every kind were left in every phase, as `dying.py` does it; besides, those whose intents say more than
others: a purge that empties dead letters and shortens quarantine, a purge of rows that others could refer to, and a
merge that brings schemas and a whole table. After the archive is written the same old code recovers the lake in place.
What it then finds is in `intents_of_format_2.json`, and all that its ledger says in `intents_of_format_2.ledger.xz`.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

import make
from dying import (
    PEOPLE,
    PHASES,
    dies,
    dying_expiries,
    dying_on_keyed_tables,
    dying_on_log_tables,
    dying_while_loading,
    everything_is_large,
    nothing_is_recovered,
    one_is_given_up,
)
from ledgers import recovered_ledger
from make import KEPT, checkpoint, kinds_and_phases, note, pack, recovered

import strandline as sl
from strandline import create
from strandline.lake import Lake
from strandline.ledger import batches
from strandline.ledger.dead_letters import Refused
from strandline.model.rows import from_dicts
from strandline.model.wire import encode
from tests.kit import in_ledger, make_table, message, messages

NAME = "intents_of_format_2"


def dying_purges(root):
    """Of a log table with a dead letter and a quarantined batch; and of a keyed table that another refers to."""
    with Lake(root) as lake:
        make_table(lake, "spread")
        lake.append("spread", messages(0, 4))
        lake.append("spread", messages(4, 7))
        set_aside(lake, "spread")
        lake.append("spread", messages(7, 9))
        lake.flush("spread")
        lake.add_sink(
            "nowhere", "blob", {"uri": f"file://{root.parent}/nowhere", "format": "jsonl", "tables": ["spread"]}
        )
        bury(lake, "spread", [message(1), message(2)])
        lake.create_table("owner", PEOPLE, key=["id"])
        lake.create_table("pet", {"id": "string", "of": "string?"}, key=["id"], constraints=["reference(of -> owner)"])
        lake.mutate([sl.put("owner", {"id": key, "age": 1}) for key in "abc"])
        lake.mutate([sl.put("pet", {"id": "p", "of": "a"}), sl.put("pet", {"id": "q", "of": "b"})])
        lake.mutate([sl.delete("pet", "q")])
        for name in ("owner", "pet"):
            lake.flush(name)
            lake.fold(name)
    dies(root, "staged.after_commit", lambda lake: lake.purge("spread", "n < 2 or n = 5", actor="ann"))
    dies(root, "staged.after_commit", lambda lake: lake.purge("owner", "id = 'b'", actor="ann"))


def set_aside(lake, table):
    """Let a batch that can be read be in quarantine."""
    (batch_id,) = next(
        iter(
            in_ledger(
                lake,
                "select batch_id from batches b join tables t using (table_id) "
                "where t.name = :name order by first_seq desc limit 1",
                name=table,
            )
        )
    )
    ids = in_ledger(lake, "select branch_id, table_id from tail where batch_id = :batch", batch=batch_id)
    assert batches.quarantine(lake.ledger, *ids[0], batch_id, "a test set it aside")


def bury(lake, table, rows):
    """Let rows be dead letters of the one sink."""
    state = lake.view().state(table)
    (sink_id,) = in_ledger(lake, "select sink_id from sinks")[0]
    for n, row in enumerate(rows):
        letter = Refused(n + 1, encode(from_dicts([row], state.schema)), {"code": "no"})
        in_ledger(
            lake,
            "insert into dead_letters (letter_id, sink_id, branch_id, table_id, partition, epoch, seq, state, answer, "
            "at_us, payload) values (:letter, :sink, :branch, :table, '', 0, :seq, 'open', '{}', 1, :payload)",
            letter=f"letter-{n}", sink=sink_id, branch=state.head.branch_id, table=state.head.table_id,
            seq=letter.seq, payload=letter.payload,
        )  # fmt: skip


def dying_merge(root):
    """A merge that brings a schema, rows, and a table as the source has it."""
    with Lake(root) as lake:
        for name in ("ship", "port"):
            lake.create_table(name, PEOPLE, key=["id"])
            lake.mutate([sl.put(name, {"id": key, "age": 1}) for key in "ab"])
            lake.flush(name)
            lake.fold(name)
        lake.branch("harbour")
        lake.branch("voyage", "harbour")
        doc = {"tables": {"ship": lake.schema()["tables"]["ship"]}}
        doc["tables"]["ship"]["columns"]["flag"] = {"type": "string", "default": "none"}
        lake.schema_apply(doc, branch="voyage")
        lake.mutate([sl.put("ship", {"id": "s", "age": 2, "flag": "red"})], branch="voyage")
        lake.mutate([sl.put("port", {"id": "t", "age": 3})], branch="voyage")
        lake.flush("port", branch="voyage")
        lake.mutate([sl.put("ship", {"id": "u", "age": 4})], branch="harbour")
    with everything_is_large():
        dies(root, "staged.after_commit", lambda lake: lake.merge("voyage", into="harbour", actor="ann"))


def main(out):
    """Make the archive."""
    shutil.rmtree(KEPT / NAME, ignore_errors=True)
    root, inbox = KEPT / NAME / "lake", KEPT / NAME / "inbox"
    inbox.mkdir(parents=True)
    create.create(root).close()
    with nothing_is_recovered():
        dying_on_log_tables(root, inbox, PHASES)
        dying_while_loading(root, inbox)
        dying_expiries(root)
        dying_on_keyed_tables(root, inbox, PHASES)  # before there are branches that need what retention takes
        dying_purges(root)
        dying_merge(root)
        one_is_given_up(root)
        with Lake(root) as lake:
            under_way = kinds_and_phases(lake)
    checkpoint(root)
    pack(out, NAME)
    note(out, NAME, intents=under_way, **recovered(root))
    with lzma.open(out / f"{NAME}.ledger.xz", "wt", preset=9) as out_file:
        json.dump(recovered_ledger(root), out_file, indent=0, sort_keys=True)
    shutil.rmtree(KEPT / NAME)


if __name__ == "__main__":
    assert make.KEPT == KEPT
    main(Path(sys.argv[1]).resolve())
