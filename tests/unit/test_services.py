"""The services of a lake for the person who looks after it, called from Python: what the commands print is theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.acceptance.test_capture import damage_batch
from tests.kit import make_table, message, messages, part_ids, strand_json

from strandline.errors import BadRequest, NotFound
from strandline.lake import Lake
from strandline.lake.documents import document
from strandline.lake.export import Export, ExportPiece


def set_one_aside(lake: Lake) -> str:
    """Append three batches, damage the second, and have it set aside; its id."""
    make_table(lake)
    for number in range(3):
        lake.append("messages", [message(number)], actor="ann")
    batch_id = damage_batch(lake, 1)
    diagnosis = lake.reports.mend(actor="eve")
    assert any(batch_id in text for text in diagnosis.fixed)
    return batch_id


def test_the_verdict_is_read_off_the_page(lake: Lake) -> None:
    """A page that is changed has another verdict: nobody can say that all is well beside a warehouse that is gone."""
    page = lake.reports.status()
    assert (page.verdict.level, page.verdict.needs) == ("well", ())
    changed = replace(page, not_there="it is not mounted")
    assert changed.verdict.level == "person"
    assert [concern.command for concern in changed.verdict.needs] == ["strand doctor"]


def test_a_page_is_the_document_that_the_command_prints(lake: Lake) -> None:
    make_table(lake)
    lake.append("messages", messages(0, 3))
    page, printed = document(lake.reports.status()), strand_json(lake, "status")
    assert list(page) == list(printed) and "decisions" not in page
    (table,), (shown,) = page["tables"], printed["tables"]
    assert list(table) == list(shown) and table["rows"] == shown["rows"]
    assert page["branches"][0].keys() == printed["branches"][0].keys() >= {"from", "tail"}


def test_doctor_says_whether_a_person_is_needed(lake: Lake) -> None:
    set_one_aside(lake)
    diagnosis = lake.reports.doctor()
    assert (diagnosis.ok, diagnosis.fixed) == (False, ())
    assert [finding.kind for finding in diagnosis.findings] == ["quarantined"]
    assert "books" in diagnosis.checked


def test_repaired_rows_take_the_place_of_a_damaged_batch(lake: Lake) -> None:
    """They are appended under seqs of their own, the batch is forgotten, and the audit says by whose word."""
    batch_id = set_one_aside(lake)
    (batch,) = lake.quarantine.list()
    assert (batch.batch, batch.table, batch.rows, batch.actor) == (batch_id, "messages", 1, "ann")
    assert lake.quarantine.show(batch_id) == batch
    assert len(lake.quarantine.payload(batch_id)) == batch.size_bytes
    repaired = lake.quarantine.repair(batch_id, [message(1)], actor="eve")
    assert (repaired.table, repaired.rows) == ("messages", 1)
    assert repaired.first_seq == repaired.last_seq == lake.view().branch_table("messages").head.last_seq
    assert lake.quarantine.list() == [] and sorted(part_ids(lake)) == ["p0", "p1", "p2"]
    entry = lake.reports.audit(limit=1)[0]
    assert (entry.op, entry.outcome, entry.actor, entry.is_recovery) == (batch_id, "restored", "eve", False)
    assert [table.table for table in entry.tables] == ["messages"]


def test_a_repair_that_dies_in_the_middle_stores_its_rows_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are appended under a key of the batch's own, so the same repair goes on where the first one died."""
    batch_id = set_one_aside(lake)

    def dies(*_: object) -> int:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("strandline.ledger.rows.batches.discard_quarantined", dies)
        with pytest.raises(RuntimeError):
            lake.quarantine.repair(batch_id, [message(1)])
    assert [batch.batch for batch in lake.quarantine.list()] == [batch_id]
    lake.quarantine.repair(batch_id, [message(1)])
    assert lake.quarantine.list() == [] and sorted(part_ids(lake)) == ["p0", "p1", "p2"]
    assert lake.view().branch_table("messages").head.books.acked == 4, "the row was stored again, as a duplicate"


def test_a_batch_is_given_up_once(lake: Lake) -> None:
    batch_id = set_one_aside(lake)
    assert lake.quarantine.discard(batch_id, actor="eve").rows == 1
    assert lake.view().branch_table("messages").head.books.pruned == 1
    entry = lake.reports.audit(limit=1)[0]
    assert (entry.outcome, entry.actor, entry.original_actor) == ("discarded", "eve", "ann")
    for call in (lake.quarantine.show, lake.quarantine.payload, lake.quarantine.discard):
        with pytest.raises(NotFound):
            call(batch_id)


def test_only_what_can_not_be_read_is_given_up_by_hand(lake: Lake) -> None:
    with pytest.raises(NotFound, match="no unreadable operation o1"):
        lake.recovery.discard("o1")


def test_an_export_comes_in_pieces_that_say_what_they_hold(lake: Lake, tmp_path: Path) -> None:
    """A route can stream them; a file is made of the same."""
    make_table(lake)
    lake.create_table("notes", {"id": "string"})
    lake.append("messages", messages(0, 3))
    lake.append("notes", [{"id": "n"}])
    pieces = list(lake.export().pieces())
    exported = lake.export().write(str(tmp_path / "all.jsonl"))
    assert {table.table: table.rows for table in exported.tables} == {"messages": 3, "notes": 1}
    assert sum(piece.rows for piece in pieces) == 4
    assert (tmp_path / "all.jsonl").read_bytes() == b"".join(piece.data for piece in pieces)
    with pytest.raises(BadRequest, match="this is 2"):
        lake.export(format="arrow")


def test_an_export_that_fails_leaves_no_file(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(lake)

    def torn(_: Export) -> Iterator[ExportPiece]:
        yield ExportPiece("messages", 1, b"{}\n")
        raise RuntimeError("killed")

    monkeypatch.setattr(Export, "pieces", torn)
    with pytest.raises(RuntimeError):
        lake.export().write(str(tmp_path / "half.jsonl"))
    assert [path.name for path in tmp_path.iterdir() if path.name != "lake"] == []


def test_a_backup_says_where_it_is_and_what_is_in_it(lake: Lake, tmp_path: Path) -> None:
    make_table(lake)
    lake.append("messages", messages(0, 3))
    made = document(lake.backups.make(tmp_path / "copy"))
    assert list(made)[:4] == ["backup", "backup_id", "lake_id", "at"]
    assert Path(made["backup"]) == tmp_path / "copy" and made["until"] is not None


@pytest.mark.parametrize("verb", ["compact", "fold", "refilter", "retain", "expire", "sweep"])
def test_an_option_that_an_operation_does_not_have_is_refused_by_the_name_it_was_called_by(
    lake: Lake, verb: str
) -> None:
    with pytest.raises(TypeError, match=rf"^{verb}\(\) got an unexpected keyword argument 'bogus'$"):
        getattr(lake, verb)(bogus=1)


def test_one_text_is_no_list_of_files(lake: Lake, tmp_path: Path) -> None:
    """Its letters would be taken for paths, and a slash for the whole disk."""
    make_table(lake)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a"}\n')
    with pytest.raises(BadRequest, match="one text"):
        lake.load("messages", str(path))
    assert lake.view().table("messages").num_rows == 0
