"""Where the rows go: a second lake behind a `strand serve`, and a folder of Parquet files; and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

import strandline as sl
from examples.demo.messages import COLUMNS, TABLE
from examples.demo.places import Places
from strandline.ledger.rows import inbound
from strandline.ledger.sinks.dead_letters import count_open
from strandline.ledger.sinks.deliveries import read_streams
from strandline.ledger.sinks.sinks import find_sink, list_sinks
from strandline.ledger.tokens import create_token
from strandline.model.delivery.inbound import Source
from strandline.model.delivery.object_names import parse_object_name
from strandline.model.delivery.sinks import Delivery, FollowedStream
from strandline.views.view import View

RECEIVER, BLOBS = "central", "blobs"
"""The two sinks, and the children and folders that belong to them."""

GATEWAY = "demo"
EVERY = "2s"
# A unit is sent in so many chunks that one can be killed between two of them.
CHUNKS = 200


def add_sinks(places: Places, url: str, rows: int) -> None:
    """Let the lake forward to the receiver, and write blobs; both are asked first whether they can be reached."""
    with sl.open(places.receiver) as receiver:
        _, secret = create_token(receiver.ledger, GATEWAY)
    with sl.open(places.root) as lake:
        forward = {
            "url": url,
            "gateway": GATEWAY,
            "token": secret,
            "every": EVERY,
            "chunk_rows": max(10, rows // CHUNKS),
        }
        lake.add_sink(RECEIVER, "forward", forward)
        lake.add_sink(BLOBS, "blob", {"uri": f"file://{places.blobs.resolve()}", "every": EVERY})


def listening(places: Places) -> str | None:
    """Where the receiver listens, as it said itself; None until it has."""
    log = places.log(RECEIVER)
    for line in log.read_bytes().splitlines() if log.exists() else []:
        if line.startswith(b'{"listen"'):
            return f"http://{orjson.loads(line)['listen']}"
    return None


# -- how far they are --------------------------------------------------------------------------------------------------


def streams(lake: sl.Lake) -> dict[str, FollowedStream]:
    """How far each sink is; one that has seen no flushed row yet is left out."""
    with lake.ledger.read() as conn:
        return {sink.name: state for sink in list_sinks(conn) for state in read_streams(conn, sink)}


def arrived(lake: sl.Lake) -> bool:
    """Whether everything that was acked is in the log, and everything that is in the log has been delivered."""
    states = streams(lake).values()
    return (
        not lake.view().branch_table(TABLE).tail
        and len(states) == 2
        and all(
            state.delivery is None and state.mark is not None and state.mark.seq >= state.head_seq for state in states
        )
    )


def dead_letters(lake: sl.Lake) -> int:
    """Rows that a destination refused."""
    with lake.ledger.read() as conn:
        return sum(count_open(conn).values())


@dataclass(frozen=True)
class Halfway:
    """A delivery to the receiver that is open here, and that has arrived there up to `mark`."""

    delivery: Delivery
    mark: int


def halfway(lake: sl.Lake, receiver: sl.Lake) -> Halfway | None:
    """The delivery that is being sent, when a part of it has arrived."""
    with lake.ledger.read() as conn:
        sink = find_sink(conn, RECEIVER)
        open_ = [state.delivery for state in read_streams(conn, sink) if state.delivery is not None]
    if not open_:
        return None
    with receiver.ledger.read() as conn:
        mark = inbound.read_mark(conn, Source(lake.ledger.lake_id(), sink.sink_id, open_[0].stream))
    return Halfway(open_[0], mark.seq) if mark is not None and mark.seq > open_[0].since else None


def finished(lake: sl.Lake, killed: Mapping[str, Any]) -> bool:
    """Whether a delivery that was killed has been closed since then, in the epoch that it was opened in."""
    mark = streams(lake)[RECEIVER].mark
    return mark is not None and mark.seq >= killed["until"] and mark.epoch == killed["epoch"]


# -- what they hold ----------------------------------------------------------------------------------------------------


def stored(view: View) -> Iterable[pa.RecordBatch]:
    """What the lake holds, in seq order."""
    return view.read(TABLE)


def received(view: View) -> Iterable[pa.RecordBatch]:
    """What the receiver holds, in the order of the sender's seqs, each row with the seq it has at the sender."""
    columns = ", ".join(COLUMNS)
    return view.sql(f"SELECT {columns}, _origin_seq AS _seq FROM {TABLE} ORDER BY _origin_seq").reader()


def written(places: Places) -> Iterator[pa.RecordBatch]:
    """What the files hold, by the order of their names, read by PyArrow alone."""
    from pyarrow import parquet

    for path in sorted(path for path in places.blobs.rglob("*.parquet") if parse_object_name(path.name)):
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(columns=[*COLUMNS, "_seq"])
