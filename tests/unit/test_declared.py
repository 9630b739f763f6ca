"""Operations that are declared once: their requests, their signatures, and when each of them is due."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from strandline.config import MaintenanceConfig
from strandline.errors import BadRequest
from strandline.lake.maintenance import Maintenance
from strandline.model import maintenance as signatures
from strandline.operations.core.declared import Declared, options
from strandline.operations.core.registry import ENTRIES, all_declared, declared
from strandline.operations.maintain.compact import Compaction
from strandline.operations.maintain.expire import Expiry
from strandline.operations.maintain.fold import Folding
from strandline.operations.maintain.purge import Purging
from strandline.operations.maintain.refilter import Refiltering
from strandline.operations.maintain.retain import Retention
from strandline.operations.maintain.sweep import Sweep

RULES = MaintenanceConfig(every_s=600, grace_s=900, fold_bytes=100, fold_percent=10)

SIGNATURES = {
    "compact": signatures.Compacting,
    "fold": signatures.Bounds,
    "refilter": signatures.Bounds,
    "retain": signatures.Retaining,
    "expire": signatures.Expiring,
    "sweep": signatures.Sweeping,
}
"""What `Lake` takes of operations that it has a method of its own for."""


def test_an_operation_is_registered_under_its_own_name() -> None:
    assert [operation.name for operation in all_declared()] == list(ENTRIES)


def test_a_list_of_operations_imports_none_of_them() -> None:
    """`strand --help` names them all, and waits for no engine and no database library."""
    code = (
        "import sys; import strandline.cli.app; from strandline.lake import operations; operations.listed();"
        "print([name for name in ('sqlalchemy', 'duckdb', 'pyarrow', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", list(ENTRIES))
def test_a_lakes_method_takes_what_the_operation_declares(name: str) -> None:
    """It is written by hand, so that it is typed: an option that it lacks, or has besides, is a mistake."""
    operation = declared(name)
    hints = get_type_hints(operation)
    options_of = {field.name: hints[field.name] for field in fields(operation)}
    if name in SIGNATURES:
        assert get_type_hints(SIGNATURES[name]) == options_of
        return
    taken = set(inspect.signature(getattr(Maintenance, name)).parameters)
    assert taken - {"self", "table", "tables", "actor", "branch"} == options_of.keys() - {"yes"}


@pytest.mark.parametrize(
    ("operation", "tables", "request_body"),
    [
        (
            Compaction(max_bytes=1, max_time_s=2.0, eager=False),
            ["a"],
            {"tables": ["a"], "how": {"max_bytes": 1, "max_time_s": 2.0, "dry_run": False}},
        ),
        (
            Expiry(grace_s=0),
            [],
            {"tables": [], "how": {"grace_s": 0, "max_bytes": None, "max_time_s": None, "dry_run": False}},
        ),
        (Sweep(dry_run=True), [], {"tables": [], "how": {"dry_run": True}}),
    ],
)
def test_a_request_travels_under_the_names_of_every_version(
    operation: Declared, tables: list[str], request_body: dict[str, Any]
) -> None:
    """What is only a worker's own stays out of it; read again it asks for the same."""
    body = operation.request(tables, "x", "ann")
    assert body == {**request_body, "branch": "x", "actor": "ann"}
    requested = operation.requested(body)
    assert (requested.tables, requested.branch, requested.actor) == (tables, "x", "ann")
    assert requested.operation.request(tables, "x", "ann") == body


def test_the_request_of_a_purge_has_its_table_and_condition_in_front() -> None:
    body = Purging(where="n = 1", and_history=True, yes=True).request(["t"], "x", "ann")
    how = {"branch": "x", "and_history": True, "dry_run": False}
    assert body == {"table": "t", "where": "n = 1", "actor": "ann", "how": how}
    requested = Purging.requested(body)
    assert (requested.operation, requested.tables) == (Purging(where="n = 1", and_history=True), ["t"])
    assert (requested.branch, requested.actor) == ("x", "ann")


def test_a_request_of_another_version_is_read_as_far_as_it_is_known() -> None:
    """An older command leaves options out; of a newer one an option that is not there yet is named."""
    body = {"tables": [], "branch": "main", "actor": "ann", "how": {"eager": False}}
    assert Compaction.requested(body).operation == Compaction(eager=False)
    with pytest.raises(BadRequest, match="no option sideways of compact"):
        Compaction.requested({**body, "how": {"sideways": True}})


@pytest.mark.parametrize(
    ("operation", "counts", "why"),
    [
        (Compaction, {"small_files": 1234}, "1,234 small files can be merged"),
        (Compaction, {"old_rows": 9}, None),
        (Retention, {"old_rows": 1}, "past its retention: 1 row"),
        (Retention, {}, None),
        (Expiry, {"snapshots": 7}, "7 snapshots are needed by nobody"),
        (Expiry, {"small_files": 7}, None),
        (Folding, {"unfolded_bytes": 99, "state_bytes": 0}, None),
        (
            Folding,
            {"unfolded_bytes": 100, "state_bytes": 1000},
            "100 bytes of its log are not in its state, which has 1,000",
        ),
        (Folding, {"unfolded_bytes": 100, "state_bytes": 1001}, None),
        (Refiltering, {"unfiltered_files": 3}, "3 files of its state have no filter for a later rule"),
        (Refiltering, {"unfolded_bytes": 3}, None),
        (Sweep, {"released_batches": 2}, "in Iceberg and past their grace: 2 batches"),
        (Sweep, {"released_batches": 0}, None),
        (Purging, {"small_files": 1, "old_rows": 1, "snapshots": 1}, None),
    ],
)
def test_an_operation_is_due_by_what_was_counted(
    operation: type[Declared], counts: dict[str, int], why: str | None
) -> None:
    due = operation.due(counts, RULES)
    assert (None if due is None else due.why) == why
    assert due is None or operation is Sweep or due.urgency > 0


def test_what_a_worker_does_by_itself_is_bounded() -> None:
    """A job that rewrites ends by its bytes and its time, and takes only what is worth it."""
    for operation in (Compaction, Retention, Folding):
        bite = operation.bite()
        assert (bite.max_bytes, bite.max_time_s) == (4 << 30, 300.0)
    assert Expiry.bite() == Expiry(max_time_s=300.0)
    assert not Compaction.bite().eager and not Retention.bite().eager
    assert not any(operation.bite().has("yes") for operation in all_declared() if not operation.of_one_table)


def test_what_goes_is_removed_before_the_rest_is_rewritten() -> None:
    scheduled = sorted(all_declared(), key=lambda operation: operation.turn)
    order = [operation.name for operation in scheduled if not operation.of_one_table and not operation.of_lake]
    assert order == ["retain", "fold", "compact", "expire", "refilter"]


def test_every_option_that_a_person_types_is_explained() -> None:
    for operation in all_declared():
        for field, meant in options(operation):
            assert bool(meant.flag) == bool(meant.help), (operation.name, field.name)
