"""Commands for whoever looks after a lake: what is going on, what went wrong, what to do about it."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline import private
from strandline.cli import output, sinks
from strandline.cli.maintenance import Yes, ask_first
from strandline.cli.params import Actor, Here, who
from strandline.cli.session import Session, session_of
from strandline.errors import BadRequest
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.model.operations import Recovered
    from strandline.reports.findings import Finding

NEEDS_A_PERSON = 6
WATCH_S = 2.0


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    app.command("status", short_help="One page: whether all is well, and what is under way.")(status)
    app.command("doctor")(doctor)
    app.command("recover")(recover)
    app.command("audit", short_help="What recovery did, and what people decided.")(audit)
    group = typer.Typer(
        help="Batches whose bytes were damaged, set aside.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("list", short_help="List the batches that were set aside.")(quarantine_list)
    group.command("save")(quarantine_save)
    group.command("restore")(quarantine_restore)
    group.command("discard")(quarantine_discard)
    app.add_typer(group, name="quarantine")


def status(
    context: typer.Context,
    why: Annotated[bool, typer.Option("--why", help="What the workers decided about each job, and why.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until Ctrl-C.")] = False,
) -> None:
    """One page: whether all is well, tables, tails, what is under way.

    \b
    Example: strand status --watch
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        try:
            _one_page(session, lake, why=why, again=watch)
            while watch:
                time.sleep(WATCH_S)
                _one_page(session, lake, why=why, again=True)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _one_page(session: Session, lake: Lake, *, why: bool, again: bool) -> None:
    """The page as it is now; one that is shown again and again takes the place of the one before."""
    from strandline.reports.status import status as report

    document = report(lake)
    if why:
        from strandline.worker.facts import verdicts

        document["decisions"] = verdicts(lake)
    if again and not session.json:
        output.clear()
    session.emit(document, lambda: _status(document))
    output.flush()


MOODS: dict[str, output.Mood] = {"well": "good", "look": "careful", "person": "bad"}


def _status(page: dict[str, Any]) -> None:
    output.say(page["verdict"]["text"], MOODS[page["verdict"]["level"]])
    for need in page["verdict"]["needs"]:
        output.say(f"  {output.cell(need['what'])}: `{need['command']}`", MOODS[need["level"]])
    output.say()
    output.say(f"lake       {page['lake']}")
    output.say(f"ledger     {page['ledger']}  (format {page['format']})")
    output.say(f"warehouse  {page['warehouse']}")
    if page["displaced"]:
        output.say(f"NOT AT HOME: {page['displaced']}. `strand doctor` says what to do")
    if page["not_there"]:
        output.say(f"NOT THERE: {page['not_there']}. `strand doctor` says what to do")
    if page["clock_behind_s"] is not None:
        behind = output.age(page["clock_behind_s"])
        output.say(f"CLOCK: {behind} behind the ledger's time, so nothing is deleted. `strand doctor` says what to do")
    output.say()
    if page["tables"]:
        output.table(
            ["table", "in log", "in tail", "tail size", "tail age", "last seq", "dropped", "set aside"],
            [_table_row(table) for table in page["tables"]],
        )
    else:
        output.say("There are no tables yet. `strand table create` makes one.")
    for branch in page["branches"]:
        where = "" if branch["branch"] == "main" else f" on branch {branch['branch']}"
        for table, reason in branch["refuses"].items():
            output.say(f"{table}{where} REFUSES WRITES: {reason}")
    if len(page["branches"]) > 1:
        heads = ["branch", "newest commit", "from", "in tail", "tail size", "tail age", "tables with a tail"]
        _section("Branches (`strand branch list`)", heads, [_branch_row(one) for one in page["branches"]])
    if page["tags"]:
        output.say()
        output.say(f"Tags: {', '.join(tag['tag'] for tag in page['tags'])}")
    _section("Sinks (`strand sink show NAME` tells more)", sinks.LIST_HEADS, [sinks.list_row(s) for s in page["sinks"]])
    sinks.say_paused(page["sinks"])
    _section(
        "Operations under way",
        ["operation", "kind", "phase", "branch", "tables", "age", "process"],
        [
            [o["op"], o["kind"], o["phase"], o["branch"], ", ".join(o["tables"]), output.age(o["age_s"]), o["process"]]
            for o in page["operations"]
        ],
    )
    _section(
        "Operations that can't be read (`strand doctor` says what to do)",
        ["operation", "kind", "tables", "since", "reason"],
        [
            [o["op"], o["kind"], ", ".join(o["tables"]), output.when(o["since"]), o["reason"]]
            for o in page["unreadable_intents"]
        ],
    )
    _section(
        "Unfinished loads",
        ["table", "parts done", "of", "age"],
        [[load["table"], load["parts_done"], load["parts"], output.age(load["age_s"])] for load in page["loads"]],
    )
    _section("In quarantine", QUARANTINE_HEADS, [_quarantine_row(batch) for batch in page["quarantined"]])
    _work(page)
    _section("Last recoveries", AUDIT_HEADS, [_audit_row(entry) for entry in page["last_recoveries"]])


