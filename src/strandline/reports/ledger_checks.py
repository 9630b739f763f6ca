"""Whether the ledger is whole: its file, its books, the order of its seqs, its payloads, and what is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from strandline.ledger import checks
from strandline.ledger.publish.intents import UnreadableIntent, read_intents
from strandline.ledger.publish.loads import UnfinishedLoad, list_loads
from strandline.ledger.publish.owner import certainly_dead
from strandline.ledger.publish.publishing import Intent
from strandline.ledger.rows.batches import list_quarantined, read_payloads
from strandline.ledger.rows.encode import checksum
from strandline.ledger.workers.jobs import read_jobs
from strandline.model.tables import BatchRef, BranchTable
from strandline.model.times import text_of
from strandline.model.wording import counted
from strandline.reports.findings import RESTORE, Examination, Finding
from strandline.reports.open_lake import OpenLake
from strandline.views.tail import read_batches

SAMPLE_BATCHES = 200
TOLD_LINES = 5


def integrity(look: Examination) -> Iterator[Finding]:
    """The database file itself."""
    faults = look.lake.ledger.database.integrity(deep=look.deep)
    if faults:
        yield Finding(
            kind="ledger_damaged",
            about="ledger",
            what=f"SQLite finds {len(faults)} faults in the ledger's file: {'; '.join(faults[:TOLD_LINES])}",
            meaning="Parts of the ledger can't be trusted; rows that are not in Iceberg yet may be lost.",
            fix=f"stop all writers, copy the lake's folder away, then {RESTORE}",
        )


def references(look: Examination) -> Iterator[Finding]:
    """Every row finds the rows it refers to, and every head its snapshot and its schema."""
    with look.lake.ledger.read() as conn:
        broken = checks.broken_references(conn)
        heads = checks.unresolved_heads(conn)
    if broken:
        yield Finding(
            kind="references_broken",
            about="ledger",
            what=f"the ledger has {'; '.join(broken[:TOLD_LINES])}",
            meaning="Somebody has changed the ledger by hand, or its file is damaged.",
            fix=RESTORE,
        )
    for table, reason in heads:
        yield Finding(
            kind="head_unresolved",
            about=table,
            what=f"table {table}: {reason}",
            meaning="What the table's log consists of can't be told from the ledger.",
            fix=RESTORE,
        )


def leases(look: Examination) -> Iterator[Finding]:
    """Leases that a process left which is gone. The next one to need them takes them over."""
    with look.lake.ledger.read() as conn:
        held = checks.held_leases(conn)
    one_host = look.lake.ledger.has_one_host
    dead = [lease for lease in held if lease.owner is not None and certainly_dead(lease.owner, one_host=one_host)]
    if dead:
        yield Finding(
            kind="lease_left",
            about=dead[0].name,
            what=f"{len(dead)} leases are held by processes that are gone: "
            f"{', '.join(lease.name for lease in dead[:TOLD_LINES])}",
            meaning="Nothing waits for them: whoever needs one takes it over.",
            fix="`strand doctor --fix`   (frees them; so does the next flush or tick)",
            severity="warning",
        )


def parked_jobs(look: Examination) -> Iterator[Finding]:
    """Jobs that the workers have given up, until a person lets them go on."""
    with look.lake.ledger.read() as conn:
        parked = [job for job in read_jobs(conn).values() if job.parked_at_us is not None]
    for job in parked:
        yield Finding(
            kind="job_parked",
            about=job.key,
            what=f"the workers have given up {job.key} after {job.failures} failures: {job.error}",
            meaning="Nothing is lost, and nothing else waits for it; but it is not done any more.",
            fix=f"see to the reason, then: `strand worker retry {job.key}`",
            since=text_of(job.parked_at_us or 0),
        )


def books(look: Examination) -> Iterator[Finding]:
    """Every acked row is somewhere: acked = log + tail + dropped + pruned + quarantined."""
    for branch_table in look.branch_tables():
        count = branch_table.head.books
        tail = sum(ref.rows for ref in branch_table.tail)
        total = count.log + tail + count.dropped + count.pruned + count.quarantined
        if total != count.acked:
            yield Finding(
                kind="books",
                about=branch_table.table.name,
                what=f"table {branch_table.table.name}: {count.acked:,} rows were acked, and {total:,} are accounted "
                "for",
                meaning=f"{count.log:,} in the log + {tail:,} in the tail + {count.dropped:,} dropped + "
                f"{count.pruned:,} pruned + {count.quarantined:,} quarantined should be the rows acked.",
                fix=RESTORE,
            )
        files = sum(file.rows for file in look.view.files(branch_table.table.name))
        if files != count.log:
            yield Finding(
                kind="books",
                about=branch_table.table.name,
                what=f"table {branch_table.table.name}: its log has {count.log:,} rows, and its files {files:,}",
                meaning="The list of data files in the ledger does not agree with its books.",
                fix=RESTORE,
            )


def seq_order(look: Examination) -> Iterator[Finding]:
    """Seqs never run backwards, and none is above the counter."""
    with look.lake.ledger.read() as conn:
        counter = checks.counter_seq(conn)
        highest = checks.highest_seqs(conn)
        lost = checks.lost_batches(conn)
    for name, seq in highest.items():
        if seq > counter:
            yield _out_of_order(name, f"{name} hold seq {seq:,}, above the counter's {counter:,}")
    for table, batch in lost:
        yield Finding(
            kind="batch_lost",
            about=table,
            what=f"table {table}: its tail refers to batch {batch}, which is not there",
            meaning="Acked rows are missing.",
            fix=RESTORE,
        )
    for branch_table in look.branch_tables():
        yield from _tail_order(branch_table)


def _tail_order(branch_table: BranchTable) -> Iterator[Finding]:
    name, reached = branch_table.table.name, 0
    for ref in branch_table.tail:
        if ref.first_seq <= reached or ref.last_seq - ref.first_seq + 1 != ref.rows:
            yield _out_of_order(name, f"table {name}: batch {ref.batch_id} has seqs {ref.first_seq}..{ref.last_seq}")
        reached = max(reached, ref.last_seq)
    if reached > branch_table.head.last_seq:
        yield _out_of_order(
            name, f"table {name}: its tail reaches seq {reached:,}, its head says {branch_table.head.last_seq:,}"
        )


def _out_of_order(about: str, what: str) -> Finding:
    return Finding(
        kind="seq_order",
        about=about,
        what=what,
        meaning="A seq could be given twice, or a reader could pass over a row.",
        fix=RESTORE,
    )


def payloads(look: Examination) -> Iterator[Finding]:
    """The bytes of the tail; all of them if it is a deep look, else a sample."""
    for branch_table in look.branch_tables():
        for ref, reason in unreadable(look, branch_table):
            yield Finding(
                kind="payload_damaged",
                about=ref.batch_id,
                what=f"table {branch_table.table.name}: batch {ref.batch_id} ({counted(ref.rows, 'row')}, seqs "
                f"{ref.first_seq}..{ref.last_seq}) can't be read: {reason}",
                meaning="Reads leave these rows out, with a warning. The next flush sets the batch aside.",
                fix="`strand doctor --fix`   (sets it aside; then `strand quarantine save` gives you its bytes)",
                since=text_of(ref.at_us),
            )


def unreadable(look: Examination, branch_table: BranchTable) -> list[tuple[BatchRef, str]]:
    """The batches of a tail that can't be read, and why."""
    bad: list[tuple[BatchRef, str]] = []
    refs = branch_table.tail if look.deep else _sample(branch_table.tail)
    for _ in read_batches(look.lake.ledger, branch_table, refs, lambda ref, reason: bad.append((ref, reason))):
        pass
    return bad


