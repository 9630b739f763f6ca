"""A lake's namespaces: what they answer, and what copies of a lake share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import create, put
from strandline.errors import BadRequest, NotFound, PreconditionFailed
from strandline.lake import Lake
from strandline.lake.documents import document
from strandline.lake.queries import QueryAnswer
from strandline.lake.tables import PastWindow, names_at


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """With a log table, and a keyed one that two commits wrote."""
    with create.create(tmp_path / "lake") as made:
        made.create_table("messages", {"id": "string"})
        made.create_table("people", {"id": "string", "name": "string?"}, key=["id"])
        made.mutate([put("people", {"id": "1", "name": "Ann"})], actor="a", message="first")
        made.mutate([put("people", {"id": "1", "name": "Eve"}), put("people", {"id": "2"})], actor="b")
        yield made


def test_copies_with_a_report_of_their_own_share_what_the_lake_remembers(lake: Lake) -> None:
    """A worker's jobs have a copy each: a schema that one has forgotten must not be another's."""
    copy = lake.reporting(lambda *_: None)
    assert copy.memory is lake.memory and copy.memory.mutator is lake.memory.mutator
    assert copy.context is not lake.context and copy.context.ledger is lake.ledger
    copy.append("messages", [{"id": "1"}], actor="a")
    assert lake.view().table("messages").to_pylist() == [{"id": "1"}]


def test_a_namespace_is_of_the_copy_that_it_was_asked_of(lake: Lake) -> None:
    """One that was kept on the lake would go on reporting to the first copy's place."""
    copy = lake.reporting(lambda *_: None)
    assert vars(copy.maintenance)["_lake"] is copy and vars(lake.maintenance)["_lake"] is lake


def test_branches_are_a_namespace_that_lists_them_when_called(lake: Lake) -> None:
    lake.branches.create("trial")
    assert [branch.name for branch in lake.branches()] == ["main", "trial"]
    assert [branch.branch for branch in lake.branches.entries()] == ["main", "trial"]
    assert list(document(lake.branches.entries()[1])) == ["branch", "tip", "from", "created_at", "protected"]


def test_a_commit_is_shown_with_the_rows_that_it_changed(lake: Lake) -> None:
    newest, first, *_ = lake.branches.commits()
    shown = lake.branches.show(newest.commit, limit=1)
    assert (shown.commit, shown.actor, shown.more) == (newest.commit, "b", True)
    assert shown.changes is not None and [change.kind for change in shown.changes] == ["update"]
    assert lake.branches.show("main").commit == newest.commit and first.message == "first"


def test_a_table_s_name_is_no_commit_and_the_error_says_what_shows_it(lake: Lake) -> None:
    with pytest.raises(NotFound, match="is a table") as caught:
        lake.branches.show("messages")
    assert caught.value.hint is not None and "strand table show messages" in caught.value.hint
    with pytest.raises(NotFound, match="nothing"):
        lake.branches.show("nothing")


def test_pages_say_whether_there_is_another(lake: Lake) -> None:
    first = lake.branches.changes_page("people", limit=2)
    second = lake.branches.changes_page("people", first.continuation, limit=2)
    assert (len(first.rows), first.more, len(second.rows), second.more) == (2, True, 1, False)
    assert second.continuation == lake.branches.changes_page("people", second.continuation).continuation
    with pytest.raises(BadRequest, match="has no seq"):
        lake.branches.changes_page("people", 10_000)
    newest, older, *_ = lake.branches.commits()
    page = lake.branches.differences(older.commit, newest.commit, limit=1)
    rest = lake.branches.differences(older.commit, newest.commit, skip=1, limit=1)
    assert (page.more, rest.more) == (True, False) and page.rows != rest.rows


def test_columns_of_an_answer_have_names_that_can_be_keys(lake: Lake) -> None:
    answer = lake.queries.on_duckdb(lake.view(), "SELECT id, id, count(*), count(*) FROM people GROUP BY id")
    assert answer.columns == ("id", "id_2", "count(*)", "count(*)_2")
    assert QueryAnswer(("a", "b"), [(1, None)]).by_name().rows == ({"a": 1, "b": None},)


def test_a_window_names_what_is_older_than_it(lake: Lake) -> None:
    """Nothing is flushed yet, so nothing of the log would go; a change that sets no window lets go of nothing."""
    assert lake.tables.past_window("messages", {"retention_s": 1.0}) is None
    assert lake.tables.past_window("messages", {"time_column": "_at"}) is None
    assert names_at(lake.root) == ["messages", "people"]


