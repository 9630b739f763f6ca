"""What a receiver decides about a chunk, and what a chunk says about itself."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

from strandline.errors import BadRequest, Conflict, Forbidden, InvalidRows, StrandError, TooLarge, Unsupported
from strandline.model.delivery import chunk_rows, inbound
from strandline.model.delivery.inbound import Chunk, ChunkVerdict, InboundMark, Source, decide
from strandline.model.delivery.sinks import Stream
from strandline.model.schema.schema import parse_columns
from strandline.model.values.arrow_stream import read_stream

SOURCE = Source("lake1", "sink1", Stream("b", "t", "all"))
SCHEMA = parse_columns("id:string,n:long?,j:json?")


def chunk(since: int, until: int, epoch: int = 1, **more: Any) -> Chunk:
    more.setdefault("rows", 1 if "dead" in more else 0)
    return Chunk(SOURCE, epoch, since, until, batch_id="x", **more)


def mark(seq: int, epoch: int = 1, gateway: str = "edge", table: str = "local") -> InboundMark:
    return InboundMark(epoch, seq, gateway, table)


DECISIONS: list[tuple[str, Chunk, InboundMark | None, Any]] = [
    ("nothing here, at the sink's start", chunk(0, 10, opens=True), None, 0),
    ("nothing here, a start that is not 0", chunk(70, 90, opens=True), None, 70),
    ("nothing here, an epoch that is not the first", chunk(0, 10, epoch=4, opens=True), None, 0),
    ("nothing here, in the middle", chunk(0, 10), None, ("gap", None)),
    ("nothing here, a higher epoch", chunk(0, 10, epoch=2), None, ("gap", None)),
    ("nothing here, a dead letter", chunk(4, 5, dead=5), None, ("gap", None)),
    ("nothing here, a dead letter that opens", chunk(4, 5, dead=5, opens=True), None, ("gap", None)),
    ("the next one", chunk(10, 20), mark(10), 10),
    ("the same again", chunk(0, 10), mark(10), "acked"),
    ("an older one", chunk(2, 5), mark(10), "acked"),
    ("the first again", chunk(0, 10, opens=True), mark(10), "acked"),
    ("an empty one at the mark", chunk(10, 10), mark(10), "acked"),
    ("one that overlaps", chunk(5, 20), mark(10), 10),
    ("one that opens and overlaps", chunk(0, 20, opens=True), mark(10), 10),
    ("a gap", chunk(11, 20), mark(10), ("gap", 10)),
    ("a gap that opens", chunk(11, 20, opens=True), mark(10), ("gap", 10)),
    ("a higher epoch, from below", chunk(3, 8, epoch=2), mark(10), 3),
    ("a higher epoch, at the mark", chunk(10, 60, epoch=2), mark(10), 10),
    ("a higher epoch, from above", chunk(50, 60, epoch=2), mark(10), ("gap", 10)),
    ("past a hole", chunk(50, 60, epoch=2, hole=50), mark(10), 50),
    ("past less than the hole", chunk(50, 60, epoch=2, hole=49), mark(10), ("gap", 10)),
    ("a higher epoch, over the mark", chunk(5, 20, epoch=3), mark(10), 5),
    ("a lower epoch, the next range", chunk(10, 20), mark(10, epoch=2), ("epoch_old", 10)),
    ("a lower epoch, below the mark", chunk(0, 5), mark(10, epoch=2), ("epoch_old", 10)),
    ("a dead letter below the mark", chunk(4, 5, dead=5), mark(10), 4),
    ("a dead letter of an older epoch", chunk(4, 5, dead=5), mark(10, epoch=2), 4),
    ("a dead letter in a wide range", chunk(0, 9, dead=5), mark(10), 4),
    ("another gateway", chunk(10, 20), mark(10, gateway="other"), Forbidden),
    ("another gateway, below the mark", chunk(0, 5), mark(10, gateway="other"), Forbidden),
    ("another gateway, a higher epoch", chunk(0, 5, epoch=9), mark(10, gateway="other"), Forbidden),
    ("another table here", chunk(10, 20), mark(10, table="before"), ("table_moved", None)),
]


@pytest.mark.parametrize(("what", "given", "known", "expected"), DECISIONS, ids=[row[0] for row in DECISIONS])
def test_what_is_done_with_a_chunk(what: str, given: Chunk, known: InboundMark | None, expected: Any) -> None:
    """Below the mark it is acked, above it is stored, beyond it is a gap; an epoch begins anew, and never ends late."""
    if expected == "acked":
        assert decide(given, known, "edge", "local") == ChunkVerdict(None)
    elif isinstance(expected, int):
        assert decide(given, known, "edge", "local") == ChunkVerdict(expected)
    elif isinstance(expected, tuple):
        with pytest.raises(Conflict) as caught:
            decide(given, known, "edge", "local")
        detail = caught.value.detail
        assert (detail["kind"], detail.get("mark")) == expected
        assert detail.keys() >= {"expected", "actual"}
        if expected[0] == "gap":
            assert detail["epoch"] == (None if known is None else known.epoch)
    else:
        with pytest.raises(expected):
            decide(given, known, "edge", "local")


def test_a_table_is_not_forwarded_to_itself() -> None:
    """It would grow for ever."""
    with pytest.raises(BadRequest):
        decide(chunk(0, 10, opens=True), None, "edge", "t")


def test_the_batch_id_is_a_digest_of_where_a_chunk_belongs_and_of_its_bytes() -> None:
    """Written out, as somebody with another language would."""
    body = b'{"_seq":1,"id":"a"}\n'
    lines = f"sink1\nb:t:all\n1\n0\n10\n{hashlib.sha256(body).hexdigest()}\n"
    expected = hashlib.sha256(lines.encode()).hexdigest()
    assert inbound.batch_id("sink1", "b:t:all", 1, 0, 10, body) == expected
    good = Chunk(SOURCE, 1, 0, 10, 1, expected)
    inbound.check_body(good, body)
    with pytest.raises(BadRequest):
        inbound.check_body(good, body + b" ")
    with pytest.raises(BadRequest):
        inbound.check_body(Chunk(SOURCE, 2, 0, 10, 1, expected), body)


@pytest.mark.parametrize(
    "partition", ["all", "[null]", '[""]', '["a/b"]', '["..",7]', '["ä:%\\n"]', '["=A"]', '["=a"]']
)
def test_a_chunk_survives_its_headers(partition: str) -> None:
    """Whatever a partition's values are, its stream has one text, and that text is plain ASCII."""
    one = Chunk(Source("l", "s", Stream("b", "t", partition)), 3, 5, 9, 1, "ab", opens=True, dead=7, key=("id", "day"))
    headers = one.headers()
    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert inbound.parse(headers) == one
    more = Chunk(one.source, 3, 5, 9, 4, "ab", digest="rows1:ab", generation="g1", receiver="l2", hole=7, lacking=8)
    assert inbound.parse(more.headers()) == more
    plain = Chunk(one.source, 3, 5, 9, 4, "ab")
    assert inbound.parse(plain.headers()) == plain
    assert len(plain.headers()) == 8, "what is not said is left out: an older receiver or sender knows nothing of it"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (inbound.LAKE, None),
        (inbound.LAKE, "a b"),
        (inbound.SINK, ""),
        (inbound.SINK, "x" * 200),
        (inbound.STREAM, "only-one-part"),
        (inbound.KEY, ""),
        (inbound.KEY, "id,"),
        (inbound.KEY, "_seq"),
        (inbound.STREAM, "b:t:a/b"),
        (inbound.EPOCH, "-1"),
        (inbound.SINCE, "11"),
        (inbound.SINCE, "0x1"),
        (inbound.UNTIL, "9223372036854775808"),
        (inbound.UNTIL, "٣"),
        (inbound.ROWS, "11"),
        (inbound.ROWS, ""),
        (inbound.BATCH_ID, None),
        (inbound.OPEN, "perhaps"),
        (inbound.DEAD, "0"),
        (inbound.DIGEST, "a b"),
        (inbound.GENERATION, ""),
        (inbound.RECEIVER, "x" * 200),
        (inbound.HOLE, "-1"),
        (inbound.LACKING, "x"),
    ],
)
def test_a_header_that_is_wrong_is_refused(header: str, value: str | None) -> None:
    headers = {**chunk(0, 10, rows=1).headers(), header: value}
    with pytest.raises(BadRequest):
        inbound.parse({name: text for name, text in headers.items() if text is not None})


