"""How the kept lakes and backups were made: by the code of commit ec31a67, and by nothing else.

No test runs this. It documents what is in the archives beside it, and makes them again in a clone of that commit
(`git worktree add OLD ec31a67`, and there `make setup`): `cd OLD && .venv/bin/python …/make.py …/tests/kept [NAME]...`.

A lake's files name each other by absolute paths, so each lake is made where the tests will unpack it, below
`/tmp/strandline-kept`. After an archive is written, the same old code recovers the lake and goes on in place, and what
it then finds is noted in `NAME.json`: what today's code has to come to as well.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

from dying import (
    PEOPLE,
    PHASES,
    dies,
    dying_expiries,
    dying_on_keyed_tables,
    dying_on_log_tables,
    dying_while_loading,
    lines,
    nothing_is_recovered,
    one_is_given_up,
)

import strandline as sl
from strandline import create
from strandline.backup import backup
from strandline.lake import Lake
from strandline.ledger.dead_letters import list_letters
from strandline.ledger.sinks import find_sink
from strandline.restore import restore
from strandline.sinks.instances import destination
from strandline.sinks.repair import discard, replay
from tests.acceptance.test_capture import damage_batch
from tests.delivery import Receiver
from tests.kit import COLUMNS, audits, in_ledger, intents_of, make_table, message, messages, strand_json
from tests.postgres import serving
from tests.proxy import proxy_before

KEPT = Path("/tmp/strandline-kept")


def kinds_and_phases(lake):
    """What is under way, by the tables it is about."""
    return {
        intent.op_id: {
            "kind": intent.kind,
            "phase": intent.phase,
            "tables": sorted(scope.iceberg_name for scope in intent.scopes),
            "refs_alone": intent.is_refs_alone,
        }
        for intent in intents_of(lake)
    }


# -- what a lake shows -------------------------------------------------------------------------------------------------


def plain(value):
    """A value as JSON has it."""
    return value.isoformat() if isinstance(value, dt.datetime) else value


def shown(lake):
    """Every row of every table on every branch, by seq; with its seq, and without the hidden columns."""
    found = {}
    for branch in sorted(one.name for one in lake.branches()):
        view = lake.view(branch)
        tables = {}
        for table in view.tables:
            if branch != "main" and not view.state(table).table.key:
                continue
            rows = view.sql(f'select _seq, * from "{table}" order by _seq').arrow().to_pylist()
            tables[table] = [{key: plain(value) for key, value in row.items()} for row in rows]
        found[branch] = tables
    return found


def note(out, name, **more):
    """Write down what today's code must find."""
    (out / f"{name}.json").write_text(json.dumps(more, indent=1, sort_keys=True, default=str) + "\n")