def test_only_a_window_that_no_row_lies_in_needs_a_yes() -> None:
    """Of a keyed table the newest versions stay, so its whole log may be older than the window."""
    refusal = PastWindow("messages", older=2, total=2, keyed=False).unagreed
    assert refusal is not None and refusal.detail["count"] == 2
    assert str(refusal) == "the whole log of messages (2 rows) is older than that, and would go"
    assert PastWindow("messages", older=1, total=2, keyed=False).unagreed is None
    assert PastWindow("people", older=2, total=2, keyed=True).unagreed is None


def test_a_window_that_no_row_lies_in_is_not_set_without_a_yes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(lake.tables), "past_window", lambda *_: PastWindow("messages", 2, 2, keyed=False))
    with pytest.raises(PreconditionFailed, match="the whole log of messages"):
        lake.tables.keep("messages", {"retention_s": 1.0})
    assert lake.tables.show("messages").settings.retention_s is None
    kept = lake.tables.keep("messages", {"retention_s": 1.0}, yes=True)
    assert document(kept) == {
        "table": "messages",
        "retention_s": 1.0,
        "time_column": "_at",
        "target_file_bytes": 134217728,
    }


def test_what_was_made_is_a_document(lake: Lake) -> None:
    """As a command prints it: of a branch, of a tag and of a table."""
    tip = lake.commit("main").commit_id
    assert document(lake.branches.new("trial")) == {"branch": "trial", "from": "main", "tip": tip}
    assert document(lake.branches.new_tag("v1", "trial")) == {"tag": "v1", "commit": tip}
    assert document(lake.branches.protect("trial")) == {"branch": "trial", "protected": True}
    lake.branches.protect("trial", protected=False)
    assert document(lake.branches.rename("trial", "try-out")) == {"branch": "try-out"}
    assert document(lake.branches.delete("try-out")) == {"deleted": "try-out"}
    assert document(lake.branches.delete_tag("v1")) == {"deleted": "v1"}
    made = lake.tables.new("team", {"id": "string", "size": "long?"}, key=["id"], constraints=["range(size: 1..9)"])
    assert (made.table, made.key, made.constraints) == ("team", ("id",), ("range(size: 1..9)",))
    assert [column["name"] for column in made.columns] == ["id", "size"]


def test_schemas_that_lose_values_are_not_changed_without_a_yes(lake: Lake) -> None:
    """The refusal names every step that loses some, so that a person can agree to them."""
    document = lake.schemas.show(table="PEOPLE")
    del document["tables"]["people"]["columns"]["name"]
    with pytest.raises(PreconditionFailed, match="shown no more: people drop column name") as caught:
        lake.schemas.change(document)
    assert [step["column"] for step in caught.value.detail["steps"]] == ["name"]
    assert "name" in lake.schemas.show()["tables"]["people"]["columns"]
    done = lake.schemas.change(document, actor="eve", message="no names", yes=True)
    newest = lake.commit("main")
    assert (done.changed.commit, newest.actor, newest.message) == (newest.commit_id, "eve", "no names")
    assert lake.schemas.unagreed(document) is None and lake.schemas.change(document).changed.commit is None
    assert lake.schemas.steps(document).steps == () and not lake.schemas.steps(document).is_refused


def test_a_plan_says_whether_a_step_is_refused(lake: Lake) -> None:
    document = lake.schemas.show(table="people")
    document["tables"]["people"]["columns"]["name"] = "long?"
    assert lake.schemas.steps(document).is_refused
    with pytest.raises(NotFound, match="there is no table 'poeple'") as caught:
        lake.schemas.show(table="poeple")
    assert caught.value.hint is not None and "people" in caught.value.hint


def test_a_table_is_not_dropped_without_a_yes(lake: Lake) -> None:
    """And then of one branch: another still shows it."""
    lake.branches.new("trial")
    refusal = lake.tables.unagreed_drop("People", branch="trial")
    assert refusal is not None and "people remove table" in str(refusal)
    with pytest.raises(PreconditionFailed, match="people remove table"):
        lake.tables.drop("People", branch="trial")
    dropped = lake.tables.drop("People", branch="trial", actor="eve", message="old", yes=True)
    newest = lake.commit("trial")
    assert (dropped.dropped, dropped.branch, dropped.commit) == ("people", "trial", newest.commit_id)
    assert (newest.actor, newest.message) == ("eve", "old")
    assert lake.view("trial").tables == ["messages"] and lake.view().tables == ["messages", "people"]
