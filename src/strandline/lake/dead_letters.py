"""Rows that destinations refused, until a person sends them again or gives them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.lake.door import Lake
    from strandline.model.delivery.sinks import DeadLetter
    from strandline.sinks.repair import SettledLetter


@dataclass(frozen=True)
class OpenLetter:
    """A row that waits, as one JSON object, with the answer that its destination gave."""

    id: str
    table: str
    partition: str
    seq: int
    epoch: int
    at: str
    answer: Mapping[str, object]
    row: str


class DeadLetters:
    """`lake.sinks.dead_letters`; where `ids` is None, all that wait are meant."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def ids(self, name: str, ids: Sequence[str] | None = None) -> tuple[str, ...]:
        """The letters of a sink that wait: what a person is asked about before they are given up."""
        from strandline.ledger.sinks.sinks import find_sink
        from strandline.sinks.repair import chosen

        with self._lake.ledger.read() as conn:
            return tuple(letter.letter_id for letter in chosen(conn, find_sink(conn, name), ids))

    def replay(self, name: str, ids: Sequence[str] | None = None) -> list[SettledLetter]:
        """Send letters again; those that are refused again stay.

        Each is settled in a transaction of its own, once the destination has its row.
        """
        from strandline.ledger.sinks.sinks import find_sink
        from strandline.sinks.destination import let_go
        from strandline.sinks.instances import destination
        from strandline.sinks.repair import replay

        with self._lake.ledger.read() as conn:
            sink = find_sink(conn, name)
        place = destination(self._lake.surroundings, sink)
        try:
            return replay(self._lake.ledger, sink, place, ids)
        finally:
            let_go(place)

    def discard(self, name: str, ids: Sequence[str] | None = None, *, actor: str = "") -> list[SettledLetter]:
        """Give letters up for good, all in one transaction: none where one of them does not wait any more."""
        from strandline.ledger.sinks.sinks import find_sink
        from strandline.sinks.repair import discard

        with self._lake.ledger.write() as txn:
            return discard(txn, find_sink(txn.conn, name), ids, actor=actor)

    def list(self, name: str) -> list[OpenLetter]:
        """The letters of a sink that wait, oldest first."""
        from strandline.ledger.sinks.dead_letters import list_letters
        from strandline.ledger.sinks.sinks import find_sink

        with self._lake.ledger.read() as conn:
            letters = list_letters(conn, find_sink(conn, name).sink_id)
        return [_open_letter(letter) for letter in letters]


def _open_letter(letter: DeadLetter) -> OpenLetter:
    from strandline.model.times import text_of
    from strandline.model.values.wire import decode, to_json_lines

    return OpenLetter(
        id=letter.letter_id,
        table=letter.table,
        partition=letter.stream.partition,
        seq=letter.seq,
        epoch=letter.epoch,
        at=text_of(letter.at_us),
        answer=dict(letter.answer),
        row=b"".join(to_json_lines(decode(letter.payload))).decode().strip(),
    )
