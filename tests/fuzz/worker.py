"""One process that reads mutated streams, and writes down which one it reads: it may end in the middle.

Every stream is read twice, between two canaries. Rows that would be stored and that hold a canary, or that differ
between the two, are not the stream's own.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

import pyarrow as pa

from strandline.errors import CallerError
from tests.fuzz.arena import CANARIES, ROOM_BYTES, Arena
from tests.fuzz.streams import mutants
from tests.fuzz.ways import Ways, opened

FOUND = ("bug", "foreign")

READERS_OWN = (pa.ArrowException, OSError, EOFError, UnicodeDecodeError)
"""What PyArrow's own reader raises to the program that called it: only where that program is the user's."""


def outcome(ways: Ways, way: str, body: memoryview) -> tuple[str, str]:
    """What becomes of a body: its kind, and what tells it from another."""
    try:
        rows = ways.by_name[way](body)
    except CallerError as error:
        return "refused", error.code
    except READERS_OWN as error:
        return ("refused", "by PyArrow") if way in ("table", "batches") else ("bug", repr(error))
    except Exception as error:
        return "bug", repr(error)
    text = repr(rows)
    if any(canary.decode() in text for canary in CANARIES):
        return "foreign", text
    return "stored", text


def judge(ways: Ways, arenas: list[Arena], way: str, body: bytes) -> tuple[str, str]:
    """What becomes of it whatever lies around it."""
    first, second = (outcome(ways, way, arena.placed(body)) for arena in arenas)
    if "foreign" in (first[0], second[0]) or (first != second and "stored" in (first[0], second[0])):
        return "foreign", f"{first[1][:300]} | {second[1][:300]}"
    return first


def main(seed: int, start: int, stop: int, folder: Path) -> None:
    ways, own_folder = opened()
    arenas = [Arena(canary) for canary in CANARIES]
    with own_folder, (folder / "now").open("r+b", buffering=0) as now, (folder / "told").open("a") as report:
        for number, base, way, body in mutants(seed, start, stop):
            if len(body) > ROOM_BYTES:
                continue
            os.pwrite(now.fileno(), struct.pack("<q", number), 0)
            kind, what = judge(ways, arenas, way, body)
            finding = {"number": number, "seed": base.name, "way": way, "kind": kind, "what": what[:700]}
            # Told at once: the next stream may be the last one of this process.
            print(json.dumps(finding if kind in FOUND else {"kind": kind}), file=report, flush=True)
            if kind in FOUND:
                (folder / f"{kind}-{number}.arrow").write_bytes(body)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
