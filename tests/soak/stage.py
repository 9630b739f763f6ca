"""What every trouble of a soak works with: the processes, the lakes, and what is known to be gone."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit import environment
from tests.soak.chaos import Chaos
from tests.soak.losses import Contents, Losses
from tests.soak.oracle import Offered, read_offered
from tests.soak.scene import ENVIRONMENT, KEYED, PLAIN, Places, Scene

COMMAND_S = 400.0
"""A bound: a restore starts a Spark of its own, on a machine that is busy."""


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its JSON, or None where it printed none."""
        try:
            return json.loads(self.out)
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """Everything that it printed."""
        return f"{self.out}\n{self.err}"

    @property
    def error(self) -> str:
        """Its error in a line: code, message, hint."""
        document = self.document
        error = document.get("error", {}) if isinstance(document, dict) else {}
        said = " ".join(str(error.get(key) or "") for key in ("code", "message", "hint")).strip()
        return said or self.words.strip()[-400:]


@dataclass
class Stage:
    """Shared by all troubles. They come one after another, so none of them finds another's half-done work."""

    scene: Scene
    places: Places
    chaos: Chaos
    seed: int
    writers: Sequence[str]
    tell: Callable[[str], None]
    random: random.Random
    losses: Losses = field(default_factory=Losses)
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def strand(self, lake: Path, *arguments: str) -> Done:
        """Run the real command on a lake to its end, as a person does."""
        command = [sys.executable, "-m", "strandline", "--lake", str(lake), "--json", *arguments]
        env = environment(**ENVIRONMENT, STRAND_LAKE=str(lake))
        with self.scene.log("person").open("a") as log:
            try:
                ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=COMMAND_S, check=False)
                done = Done(ran.returncode, ran.stdout, ran.stderr)
            except subprocess.TimeoutExpired as late:
                done = Done(-1, "", f"not done after {COMMAND_S:.0f} s: {late.cmd}")
            log.write(f"$ strand --lake {lake} {' '.join(arguments)}\n{done.words.strip()}\n= {done.code}\n")
        return done

    def offered(self) -> Offered:
        """What the writers have written down until now."""
        return read_offered(self.scene, self.seed, self.writers)

    def note(self, what: str) -> None:
        """Something was done."""
        self.done[what] += 1
        self.tell(what)

    def check_log(self, contents: Contents, acked: dict[str, set[str]], gone: dict[str, set[str]], when: str) -> None:
        """Rows that were acked, and that no ledger took with it, must be in the log, once; the timed table aside."""
        for table in (PLAIN, KEYED):
            there = contents.rows[table]
            missing = acked[table] - gone[table] - there.keys()
            if missing:
                self.wrong.append(f"{when}: {table} lacks {len(missing):,} acked rows, such as {min(missing)}")
            twice = [part_id for part_id, times in there.items() if times > 1]
            if twice:
                self.wrong.append(f"{when}: {table} has {len(twice):,} rows more than once, such as {min(twice)}")

    def next_era(self) -> None:
        """From now on writers don't ask again about what they offered before."""
        self.scene.era.write_text(str(self.scene.read_era() + 1))


def copy_folder(source: Path, to: Path) -> None:
    """`cp -a`."""
    to.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(source), str(to)], check=True)


def put_folder_back(kept: Path, place: Path, aside: Path) -> None:
    """Put a copy in the place of a folder, which is kept aside."""
    aside.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        shutil.move(place, aside)
    copy_folder(kept, place)
