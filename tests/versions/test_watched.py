"""What whoever watches a lake sees of branches, and of sinks that follow one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

import strandline as sl
from strandline import failpoints
from strandline.errors import BadRequest
from strandline.lake import Lake
from strandline.ledger.database import schema
from strandline.ledger.tables.tables import refuse_writes
from strandline.reports.doctor import examine
from strandline.reports.metrics import ledger_metrics
from tests.kit import crash, make_table, message, reopened, strand, strand_json
from tests.versions.test_merge import changed, forked


def follow(lake: Lake, folder: Path, name: str = "archive", **settings: Any) -> None:
    """A blob sink, on branch x unless told otherwise."""
    lake.add_sink(name, "blob", {"uri": (folder / name).as_uri(), "branch": "x", **settings})


def test_a_sink_stays_on_the_branch_that_it_was_made_for(lake: Lake, tmp_path: Path) -> None:
    """Its marks are of that one; whoever asks for another is told so, and nothing is changed."""
    forked(lake)
    follow(lake, tmp_path)
    for branch in ("main", ""):
        answer = strand(lake, "sink", "set", "archive", "--set", f"branch={branch}", "--set", "every=5m")
        assert answer.code == 3 and "follows the branch 'x', and can't go over to 'main'" in answer.err
    lake.rename_branch("x", "y")
    shown = strand_json(lake, "sink", "show", "archive")
    assert shown["branch"] == "y" and "every" not in shown["settings"]
    assert strand_json(lake, "sink", "set", "archive", "--set", "every=5m")["settings"]["every"] == 300
    assert "y" in strand(lake, "sink", "list").out.splitlines()[-1].split()


def test_strand_toml_moves_no_sink_to_another_branch(
    lake: Lake, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is written differently there is told, and the sink goes on as it is."""
    forked(lake)
    config = lake.root / "strand.toml"
    before = config.read_text()

    def follows(branch: str) -> tuple[str, str]:
        """The branch that the sink is on when the file names this one, and what was said."""
        uri = (tmp_path / "out").as_uri()
        config.write_text(f'{before}\n[sinks.archive]\ntype = "blob"\nuri = "{uri}"\nbranch = "{branch}"\n')
        with Lake(lake.root) as again:
            again.sinks()
        return strand_json(lake, "sink", "show", "archive")["branch"], capfd.readouterr().err

    assert follows("x") == ("x", "")
    branch, said = follows("main")
    assert branch == "x" and "can't go over to 'main'" in said
    assert follows("x") == ("x", "")


def test_a_log_table_is_delivered_by_sinks_on_main_alone(lake: Lake, tmp_path: Path) -> None:
    """It is the same on every branch: who names it on another is refused, and who takes all gets the keyed ones."""
    forked(lake)
    make_table(lake)
    lake.append("messages", [message(1)])
    with pytest.raises(BadRequest, match="messages can't be delivered from branch 'x': log tables are the same on all"):
        follow(lake, tmp_path, tables=["messages", "person"])
    follow(lake, tmp_path, where="age > 1")  # which messages don't have
    assert [stream["table"] for stream in strand_json(lake, "sink", "show", "archive")["streams"]] == ["person"]


def test_everybody_says_that_the_branch_of_a_sink_was_deleted(lake: Lake, tmp_path: Path) -> None:
    """Its marks are no damage. Whether the branch was merged, or given up, or is there again as another one."""
    forked(lake)
    changed(lake, "x", c=3)
    follow(lake, tmp_path)
    lake.tick("archive")
    lake.merge("x")
    lake.delete_branch("x")
    for again in (False, True):
        if again:
            lake.branch("x")
        found = [(one.kind, one.about, one.severity) for one in examine(lake) if "archive" in one.about]
        assert found == [("branch_deleted", "archive", "warning")]
        with lake.ledger.write() as txn:  # as a restore leaves it
            txn.conn.execute(update(schema.watermarks).values(epoch=-1))
        assert strand_json(lake, "sink", "show", "archive")["branch"] is None
        assert "DELETED" in strand(lake, "sink", "list").out
        assert "The branch that it follows was deleted" in strand(lake, "sink", "show", "archive").out
        ticked = strand(lake, "sink", "tick")
        assert ticked.code == 5 and "archive failed: the branch that it follows was deleted" in ticked.out
        refused = strand(lake, "sink", "set", "archive", "--set", "every=5m")
        assert refused.code == 3 and "can't be changed: the branch that it follows was deleted" in refused.err
    assert strand_json(lake, "sink", "remove", "archive")["removed"] == "archive"
    assert "branch_deleted" not in [one.kind for one in examine(lake)]


def test_status_shows_what_waits_on_every_branch(lake: Lake) -> None:
    """Also tables that main does not have, and those of a branch that refuse writes; and the tags."""
    forked(lake)
    lake.tag("v1")
    lake.create_table("pet", {"id": "string"}, key=["id"], branch="x")
    lake.mutate([sl.put("pet", {"id": "tom"}), sl.put("person", {"id": "c", "age": 1})], branch="x")
    lake.protect_branch("x")
    pet = lake.view("x").branch_table("pet")
    with lake.ledger.write() as txn:
        refuse_writes(txn, pet.head.branch_id, pet.table.table_id, "its newest batch can't be read")
    page = strand_json(lake, "status")
    waiting = {
        one["branch"]: (one["tail"]["rows"], one["tail"]["tables"], one["protected"]) for one in page["branches"]
    }
    assert waiting == {"main": (2, ["person"], False), "x": (4, ["person", "pet"], True)}
    assert [one["tip"] for one in page["branches"]] == [one.tip for one in lake.branches()]
    assert page["tags"] == [{"tag": "v1", "commit": lake.log()[0].commit_id}]
    shown = strand(lake, "status").out
    assert "x (protected)" in shown and "Tags: v1" in shown
    assert "pet on branch x REFUSES WRITES: its newest batch can't be read" in shown


def test_status_names_the_branch_and_the_tables_of_what_is_under_way(lake: Lake) -> None:
    """Of a flush that died on a branch, for a table that main does not have; the audit knows its name too."""
    forked(lake)
    lake.create_table("pet", {"id": "string"}, key=["id"], branch="x")
    lake.mutate([sl.put("pet", {"id": "tom"})], branch="x")
    failpoints.arm("stage.after_append=raise")
    with crash(lake):
        lake.flush("pet", branch="x")
    again = reopened(lake, recovering=False)
    (one,) = strand_json(again, "status")["operations"]
    assert (one["kind"], one["branch"], one["tables"]) == ("flush", "x", ["pet"])
    again.refresh()
    (entry,) = strand_json(again, "audit")
    assert [table["table"] for table in entry["tables"]] == ["pet"]


def test_metrics_tell_branches_apart(lake: Lake) -> None:
    """A tail that grows on a branch is seen; log tables are main's alone."""
    forked(lake)
    changed(lake, "x", c=1, d=1)
    make_table(lake)
    lake.append("messages", [message(1)])
    found = {
        (metric.labels["table"], metric.labels["branch"]): metric.value
        for metric in ledger_metrics(lake.ledger)
        if metric.name == "strand_tail_rows"
    }
    assert found == {("messages", "main"): 1, ("person", "main"): 2, ("person", "x"): 4}
