"""What a receiver's answer means, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.model.delivery.sinks import Mark, Standing
from strandline.sinks import answers
from strandline.sinks.answers import judge, retry_after_s


def body(code: str, **detail: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": "said so", "hint": "", "detail": detail}}


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (200, {"stored": 1, "mark": 3}, answers.Acked),
        (201, None, answers.Acked),
        (401, body("unauthorized"), answers.Renew),
        (408, None, answers.Unknown),
        (409, body("conflict", kind="gap", mark=4, epoch=1), answers.Gap),
        (409, body("conflict", kind="epoch_old"), answers.Refusal),
        (413, body("too_large"), answers.LessAtOnce),
        (422, body("invalid_rows", rows=[{"index": 3}]), answers.BadRows),
        (422, None, answers.BadRows),
        (400, None, answers.Refusal),
        (400, body("invalid_rows", rows=[{"index": 3}]), answers.BadRows),
        (502, {"error": "Bad Gateway"}, answers.Unknown),
        (422, {"error": {"code": "invalid_rows", "detail": "?"}}, answers.BadRows),
        (409, {"error": {"code": "conflict", "detail": []}}, answers.Refusal),
        (400, body("bad_request"), answers.Refusal),
        (403, body("forbidden"), answers.Refusal),
        (404, body("not_found"), answers.Refusal),
        (415, body("unsupported"), answers.Refusal),
        (429, body("too_many_requests"), answers.Wait),
        (503, body("busy"), answers.Wait),
        (500, body("internal"), answers.Unknown),
        (502, None, answers.Unknown),
        (504, "a proxy's page", answers.Unknown),
    ],
)
def test_every_answer_means_one_thing(status: int, document: Any, kind: type) -> None:
    assert isinstance(judge(status, {}, document), kind)


def test_a_gap_carries_the_receivers_mark() -> None:
    assert judge(409, {}, body("conflict", kind="gap", mark=4, epoch=2)) == answers.Gap(Mark(2, 4))
    assert judge(409, {}, body("conflict", kind="gap", mark=None)) == answers.Gap(None)


def test_named_rows_are_named_by_their_places() -> None:
    found = judge(422, {}, body("invalid_rows", rows=[{"index": 3, "field": "a"}, {"index": 5}], bad=2))
    assert isinstance(found, answers.BadRows)
    assert (sorted(found.places), found.count) == ([3, 5], 2)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("-3", 0.0),
        ("999999", 3600.0),
        (None, None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text) == seconds


def test_retry_after_may_be_a_date_and_one_that_has_passed_is_now() -> None:
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after_s("Wed, 21 Oct 2105 07:28:00 GMT") == 3600.0


@pytest.mark.parametrize(
    "body",
    [None, "<html>", {}, {"error": "no"}, {"error": {"code": "not_found"}}, {"error": {"code": "x", "detail": {}}},
     {"error": {"code": "not_found", "message": "no such page", "hint": "", "detail": {"path": "/v1"}}}],
)  # fmt: skip
def test_f74_only_a_receivers_own_document_says_that_it_has_nothing(body: object) -> None:
    """A page of a proxy, or of another server, says nothing about the stream."""
    assert answers.no_mark_of(body) is None


def test_f74_a_receiver_says_who_it_is_and_an_older_one_does_not() -> None:
    """Its lake id is in the document; one that lacks the table says that, and nothing about the stream."""
    ours = {"code": "not_found", "message": "nothing", "hint": "", "detail": {"mark": None, "lake": "central"}}
    assert answers.no_mark_of({"error": ours}) == Standing(None, lake="central", is_lake=True, reads_back=True)
    assert answers.no_mark_of({"error": {**ours, "detail": {"mark": None}}}) == Standing(None, is_lake=True)
    no_table = answers.no_mark_of({"error": {**ours, "detail": {"table": "messages"}}})
    assert no_table is not None and no_table.missing is not None
    assert answers.standing_of({"mark": 4, "epoch": 2}) == Standing(Mark(2, 4), is_lake=True)
