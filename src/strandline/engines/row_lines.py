"""Rows of files, told by the lines where they begin: what a person looks for in an editor."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from strandline.engines.files import Input, open_text
from strandline.engines.storage import open_uri
from strandline.json_types import Json, JsonObject


def with_lines(entries: Iterable[JsonObject], inputs: Iterable[Input]) -> list[dict[str, Json]]:
    """Entries about rows of files, each with the line where its row begins; a format without lines has none."""
    listed = [dict(entry) for entry in entries]
    for source in inputs:
        own = [
            (entry, index)
            for entry in listed
            if entry.get("file") == source.uri and isinstance(index := entry.get("index"), int)
        ]
        if source.format == "csv" and own:
            begins = _csv_lines(source, max(index for _, index in own))
            for entry, index in own:
                entry["line"] = begins[index]
        elif source.format == "jsonl":
            for entry, index in own:
                entry["line"] = index + 1
    return listed


def _csv_lines(source: Input, last: int) -> list[int]:
    """Where each record up to the last of these begins: a quoted field may hold line breaks, a blank line is none."""
    begins: list[int] = []
    system, path = open_uri(source.uri)
    with io.TextIOWrapper(open_text(system, path), encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        next(reader, None)
        before = reader.line_num
        for record in reader:
            if record:
                begins.append(before + 1)
            before = reader.line_num
            if len(begins) > last:
                break
    return begins
