"""The tables of what goes on around the lake: sinks, deliveries, workers, requests, tokens, receivers."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
)

from strandline.ledger.database.metadata import metadata

# A sink: its settings without secrets, the tables it follows (null: all), where it began. `from_config` is 1 when a
# section of `strand.toml` made it, null in a lake of format 1 until the config was looked at. `paused` says why it
# does not deliver. `receiver` is the lake id that its destination had at the first contact.
sinks = Table(
    "sinks",
    metadata,
    Column("sink_id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("type", Text, nullable=False),
    Column("branch_id", Text, ForeignKey("branches.branch_id"), nullable=False),
    Column("tables", Text),
    Column("settings", Text, nullable=False),
    Column("start_seq", BigInteger, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("hold_until_us", BigInteger),
    Column("ticked_at_us", BigInteger),
    Column("from_config", SmallInteger),
    Column("paused", Text),
    Column("receiver", Text),
)

# How far a sink has come in a stream, and what it has delivered there. `acked_epoch` is the highest epoch of which the
# destination has acked anything, `rewound_epoch` the last that a person opened. The `chunk_` columns are the last chunk
# that had rows: its range, and the digest of its canonical rows. Up to `lacking_upto` only rows are sent that the
# destination lacks; of those up to `hole_upto` some are gone, and a person said to go on. `replayed` is the count and
# hash of the replayed letters that the destination had when the two sides last agreed on them.
watermarks = Table(
    "watermarks",
    metadata,
    Column("sink_id", Text, ForeignKey("sinks.sink_id"), nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("withheld", BigInteger, nullable=False),
    Column("dead", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("units", BigInteger, nullable=False),
    Column("delivered_at_us", BigInteger),
    Column("last_error", Text),
    Column("last_error_at_us", BigInteger),
    Column("acked_epoch", Integer),
    Column("chunk_since", BigInteger),
    Column("chunk_until", BigInteger),
    Column("chunk_digest", Text),
    Column("lacking_upto", BigInteger),
    Column("rewound_epoch", Integer),
    Column("hole_upto", BigInteger),
    Column("replayed", Text),
    PrimaryKeyConstraint("sink_id", "branch_id", "table_id", "partition"),
)

# What is being sent now, at most one for a (sink, stream).
deliveries = Table(
    "deliveries",
    metadata,
    Column("sink_id", Text, ForeignKey("sinks.sink_id"), nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("delivery_id", Text, nullable=False, unique=True),
    Column("epoch", Integer, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("snapshot_id", BigInteger, nullable=False),
    Column("schema_version", BigInteger, nullable=False),
    Column("settings", Text, nullable=False),
    Column("opened_at_us", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("not_before_us", BigInteger, nullable=False),
    Column("last_error", Text),
    Column("parked", Text),
    PrimaryKeyConstraint("sink_id", "branch_id", "table_id", "partition"),
)

# Rows that a destination refused, with its answer.
dead_letters = Table(
    "dead_letters",
    metadata,
    Column("letter_id", Text, primary_key=True),
    Column("sink_id", Text, ForeignKey("sinks.sink_id"), nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)
Index(
    "dead_letters_stream",
    dead_letters.c.sink_id,
    dead_letters.c.branch_id,
    dead_letters.c.table_id,
    dead_letters.c.partition,
    dead_letters.c.epoch,
    dead_letters.c.seq,
    unique=True,
)

# A worker that works on the lake, for a command that wants to ask it. Its lease `worker:<id>` tells whether it lives;
# `place` is the host and process namespace whose files it sees, `running` what it is doing.
workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("spark", SmallInteger, nullable=False),
    Column("running", Text, nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Column("changed_at_us", BigInteger, nullable=False),
)

# What the workers last decided about each job, one row for a job, so it never grows. `wait_us` is how long it has to
# wait after its last run, by the clock of the process that looks; a parked one waits for a person.
jobs = Table(
    "jobs",
    metadata,
    Column("key", Text, primary_key=True),
    Column("why", Text, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("runs", BigInteger, nullable=False),
    Column("decided_at_us", BigInteger, nullable=False),
    Column("took_us", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("wait_us", BigInteger, nullable=False),
    Column("parked_at_us", BigInteger),
    Column("error_code", Text),
    Column("error", Text),
)

# Work that a command asked a worker for. The process that moves the fence has it: a worker that takes it, or the
# command that takes it back. `place` is null unless only a worker that sees the asker's files can do it.
requests = Table(
    "requests",
    metadata,
    Column("request_id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("arguments", Text, nullable=False),
    Column("place", Text),
    Column("state", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("worker_id", Text),
    Column("asked_at_us", BigInteger, nullable=False),
    Column("ended_at_us", BigInteger),
    Column("progress", Text),
    Column("answer", Text),
    Column("error", Text),
)

# The clients that may write over HTTP. A token itself is shown once and kept nowhere: this is its hash.
tokens = Table(
    "tokens",
    metadata,
    Column("token_id", Text, primary_key=True),
    Column("actor", Text, nullable=False),
    Column("hash", Text, nullable=False, unique=True),
    Column("created_at_us", BigInteger, nullable=False),
    Column("revoked_at_us", BigInteger),
)

# How far a stream of another lake has come here. All ids but `local_table_id` are the sender's, and so is
# `generation`. The `chunk_` columns are the last chunk that had rows, as the sender's `watermarks` have it.
inbound_marks = Table(
    "inbound_marks",
    metadata,
    Column("lake_id", Text, nullable=False),
    Column("sink_id", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("gateway", Text, nullable=False),
    Column("local_table_id", Text, ForeignKey("tables.table_id"), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("generation", Text),
    Column("chunk_since", BigInteger),
    Column("chunk_until", BigInteger),
    Column("chunk_digest", Text),
    PrimaryKeyConstraint("lake_id", "sink_id", "branch_id", "table_id", "partition"),
)

# Dead letters that were replayed and stored here: kept for good, because they lie below their stream's mark.
# `digest` is what the sender said of the row: one with another may be another row, of a ledger that was put back.
inbound_dead = Table(
    "inbound_dead",
    metadata,
    Column("lake_id", Text, nullable=False),
    Column("sink_id", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("digest", Text),
    Column("at_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("lake_id", "sink_id", "branch_id", "table_id", "partition", "seq"),
)

# Ranges that a sender passed over by a person's word, because retention had removed their rows there.
inbound_holes = Table(
    "inbound_holes",
    metadata,
    Column("lake_id", Text, nullable=False),
    Column("sink_id", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("lake_id", "sink_id", "branch_id", "table_id", "partition", "epoch", "since"),
)

# The backups that this ledger was restored from: the counter as the backup had it, and as it was raised to.
restores = Table(
    "restores",
    metadata,
    Column("restore_id", Text, primary_key=True),
    Column("backup_id", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("backup_seq", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
)
