"""What travels between a forward sink and its receiver."""

from __future__ import annotations

import hashlib

from strandline.model.sinks import Stream


def batch_id(sink_id: str, stream: Stream, epoch: int, since: int, until: int, body: bytes) -> str:
    """The id of a chunk: what it is of, and what is in it, uncompressed."""
    lines = [sink_id, stream.text(), str(epoch), str(since), str(until), hashlib.sha256(body).hexdigest()]
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