def damaged(lake: OpenLake, branch_table: BranchTable) -> list[BatchRef]:
    """Those batches of a tail whose bytes have changed; of a long one as many are read as by a quick look."""
    payloads = read_payloads(lake.ledger, _sample(branch_table.tail))
    return [payload.ref for payload in payloads if checksum(payload.payload) != payload.checksum]


def _sample(refs: Sequence[BatchRef]) -> Sequence[BatchRef]:
    step = max(1, -(-len(refs) // SAMPLE_BATCHES))
    return refs[::step]


def under_way(look: Examination) -> Iterator[Finding]:
    """Records of operations: those that can't be read, those whose process is dead, loads that were not finished."""
    with look.lake.ledger.read() as conn:
        intents = read_intents(conn)
        loads = list_loads(conn)
    names = {branch_table.table.table_id: branch_table.table.name for branch_table in look.branch_tables()}
    one_host = look.lake.ledger.has_one_host
    for intent in intents:
        if isinstance(intent, UnreadableIntent):
            yield _unreadable(intent, names)
        elif intent.phase == "damaged":
            yield Finding(
                kind="operation_damaged",
                about=intent.op_id,
                what=f"operation {intent.op_id} ({intent.kind}) was published, and its snapshot is gone",
                meaning="Rows of the log are missing in Iceberg; its table refuses writes.",
                fix=RESTORE,
                since=text_of(intent.created_at_us),
            )
        elif is_dead(intent, one_host=one_host) and not intent.is_refs_alone:
            # What a merge leaves is told where the refs are looked at.
            yield Finding(
                kind="operation_left",
                about=intent.op_id,
                what=f"operation {intent.op_id} ({intent.kind}, {intent.phase}) was left by a process that is gone",
                meaning="Nothing is lost; it is finished or undone by the next operation.",
                fix="`strand recover`",
                severity="warning",
                since=text_of(intent.created_at_us),
            )
    yield from map(_unfinished, loads)


def _unreadable(intent: UnreadableIntent, names: Mapping[str, str]) -> Finding:
    about = ", ".join(names.get(table_id, table_id) for table_id in intent.table_ids)
    return Finding(
        kind="operation_unreadable",
        about=intent.op_id,
        what=f"operation {intent.op_id} ({intent.kind} on {about}) can't be read: {intent.reason}",
        meaning="Operations on its tables are refused; appends and reads go on.",
        fix=f"upgrade strandline, or give it up with: `strand recover --discard {intent.op_id}`",
        since=text_of(intent.created_at_us),
    )


def _unfinished(load: UnfinishedLoad) -> Finding:
    return Finding(
        kind="load_unfinished",
        about=load.load_id,
        what=f"a load into {load.table} stopped after {load.parts_done} of {load.parts} parts",
        meaning="It may still be running; if not, its published rows are there and the others are not.",
        fix="run the same `strand load` again: it goes on where it stopped",
        severity="warning",
        since=text_of(load.since_us),
    )


def is_dead(intent: Intent | UnreadableIntent, *, one_host: bool) -> bool:
    """Whether the owner of an operation is certainly gone."""
    return intent.owner == "" or certainly_dead(intent.owner, one_host=one_host)


def set_aside(look: Examination) -> Iterator[Finding]:
    """Tables that refuse writes, and batches in quarantine."""
    for branch_table in look.branch_tables():
        if branch_table.head.refuses is not None:
            yield Finding(
                kind="table_refuses",
                about=branch_table.table.name,
                what=f"table {branch_table.table.name} refuses writes: {branch_table.head.refuses}",
                meaning="Reads go on; appends and flushes of this table fail.",
                fix=RESTORE,
            )
    with look.lake.ledger.read() as conn:
        quarantined = list_quarantined(conn)
    for batch in quarantined:
        yield Finding(
            kind="quarantined",
            about=batch.batch_id,
            what=f"batch {batch.batch_id} of {batch.table} ({counted(batch.rows, 'row')}) is in quarantine: "
            f"{batch.reason}",
            meaning="These rows were acked and are in no table until somebody repairs them or gives them up.",
            fix=f"`strand quarantine save {batch.batch_id} FILE`, repair FILE, "
            f"`strand quarantine restore {batch.batch_id} FILE`; or `strand quarantine discard {batch.batch_id}`",
            since=text_of(batch.at_us),
        )
