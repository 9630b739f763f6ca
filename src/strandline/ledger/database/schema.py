"""The ledger's tables, its format version and the way from one version to the next.

The format is kept in the counter row, because every write transaction locks that row first and so checks the format
without another query. `docs/formats.md` describes the columns; a test holds the two together.
"""

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
from strandline.ledger.database.service_schema import (
    dead_letters,
    deliveries,
    inbound_dead,
    inbound_holes,
    inbound_marks,
    jobs,
    requests,
    restores,
    sinks,
    tokens,
    watermarks,
    workers,
)

__all__ = [
    "FORMAT",
    "RETIRED",
    "audit",
    "batches",
    "branches",
    "commits",
    "counter",
    "dead_letters",
    "deliveries",
    "files",
    "heads",
    "holds",
    "idempotency",
    "inbound_dead",
    "inbound_holes",
    "inbound_marks",
    "intent_tables",
    "intents",
    "jobs",
    "late_ranges",
    "leases",
    "loads",
    "metadata",
    "moves",
    "outcomes",
    "purged_keys",
    "quarantine",
    "query_marks",
    "requests",
    "reservations",
    "restores",
    "schemas",
    "sinks",
    "snapshots",
    "stream_heads",
    "tables",
    "tail",
    "tokens",
    "touches",
    "watermarks",
    "workers",
]

FORMAT = 2
RETIRED = 1_000_000
"""The format of a ledger that a restore has put another in the place of: every process refuses to write it."""

# The one row that orders everything: the last seq, the last time, the number of write transactions, the format, the
# lake's own id, and the warehouse it was made with. `generation` is made anew by init, restore and clone. `place` is
# the real path of a SQLite ledger ('' on Postgres, and until a lake of format 1 is placed). `fence` is the number that
# the warehouse's marker has too: raised on both sides before anything is deleted, 0 until the warehouse is claimed.
# `raising` is the operation that is raising it now. `wall_from_us` is not null while deletions go by the time of day
# although the ledger's is ahead of it, by a person's word: then the latest time of day that a writer has had since.
counter = Table(
    "counter",
    metadata,
    Column("id", SmallInteger, primary_key=True),
    Column("last_seq", BigInteger, nullable=False),
    Column("last_at_us", BigInteger, nullable=False),
    Column("writes", BigInteger, nullable=False),
    Column("format", Integer, nullable=False),
    Column("lake_id", Text, nullable=False),
    Column("warehouse", Text, nullable=False),
    Column("generation", Text, nullable=False, server_default=""),
    Column("place", Text, nullable=False, server_default=""),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    Column("raising", Text),
    Column("wall_from_us", BigInteger),
)

# The last write transactions, by number and by the id that each was given. A writer that lost the answer to a commit
# looks here whether it arrived. On Postgres alone: SQLite has no answers to lose.
outcomes = Table(
    "outcomes",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("txn_id", Text, nullable=False),
)

