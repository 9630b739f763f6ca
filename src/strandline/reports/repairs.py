"""`strand doctor --fix`: only what can't make anything worse.

It finishes or undoes what dead processes left, sets unreadable batches aside with their bytes, deletes batches that
were flushed long ago, frees leases of the dead, forgets watermarks that can't be true, lets deletions go by this
machine's clock where the ledger's time is ahead of it, and lets Iceberg follow the ledger where only the lake's own
commits are concerned. A commit that isn't the lake's is moved off `main` only for a table that a person names, and is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from strandline.actors import checked_actor
from strandline.engines.metadata import UNREADABLE, read_metadata, refs
from strandline.errors import StrandError
from strandline.ledger import checks
from strandline.ledger.audit import DOCTOR, audit_decision
from strandline.ledger.clock import trust_clock
from strandline.ledger.ledger import Txn
from strandline.ledger.place.iceberg_catalog import metadata_locations, step_back
from strandline.ledger.publish import leases as ledger_leases
from strandline.ledger.publish.owner import certainly_dead
from strandline.ledger.rows import batches
from strandline.ledger.sinks import deliveries
from strandline.ledger.sinks.sinks import sink_by_id
from strandline.ledger.tables.files import knows_snapshot
from strandline.model.ids import lease_of_stream
from strandline.model.operations import Recovered
from strandline.model.tables import BranchTable
from strandline.model.times import span_of, text_of
from strandline.model.wording import counted
from strandline.operations.core.beats import holding
from strandline.reports import ledger_checks
from strandline.reports.doctor import Diagnosis, diagnose
from strandline.reports.findings import Examination
from strandline.reports.iceberg_checks import (
    CATALOG,
    MAIN_REF,
    UnderWay,
    can_step_back,
    orphan_branches,
)
from strandline.reports.open_lake import OpenLake


def mend(
    lake: OpenLake,
    *,
    take_back: Collection[str] = (),
    claim_warehouse: bool = False,
    deep: bool = False,
    actor: str = "",
) -> Diagnosis:
    """Do what is safe, then check everything; `claim_warehouse` says that this ledger is the warehouse's own."""
    for name in take_back:
        lake.view().branch_table(name)  # a table that is not there is an error before anything is mended
    fixed = [lake.context.fence.claim(actor)] if claim_warehouse else []
    fixed += fix(lake, take_back=take_back, actor=actor)
    return diagnose(lake, deep=deep, fixed=fixed)


def fix(lake: OpenLake, *, take_back: Collection[str] = (), actor: str = "") -> list[str]:
    """Do what is safe, and say it. `take_back` names tables whose `main` may leave another writer's commit."""
    actor = checked_actor(actor, None)
    done = [_recovery(recovered) for recovered in lake.recovered]
    done += _payloads(Examination.at(lake, deep=True), actor)
    done += _recovered(Examination.at(lake, deep=True))
    for repair in (_leases, _watermarks, _metadata, _clock):
        done += repair(Examination.at(lake, deep=True), actor)
    done += _swept(Examination.at(lake, deep=True))
    for text in _refs(Examination.at(lake, deep=True), take_back):
        _note(lake, text, actor)
        done.append(text)
    return done


def _fixed(txn: Txn, about: str, text: str, actor: str) -> str:
    """Audit a repair in its own transaction, and say it."""
    audit_decision(txn, about=about, kind=DOCTOR, outcome="fixed", reason=text, actor=actor)
    return text


def _note(lake: OpenLake, text: str, actor: str) -> str:
    """Audit a repair of the catalog, which no transaction of the ledger can be part of."""
    lake_id = lake.ledger.lake_id()
    with lake.ledger.write() as txn:
        return _fixed(txn, lake_id, text, actor)


def follow(lake: OpenLake) -> list[str]:
    """Let Iceberg follow a ledger that was restored: its refs may be at commits that this ledger does not know."""
    done = [_recovery(recovered) for recovered in lake.recovered]
    done += _recovered(Examination.at(lake, deep=False))
    return done + list(_refs(Examination.at(lake, deep=False), lake.view().whole().tables))


def _payloads(look: Examination, actor: str) -> Iterator[str]:
    for branch_table in look.branch_tables():
        for ref, reason in ledger_checks.unreadable(look, branch_table):
            text = f"batch {ref.batch_id} of {branch_table.table.name} set aside ({counted(ref.rows, 'row')})"
            noting = partial(_fixed, about=ref.batch_id, text=text, actor=actor)
            where = branch_table.head.branch_id, branch_table.table.table_id
            if batches.quarantine(look.lake.ledger, *where, ref.batch_id, reason, noting=noting):
                yield text


def _recovery(recovered: Recovered) -> str:
    return f"operation {recovered.op_id} ({recovered.kind}): {recovered.outcome}"


def _recovered(look: Examination) -> Iterator[str]:
    """The Iceberg half needs Java; where there is none, that is a finding of the examination that follows."""
    try:
        for recovered in look.lake.recover():
            if recovered.settled:
                yield _recovery(recovered)
    except StrandError:
        return


