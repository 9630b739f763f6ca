"""`strand sink` and bad input: a clear error, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.lake import Lake
from strandline.ledger.sinks.sinks import find_sink, pin_receiver
from tests.kit import call, free_port, make_table, messages, strand_json


@pytest.fixture
def filled(lake: Lake) -> Lake:
    make_table(lake)
    lake.append("messages", messages(0, 3))
    return lake


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--type", "blub", "--set", "uri=file:///x"], 3, "'blob'"),
        (["--type", "blob", "--set", "uri=file:///x", "--set", "formt=parquet"], 3, "'format'"),
        (["--type", "blob"], 3, "uri"),
        (["--type", "blob", "--set", "uri"], 3, "KEY=VALUE"),
        (["--type", "blob", "--set", "uri=file:///proc/nope"], 6, "/proc/nope"),
        (["--type", "blob", "--set", "uri=FOLDER", "--set", "where=sorce = 'x'"], 3, "sorce"),
        (["--type", "blob", "--set", "uri=FOLDER", "--set", "where=source ="], 3, "parse"),
        (["--type", "blob", "--set", "uri=FOLDER", "--set", "where=n > random()"], 3, "random"),
        (["--type", "blob", "--set", "uri=FOLDER", "--set", "drop_columns=bdy"], 3, "'body'"),
        (["--type", "blob", "--set", "uri=FOLDER", "--set", "redact=n:hash"], 3, "redacted"),
        (["--type", "blob", "--set", "uri=FOLDER", "--tables", "mesages"], 3, "'messages'"),
        (["--type", "blob", "--set", "uri=FOLDER", "--from", "99"], 3, "seq 99"),
        (["--type", "blob", "--set", "uri=FOLDER", "--from", "-1"], 3, "seq -1"),
        (["--type", "blob", "--set", "uri=FOLDER", "--from", "soon"], 3, "soon"),
        (["--type", "forward", "--set", "url=http://127.0.0.1:PORT"], 5, "can't be reached"),
        (["--type", "forward", "--set", "url=ftp://x"], 3, "http://"),
        (["--type", "forward", "--set", "url=http://127.0.0.1:PORT", "--set", "token_file=nope"], 6, "token"),
    ],
)
def test_a_sink_that_can_not_be_made_is_refused(
    filled: Lake, tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    """Nothing is written down, and nothing is left at the destination."""
    folder = tmp_path / "out"
    given = [part.replace("FOLDER", f"file://{folder}").replace("PORT", str(free_port())) for part in arguments]
    done = call("--lake", filled.root, "--json", "sink", "add", "x", *given)
    said = done.error
    assert done.code == code, said
    assert says in said["message"] + said["hint"]
    assert strand_json(filled, "sink", "list") == []


def test_no_check_adds_a_sink_without_asking(filled: Lake) -> None:
    """For a destination that comes up later; its first tick says that it is not there, and loses nothing."""
    url = f"http://127.0.0.1:{free_port()}"
    made = strand_json(filled, "sink", "add", "x", "--type", "forward", "--set", f"url={url}", "--no-check")
    assert made["sink"] == "x" and made["start_seq"] == 0
    filled.flush("messages")
    done = call("--lake", filled.root, "--json", "sink", "tick")
    (ticked,) = done.json
    assert (done.code, ticked["outcome"]) == (5, "failed")
    (stream,) = strand_json(filled, "sink", "show", "x")["streams"]
    assert "can't be reached" in stream["last_error"] and stream["lag"]["rows"] == 3


def test_the_receiver_that_a_sink_knows_is_shown(filled: Lake) -> None:
    """Its lake id, from the first contact on: what a person compares when a stream parks because another answers."""
    url = f"http://127.0.0.1:{free_port()}"
    strand_json(filled, "sink", "add", "x", "--type", "forward", "--set", f"url={url}", "--no-check")
    assert strand_json(filled, "sink", "show", "x")["receiver"] is None
    assert "delivers to" not in call("--lake", filled.root, "sink", "show", "x").out
    with filled.ledger.write() as txn:
        pin_receiver(txn, find_sink(txn.conn, "x").sink_id, "central1")
    assert strand_json(filled, "sink", "show", "x")["receiver"] == "central1"
    assert "delivers to the lake central1" in call("--lake", filled.root, "sink", "show", "x").out


def test_unknown_sinks_and_streams_name_their_neighbours(filled: Lake, tmp_path: Path) -> None:
    strand_json(filled, "sink", "add", "archive", "--type", "blob", "--set", f"uri=file://{tmp_path}/out")
    for command in (["show", "archiv"], ["tick", "archiv"], ["remove", "archiv"], ["retry", "archiv"]):
        done = call("--lake", filled.root, "--json", "sink", *command)
        assert done.code == 3
        assert "'archive'" in done.error["hint"]
    again = call(
        "--lake", filled.root, "--json", "sink", "add", "archive", "--type", "blob", "--set", f"uri=file://{tmp_path}/b"
    )
    assert (again.code, again.error["detail"]["kind"]) == (4, "sink_exists")


def test_a_sink_is_renamed_and_removed(filled: Lake, tmp_path: Path) -> None:
    made = strand_json(filled, "sink", "add", "archive", "--type", "blob", "--set", f"uri=file://{tmp_path}/out")
    renamed = strand_json(filled, "sink", "rename", "archive", "cold")
    assert renamed["sink_id"] == made["sink_id"]
    assert strand_json(filled, "sink", "remove", "cold")["removed"] == "cold"
    assert strand_json(filled, "sink", "list") == []


def test_tail_since_a_seq_that_was_never_given_is_an_error(filled: Lake) -> None:
    """It is another lake's, or a slip; following from there would silently skip rows."""
    assert call("--lake", filled.root, "--json", "tail", "messages", "--since", "4").code == 0
    done = call("--lake", filled.root, "--json", "tail", "messages", "--since", "5000")
    assert done.code == 3
    assert call("--lake", filled.root, "--json", "tail", "messages", "--since", "-1").code == 2