def lines(*objects: str) -> chunk_rows.ChunkRows:
    return chunk_rows.from_lines("".join(f"{one}\n" for one in objects).encode())


@pytest.mark.parametrize(
    ("since", "until", "count", "seqs"),
    [(0, 10, 2, [1]), (0, 10, 2, [2, 1]), (0, 10, 2, [1, 1]), (3, 10, 2, [3, 4]), (0, 3, 2, [3, 4]), (0, 3, 0, [1])],
)
def test_rows_that_are_not_those_announced_are_refused(since: int, until: int, count: int, seqs: list[int]) -> None:
    """As many as were said, ascending, and inside the range."""
    with pytest.raises(BadRequest):
        chunk_rows.check(chunk(since, until, rows=count), lines(*(f'{{"_seq":{seq},"id":"a"}}' for seq in seqs)))


def test_a_replay_holds_the_row_it_names() -> None:
    with pytest.raises(BadRequest):
        chunk_rows.check(chunk(0, 9, dead=5), lines('{"_seq":6,"id":"a"}'))
    chunk_rows.check(chunk(0, 9, dead=5), lines('{"_seq":5,"id":"a"}'))


@pytest.mark.parametrize(
    "row", ['{"id":"a"}', '{"_seq":"1","id":"a"}', '{"_seq":1,"_at":"noon"}', '{"_seq":1,"_actor":7}']
)
def test_a_chunks_own_columns_must_be_right(row: str) -> None:
    """They are the sender's word, not a user's data, so a wrong one is not a bad row."""
    with pytest.raises(BadRequest):
        lines(row)


