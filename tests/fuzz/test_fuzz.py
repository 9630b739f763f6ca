"""A short run of the fuzzer, and that it would notice."""

from __future__ import annotations

import pyarrow as pa

from tests.fuzz.arena import CANARIES, Arena
from tests.fuzz.judge import fuzz
from tests.fuzz.streams import cuts, few, seeds, stream
from tests.fuzz.worker import judge

SHORT = 1500
"""Without the checks of `model/values/sound.py`, so many streams find memory that is stored and a crash."""


def test_f84_mutated_streams_end_no_process_and_store_nothing_but_their_own() -> None:
    """Every way by which Arrow comes in, read in a process of its own; `python -m tests.fuzz` is the long run."""
    verdict = fuzz(1, SHORT)
    assert verdict.findings == []
    assert verdict.streams == SHORT
    assert verdict.counts["stored"] > 50, "streams whose faults change a value alone are rows like others"


def test_f84_streams_without_a_fault_are_taken_by_every_way_that_they_are_for() -> None:
    from tests.fuzz.ways import opened

    ways, folder = opened()
    arenas = [Arena(canary) for canary in CANARIES]
    with folder:
        kinds = {(seed.name, way): judge(ways, arenas, way, seed.body)[0] for seed in seeds() for way in seed.ways}
    over_http = {("encoded", "append"), ("lz4", "append"), ("zstd", "append")}
    assert {key for key, kind in kinds.items() if kind != "stored"} == over_http


class Careless:
    """Ways that join before they check, as an append did once."""

    def __init__(self) -> None:
        self.by_name = {"append": lambda body: pa.ipc.open_stream(body).read_all().combine_chunks().to_pylist()}


def test_f84_the_fuzzer_sees_rows_that_are_not_the_streams_own() -> None:
    """A bitmap that is too short lets the bytes behind the body become values of rows."""
    arenas = [Arena(canary) for canary in CANARIES]
    body = stream(few(0, 8), few(8, 136))
    kinds = {judge(Careless(), arenas, "append", short)[0] for short in cuts(body)}  # type: ignore[arg-type]
    assert "foreign" in kinds
    assert judge(Careless(), arenas, "append", body)[0] == "stored"  # type: ignore[arg-type]