def _branch_row(branch: dict[str, Any]) -> list[Any]:
    name = f"{branch['branch']} (protected)" if branch["protected"] else branch["branch"]
    tail = branch["tail"]
    return [
        name,
        branch["tip"] or "",
        branch["from"] or "",
        tail["rows"],
        output.size(tail["size_bytes"]),
        output.age(tail["oldest_age_s"]),
        ", ".join(tail["tables"]),
    ]


def _work(page: dict[str, Any]) -> None:
    """Workers, what they were asked for, and what they could not do."""
    _section(
        "Workers",
        ["worker", "host", "process", "state", "Spark", "doing"],
        [
            [w["worker"], w["host"], w["pid"], w["state"], "up" if w["spark"] else "down", _doing(w["running"])]
            for w in page["workers"]
        ],
    )
    _section(
        "Asked of a worker",
        ["request", "what", "state", "age", "progress"],
        [
            [r["request"], r["kind"], r["state"], output.age(r["age_s"]), (r["progress"] or {}).get("what")]
            for r in page["requests"]
        ],
    )
    _section(
        "Jobs that fail (`strand worker retry JOB` lets one go on at once)",
        ["job", "state", "failures", "since", "error"],
        [
            [j["job"], "parked" if j["parked"] else "tried again", j["failures"], output.when(j["at"]), j["error"]]
            for j in page["failing_jobs"]
        ],
    )
    _section(
        "Decisions",
        ["job", "now", "because", "last run", "outcome", "it was because"],
        [
            [d["job"], "do it" if d["due"] else "not now", d["why"], *_last_run(d["last"])]
            for d in page.get("decisions", [])
        ],
    )


def _doing(running: list[dict[str, Any]]) -> str:
    return ", ".join(one["job"] for one in running) or "nothing"


def _last_run(last: dict[str, Any] | None) -> list[Any]:
    return ["never", "", ""] if last is None else [output.when(last["at"]), last["outcome"], last["why"]]


def _table_row(table: dict[str, Any]) -> list[Any]:
    rows = table["rows"]
    return [
        table["table"],
        rows["log"],
        rows["tail"],
        output.size(table["size_bytes"]["tail"]),
        output.age(table["oldest_tail_age_s"]),
        table["last_seq"],
        rows["dropped"],
        rows["quarantined"],
    ]


def _section(title: str, heads: list[str], rows: list[list[Any]]) -> None:
    if rows:
        output.say()
        output.table(heads, rows, title=title)


