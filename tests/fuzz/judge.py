"""Workers, watched from outside: one that dies has found something, and another goes on behind its stream."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.streams import mutants

AT_ONCE = 2000


@dataclass
class Verdict:
    """What became of the streams."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def take(self, finding: dict[str, Any]) -> None:
        """Count what became of one stream, and keep it if it should not have been."""
        self.counts[finding["kind"]] += 1
        if "number" in finding:
            self.findings.append(finding)

    @property
    def streams(self) -> int:
        """How many were read."""
        return self.counts.total()


def fuzz(seed: int, streams: int, *, jobs: int = 1, keep: Path | None = None) -> Verdict:
    """Read so many streams; what was found is written to `keep`."""
    verdict = Verdict()
    parts = [(start, min(start + AT_ONCE, streams)) for start in range(0, streams, AT_ONCE)]
    with tempfile.TemporaryDirectory(prefix="strandline-fuzz-") as temporary, ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(partial(_part, seed, keep or Path(temporary)), parts):
            verdict.counts.update(part.counts)
            verdict.findings.extend(part.findings)
    return verdict


def _part(seed: int, keep: Path, part: tuple[int, int]) -> Verdict:
    verdict, (start, stop) = Verdict(), part
    folder = keep / f"part-{start}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "told").unlink(missing_ok=True)
    while start < stop:
        (folder / "now").write_bytes(struct.pack("<q", -1))
        command = [sys.executable, "-m", "tests.fuzz.worker", *map(str, (seed, start, stop, folder))]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            break
        (number,) = struct.unpack("<q", (folder / "now").read_bytes())
        if ended.returncode > 0 or number < 0:
            raise RuntimeError(f"a worker of the fuzzer failed: {ended.stderr[-2000:]}")
        verdict.take(_crash(seed, number, -ended.returncode, folder))
        start = number + 1
    for line in (folder / "told").read_text().splitlines():
        verdict.take(json.loads(line))
    return verdict


def _crash(seed: int, number: int, death: int, folder: Path) -> dict[str, Any]:
    _number, base, way, body = next(mutants(seed, number, number + 1))
    (folder / f"crash-{number}.arrow").write_bytes(body)
    return {"number": number, "seed": base.name, "way": way, "kind": "crash", "what": signal.Signals(death).name}
