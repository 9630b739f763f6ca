"""A process that changes a keyed table, on main and on branches that it merges, and writes down what it was told.

Every change puts a token at the end of a row's list. A token is unique, so what was acked must be in its list once when
all branches are merged, however often its process was killed; one whose answer was lost may be there, once. All of them
also change one row together, where nothing may be lost to another.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import strandline as sl
from strandline.errors import Conflict, StrandError
from strandline.lake import Lake
from tests.soak.scene import LISTS, PASSING, Scene

SHARED = "shared"
KEYS = 4
BRANCH_SHARE = 0.4
PAUSE_S = 0.3


@dataclass
class Brancher:
    """One of them: its name begins the names of its rows, its tokens and its branches."""

    lake: Lake
    scene: Scene
    name: str
    random: random.Random

    def work(self) -> None:
        """Change until told to stop, or until whoever started this process is gone."""
        parent = os.getppid()
        with self.scene.calls(self.name).open("ab", buffering=0) as out:
            self._merge_left()
            while not self.scene.stop.exists() and os.getppid() == parent:
                if self.random.random() < BRANCH_SHARE:
                    branch = f"{self.name}/{self.random.getrandbits(40):x}"
                    self._patiently(lambda name=branch: self._begin(name))  # type: ignore[misc]
                    for _ in range(self.random.randint(1, 3)):
                        self._add(out, branch, f"{self.name}/{self.random.randrange(KEYS)}")
                    self._merge(branch)
                else:
                    own = f"{self.name}/{self.random.randrange(KEYS)}"
                    self._add(out, "main", SHARED if self.random.random() < 0.5 else own)
                time.sleep(self.random.uniform(0, 2 * PAUSE_S))

    def _begin(self, branch: str) -> None:
        """Make a branch; an answer that was lost may have been that there is one now."""
        if branch not in {made.name for made in self.lake.branches()}:
            self.lake.branch(branch)

    def _end(self, branch: str) -> None:
        if branch in {made.name for made in self.lake.branches()}:
            self.lake.merge(branch)
            self.lake.delete_branch(branch)

    def _add(self, out: object, branch: str, key: str) -> None:
        token = f"{self.name}/{self.random.getrandbits(60):x}"
        out.write(f"offer {token}\n".encode())  # type: ignore[attr-defined]
        self._patiently(lambda: add(self.lake, branch, key, token))
        out.write(f"acked {token}\n".encode())  # type: ignore[attr-defined]

    def _merge_left(self) -> None:
        """Merge what an earlier life has left."""
        left: list[str] = []
        self._patiently(lambda: left.extend(branch.name for branch in self.lake.branches()))
        for branch in left:
            if branch.startswith(f"{self.name}/"):
                self._merge(branch)

    def _merge(self, branch: str) -> None:
        self._patiently(lambda: self._end(branch))

    def _patiently(self, do: object) -> None:
        while True:
            try:
                do()  # type: ignore[operator]
                return
            except PASSING:
                time.sleep(0.1)


def add(lake: Lake, branch: str, key: str, token: str) -> None:
    """Put a token at the end of a list, as somebody who reads first and then writes only if nothing has changed."""
    while True:
        found = lake.view(branch).sql(f"SELECT tokens, changes, _seq FROM {LISTS} WHERE id = '{key}'").rows()
        tokens, changes, seq = found[0] if found else ([], 0, None)
        if token in tokens:  # its answer was lost
            return
        row = {"id": key, "tokens": [*tokens, token], "changes": changes + 1}
        try:
            lake.mutate([sl.put(LISTS, row)], branch=branch, expect=sl.row(LISTS, key, seq))
            return
        except Conflict as error:
            if error.detail["kind"] != "row_moved":
                raise


@dataclass(frozen=True)
class Lists:
    """What came of the changes: tokens that were acked, merges, and what is not as the processes were told."""

    acked: int
    merges: int
    wrong: list[str]


def judge_lists(scene: Scene, names: list[str], gone: Iterable[str] = ()) -> Lists:
    """Merge all that is left, and compare the lists with what the processes were told.

    Tokens that are `gone` with a ledger that went back are not asked for.
    """
    with Lake(scene.lake) as lake:
        for branch in [one.name for one in lake.branches() if one.name != "main"]:
            try:
                lake.merge(branch)
                lake.delete_branch(branch)
            except StrandError as error:
                return Lists(0, 0, [f"branch {branch} can't be merged: {error}"])
        rows = lake.view().sql(f"SELECT id, tokens, changes FROM {LISTS}").rows()
        merges = [one for one in lake.log(limit=100_000) if one.kind == "merge"]
        broken = [one.commit_id for one in merges if len(one.parents) != 2]
    there = Counter(token for _, tokens, _ in rows for token in tokens)
    offered: set[str] = set()
    acked: set[str] = set()
    for name in names:
        lines = scene.calls(name).read_text().splitlines() if scene.calls(name).exists() else []
        told = [line.split() for line in lines if len(line.split()) == 2]
        offered |= {token for what, token in told if what == "offer"}
        acked |= {token for what, token in told if what == "acked"}
    lost = acked - there.keys() - set(gone)
    found = [f"{len(lost)} acked tokens are lost"] if lost else []
    found += [f"{token} is there {times} times" for token, times in there.items() if times > 1]
    found += [f"{token} is from nowhere" for token in there.keys() - offered]
    found += [f"row {key} has {len(tokens)} tokens and {n} changes" for key, tokens, n in rows if len(tokens) != n]
    found += [f"merge {commit} has lost a parent" for commit in broken]
    return Lists(len(acked), len(merges), found)


def main(folder: str, seed: str, name: str) -> None:
    """`python -m tests.soak.brancher FOLDER SEED NAME`."""
    scene = Scene(Path(folder))
    with Lake(scene.lake) as lake:
        # Another life is another sequence: a token is never offered twice.
        Brancher(lake, scene, name, random.Random(f"{seed} {name} {time.time_ns()}")).work()


if __name__ == "__main__":
    main(*sys.argv[1:])