def doctor(
    context: typer.Context,
    fix: Annotated[bool, typer.Option("--fix", help="Do what is safe, then look again.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every payload, manifest and data file.")] = False,
    take_back: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="With --fix: move this table's `main` off somebody else's commit."),
    ] = None,
    claim_warehouse: Annotated[
        bool,
        typer.Option("--claim-warehouse", help="With --fix: this ledger is the one whose warehouse it is."),
    ] = False,
    failpoints: Annotated[bool, typer.Option("--failpoints", help="List the names for STRAND_FAILPOINTS.")] = False,
    actor: Actor = "",
) -> None:
    """Check everything that can be checked, and say what to do. Exit code 6 when a person is needed.

    \b
    Example: strand doctor --deep
    """
    session = session_of(context)
    if failpoints:
        _list_failpoints(session)
        return
    from strandline.reports import doctor as reports

    if (take_back or claim_warehouse) and not fix:
        option = "--take-back" if take_back else "--claim-warehouse"
        raise BadRequest(f"{option} changes the lake", hint="Add --fix to say that it may.")
    fixed: list[str] = []
    with session.open(read_only=not fix) as lake:
        if fix:
            from strandline.reports import repairs

            for name in take_back or ():
                lake.view().state(name)
            fixed = [lake.context.fence.claim(actor)] if claim_warehouse else []
            fixed += repairs.fix(lake, take_back=take_back or (), actor=actor)
        findings = reports.examine(lake, deep=deep)
    ok = all(finding.severity != "error" for finding in findings)
    document = {
        "ok": ok,
        "findings": [asdict(finding) for finding in findings],
        "checked": list(reports.CHECKS),
        "fixed": fixed,
    }
    session.emit(document, lambda: _doctor(findings, fixed, len(reports.CHECKS)))
    if not ok:
        raise typer.Exit(NEEDS_A_PERSON)


def _doctor(findings: list[Finding], fixed: list[str], checks: int) -> None:
    for text in fixed:
        output.say(f"fixed: {output.cell(text)}")
    for finding in findings:
        since = f" (since {output.when(finding.since)})" if finding.since else ""
        output.say(f"{finding.severity}: {output.cell(finding.what)}{since}")
        output.say(f"  {output.cell(finding.meaning)}")
        output.say(f"  what to do: {output.cell(finding.fix)}")
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        output.say(f"{checks} checks: {errors} {'finding needs' if errors == 1 else 'findings need'} a person.")
    elif findings:
        output.say(
            f"{checks} checks: the lake is well; {len(findings)} {'warning' if len(findings) == 1 else 'warnings'}."
        )
    else:
        output.say(f"{checks} checks: all is well.")


def _list_failpoints(session: Session) -> None:
    from strandline.failpoints import NAMES

    session.emit(NAMES, lambda: output.table(["failpoint", "where"], list(NAMES.items())))


def recover(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    discard: Annotated[
        str | None, typer.Option(metavar="OP", help="Give up an operation whose record can't be read.")
    ] = None,
    actor: Actor = "",
    here: Here = False,
) -> None:
    """Finish or undo what dead processes left.

    Of a process of another host only silence tells: it is waited for, for `[lease] ttl`. Spark is started only if
    there is something to settle in Iceberg.

    \b
    Example: strand recover --dry-run
    """
    session = session_of(context)
    with session.open(read_only=dry_run) as lake:
        if discard is not None and not dry_run:
            from strandline.actors import default_actor
            from strandline.operations.recovery import discard as give_up

            found = [give_up(lake.context, discard, actor or default_actor())]
        else:
            from strandline.model.operations import Recovered

            left = lake.recover(dry_run=True)
            if not dry_run:
                _note_silence(session, left)
                left = [Recovered(**one) for one in session.carry_out(lake, "recover", {}, here=here or not left)]
            found = list({one.op_id: one for one in [*lake.recovered, *left]}.values())
    session.emit([_recovered(one) for one in found], lambda: _print_recovered(found, dry_run=dry_run))


