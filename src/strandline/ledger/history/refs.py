"""What a text names in the history: a tag, a branch, a commit or a time; and where its rows are."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from strandline.errors import BadRequest, ClockBehind, HistoryGone, NotFound, nearest
from strandline.ledger.clock import server_at_us
from strandline.ledger.database import schema as db
from strandline.ledger.history.ancestry import Graph
from strandline.ledger.history.branches import list_branches, list_tags
from strandline.ledger.history.commits import get_commit, tip_before_moves
from strandline.ledger.tables.tables import branch_id
from strandline.model.history.commits import Commit
from strandline.model.times import span_of

_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
NOW = "now"
SKEW_US = 1_000_000
"""Clocks that are kept right differ by less."""


@dataclass(frozen=True)
class Point:
    """A moment of the history: the newest commit that counts, and the branch or tag whose files have all that it needs.

    The holder's logs reach up to the commit `covers`; `hidden` are those of its ancestors that are none of this one's.
    With a time, rows of log tables count up to that; else those from before the commit.
    """

    commit: Commit
    holder: str
    covers: str
    hidden: tuple[Commit, ...]
    at_us: int | None = None


def find_point(conn: Connection, text: str, branch: str) -> Point:
    """What a text names; times are those of a branch."""
    commit, at_us = find_commit_at(conn, text, branch)
    graph = Graph(conn)
    holder, tip = _holder(conn, graph, commit, branch)
    return Point(commit, holder, tip, tuple(graph.only(tip, commit.commit_id)), at_us)


def find_homes(
    conn: Connection, graph: Graph, tip: str, commits: Sequence[Commit]
) -> list[tuple[str, list[Commit]]] | None:
    """Where the rows of some commits are: those on the line of a tip, and others by the tips that have them on theirs.

    None where those of some are nowhere any more.
    """
    left = {commit.commit_id: commit for commit in commits}
    homes: list[tuple[str, list[Commit]]] = []
    holders: dict[str, list[str]] = {tip: []}
    others = [(branch.tip, branch.branch_id) for branch in list_branches(conn)]
    others += [(tag.covers, tag.branch_id) for tag in list_tags(conn, kept=True)]
    for place, holder in others:
        if place is not None and place != tip:
            holders.setdefault(place, []).append(holder)
    for place, holder_ids in holders.items():
        if left:
            line = graph.line(place, min(commit.seq for commit in left.values()))
            horizons = [horizon for holder in holder_ids for horizon in read_horizons(conn, graph, holder).items()]
            whole = [
                commit_id
                for commit_id in left
                if commit_id in line and not _is_pruned(graph, horizons, left[commit_id])
            ]
            homes.append((place, [left.pop(commit_id) for commit_id in whole]))
    return None if left else [(place, homed) for place, homed in homes if homed or place == tip]


def tip_of(conn: Connection, of: str) -> str | None:
    """The newest commit of a branch, by the branch's id."""
    tip: str | None = conn.execute(select(db.branches.c.tip).where(db.branches.c.branch_id == of)).scalar_one()
    return tip


def read_horizons(conn: Connection, graph: Graph, holder: str) -> dict[str, Commit]:
    """Of the tables of a branch or tag that retention has taken versions of, the commit from which on all are kept."""
    head = db.heads.c
    rows = conn.execute(
        select(db.tables.c.name, head.kept_from)
        .join_from(db.heads, db.tables, db.tables.c.table_id == head.table_id)
        .where(head.branch_id == holder, head.kept_from > 0)
    )
    return {row.name: graph.at(row.kept_from) for row in rows}


def _is_pruned(graph: Graph, horizons: Sequence[tuple[str, Commit]], commit: Commit) -> bool:
    """Whether rows that a commit wrote may be gone: later ones that are below a horizon took their place."""
    return any(table in commit.tables and graph.reaches(horizon.commit_id, commit) for table, horizon in horizons)