def pack(out, name):
    """The archive of a folder below KEPT."""
    for path in (KEPT / name).rglob(".*.crc"):  # Hadoop's, and nobody reads them
        path.unlink()
    with tarfile.open(out / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        archive.add(KEPT / name, arcname=name, filter=anonymous)


def anonymous(entry):
    """An entry without the name of who made it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def recovered(root):
    """What the old code makes of a lake that died."""
    with Lake(root) as lake:
        before = len(audits(lake))
        lake.recover()
        assert intents_of(lake) == []
        told = {row["op_id"]: row["outcome"] for row in audits(lake)}
        return {"outcomes": told, "audits": len(audits(lake)) - before, "rows": shown(lake)}


# -- three lakes -------------------------------------------------------------------------------------------------------


def make_intents(out):
    """A SQLite ledger with operations of every kind in every phase."""
    root, inbox = KEPT / "intents" / "lake", KEPT / "intents" / "inbox"
    inbox.mkdir(parents=True)
    create.create(root).close()
    with nothing_is_recovered():
        dying_on_log_tables(root, inbox, PHASES)
        dying_while_loading(root, inbox)
        dying_expiries(root)
        dying_on_keyed_tables(root, inbox, PHASES)
        one_is_given_up(root)
        with Lake(root) as lake:
            under_way = kinds_and_phases(lake)
    checkpoint(root)
    pack(out, "intents")
    note(out, "intents", intents=under_way, **recovered(root))


def checkpoint(root):
    """Nothing of a lake is in SQLite's -wal any more."""
    for name in ("ledger.db", "catalog.db"):
        if (root / name).exists():
            with closing(sqlite3.connect(root / name)) as conn:
                conn.execute("pragma wal_checkpoint(truncate)")
            for end in ("-wal", "-shm"):
                Path(f"{root / name}{end}").unlink(missing_ok=True)


CONFIG_SINK = """
[sinks.archive]
type = "blob"
uri = "file:///tmp/strandline-kept/{name}/archive"
format = "jsonl"
tables = ["messages", "person"]
"""


def tell_story(name):
    """A sender and its receiver, in the middle of everything that sinks, branches and schemas do; its receiver."""
    folder = KEPT / name
    root = folder / "lake"
    create.create(root).close()
    (root / "strand.toml").write_text((root / "strand.toml").read_text() + CONFIG_SINK.format(name=name))
    receiver = Receiver(folder / "central")
    receiver.make_table("messages", {**COLUMNS, "body": "string"}, row_key=["part_id"])
    receiver.start()
    with Lake(root) as lake:
        make_table(lake, partition_by=["source"])
        lake.create_table("notes", {"id": "string", "text": "string?"})
        tell_people(lake)
        add_sinks(lake, folder, receiver)
        tell_messages(lake, receiver)
        tell_damage(lake)
    with Lake(root) as lake:
        backup(lake, folder / "before", with_data=True)
    restore(folder / "before", root, replace=True)
    for path in folder.glob("lake.*"):
        shutil.rmtree(path)
    shutil.rmtree(folder / "before")
    with Lake(root) as lake:
        lake.tick()
        lake.append("messages", messages(40, 44), idempotency_key="forty", actor="ann")
        lake.append("messages", [message(50, source="codex")])
        lake.append("notes", [{"id": "n2", "text": "parked"}])
        file = lines(folder / "notes.jsonl", [{"id": "loaded", "text": "once"}])
        lake.load("notes", [str(file)], key="notes of a file")
    with nothing_is_recovered():
        dies(root, "forward.after_send", lambda lake: lake.tick("central"))
        dies(root, "blob.after_write", lambda lake: lake.tick("archive"))
        dies(root, "deliver.after_open", lambda lake: lake.tick("blobs"))
        dies(root, "copy.after_append", lambda lake: lake.tick("copy"))
        with Lake(root) as lake:
            lake.append("messages", [message(60)])
            lake.mutate([sl.patch("person", "a", {"age": 77})])
    return root, receiver


def new_database(server, name):
    """An empty database with this name."""
    server.execute(f"CREATE DATABASE {name}")
    return name


def add_sinks(lake, folder, receiver):
    """One of each type, besides that of the config."""
    given = {"url": receiver.url, "gateway": "laptop", "token": receiver.token, "chunk_rows": 3, "max_attempts": 1}
    lake.add_sink("central", "forward", {**given, "tables": ["messages", "notes"]})
    lake.add_sink("blobs", "blob", {"uri": f"file://{folder}/blobs", "format": "parquet", "tables": ["messages"]})
    target = {"uri": f"jdbc:sqlite:{folder}/other.db", "warehouse": f"file://{folder}/other", "catalog": "jdbc"}
    lake.add_sink("copy", "iceberg", {**target, "tables": ["messages"]})


def tell_messages(lake, receiver):
    """Delivered rows; dead letters of which one is replayed and one discarded; a parked stream; a purge; a rewind."""
    rows = messages(0, 6)
    for n in (1, 3, 4):
        rows[n]["body"] = None  # which the receiver does not take
    lake.append("messages", rows)
    lake.append("messages", [message(30, source="codex")])
    lake.append("notes", [{"id": "n1", "text": None}])
    lake.tick()
    with Lake(receiver.root) as central:
        doc = {"tables": {"messages": central.schema()["tables"]["messages"]}}
        doc["tables"]["messages"]["columns"]["body"] = "string?"
        central.schema_apply(doc)
    with lake.ledger.read() as conn:
        sink = find_sink(conn, "central")
        letters = list_letters(conn, sink.sink_id)
    assert len(letters) == 3, letters
    (done,) = replay(lake.ledger, sink, destination(lake.surroundings, sink), [letters[0].letter_id])
    assert done["outcome"] == "replayed", done
    discard(lake.ledger, sink, [letters[1].letter_id])
    lake.append("messages", [message(7), message(8)], idempotency_key="seven", actor="ann")
    lake.tick()
    lake.purge("messages", "part_id = 'p7'", actor="ann")


def tell_people(lake):
    """A keyed table with constraints, branches, a tag, a state, and columns that were added, renamed and dropped."""
    rules = ["unique(name)"]
    lake.create_table("person", {**PEOPLE, "old": "string?"}, key=["id"], constraints=rules)
    lake.mutate(
        [sl.put("person", {"id": key, "name": key.upper(), "age": n, "old": "x"}) for n, key in enumerate("abc")]
    )
    lake.flush("person")
    lake.fold("person")
    lake.tag("v1")
    lake.branch("x")
    doc = {"tables": {"person": lake.schema()["tables"]["person"]}}
    columns = doc["tables"]["person"]["columns"]
    columns["called"] = {"type": columns.pop("name"), "rename_from": "name"}
    columns["city"] = {"type": "string?", "default": "Bern"}
    columns["age"] = {"type": "long", "default": 7}
    del columns["old"]
    doc["tables"]["person"]["constraints"] = ["unique(called)"]
    lake.schema_apply(doc, actor="ann")
    lake.mutate([sl.put("person", {"id": "d", "called": "D", "age": 3, "city": None})])
    lake.mutate([sl.patch("person", "a", {"age": 41}), sl.delete("person", "b")])
    lake.mutate([sl.patch("person", "c", {"age": 5}), sl.put("person", {"id": "e", "name": "E"})], branch="x")
    lake.flush("person", branch="x")
    lake.mutate([sl.put("person", {"id": "f", "name": "F"})], branch="x")
    lake.branch("x/y", "x")
    lake.delete_branch("x/y")


def tell_damage(lake):
    """A quarantined batch of a log table."""
    make_table(lake, "hurt")
    for n in range(3):
        lake.append("hurt", [message(n)])
    damage_batch(lake, 1, "hurt")
    lake.flush("hurt")


def blobs(folder):
    """Every object below the blob sinks' folders, with the digest of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.parts[len(folder.parts)] in ("archive", "blobs")
        and path.suffix in (".parquet", ".zst")
    }


def continued(root, receiver):
    """What the old code comes to: all is delivered once, and what is parked stays so; and what it sends for that."""
    folder = root.parent
    with proxy_before(receiver.url) as proxy, Lake(root) as lake:
        strand_json(root, "sink", "set", "central", "--set", f"url={proxy.url}")
        lake.recover()
        lake.tick()
        told = {"rows": shown(lake), "blobs": blobs(folder), "streams": streams_of(lake), "copied": copied(folder)}
        letters = "select seq, state from dead_letters order by seq, epoch"
        told["letters"] = [list(row) for row in in_ledger(lake, letters)]
        marks = "select partition, epoch, seq, rows from inbound_marks order by 1"
        told["marks"] = [list(row) for row in in_ledger(receiver.root, marks)]
        with Lake(receiver.root) as central:
            told["central"] = shown(central)
        lake.append("messages", messages(65, 70))
        lake.tick()
        strand_json(root, "sink", "dead", "central", "--replay")
        told["sent"] = [request(one) for one in proxy.seen]
    with Lake(receiver.root) as central:
        told["central_later"] = shown(central)
    return told


def request(seen):
    """A request of the sender, and the status that it got."""
    headers = {key: value for key, value in seen.headers.items() if key.lower() not in ("host", "connection")}
    return {**vars(seen), "headers": headers, "body": base64.b64encode(seen.body).decode()}


def copied(folder):
    """What the iceberg sink has put into the other catalog."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("strand", type="sql", uri=f"sqlite:///{folder}/other.db", warehouse=f"file://{folder}/other")
    found = {}
    for namespace in catalog.list_namespaces():
        for table in catalog.list_tables(namespace):
            rows = catalog.load_table(table).scan().to_arrow().to_pylist()
            found[".".join(table)] = sorted(row["part_id"] for row in rows)
    return found


def streams_of(lake):
    """Watermarks, and whether something is open or parked."""
    of_sinks = "join sinks s using (sink_id) order by 1, 2"
    marks = f"select s.name, w.partition, w.epoch, w.seq, w.rows from watermarks w {of_sinks}"
    open_ = f"select s.name, d.partition, d.parked from deliveries d {of_sinks}"
    return {
        "marks": [list(row) for row in in_ledger(lake, marks)],
        "open": [list(row) for row in in_ledger(lake, open_)],
    }


def make_whole(out):
    """A sender and a receiver with SQLite ledgers, and backups of the sender with its data and without."""
    root, receiver = tell_story("whole")
    try:
        with Lake(root) as lake:
            before = {"rows": shown(lake), "blobs": blobs(root.parent), "streams": streams_of(lake)}
            backup(lake, root.parent / "backup-data", with_data=True)
            backup(lake, root.parent / "backup-bare")
        port = receiver.port
        receiver.stop()
        for place in (root, receiver.root):
            checkpoint(place)
        pack(out, "whole")
        receiver.start()
        note(out, "whole", before=before, after=continued(root, receiver), port=port, token=receiver.token)
    finally:
        receiver.stop()


def make_shape(out):
    """What the old code makes in an empty Postgres, as SQL: the rows of the other lakes are put into these tables."""
    with serving() as server:
        create.create(KEPT / "postgres" / "lake", ledger=server.url(new_database(server, "ledger"))).close()
        options = ["--schema-only", "--no-owner", "--no-acl", "--no-comments"]
        dump = subprocess.run(
            [server.binaries / "pg_dump", *options, server.url("ledger")], capture_output=True, check=True, text=True
        ).stdout
    kept = [
        line for line in dump.splitlines() if line and not line.startswith(("--", "SET ", "\\", "SELECT pg_catalog"))
    ]
    (out / "postgres.sql").write_text("\n".join(kept) + "\n")


def main(out):
    """Make all of them, or those that are named."""
    for name in sys.argv[2:] or ["intents", "whole", "postgres"]:
        shutil.rmtree(KEPT / name, ignore_errors=True)
        KEPT.mkdir(exist_ok=True)
        {"intents": make_intents, "whole": make_whole, "postgres": make_shape}[name](out)
        shutil.rmtree(KEPT / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