def _note_silence(session: Session, left: list[Recovered]) -> None:
    """Say for how long the command may listen, and to what."""
    for doubtful in left:
        if doubtful.wait_s:
            session.note(
                f"operation {doubtful.op_id} ({doubtful.kind}): whether its process lives shows within "
                f"{output.age(math.ceil(doubtful.wait_s))}; Ctrl-C leaves everything as it is"
            )


def _recovered(recovered: Recovered) -> dict[str, Any]:
    return {
        "op": recovered.op_id,
        "kind": recovered.kind,
        "outcome": recovered.outcome,
        "reason": recovered.reason,
        "settled": recovered.settled,
        "wait_s": recovered.wait_s,
    }


def _print_recovered(found: list[Recovered], *, dry_run: bool) -> None:
    if not found:
        output.say("Nothing to recover.")
        return
    heads = ["operation", "kind", "would be" if dry_run else "was", "because", "settled in Iceberg"]
    output.table(
        heads,
        [[o.op_id, o.kind, o.outcome.replace("_", " "), o.reason, "yes" if o.settled else "not yet"] for o in found],
    )
    for doubtful in found:
        if doubtful.wait_s:
            silence = output.age(math.ceil(doubtful.wait_s))
            output.say(
                f"{doubtful.op_id}: only if its process stays silent for {silence}, which `strand recover` waits for"
            )


AUDIT_HEADS = ["time", "about", "kind", "outcome", "by", "tables", "reason"]


def audit(
    context: typer.Context,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest.")] = None,
) -> None:
    """What recovery did, and what people decided: what was given up, sent again, taken over or mended. Newest first.

    \b
    Example: strand audit --limit 5
    """
    from strandline.reports.status import audit as report

    session = session_of(context)
    with session.open(read_only=True) as lake:
        entries = report(lake, limit)

    def human() -> None:
        if entries:
            output.table(AUDIT_HEADS, [_audit_row(entry) for entry in entries])
        else:
            output.say("Nothing was ever recovered, and nothing decided by hand.")

    session.emit(entries, human)


def _audit_row(entry: dict[str, Any]) -> list[Any]:
    from strandline.ledger.audit import RECOVERIES

    recovered = entry["outcome"] in RECOVERIES  # what a person decided of a table moves no snapshot
    moves = ", ".join(f"{t['table']} {_move(t['from'], t['to'])}" if recovered else t["table"] for t in entry["tables"])
    return [
        output.when(entry["at"]),
        entry["op"],
        entry["kind"],
        entry["outcome"].replace("_", " "),
        entry["actor"],
        moves,
        entry["reason"],
    ]


def _move(before: int | None, after: int | None) -> str:
    return "unchanged" if before == after else f"{before or 'empty'} → {after or 'empty'}"


QUARANTINE_HEADS = ["batch", "table", "rows", "seqs", "since", "reason"]


def _quarantine_row(batch: dict[str, Any]) -> list[Any]:
    seqs = f"{batch['first_seq']}..{batch['last_seq']}"
    return [batch["batch"], batch["table"], batch["rows"], seqs, output.when(batch["at"]), batch["reason"]]


BatchId = Annotated[str, typer.Argument(metavar="ID", help="A batch, as `strand quarantine list` names it.")]


def quarantine_list(context: typer.Context) -> None:
    """List the batches that were set aside because their bytes can't be read.

    \b
    Example: strand quarantine list
    """
    from strandline.ledger.batches import list_quarantined
    from strandline.reports.status import quarantined_entry

    session = session_of(context)
    with session.open(read_only=True) as lake, lake.ledger.read() as conn:
        entries = [quarantined_entry(batch) for batch in list_quarantined(conn)]

    def human() -> None:
        if entries:
            output.table(QUARANTINE_HEADS, [_quarantine_row(entry) for entry in entries])
        else:
            output.say("Nothing is in quarantine.")

    session.emit(entries, human)