def find_commit_at(conn: Connection, text: str, branch: str) -> tuple[Commit, int | None]:
    """The commit that a tag, a branch, an id or a time stands for; with the time, where it was one."""
    graph = Graph(conn)
    refs = {ref.name: ref.tip for ref in list_branches(conn)} | {tag.name: tag.commit for tag in list_tags(conn)}
    tip = refs.get(text)
    if tip is not None:
        return graph.commit(tip), None
    if text in refs:
        raise NotFound(f"branch {text!r} has no commit yet", hint="Its first keyed table makes one.", commit=text)
    if text == NOW or _TIME.fullmatch(text):
        at_us = _ledger_us(conn, None if text == NOW else _microseconds(text), text)
        return _newest_upto(conn, graph, branch, at_us, text), at_us
    try:
        return get_commit(conn, text), None
    except NotFound:
        raise NotFound(f"there is no commit, tag or branch {text!r}", hint=nearest(text, refs), commit=text) from None


def _ledger_us(conn: Connection, at_us: int | None, text: str) -> int:
    """A time of day as the ledger's time, which history goes by; None is now.

    Now, and what is still to come, is all that there is, also when a writer's clock was ahead and the ledger's time
    with it. Then what was written since has later stamps than the time of day, and it can't be told which of it had
    been written at an earlier time: of those times that are not before the last stamp that can be right, this is said.
    """
    last_us = int(conn.execute(select(db.counter.c.last_at_us)).scalar_one())
    now_us = server_at_us(conn) or time.time_ns() // 1000
    if at_us is None or at_us >= now_us:
        return max(at_us or 0, last_us, now_us)
    if last_us <= now_us + SKEW_US:
        return at_us
    stamps = [
        select(func.max(column)).where(column <= now_us)
        for column in (db.commits.c.at_us, db.batches.c.at_us, db.audit.c.at_us)
    ]
    if at_us < max(conn.execute(stamp).scalar() or 0 for stamp in stamps):
        return at_us
    raise ClockBehind(
        f"what there was at {text} can't be told: the ledger's time is {span_of((last_us - now_us) / 1e6)} ahead of "
        "the time of day, because a writer's clock was, and what was written since has later times",
        hint="`--at now` shows what there is, and `strand log` the commits, each of which can be named. "
        "`strand doctor` says which clocks differ.",
        behind_s=round((last_us - now_us) / 1e6, 1),
    )


def _microseconds(text: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(f"{text!r} is not a time", hint="Write it as 2026-01-31T12:00:00Z.") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _newest_upto(conn: Connection, graph: Graph, branch: str, at_us: int, text: str) -> Commit:
    """The commit that was a branch's newest at a time: merged ones were not on it before they were merged."""
    at = tip_before_moves(conn, branch_id(conn, branch), at_us)
    oldest: Commit | None = None
    while at is not None:
        oldest = graph.commit(at)
        if oldest.at_us <= at_us:
            return oldest
        at = oldest.parents[0] if oldest.parents else None
    first = f"; its first commit is {oldest.commit_id}" if oldest is not None else ""
    raise NotFound(f"branch {branch!r} had no commit at {text}{first}", hint="`strand log` tells when each was made.")


def _holder(conn: Connection, graph: Graph, commit: Commit, branch: str) -> tuple[str, str]:
    """A branch or tag that has a commit's rows: one that has no others, else this branch, else any.

    One of which retention has taken some only where no other has all.
    """
    places = [
        (candidate.branch_id, candidate.tip)
        for candidate in sorted(list_branches(conn), key=lambda candidate: candidate.name != branch)
    ]
    places += [(tag.branch_id, tag.covers) for tag in list_tags(conn, kept=True)]
    places.sort(key=lambda place: place[1] != commit.commit_id)
    having = [(holder, tip) for holder, tip in places if tip is not None and graph.has_on_line(tip, commit)]
    for holder, tip in having:
        if all(graph.reaches(commit.commit_id, horizon) for horizon in read_horizons(conn, graph, holder).values()):
            return holder, tip
    if having:
        return having[0]
    raise HistoryGone(
        f"the rows of commit {commit.commit_id} are on no branch and under no tag any more",
        hint="Its branch was deleted; a tag would have kept them.",
        commit=commit.commit_id,
    )
