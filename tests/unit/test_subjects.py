"""A lake's namespaces: what they answer, and what copies of a lake share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import create, put
from strandline.errors import BadRequest, NotFound
from strandline.lake import Lake
from strandline.lake.documents import document
from strandline.lake.queries import QueryAnswer
from strandline.lake.tables import names_at


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