# `forked_at` is the last seq that was given to anything when the branch was made from its parent. A deleted branch
# stays, without its name: others may come from it. A tag is a branch that nothing is committed on: it keeps what its
# commit needs, and `covers` is the commit up to which its logs reach. `shape` is raised by whatever makes, changes or
# drops a table or its schema on the branch: what was judged by the constraints of one shape is not stored under
# another.
branches = Table(
    "branches",
    metadata,
    Column("branch_id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("protected", SmallInteger, nullable=False),
    Column("tip", Text),
    Column("covers", Text),
    Column("parent_id", Text),
    Column("forked_at", BigInteger, nullable=False),
    Column("shape", BigInteger, nullable=False, default=0),
    Column("created_at_us", BigInteger, nullable=False),
    Column("deleted_at_us", BigInteger),
)

# `pins` is raised by every transaction that pins or condemns a snapshot of the table, so that the two can't miss each
# other. `expired_upto_us` is when the newest of its condemned snapshots was superseded: what was current up to then
# may be gone. `inbound` is 1 from the first forwarded row on: the log then has the columns that say where rows come
# from.
tables = Table(
    "tables",
    metadata,
    Column("table_id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("folded_name", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("iceberg_name", Text, nullable=False, unique=True),
    Column("row_key", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("partition_by", Text, nullable=False),
    Column("dedupe", Text, nullable=False),
    Column("extra", SmallInteger, nullable=False),
    Column("inbound", SmallInteger, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("pins", BigInteger, nullable=False),
    Column("expired_upto_us", BigInteger, nullable=False),
    Column("settings", Text, nullable=False),
)

# A version is the number (the seq) of the commit that made it, on the branch named here. So a version means the same on
# every branch, and a batch or a file that says under which one it was written can be shared by branches.
schemas = Table(
    "schemas",
    metadata,
    Column("table_id", Text, ForeignKey("tables.table_id"), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("branch_id", Text, ForeignKey("branches.branch_id"), nullable=False),
    Column("definition", Text, nullable=False),
    PrimaryKeyConstraint("table_id", "version"),
)

# Up to `swept_seq` versions may be known by no hash any more: they are in a state, or are looked for in the log.
# `kept_from` is the number of the commit from which on retention has kept a keyed table: a time-travel read of one that
# does not reach it may lack rows. 0: all are there. `rewrites` is raised by whatever changes visible rows otherwise
# than by versions above `last_seq`: what was read of a table under another number may not be shown any more.
heads = Table(
    "heads",
    metadata,
    Column("branch_id", Text, ForeignKey("branches.branch_id"), nullable=False),
    Column("table_id", Text, ForeignKey("tables.table_id"), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("log_snapshot", BigInteger),
    Column("last_seq", BigInteger, nullable=False),
    Column("schema_version", BigInteger, nullable=False),
    Column("barrier", BigInteger, nullable=False),
    Column("swept_seq", BigInteger, nullable=False),
    Column("kept_from", BigInteger, nullable=False, default=0),
    Column("refuses", Text),
    Column("rows_acked", BigInteger, nullable=False),
    Column("rows_log", BigInteger, nullable=False),
    Column("rows_dropped", BigInteger, nullable=False),
    Column("rows_pruned", BigInteger, nullable=False),
    Column("rows_quarantined", BigInteger, nullable=False),
    Column("rewrites", BigInteger, nullable=False, server_default="0"),
    PrimaryKeyConstraint("branch_id", "table_id"),
)

batches = Table(
    "batches",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("table_id", Text, ForeignKey("tables.table_id"), nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("schema_version", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("partitions", Text, nullable=False),
    Column("commit_id", Text),
    Column("released_at_us", BigInteger),
    Column("checksum", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

# Only what waits for its sweep is in this index, so an append does not pay for it.
Index(
    "batches_released",
    batches.c.released_at_us,
    sqlite_where=batches.c.released_at_us.is_not(None),
    postgresql_where=batches.c.released_at_us.is_not(None),
)

# A (branch, table)'s references to batches that are not in its Iceberg log yet. Every append writes here, so there is
# one tree and no index: each further page would be waited for by every ack.
tail = Table(
    "tail",
    metadata,
    Column("branch_id", Text, ForeignKey("branches.branch_id"), nullable=False),
    Column("table_id", Text, ForeignKey("tables.table_id"), nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("batch_id", Text, nullable=False),
    PrimaryKeyConstraint("branch_id", "table_id", "first_seq"),
    sqlite_with_rowid=False,
)

# What a commit on a branch wrote, by hash: the keys of rows. `number` is the commit's own seq, so it orders what was
# published on a branch. A mutation finds here whether what it read was written since, and the newest version of a key
# by its seq and its batch.
touches = Table(
    "touches",
    metadata,
    Column("table_id", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("batch_id", Text, nullable=False),
    PrimaryKeyConstraint("table_id", "branch_id", "hash", "number"),
    sqlite_with_rowid=False,
)

# Values that commits took or gave up and that others looked for: unique ones, and pairs of a reference and the key it
# names. By hash, with the number of the last commit; a writer that read one in an older view starts over. It names no
# version.
claims = Table(
    "claims",
    metadata,
    Column("table_id", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("number", BigInteger, nullable=False),
    PrimaryKeyConstraint("table_id", "branch_id", "hash"),
    sqlite_with_rowid=False,
)

# A snapshot is superseded by the next publish, which begins its grace. Condemned, it can't be pinned any more; its row
# goes when Iceberg has forgotten it.
snapshots = Table(
    "snapshots",
    metadata,
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("snapshot_id", BigInteger, nullable=False),
    Column("op_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("superseded_at_us", BigInteger),
    Column("condemned_at_us", BigInteger),
    PrimaryKeyConstraint("branch_id", "table_id", "version"),
)
Index("snapshots_id", snapshots.c.table_id, snapshots.c.snapshot_id)

# A file belongs to every version from the one that added it to the one before it was removed, so a publish writes the
# change and never the list. `at_us` is since when the oldest of its rows is in the log, through all rewrites;
# `oldest_us` and `newest_us` are the range of the table's time column: null where no row has one, `newest_us` also
# where only some have.
files = Table(
    "files",
    metadata,
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("added_version", BigInteger, nullable=False),
    Column("removed_version", BigInteger),
    Column("rows", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("partition", Text, nullable=False),
    Column("origin", SmallInteger, nullable=False),
    Column("schema_version", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("oldest_us", BigInteger),
    Column("newest_us", BigInteger),
    PrimaryKeyConstraint("branch_id", "table_id", "path"),
)

# `pruned_upto` is the highest seq of the stream that retention has removed: a reader that has not come so far lacks
# rows. Of a keyed table it is that of the version which took the removed one's place.
stream_heads = Table(
    "stream_heads",
    metadata,
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("partition", Text, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("pruned_upto", BigInteger, nullable=False),
    PrimaryKeyConstraint("branch_id", "table_id", "partition"),
)

# A reader still reads the lake as it was at `since_us`: nothing that was superseded or released after it is removed
# until `until_us`.
holds = Table(
    "holds",
    metadata,
    Column("hold_id", Text, primary_key=True),
    Column("since_us", BigInteger, nullable=False),
    Column("until_us", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
)

# Hashes of the row keys that a purge removed. They count as seen once its operation is published (`seen` is 1).
purged_keys = Table(
    "purged_keys",
    metadata,
    Column("table_id", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("op_id", Text, nullable=False),
    Column("seen", SmallInteger, nullable=False),
    PrimaryKeyConstraint("table_id", "hash", "op_id"),
)
Index("purged_keys_op", purged_keys.c.op_id)

# Of a keyed table nothing else is written while it has one, even one without seqs (`last_seq` below `first_seq`).
reservations = Table(
    "reservations",
    metadata,
    Column("op_id", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    PrimaryKeyConstraint("op_id", "table_id"),
)
Index("reservations_table", reservations.c.table_id, reservations.c.branch_id)

# Ranges that were reserved and published later: a look at the past leaves out those that came after it. `number` is
# the last seq that was given to anything when the range was published.
late_ranges = Table(
    "late_ranges",
    metadata,
    Column("table_id", Text, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("table_id", "first_seq"),
)

intents = Table(
    "intents",
    metadata,
    Column("op_id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("format", Integer, nullable=False),
    Column("phase", Text, nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)

# Which tables an intent is about, apart from its body: a body that can't be read must still say what it blocks.
intent_tables = Table(
    "intent_tables",
    metadata,
    Column("op_id", Text, ForeignKey("intents.op_id"), nullable=False),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    PrimaryKeyConstraint("op_id", "branch_id", "table_id"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("owner", Text),
    Column("op_id", Text),
    Column("beat", BigInteger, nullable=False),
    Column("waiting", BigInteger, nullable=False),
)
Index("leases_op", leases.c.op_id)

commits = Table(
    "commits",
    metadata,
    Column("commit_id", Text, primary_key=True),
    Column("branch_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("seq", BigInteger, nullable=False, unique=True),
    Column("at_us", BigInteger, nullable=False),
    Column("parents", Text, nullable=False),
    Column("tables", Text, nullable=False),
    Column("op_id", Text),
)

# A fast-forward makes no commit: where a branch was before one is told by nothing else.
moves = Table(
    "moves",
    metadata,
    Column("branch_id", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("was", Text),
    PrimaryKeyConstraint("branch_id", "number"),
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at_us", BigInteger, nullable=False),
    Column("op_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("original_actor", Text, nullable=False),
    Column("tables", Text, nullable=False),
    Column("reason", Text, nullable=False),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("batch_id", Text, primary_key=True),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("schema_version", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("appended_at_us", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("checksum", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("kept_until_us", BigInteger),
    PrimaryKeyConstraint("scope", "key"),
)

# A load on its way: the parts it was converted into (null until it is) and how many of them are published.
loads = Table(
    "loads",
    metadata,
    Column("load_id", Text, primary_key=True),
    Column("branch_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("parts", Text),
    Column("parts_done", Integer, nullable=False),
    Column("answer", Text, nullable=False),
    Column("skipped", BigInteger, nullable=False),
    Column("finished", SmallInteger, nullable=False),
)

# The last micro-batch of a streaming query that a table has.
query_marks = Table(
    "query_marks",
    metadata,
    Column("query_id", Text, nullable=False),
    Column("table_id", Text, nullable=False),
    Column("last_batch", BigInteger, nullable=False),
    PrimaryKeyConstraint("query_id", "table_id"),
)
