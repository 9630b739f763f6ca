"""Agent messages, generated: what people and agents say to each other, and what the tools answer.

A session's messages are a pure function of its id. So whoever knows the ids can say what every message must look like,
without having seen it: the writers that offer them, and the check that reads them back.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from typing import Any

TABLE = "messages"
COLUMNS = {
    "part_id": "string",
    "session_id": "string",
    "role": "string",
    "kind": "string",
    "tool": "string?",
    "ts": "timestamp",
    "tokens": "long?",
    "body": "string",
    "meta": "json?",
}
ROW_KEY = ("part_id",)

FIRST_DAY = dt.datetime(2026, 3, 2, 6, tzinfo=dt.UTC)
DAYS = 6
BODY_CHARS = (200, 2000)
LONGEST_SESSION = 900

Row = dict[str, Any]
Turn = tuple[str, str, str | None]

_TOOLS = ("bash", "read_file", "edit_file", "search", "run_tests", "fetch_page")
_TOOL_WEIGHTS = (30, 26, 18, 14, 8, 4)
_MODELS = ("small", "medium", "large")
_PLACES = (
    "the parser",
    "the retry loop",
    "the session cache",
    "the import script",
    "the billing report",
    "the login form",
    "the nightly job",
    "the search index",
    "the upload handler",
    "the date filter",
)
_SAYINGS = (
    "Let me look at how {} is called before I change anything.",
    "There are two callers of {}, and only one of them checks the result.",
    "I think that {} drops the last element when the list has an odd length.",
    "The test for {} passes alone and fails together with the others.",
    "Could you keep {} as it is and add a second path beside it?",
    "I have moved the check out of {}, so that it runs once and not for every row.",
    "What happens to {} when the connection is closed in the middle of an answer?",
    "The figures of {} are right now; the old ones counted the header line too.",
)
_LINES = (
    "src/{0}.py:{1}: def handle(self, request, *, timeout_s=30):",
    "src/{0}.py:{1}:     return [row for row in rows if row.id not in seen]",
    "tests/test_{0}.py::test_case_{1} PASSED",
    "tests/test_{0}.py::test_case_{1} FAILED - AssertionError: 3 != 4",
    "{1:>6}  -rw-r--r--  {0}-{1}.log",
    "INFO {0}: finished in {1} ms",
)
_WORDS = ("parser", "retry", "cache", "importer", "billing", "login", "nightly", "index", "upload", "dates")

SENTENCES = [saying.format(place) for saying in _SAYINGS for place in _PLACES]
OUTPUT = [line.format(word, 17 + 31 * at) for line in _LINES for at, word in enumerate(_WORDS)]


def session_length(session_id: str) -> int:
    """How many messages a session has: most have dozens, a few have hundreds."""
    return max(4, min(LONGEST_SESSION, int(random.Random(f"length of {session_id}").lognormvariate(4, 0.9))))


def part_id(session_id: str, n: int) -> str:
    """The id of a session's n-th message, as whoever captures it would give it."""
    return f"{session_id}.{n:04d}"


def messages(session_id: str, count: int) -> Iterator[Row]:
    """The first `count` messages of a session."""
    rng = random.Random(session_id)
    at = FIRST_DAY + dt.timedelta(days=rng.randrange(DAYS), seconds=rng.randrange(14 * 3600))
    model = rng.choice(_MODELS)
    for n, (role, kind, tool) in zip(range(count), _turns(rng), strict=False):
        at += dt.timedelta(seconds=rng.expovariate(1 / _pause_s(rng, role)))
        body = _body(rng, kind)
        yield {
            "part_id": part_id(session_id, n),
            "session_id": session_id,
            "role": role,
            "kind": kind,
            "tool": tool,
            "ts": at,
            "tokens": len(body) // 4 if role == "assistant" else None,
            "body": body,
            "meta": {"model": model, "turn": n} if role == "assistant" else None,
        }


def _turns(rng: random.Random) -> Iterator[Turn]:
    """Somebody asks, the agent uses some tools, the agent answers; and again."""
    while True:
        yield "user", "text", None
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 8))):
            tool = rng.choices(_TOOLS, _TOOL_WEIGHTS)[0]
            yield "assistant", "tool_call", tool
            yield "tool", "tool_result", tool
        yield "assistant", "text", None


def _pause_s(rng: random.Random, role: str) -> float:
    """How long a message is waited for, on average: a person thinks, and now and then goes for lunch."""
    if role != "user":
        return 6.0
    return 3600.0 if rng.random() < 0.02 else 90.0


def _body(rng: random.Random, kind: str) -> str:
    low, high = BODY_CHARS
    size = low + int((high - low) * rng.random() ** 2)
    if kind == "tool_call":
        return json.dumps({"input": _filled(rng, SENTENCES, " ", size - 13)})
    if kind == "tool_result":
        return _filled(rng, OUTPUT, "\n", size)
    return _filled(rng, SENTENCES, " ", size)


def _filled(rng: random.Random, parts: list[str], between: str, size: int) -> str:
    """Parts in any order until there are enough; no part is shorter than 20 characters."""
    return between.join(rng.choices(parts, k=size // 20 + 1))[:size]