def quarantine_save(
    context: typer.Context,
    batch: BatchId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where its bytes go; - is stdout.")],
) -> None:
    """Save a batch's bytes as they are, to repair them. A whole one is an Arrow IPC stream.

    \b
    Example: strand quarantine save ID batch.arrow
    """
    from strandline.ledger.batches import quarantined_payload

    session = session_of(context)
    with session.open(read_only=True) as lake, lake.ledger.read() as conn:
        payload = quarantined_payload(conn, batch)
    if file == "-":
        output.write(payload)
        return
    private.write_bytes(Path(file), payload)
    document = {"batch": batch, "file": file, "size_bytes": len(payload)}
    session.emit(document, lambda: output.say(f"Saved {output.size(len(payload))} to {file}."))


def quarantine_restore(
    context: typer.Context,
    batch: BatchId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The repaired rows: Arrow, JSON lines or Parquet.")],
    actor: Actor = "",
) -> None:
    """Append repaired rows with new seqs, and forget the damaged batch.

    \b
    Example: strand quarantine restore ID batch.arrow
    """
    from strandline.cli.inputs import append_file
    from strandline.ledger.audit import audit_decision
    from strandline.ledger.batches import discard_quarantined, quarantined_batch

    session = session_of(context)
    with session.open() as lake:
        with lake.ledger.read() as conn:
            found = quarantined_batch(conn, batch)
        # Under a key of its own: when this dies between the two steps, the same command stores nothing twice.
        # They were acked when they were first appended, so none is left out for its age.
        key = f"quarantine:{batch}"
        ack = append_file(lake, found["table"], file, actor=actor, idempotency_key=key, keep_old=True)
        with lake.ledger.write() as txn:
            discard_quarantined(txn, batch)
            restored = f"{ack.rows:,} of {counted(found['rows'], 'row')} appended again, as seqs "
            audit_decision(
                txn,
                about=batch,
                kind="quarantine",
                outcome="restored",
                reason=f"{restored}{ack.first_seq}..{ack.last_seq}",
                actor=who(actor),
                table_ids=[found["table_id"]],
            )
    document = {
        "batch": batch,
        "table": found["table"],
        "rows": ack.rows,
        "first_seq": ack.first_seq,
        "last_seq": ack.last_seq,
    }
    said = f"Restored {ack.rows:,} of {counted(found['rows'], 'row')} to {found['table']}, "
    said += f"seqs {ack.first_seq}..{ack.last_seq}."
    session.emit(document, lambda: output.say(said))


def quarantine_discard(context: typer.Context, batch: BatchId, yes: Yes = False, actor: Actor = "") -> None:
    """Give a batch up for good. Its rows are counted as pruned, and its bytes are deleted.

    On a terminal it asks first.

    \b
    Example: strand quarantine discard ID
    """
    from strandline.ledger.batches import quarantined_batch

    session = session_of(context)
    with session.open() as lake:
        with lake.ledger.read() as conn:
            about = quarantined_batch(conn, batch)
        lost = f"{counted(about['rows'], 'row')} of {about['table']} would be given up for good"
        ask_first(session, lost, yes=yes)
        _discard(lake, about, who(actor))
    session.emit(
        {"batch": batch, "rows": about["rows"]},
        lambda: output.say(f"Gave up {counted(about['rows'], 'row')} of batch {batch}."),
    )


def _discard(lake: Lake, about: dict[str, Any], actor: str) -> None:
    from strandline.ledger.audit import write_audit
    from strandline.ledger.batches import discard_quarantined

    with lake.ledger.write() as txn:
        rows = discard_quarantined(txn, about["batch_id"])
        write_audit(
            txn,
            op_id=about["batch_id"],
            kind="quarantine",
            outcome="discarded",
            original_actor=about["actor"],
            tables=[{"table_id": about["table_id"]}],
            reason=f"{counted(rows, 'row')} given up by hand: {about['reason']}",
            actor=actor,
        )
