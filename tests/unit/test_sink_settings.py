"""A sink's settings: strict, in plain units, and never silently ignored."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.errors import BadRequest
from strandline.sinks.settings import parse, resolved

BLOB = {"uri": "file:///archive"}
FORWARD = {"url": "http://localhost:8400"}


def test_text_and_toml_values_come_out_the_same() -> None:
    """What the command line and `strand.toml` say is one thing."""
    text = {
        **BLOB,
        "every": "5m",
        "unit_bytes": "1MiB",
        "manifest": "true",
        "drop_columns": "a, b",
        "redact": "c,d:blank",
    }
    toml = {
        **BLOB,
        "every": "5m",
        "unit_bytes": 1 << 20,
        "manifest": True,
        "drop_columns": ["a", "b"],
        "redact": {"c": "hash", "d": "blank"},
    }
    found = parse("blob", text, "here")
    assert found == parse("blob", toml, "there")
    assert found["every"] == 300.0 and found["unit_bytes"] == 1 << 20 and found["redact"] == {"c": "hash", "d": "blank"}
    assert parse("blob", found, "again") == found


@pytest.mark.parametrize(
    ("type_", "given", "says"),
    [
        ("blub", BLOB, "blob"),
        ("blob", {**BLOB, "formt": "parquet"}, "format"),
        ("blob", {}, "uri"),
        ("blob", {"uri": "ftp://x"}, "file://"),
        ("blob", {**BLOB, "format": "csv"}, "parquet, jsonl"),
        ("blob", {**BLOB, "compression": "gzip"}, "zstd"),
        ("blob", {**BLOB, "unit_rows": "0"}, "from 1"),
        ("blob", {**BLOB, "every": "5"}, "duration"),
        ("blob", {**BLOB, "cron": "61 * * * *"}, "cron"),
        ("blob", {**BLOB, "every": "5m", "cron": "* * * * *"}, "one of them"),
        ("blob", {**BLOB, "hold_until": "2026-01-01"}, "zone"),
        ("blob", {**BLOB, "redact": "a:shred"}, "hash"),
        ("blob", {**BLOB, "manifest": "perhaps"}, "true or false"),
        ("forward", {**FORWARD, "token": "x", "token_env": "Y"}, "one of token"),
        ("forward", {**FORWARD, "drop_columns": "_seq"}, "_seq"),
        ("forward", {"url": "localhost:8400"}, "http://"),
        ("iceberg", {"uri": "jdbc:sqlite:x"}, "warehouse"),
    ],
)
def test_bad_settings_say_what_is_wrong(type_: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(type_, given, "sink 'x'")
    assert says in caught.value.message + caught.value.hint


def test_a_bad_token_is_not_repeated() -> None:
    with pytest.raises(BadRequest) as caught:
        parse("forward", {**FORWARD, "token": 5}, "sink 'x'")
    assert "5" not in caught.value.message.split("is ")[1].split(",")[0]


def test_a_catalogs_own_properties_pass() -> None:
    given = {"uri": "jdbc:sqlite:x", "warehouse": "file:///w", "catalog.jdbc.user": "me"}
    assert parse("iceberg", given, "here")["catalog.jdbc.user"] == "me"


def test_defaults_are_filled_in() -> None:
    found = resolved("forward", parse("forward", FORWARD, "here"))
    assert (found["chunk_rows"], found["chunk_bytes"], found["max_attempts"]) == (5000, 4 << 20, 8)
