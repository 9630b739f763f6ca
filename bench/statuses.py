"""`strand status` on a lake with many streams: whoever is woken up wants the page at once.

However large the lake is.
"""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import strandline
from bench.measure import Line, Reach, Scale, in_turns, spread, timed
from bench.spark import spark_ends

FEW, MANY, SLICE = 10, 1000, 100


def lines(scale: Scale, folder: Path) -> Iterator[Line]:
    """The whole command, on a lake with 1,000 streams beside one with 10; each stream has rows to deliver."""
    many = scale.rows(MANY)
    with spark_ends():
        _fill(folder / "many", many)
        _fill(folder / "few", FEW)
    compileall.compile_dir(str(Path(strandline.__file__).parent), quiet=1)
    ours, other = in_turns(
        scale.rounds(15),
        lambda _: timed(lambda: _status(folder / "many", many)),
        lambda _: timed(lambda: _status(folder / "few", FEW)),
        warm_ups=1,
    )
    yield Line(
        what=f"`strand status` at {many:,} streams, whole process",
        against=f"at {FEW} streams",
        ours=statistics.median(ours),
        baseline=statistics.median(other),
        unit="s",
        reach=Reach(2),
        notes={"many": spread(ours), "few": spread(other)},
    )


def _fill(root: Path, streams: int) -> None:
    with strandline.init(root) as lake:
        lake.create_table("messages", {"session": "string", "n": "long"}, partition_by=["session"], actor="bench")
        lake.add_sink("archive", "blob", {"uri": f"file://{root}-blobs"}, check=False)
        for first in range(0, streams, SLICE):  # Spark keeps a writer open for every partition of a flush
            numbers = range(first, min(streams, first + SLICE))
            lake.append("messages", [{"session": f"s{n}", "n": n} for n in numbers], actor="bench")
            lake.flush("messages", actor="bench")
        lake.append("messages", [{"session": f"s{n}", "n": n} for n in range(streams)], actor="bench")


def _status(root: Path, streams: int) -> None:
    strand = [str(Path(sys.executable).with_name("strand")), "--lake", str(root), "status"]
    page = subprocess.run(strand, check=True, capture_output=True, text=True, timeout=120).stdout
    assert f"{2 * streams}" in page.replace(",", ""), "the page does not show what there is to deliver"