def test_a_line_that_is_not_json_is_named() -> None:
    with pytest.raises(InvalidRows) as caught:
        lines('{"_seq":1,"id":"a"}', "{oops", "[1]")
    assert [row["index"] for row in caught.value.detail["rows"]] == [1, 2]


def stored(rows: chunk_rows.ChunkRows, above: int = 0, extra: bool = False) -> list[dict[str, Any]]:
    batch = chunk_rows.validated(rows, SCHEMA, extra=extra, gateway="edge", above=above).stored
    return list(batch.to_pylist())


def test_rows_keep_where_they_come_from() -> None:
    """A sender that drops `_at` and `_actor` leaves them null; `_seq` is always there."""
    taken = stored(lines('{"_seq":3,"id":"a","_actor":"ann"}', '{"_seq":7,"id":"b","n":1}'))
    assert [(row["id"], row["_gateway"], row["_origin_seq"], row["_origin_actor"]) for row in taken] == [
        ("a", "edge", 3, "ann"),
        ("b", "edge", 7, None),
    ]


def test_only_rows_above_the_mark_are_validated_and_bad_ones_keep_their_index() -> None:
    """What was stored before is not judged again; the index is that of the row in the chunk."""
    rows = lines('{"_seq":1}', '{"_seq":2,"id":"b"}', '{"_seq":3,"id":4}')
    with pytest.raises(InvalidRows) as caught:
        stored(rows, above=1)
    assert [row["index"] for row in caught.value.detail["rows"]] == [2]
    assert [row["id"] for row in stored(lines('{"_seq":1}', '{"_seq":2,"id":"b"}'), above=1)] == ["b"]


def as_arrow(columns: dict[str, pa.Array], **options: Any) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


SEQS = pa.array([1, 2], pa.int64())


def test_unknown_fields_come_through_and_may_be_columns_here() -> None:
    """`_extra` is taken apart: what is a column of this table goes there, the rest is kept, or refused."""
    extras = pa.array(['{"n":7,"odd":{"a":[1]}}', None])
    body = as_arrow({"_seq": SEQS, "id": pa.array(["a", "b"]), "j": pa.array(['{"k":1}', None]), "_extra": extras})
    first, second = stored(chunk_rows.from_arrow(body), extra=True)
    assert (first["n"], first["_extra"], first["j"]) == (7, '{"odd":{"a":[1]}}', '{"k":1}')
    assert (second["n"], second["_extra"]) == (None, None)
    with pytest.raises(InvalidRows) as caught:
        stored(chunk_rows.from_arrow(body), extra=False)
    assert [(row["index"], row["field"]) for row in caught.value.detail["rows"]] == [(0, "odd")]
    (row,) = stored(lines('{"_seq":1,"id":"a","_extra":{"odd":1}}'), extra=True)
    assert row["_extra"] == '{"odd":1}'


def test_arrow_and_lines_give_the_same_rows() -> None:
    body = as_arrow({"_seq": SEQS, "id": pa.array(["a", "b"]), "n": pa.array([1, None], pa.int64())})
    written = lines('{"_seq":1,"id":"a","n":1}', '{"_seq":2,"id":"b"}')
    assert stored(chunk_rows.from_arrow(body)) == stored(written)
    assert chunk_rows.from_arrow(b"").count == chunk_rows.from_lines(b"").count == 0


RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["x"]))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"nonsense", BadRequest),
        (as_arrow({"_seq": SEQS})[:-30], BadRequest),
        (as_arrow({"id": pa.array(["a"])}), BadRequest),
        (as_arrow({"_seq": SEQS, "id": pa.array(["a", "a"]).dictionary_encode()}), Unsupported),
        (as_arrow({"_seq": SEQS, "id": RUNS}), Unsupported),
        (as_arrow({"_seq": SEQS, "id": pa.array(["a", "b"], pa.string_view())}), Unsupported),
        (as_arrow({"_seq": SEQS, "id": pa.array([[None], []], pa.list_(pa.null()))}), Unsupported),
        (as_arrow({"_seq": SEQS}, options=pa.ipc.IpcWriteOptions(compression="zstd")), Unsupported),
    ],
    ids=["nonsense", "cut", "no seq", "dictionary", "runs", "view", "nulls", "compressed"],
)
def test_arrow_that_could_grow_is_not_taken(body: bytes, error: type[StrandError]) -> None:
    """A body of a few bytes must not be able to become more than the machine has."""
    with pytest.raises(error):
        chunk_rows.from_arrow(body)


def test_a_stream_of_nothing_but_nulls_is_not_taken_at_its_word() -> None:
    with pytest.raises(TooLarge):
        read_stream(as_arrow({"id": pa.nulls(10_000_000)}))
