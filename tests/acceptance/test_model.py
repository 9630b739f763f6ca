"""A model test: append, flush, load, compact, expire, retain, purge, tick, crash and reopen in any order, against a
dictionary.

Hypothesis makes up the story and, when it finds a wrong one, tells the shortest. Everything is real: Spark, Iceberg,
the ledger's database, DuckDB; only the data is small.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from strandline import create, failpoints
from strandline.engines import files
from strandline.lake import Lake
from strandline.ledger.publish import owner
from strandline.operations.load import load as loading
from strandline.operations.load import load_request
from strandline.operations.maintain import flush as flushing
from tests.acceptance.test_failpoints import FLUSH_POINTS, LOAD_POINTS
from tests.kit import assert_recovered, log_part_ids, make_table, message

KEYS = st.lists(st.integers(0, 60), min_size=1, max_size=8)


class LakeMachine(RuleBasedStateMachine):
    """The lake beside its model: keys in the order in which their first row was acked."""

    def __init__(self, places: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._places = places

    @initialize(dedupe=st.sampled_from(["table", "partition"]))
    def begin(self, dedupe: str) -> None:
        """A fresh lake with one table, and bites small enough to need several."""
        self.folder = Path(tempfile.mkdtemp())
        self.lake = create.create(self.folder / "lake", **self._places())
        make_table(self.lake, dedupe=dedupe, partition_by=["source"])
        self.lake.add_sink("archive", "blob", {"uri": f"file://{self.folder}/archive"})
        self.expected: list[str] = []
        self.purged: set[str] = set()
        self.delivered: set[str] = set()
        self.pruned: Counter[str] = Counter()
        self.files = 0
        self.calls = 0

    def _expect(self, keys: list[int]) -> None:
        for key in keys:
            if f"p{key}" not in self.expected and f"p{key}" not in self.purged:
                self.expected.append(f"p{key}")

    @rule(keys=KEYS, key_given=st.booleans())
    def append(self, keys: list[int], key_given: bool) -> None:
        """Rows, some of them seen before."""
        self.calls += 1
        key = f"call-{self.calls}" if key_given else None
        rows = [message(n) for n in keys]
        self.lake.append("messages", rows, idempotency_key=key)
        if key is not None:
            assert self.lake.append("messages", rows, idempotency_key=key).repeated
        self._expect(keys)

    @rule()
    def flush(self) -> None:
        """The tail goes into Iceberg."""
        self.lake.flush("messages")
        assert self.lake.view().branch_table("messages").tail == ()

    @rule(keys=KEYS, bulk=st.booleans())
    def load(self, keys: list[int], bulk: bool) -> None:
        """A file, small or in several bites."""
        path = self._file(keys)
        with _sizes(bulk):
            self.lake.load("messages", [str(path)])
            assert self.lake.load("messages", [str(path)]).already_loaded
        self._expect(keys)

    @rule(keys=KEYS, at=st.sampled_from(sorted(FLUSH_POINTS)))
    def append_and_die_in_a_flush(self, keys: list[int], at: str) -> None:
        """A process that dies somewhere in a flush, and another that opens the lake."""
        self.lake.append("messages", [message(n) for n in keys])
        self._expect(keys)
        self._die(at, lambda: self.lake.flush("messages"))

    @rule(keys=KEYS, at=st.sampled_from(sorted(set(LOAD_POINTS))))
    def die_in_a_load_and_run_it_again(self, keys: list[int], at: str) -> None:
        """A load that dies somewhere and is run again by its user."""
        path = self._file(keys)
        with _sizes(bulk=True):
            self._die(at, lambda: self.lake.load("messages", [str(path)]))
            self.lake.load("messages", [str(path)])
        self._expect(keys)

    @rule(at=st.sampled_from(["", *sorted(set(FLUSH_POINTS) - {"stage.before_files", "stage.after_files"})]))
    def compact_and_expire(self, at: str) -> None:
        """Files and snapshots go, or a process dies on the way; no row changes."""
        self._die(at, lambda: self.lake.compact("messages"))
        self.lake.expire("messages", grace_s=0)
        assert len(self.lake.view().files("messages")) <= 1 or at

    @rule(key=st.integers(0, 60))
    def purge(self, key: int) -> None:
        """A row goes for good, and its key counts as seen."""
        done = self.lake.purge("messages", f"n = {key}")
        assert (f"p{key}" in self.expected) == bool(done.operations)
        if done.operations:
            self.expected.remove(f"p{key}")
            self.purged.add(f"p{key}")
            self.delivered.discard(f"p{key}")

    @rule(at=st.sampled_from(["", *sorted(FLUSH_POINTS)]))
    def retain(self, at: str) -> None:
        """Every row of the log is old: those go that the sink has, also if a process dies on the way; others stay.

        A key that is gone is not seen any more, so its next row is a new one.
        """
        self.lake.flush("messages")
        self.lake.set_table("messages", retention_s=1e-6)
        self._die(at, lambda: self.lake.retain("messages", yes=True))
        self.lake.retain("messages", yes=True)
        self.lake.set_table("messages", retention_s=None)
        self.expected = [key for key in self.expected if key not in self.delivered]
        self.pruned.update(self.delivered)
        self.delivered = set()

    @rule()
    def tick(self) -> None:
        """What is there now has been delivered, once; nothing else than what was there ever has."""
        self.lake.tick("archive")
        files = [path for path in (self.folder / "archive").rglob("*.parquet") if "messages" in path.parts]
        found = Counter(row for path in files for row in pq.read_table(path).column("part_id").to_pylist())
        wanted = Counter(self.expected) + self.pruned
        assert wanted <= found <= wanted + Counter(self.purged)
        assert self.lake.tick("archive") == []
        self.delivered = set(self.expected)

    @rule()
    def reopen(self) -> None:
        """Closed and opened."""
        self.lake.close()
        self.lake = Lake(self.folder / "lake")

    def _file(self, keys: list[int]) -> Path:
        self.files += 1
        path = self.folder / f"{self.files}.jsonl"
        path.write_text("".join(json.dumps(message(n)) + "\n" for n in keys))
        return path

    def _die(self, at: str, work: Any) -> None:
        failpoints.arm(f"{at}=raise" if at else None)
        try:
            work()
        except failpoints.FailpointReached:
            owner.unregister(self.lake.context.owner)
            self.lake.ledger.close()
            failpoints.arm(None)
            self.lake = Lake(self.folder / "lake")
        finally:
            failpoints.arm(None)

    @invariant()
    def every_key_is_there_once(self) -> None:
        """What a reader sees is what was acked: each key once, and the books add up."""
        if not hasattr(self, "lake"):
            return
        view = self.lake.view()
        rows = view.sql("select part_id, _seq from messages order by _seq").rows()
        assert sorted(row[0] for row in rows) == sorted(self.expected)
        assert len({row[1] for row in rows}) == len(rows)
        read = [key for batch in view.read("messages") for key in batch.column("part_id").to_pylist()]
        assert read == [row[0] for row in rows][: len(read)]
        books = view.branch_table("messages").head.books
        tail = sum(ref.rows for ref in view.branch_table("messages").tail)
        assert books.acked == books.log + tail + books.dropped + books.pruned + books.quarantined

    def teardown(self) -> None:
        """In the end everything is in Iceberg, once, and the lake is tidy."""
        if not hasattr(self, "lake"):
            return
        try:
            self.lake.flush("messages")
            assert sorted(log_part_ids(self.lake)) == sorted(self.expected)
            assert_recovered(self.lake)
        finally:
            self.lake.close()
            shutil.rmtree(self.folder, ignore_errors=True)


class _sizes:  # noqa: N801
    """Within the block every load is small, or every load takes several bites."""

    def __init__(self, bulk: bool) -> None:
        self._bulk = bulk

    def __enter__(self) -> None:
        self._before = (load_request.SMALL_BYTES, loading.BITE_PARTS, files.CHUNK_BYTES, flushing.BITE_ROWS)
        if self._bulk:
            load_request.SMALL_BYTES, loading.BITE_PARTS, files.CHUNK_BYTES, flushing.BITE_ROWS = 0, 1, 300, 5

    def __exit__(self, *_: object) -> None:
        load_request.SMALL_BYTES, loading.BITE_PARTS, files.CHUNK_BYTES, flushing.BITE_ROWS = self._before


def test_whatever_happens_the_lake_is_as_its_model_says(places: Callable[[], dict[str, Any]]) -> None:
    """Eight stories of up to eight steps, the same ones each time."""
    run_state_machine_as_test(
        lambda: LakeMachine(places),
        settings=settings(
            max_examples=8,
            stateful_step_count=8,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
