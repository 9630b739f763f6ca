"""Copies of the lake beside the lake: one made with `cp -a` must be refused, one made with `strand clone` must work."""

from __future__ import annotations

import json
import shutil

from strandline.config import FILE_NAME
from tests.soak.losses import read_contents
from tests.soak.restores import Restores
from tests.soak.scene import PLAIN, TABLES
from tests.soak.stage import Stage, copy_folder
from tests.soak.writer import row_of

REFUSED = (
    ("flush",),
    ("compact",),
    ("expire",),
    ("sweep",),
    ("worker", "--once"),
    ("sink", "tick"),
)
SAYS = ("copied", "copy", "moved")


class Copies:
    """The troubles that copy the lake."""

    def __init__(self, stage: Stage, restores: Restores) -> None:
        self._stage, self._restores = stage, restores
        self._number = 0

    def work_in_a_copy(self) -> None:
        """Let somebody maintain a `cp -a` of the lake, while everybody works in the lake itself."""
        stage, scene = self._stage, self._stage.scene
        self._number += 1
        copy = scene.folder / "copies" / f"copy-{self._number}"
        copy_folder(self._restores.copies[-1].folder / scene.lake.name, copy)
        commands = list(REFUSED)
        stage.random.shuffle(commands)
        for command in commands:
            done = stage.strand(copy, *command)
            if done.code == 0 or not any(word in done.words for word in SAYS):
                stage.wrong.append(f"`strand {' '.join(command)}` in a copy of the lake: {done.code}, {done.error}")
        stage.note("work in a copy of the lake")
        shutil.rmtree(copy)

    def clone(self) -> None:
        """Clone the lake while everybody runs, or one of its backups, compare, and work in the clone."""
        stage, scene = self._stage, self._stage.scene
        self._number += 1
        clone = scene.folder / "copies" / f"clone-{self._number}"
        clone.parent.mkdir(exist_ok=True)
        backups = self._restores.backups
        of_backup = bool(backups) and stage.random.random() < 0.5
        kept = backups[-1] if of_backup else self._restores.kept_now(scene.lake)
        what = "backup" if of_backup else "lake"
        done = stage.strand(scene.lake, "clone", str(kept.folder), str(clone))
        if done.code != 0:
            stage.wrong.append(f"a {what} can't be cloned: {done.error}")
            return
        contents = read_contents(clone)
        stage.check_log(contents, dict(kept.acked), dict(kept.gone), f"in a clone of the {what}")
        offered = stage.offered()
        for table in TABLES:
            unknown = contents.rows[table].keys() - offered.acked[table] - offered.unanswered[table]
            if unknown:
                stage.wrong.append(f"a clone of the {what} has {len(unknown):,} rows of {table} from nowhere")
        lines = clone.parent / "rows.jsonl"
        lines.write_text(f"{json.dumps(row_of(f'clone/{self._number}'))}\n")
        for command in (("append", PLAIN, str(lines)), ("flush",), ("sink", "tick")):
            done = stage.strand(clone, *command)
            if done.code != 0 and command != ("sink", "tick"):
                stage.wrong.append(f"`strand {' '.join(command)}` in a clone of the {what}: {done.error}")
        if read_contents(clone).rows[PLAIN][f"clone/{self._number}"] != 1:
            stage.wrong.append(f"a row appended to a clone of the {what} is not there")
        if not (clone / FILE_NAME).exists():
            stage.wrong.append(f"the clone of the {what} has no {FILE_NAME}")
        stage.note(f"{what} cloned")
        shutil.rmtree(clone)
