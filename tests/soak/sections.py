"""The sinks of `strand.toml`, which is edited while workers follow it: renamed, removed, put back, half saved.

Every edit ends with a whole file in which each sink has its section, so that all of it can be delivered in the end.
What comes between is what people do: the file before the command or after it, an editor that has written half a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from strandline.config import FILE_NAME
from strandline.lake import Lake
from tests.soak.children import Child
from tests.soak.scene import sections
from tests.soak.stage import Done, Stage

AFTERWARDS_S = 20.0
"""A process that read half a file may take so long to end."""


def text_of(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections as they stand in the file. JSON's texts, numbers and lists are TOML's too."""
    lines = []
    for name, section in parts.items():
        lines += ["", f"[sinks.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


class Sections:
    """The file as it is now, and the troubles that edit it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._path = stage.scene.lake / FILE_NAME
        self._base = self._path.read_text(encoding="utf-8")
        self._now = sections(stage.scene)
        self._half_until_s = 0.0
        self._renamed = 0
        self._save(self._now)
        with Lake(stage.scene.lake) as lake:
            lake.sinks()  # they are there from now on, whoever edits the file before a worker has read it

    def excuse(self, child: Child) -> str | None:
        """A process that started while the file was half saved could not read it."""
        if time.monotonic() < self._half_until_s and FILE_NAME in child.last_words():
            return f"{FILE_NAME} was half saved"
        return None

    def reread(self) -> None:
        """The lake was put back or restored, its config perhaps with it: write what the file should be now.

        A ledger from before a rename knows the sink by its older name; then the name is taken back in the file.
        """
        known = {sink["sink"] for sink in self._stage.strand(self._stage.scene.lake, "sink", "list").document or []}
        if known:
            self._now = {self._name_in(known, name): section for name, section in self._now.items()}
        self._base = self._path.read_text(encoding="utf-8").partition("\n[sinks.")[0] + "\n"
        self._save(self._now)

    @staticmethod
    def _name_in(known: set[str], name: str) -> str:
        first = name.partition("-")[0]
        return next((other for other in sorted(known) if other.partition("-")[0] == first), name)

    # -- troubles ------------------------------------------------------------------------------------------------------

    def rename_by_command_first(self) -> None:
        """`strand sink rename`, and then the section."""
        old, new = self._names()
        done = self._rename(old, new)
        if done.code != 0:  # it may ask for the section first
            self._stage.note("a rename asked for its section first")
            self._save(self._with(old, new))
            self._wait()
            done = self._rename(old, new)
        self._wait()
        self._finish_rename(old, new, done)
        self._stage.note("sink renamed, then its section")

    def rename_by_section_first(self) -> None:
        """The section, and some time later `strand sink rename`, as the worker and `status` tell a person to."""
        old, new = self._names()
        self._save(self._with(old, new))
        self._wait()
        self._finish_rename(old, new, self._rename(old, new))
        self._stage.note("section renamed, then its sink")

    def remove_for_a_while(self) -> None:
        """Take a section out, and put it back."""
        gone = self._stage.random.choice(sorted(self._now))
        self._save({name: section for name, section in self._now.items() if name != gone})
        self._wait()
        self._save(self._now)
        self._stage.note("section removed and put back")

    def save_by_halves(self) -> None:
        """Write a part of the file, and the whole of it a moment later."""
        whole = text_of(self._now).encode()
        cut = self._stage.random.randrange(len(whole))
        self._half_until_s = time.monotonic() + 3600
        self._path.write_bytes(self._base.encode() + whole[:cut])
        self._wait()
        self._save(self._now)
        self._half_until_s = time.monotonic() + AFTERWARDS_S
        self._stage.note("strand.toml saved by halves")

    def change_a_setting(self) -> None:
        """Other settings for a sink, which apply from its next unit on."""
        name = self._stage.random.choice(sorted(self._now))
        changed = {"unit_rows": self._stage.random.choice((500, 3_000, 9_000)), "every": "2s"}
        self._now = {**self._now, name: {**self._now[name], **changed}}
        self._save(self._now)
        self._stage.note("setting of a section changed")

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _names(self) -> tuple[str, str]:
        old = self._stage.random.choice(sorted(self._now))
        self._renamed += 1
        return old, f"{old.partition('-')[0]}-{self._renamed}"

    def _with(self, old: str, new: str) -> dict[str, dict[str, Any]]:
        return {new if name == old else name: section for name, section in self._now.items()}

    def _rename(self, old: str, new: str) -> Done:
        for _ in range(5):
            done = self._stage.strand(self._stage.scene.lake, "sink", "rename", old, new)
            if done.code != 5:
                break
        return done

    def _finish_rename(self, old: str, new: str, done: Done) -> None:
        if done.code != 0:
            self._stage.wrong.append(f"sink {old} can't be renamed to {new}: {done.error}")
            self._save(self._now)
            return
        self._now = self._with(old, new)
        self._save(self._now)

    def _save(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """As a careful editor does: whole, under another name, and renamed."""
        draft = self._path.with_name(".strand.toml.draft")
        draft.write_text(self._base + text_of(parts), encoding="utf-8")
        draft.rename(self._path)

    def _wait(self) -> None:
        time.sleep(self._stage.random.uniform(0.5, 6.0))
