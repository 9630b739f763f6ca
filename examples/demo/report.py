"""What the demonstration shows at its end: the figures, what became of the killed ones, and three questions."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import strandline as sl
from examples.demo.branches import BEFORE, BRANCH, SESSIONS
from examples.demo.conductor import Outcome
from examples.demo.destinations import RECEIVER

QUESTIONS = {
    "The busiest sessions": """\
SELECT session_id, count(*) AS messages, count(*) FILTER (kind = 'tool_call') AS tool_calls,
       sum(tokens)::BIGINT AS tokens
FROM messages GROUP BY session_id ORDER BY messages DESC, session_id LIMIT 5""",
    "Tool use by day": """\
SELECT ts::DATE AS day, count(*) AS calls, count(DISTINCT session_id) AS sessions, mode(tool) AS most_used,
       count(*) FILTER (tool = 'bash') AS bash, count(*) FILTER (tool = 'edit_file') AS edits
FROM messages WHERE kind = 'tool_call' GROUP BY day ORDER BY day""",
    "The longest conversations": """\
SELECT session_id, min(ts) AS began, date_trunc('second', max(ts) - min(ts)) AS lasted,
       count(*) FILTER (role = 'user') AS questions
FROM messages GROUP BY session_id ORDER BY max(ts) - min(ts) DESC LIMIT 5""",
}


def as_document(outcome: Outcome) -> dict[str, Any]:
    """The summary for programs."""
    return {
        "ok": not outcome.wrong,
        "wrong": outcome.wrong,
        **asdict(outcome.figures),
        "seconds": round(outcome.seconds, 1),
        "rows_per_second": round(outcome.rows_per_second),
        "killed": outcome.killed,
        "merging": asdict(outcome.merging),
        "recoveries": [
            {
                "op_id": entry.op,
                "kind": entry.kind,
                "outcome": entry.outcome,
                "actor": entry.actor,
                "original_actor": entry.original_actor,
                "reason": entry.reason,
            }
            for entry in outcome.recoveries
        ],
    }


def show(console: Console, outcome: Outcome, root: Path) -> None:
    """Everything, for people."""
    console.print(_destinations(outcome))
    console.print(_figures(outcome))
    for line in [*_killed(outcome), _merged(outcome)]:
        console.print(line, markup=False, soft_wrap=True)
    with sl.open(root, read_only=True) as lake:
        view = lake.view()
        for title, query in QUESTIONS.items():
            console.print(f"\n{title}", style="bold")
            console.print(query, style="dim", markup=False, soft_wrap=True)
            result = view.sql(query)
            console.print(_answer(result.columns, result.rows()))
    console.print()
    for text in outcome.wrong:
        console.print(f"wrong: {text}", style="red", markup=False, soft_wrap=True)
    console.print(_verdict(outcome, root), markup=False, soft_wrap=True)


def _destinations(outcome: Outcome) -> Table:
    """A column for each destination."""
    figures = outcome.figures
    table = Table(title="Acked against stored", title_justify="left")
    table.add_column("")
    for name in figures.destinations:
        table.add_column(name, justify="right")
    table.add_column("should be", justify="right")
    for name, should in (("rows", figures.distinct), ("lost", 0), ("repeated", 0), ("altered", 0)):
        values = [getattr(held, name) for held in figures.destinations.values()]
        right = all(value == should for value in values)
        table.add_row(name, *(f"{value:,}" for value in values), f"{should:,}", style="" if right else "red")
    return table


def _figures(outcome: Outcome) -> Table:
    """What is not of one destination."""
    figures = outcome.figures
    table = Table()
    table.add_column("")
    table.add_column("rows", justify="right")
    table.add_column("should be", justify="right")
    for name, value, should in (
        ("acked", figures.acked, figures.acked_by_the_ledger),
        ("duplicates offered", figures.duplicates_offered, None),
        ("read by Spark through the catalog", figures.seen_by_spark, figures.distinct),
    ):
        table.add_row(
            name, f"{value:,}", "" if should is None else f"{should:,}", style="" if should in (None, value) else "red"
        )
    table.add_section()
    table.add_row("seconds", f"{outcome.seconds:.1f}", "")
    table.add_row("rows per second", f"{outcome.rows_per_second:,.0f}", "")
    return table


def _killed(outcome: Outcome) -> list[str]:
    writers = [
        f"killed writer {victim['process']}: {_batch_under_way(victim)}"
        for victim in outcome.killed
        if "acked_batches" in victim
    ]
    flushes = [
        f"killed flush {entry.op}: {entry.outcome} by {entry.actor}, {entry.reason}" for entry in outcome.recoveries
    ]
    deliveries = [
        f"killed delivery {victim['delivery']}: the next worker asked the receiver where it was, and sent the rest of "
        f"({victim['since']:,}, {victim['until']:,}] behind {victim['arrived']:,}"
        for victim in outcome.killed
        if "delivery" in victim
    ]
    return [*writers, *flushes, *deliveries]


def _merged(outcome: Outcome) -> str:
    done = outcome.merging
    return (
        f"merged branch {BRANCH} into main: {done.merged_rows} of {done.sessions} {SESSIONS} written, "
        f"main's own {done.on_main} changes kept; at the tag {BEFORE} all are as they were"
    )


def _batch_under_way(victim: dict[str, Any]) -> str:
    if victim["stored_but_not_answered"]:
        return "the batch it had not been told of was offered again, and not stored twice"
    return "every stored batch had been answered"


def _answer(columns: list[str], rows: list[tuple[Any, ...]]) -> Table:
    table = Table()
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if rows and isinstance(rows[0][at], int) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return str(value)


def _verdict(outcome: Outcome, root: Path) -> str:
    if outcome.wrong:
        return f"Something is wrong. The lake and its records are in {root}; `strand --lake {root} doctor` checks it."
    strand = f"{_command()} --lake {root}"
    return f"""\
Nothing was lost, and nothing is there twice. To look further:
  {strand} status
  {strand} sink show {RECEIVER}
  {strand} sql "select role, kind, count(*) from messages group by all order by all"
  {strand} log
  {strand} diff {BEFORE} main --limit 5
  {strand} audit"""


def _command() -> str:
    """How `strand` is called from here: the one of this Python, by its path unless it is found without."""
    beside = Path(sys.executable).with_name("strand")
    if not beside.exists() or shutil.which("strand") == str(beside):
        return "strand"
    return os.path.relpath(beside)
