"""A process of another host that died: of it only silence tells, and `strand recover` listens for it (F108)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strandline import create, failpoints
from strandline.lake import Lake
from strandline.ledger.publish import leases
from strandline.operations.core.beats import beating
from tests.kit import (
    assert_recovered,
    environment,
    in_ledger,
    intents_of,
    log_part_ids,
    make_table,
    messages,
    strand,
    strand_json,
    strand_process,
)
from tests.postgres import Server

OTHER_BOOT = "6f9fbc1e-0000-4000-8000-000000000000"
SHORT = "1s"
PLACES = ["begin.after_commit", "staged.after_commit", "publish.after_commit"]


@pytest.fixture
def filled(postgres: Server, tmp_path: Path) -> Iterator[Lake]:
    """A lake that several hosts may write to, with a table whose rows are in its tail."""
    with create.create(tmp_path / "lake", ledger=postgres.new_database()) as lake:
        make_table(lake)
        lake.append("messages", messages(0, 5))
        yield lake


def dies_elsewhere(lake: Lake, place: str) -> str:
    """A flush of another host that died at a failpoint; its operation."""
    with Lake(lake.root) as other:
        other._context = replace(other.context, owner=replace(other.context.owner, host="elsewhere", boot=OTHER_BOOT))
        failpoints.arm(f"{place}=raise")
        with pytest.raises(failpoints.FailpointReached):
            other.flush("messages")
        failpoints.arm(None)
    (intent,) = intents_of(lake)
    return str(intent.op_id)


def under_way(lake: Lake) -> list[tuple[object, ...]]:
    """Everything in the ledger that says what is under way."""
    tables = ("intents", "leases", "requests", "audit")
    return [tuple(row) for table in tables for row in in_ledger(lake, f"SELECT * FROM {table} ORDER BY 1")]


@pytest.mark.parametrize("place", PLACES)
def test_f108_an_operation_of_a_dead_host_is_recovered_after_its_silence(
    filled: Lake, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command, in a process that has seen nothing before, hears the silence out and recovers."""
    monkeypatch.setenv("STRAND_LEASE_TTL", SHORT)
    op_id = dies_elsewhere(filled, place)
    ran = strand(filled, "recover")
    assert ran.code == 0 and op_id in ran.out, ran
    assert op_id in ran.err and "Ctrl-C" in ran.err, "it does not say that it listens"
    outcome = "rolled_back" if place == "begin.after_commit" else "rolled_forward"
    assert outcome.replace("_", " ") in ran.out
    assert strand(filled, "recover").out == "Nothing to recover.\n"
    assert len(log_part_ids(filled)) == (0 if outcome == "rolled_back" else 5)
    assert_recovered(filled, outcome, op_id)


def test_f108_a_dry_run_says_how_long_it_would_listen_and_json_has_it(
    filled: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is waited for and nothing is written."""
    monkeypatch.setenv("STRAND_LEASE_TTL", "30s")
    op_id = dies_elsewhere(filled, "staged.after_commit")
    before = under_way(filled)
    (would,) = strand_json(filled, "recover", "--dry-run")
    assert (would["op"], would["outcome"], would["wait_s"]) == (op_id, "rolled_forward", 30.0)
    assert "silent for 30 s" in strand(filled, "recover", "--dry-run").out
    assert under_way(filled) == before


def test_f108_an_operation_whose_process_beats_is_left_alone(filled: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named as alive, and goes on as it was."""
    monkeypatch.setenv("STRAND_LEASE_TTL", SHORT)
    op_id = dies_elsewhere(filled, "begin.after_commit")
    with filled.ledger.read() as conn:
        fences = {lease.name: lease.fence for lease in leases.of_operation(conn, op_id)}
    with beating(replace(filled.context, ttl_s=0.4), op_id, fences):
        (recovered,) = strand_json(filled, "recover")
    assert (recovered["op"], recovered["outcome"], recovered["settled"]) == (op_id, "alive", False)
    (intent,) = intents_of(filled)
    assert (intent.op_id, intent.phase) == (op_id, "staging")


def test_f108_an_interrupt_while_it_listens_leaves_everything_as_it_was(filled: Lake) -> None:
    """A real command, ended by Ctrl-C after it has said that it listens."""
    dies_elsewhere(filled, "begin.after_commit")
    before = under_way(filled)
    process = strand_process(filled, "recover", env=environment(STRAND_LEASE_TTL="1h"))
    try:
        assert process.stderr is not None
        assert "Ctrl-C" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert under_way(filled) == before
