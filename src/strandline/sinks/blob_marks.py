"""Mark objects: how far each stream of a blob prefix has come, by the prefix's own account.

Names tell which units were written, but not whether some are missing that were: a prefix that was restored from an
older copy looks like one that never got further. So each stream has an object `_mark.json` beside its own, written
after every unit and read before the next. It moves with units without rows too, or a mark behind the sender's would
prove nothing. Beside the mark it keeps what the last unit with rows was (range, digest of the rows, object), and the
counts of the last unit, so that one that is known to be there need not be written again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from strandline.engines.conditional import change_bytes, read_version
from strandline.engines.objects import ObjectPlace
from strandline.errors import Damaged, NewerFormat
from strandline.failpoints import fail
from strandline.model.delivery import object_names as names
from strandline.model.delivery.sinks import Mark, SentChunk
from strandline.sinks.destination import Resume

VERSION = 1


@dataclass(frozen=True)
class BlobMark:
    """A stream's mark, and its last unit with rows. `object` is where those are, below the stream's folder.

    The counts are of the unit that ended at the mark, and `generation` is that of the ledger that sent it.

    Ids of lake and stream stand in it, because a folder is named by a table: another lake that had the prefix may have
    had a table of that name.
    """

    lake_id: str
    stream: str
    mark: Mark
    chunk: SentChunk | None = None
    object: str | None = None
    rows: int = 0
    withheld: int = 0
    size_bytes: int = 0
    generation: str | None = None

    def document(self) -> bytes:
        """As it is stored."""
        document = {
            "version": VERSION,
            "lake": self.lake_id,
            "stream": self.stream,
            "epoch": self.mark.epoch,
            "seq": self.mark.seq,
            "since": None if self.chunk is None else self.chunk.since,
            "until": None if self.chunk is None else self.chunk.until,
            "digest": None if self.chunk is None else self.chunk.digest,
            "object": self.object,
            "rows": self.rows,
            "withheld": self.withheld,
            "bytes": self.size_bytes,
            "generation": self.generation,
        }
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def read_mark(place: ObjectPlace, folder: str) -> BlobMark | None:
    """The mark of the stream in a folder; None where there is none."""
    name = f"{folder}/{names.MARK}"
    content = read_version(place, name)
    return None if content is None else _parse(content, place.shown(name))


def move_mark(place: ObjectPlace, folder: str, moved: BlobMark, since: int) -> None:
    """Write the mark behind a unit that began at `since`, unless a later one is there already.

    A writer that comes late must not take the mark back. A unit without rows leaves the chunk as it is. A mark below
    `since` says that the prefix went back while the unit was being written: what is between them is missing there.
    """
    name = f"{folder}/{names.MARK}"

    def with_mark(content: bytes | None) -> bytes:
        stored = None if content is None else _parse(content, place.shown(name))
        fail("blob.before_mark")
        if stored is None or content is None or (stored.lake_id, stored.stream) != (moved.lake_id, moved.stream):
            return moved.document()
        if (stored.mark.epoch, stored.mark.seq) > (moved.mark.epoch, moved.mark.seq):
            return content
        if stored.mark.seq < since:
            raise Resume(stored.mark)
        kept = moved if moved.chunk is not None else replace(moved, chunk=stored.chunk, object=stored.object)
        return kept.document()

    change_bytes(place, name, with_mark)
    fail("blob.after_mark")


def _parse(content: bytes, where: str) -> BlobMark:
    try:
        document = orjson.loads(content)
        if document["version"] > VERSION:
            raise NewerFormat(f"{where} was written by a newer strandline")
        chunk = None
        if document["digest"] is not None:
            chunk = SentChunk(int(document["since"]), int(document["until"]), str(document["digest"]))
        return BlobMark(
            str(document["lake"]),
            str(document["stream"]),
            Mark(int(document["epoch"]), int(document["seq"])),
            chunk,
            document["object"],
            int(document["rows"]),
            int(document["withheld"]),
            int(document["bytes"]),
            document.get("generation"),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(
            f"{where} can't be read: {error}",
            hint="It says how far its stream has come. Remove it: the names of the objects tell that too.",
        ) from error