def _leases(look: Examination, actor: str) -> Iterator[str]:
    with look.lake.ledger.read() as conn:
        held = checks.held_leases(conn)
    for lease in held:
        if lease.owner is not None and certainly_dead(lease.owner, one_host=look.lake.ledger.has_one_host):
            with look.lake.ledger.write() as txn:
                ledger_leases.free(txn, lease)
                text = _fixed(txn, lease.name, f"lease {lease.name} freed: its process is gone", actor)
            yield text


def _watermarks(look: Examination, actor: str) -> Iterator[str]:
    ctx = look.lake.context
    with ctx.ledger.read() as conn:
        ahead = checks.marks_ahead(conn)
    for mark in ahead:
        with holding(ctx, lease_of_stream(mark.sink_id, mark.stream.text())) as hold, ctx.ledger.write() as txn:
            sink = sink_by_id(txn.conn, mark.sink_id)
            if sink is not None and mark in checks.marks_ahead(txn.conn):
                deliveries.forget_mark(txn, hold, sink, mark.stream)
                text = (
                    f"sink {mark.sink}: watermark {mark.seq:,} of {mark.table}/{mark.stream.partition} forgotten; the "
                    "next tick asks the destination"
                )
                yield _fixed(txn, mark.sink_id, text, actor)


def _metadata(look: Examination, actor: str) -> Iterator[str]:
    locations = metadata_locations(look.lake.config.catalog_database, CATALOG)
    for branch_table in look.branch_tables():
        location = locations.get(branch_table.table.iceberg_name)
        if location is None or location.previous is None or _readable(location.current):
            continue
        if can_step_back(look, branch_table, location) and step_back(
            look.lake.config.catalog_database, CATALOG, branch_table.table.iceberg_name, location
        ):
            text = f"table {branch_table.table.name}: went back from {location.current} to the metadata before it"
            yield _note(look.lake, text, actor)


def _readable(location: str) -> bool:
    try:
        read_metadata(location)
    except UNREADABLE:
        return False
    return True


def _clock(look: Examination, actor: str) -> Iterator[str]:
    """A person who asks for repairs says with it that this machine's clock is right."""
    lake_id = look.lake.ledger.lake_id()
    with look.lake.ledger.write() as txn:
        trusted = trust_clock(txn)
        if trusted is None:
            return
        text = (
            f"deletions go by the clock from here on: it is {text_of(trusted.now_us)}, and the ledger's time is "
            f"{span_of(trusted.behind_s)} ahead of it"
        )
        _fixed(txn, lake_id, text, actor)
    yield text


def _swept(look: Examination) -> Iterator[str]:
    swept = sum(iter(lambda: batches.sweep(look.lake.ledger, grace_s=look.lake.config.maintenance.grace_s), 0))
    if swept:
        yield f"{counted(swept, 'batch', 'batches')} deleted that were flushed long ago"


# -- refs --------------------------------------------------------------------------------------------------------------


def _refs(look: Examination, take_back: Collection[str]) -> Iterator[str]:
    """Let Iceberg's refs follow the ledger; Spark is started when there is one to move."""
    locations = metadata_locations(look.lake.config.catalog_database, CATALOG)
    under_way = UnderWay.of(look)
    for branch_table in look.branch_tables():
        location = locations.get(branch_table.table.iceberg_name)
        if location is None or branch_table.table.table_id in under_way.unsettled:
            continue
        try:
            ref_ids = refs(read_metadata(location.current))
        except UNREADABLE:
            continue
        orphans = orphan_branches(ref_ids, under_way)
        if ref_ids.get(MAIN_REF) == branch_table.head.log_snapshot and not orphans:
            continue
        try:
            yield from _settle(look.lake, branch_table, orphans, take_back=branch_table.table.name in take_back)
        except StrandError:
            continue  # no Java here: it stays a finding


def _settle(lake: OpenLake, branch_table: BranchTable, orphans: Collection[str], *, take_back: bool) -> Iterator[str]:
    name, iceberg = branch_table.table.iceberg_name, lake.iceberg()
    table, pin = branch_table.table.name, branch_table.head.log_snapshot
    for branch in orphans or ("",):
        report = iceberg.settle(name, MAIN_REF, branch, _pin(lake, branch_table), _ours(lake, branch_table))
        if report.foreign is not None and take_back:
            tag = iceberg.take_back(name, MAIN_REF, report.foreign, _pin(lake, branch_table))
            yield f"table {table}: main taken back to {pin}; the other commit is {tag}"
        elif report.after != report.before:
            yield f"table {table}: main moved from {report.before} to {report.after}"
        if branch:
            yield f"table {table}: private branch {branch} dropped"


def _pin(lake: OpenLake, branch_table: BranchTable) -> Callable[[], int | None]:
    return lambda: lake.view().whole().branch_table(branch_table.table.name).head.log_snapshot


def _ours(lake: OpenLake, branch_table: BranchTable) -> Callable[[int], bool]:
    def ours(snapshot_id: int) -> bool:
        with lake.ledger.read() as conn:
            return knows_snapshot(conn, branch_table.table.table_id, snapshot_id)

    return ours
