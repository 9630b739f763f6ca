"""Random commits on tables with constraints, against dictionaries that are checked as a whole after each of them."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.errors import Conflict, NotFound
from strandline.lake import Lake

Rows = dict[str, dict[str, Any]]

IDS = st.sampled_from(["a", "b", "c", "d"])
TEAMS = st.sampled_from(["x", "y"])


class Step(NamedTuple):
    """One statement: what, on which row, with which fields."""

    kind: str
    id: str
    fields: dict[str, Any]


VALUES = {"email": st.none() | st.sampled_from("12"), "team": st.none() | TEAMS, "boss": st.none() | IDS}
STEPS = st.one_of(
    st.builds(Step, st.just("put"), IDS, st.fixed_dictionaries(VALUES)),
    st.builds(Step, st.just("patch"), IDS, st.fixed_dictionaries({}, optional=VALUES)),
    st.builds(Step, st.just("delete"), IDS, st.just({})),
    st.builds(Step, st.sampled_from(["team", "no team"]), TEAMS, st.just({})),
)
COMMITS = st.lists(st.lists(STEPS, min_size=1, max_size=4), min_size=1, max_size=6)
ON_DELETE = st.sampled_from(["restrict", "cascade"])
BOUNDS = st.sampled_from([(0, 2), (1, 2), (0, None)])


class Refused(Exception):
    """What the model says to a commit that breaks something."""


def after(teams: set[str], members: Rows, steps: list[Step], on_delete: dict[str, str]) -> tuple[set[str], Rows]:
    """The state that a commit leads to, before it is checked: a cascade happens at its statement."""
    teams_now, now = set(teams), {id: dict(row) for id, row in members.items()}

    def without(column: str, id: str) -> None:
        if on_delete[column] == "cascade":
            for one in [one for one, row in now.items() if row[column] == id]:
                if now.pop(one, None) is not None:
                    without("boss", one)

    for step in steps:
        match step.kind:
            case "team":
                teams_now.add(step.id)
            case "no team":
                if step.id in teams_now:
                    teams_now.discard(step.id)
                    without("team", step.id)
            case "put":
                now[step.id] = dict(step.fields)
            case "delete":
                if now.pop(step.id, None) is not None:
                    without("boss", step.id)
            case "patch":
                if step.id not in now:
                    raise NotFound("a row that is not there")
                now[step.id] |= step.fields
    return teams_now, now


def check(teams: set[str], members: Rows, bounds: tuple[int, int | None]) -> None:
    """Refused unless a state keeps every constraint."""
    emails = Counter(row["email"] for row in members.values() if row["email"] is not None)
    sizes = Counter(row["team"] for row in members.values() if row["team"] is not None)
    low, high = bounds
    if any(number > 1 for number in emails.values()):
        raise Refused("unique")
    if not (sizes.keys() <= teams and {row["boss"] for row in members.values()} <= {None, *members}):
        raise Refused("reference")
    if any(sizes[team] < low or (high is not None and sizes[team] > high) for team in teams):
        raise Refused("cardinality")


NUMBERS = count()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commits=COMMITS, team_gone=ON_DELETE, boss_gone=ON_DELETE, bounds=BOUNDS)
@example(
    commits=[
        [Step("team", "x", {}), Step("put", "a", {"email": "1", "team": "x", "boss": "a"})],
        [Step("put", "b", {"email": "2", "team": "x", "boss": "a"})],
        [Step("no team", "x", {}), Step("patch", "b", {"team": None})],
    ],
    team_gone="cascade",
    boss_gone="cascade",
    bounds=(1, 2),
)
@example(
    commits=[
        [Step("team", "x", {}), Step("put", "a", {"email": None, "team": "x", "boss": None})],
        [Step("put", "b", {"email": None, "team": None, "boss": "a"})],
        [Step("no team", "x", {}), Step("team", "x", {}), Step("put", "c", {"email": "1", "team": "x", "boss": None})],
    ],
    team_gone="cascade",
    boss_gone="cascade",
    bounds=(0, 2),
)
def test_every_commit_is_stored_or_refused_as_the_model_says(
    lake: Lake, commits: list[list[Step]], team_gone: str, boss_gone: str, bounds: tuple[int, int | None]
) -> None:
    """Exactly those commits are refused after which some row would break a rule; the others lead to the same rows."""
    number = next(NUMBERS)
    team, member = f"team{number}", f"member{number}"
    lake.create_table(team, {"id": "string"}, key=["id"])
    columns = {"id": "string", "email": "string?", "team": "string?", "boss": "string?"}
    low, high = bounds
    rules = [
        "unique(email)",
        f"reference(team -> {team}, {team_gone})",
        f"reference(boss -> {member}, {boss_gone})",
        f"cardinality(team: {low}..{'' if high is None else high})",
    ]
    lake.create_table(member, columns, key=["id"], constraints=rules)
    teams: set[str] = set()
    members: Rows = {}
    for steps in commits:
        try:
            then = after(teams, members, steps, {"team": team_gone, "boss": boss_gone})
            check(*then, bounds)
            expected = "stored"
            teams, members = then
        except NotFound:
            expected = "not_found"
        except Refused:
            expected = "constraint"
        assert outcome(lake, steps, team, member) == expected
        view = lake.view()
        assert {row["id"] for row in view.table(team).to_pylist()} == teams
        assert {row.pop("id"): row for row in view.table(member).to_pylist()} == members


def outcome(lake: Lake, steps: list[Step], team: str, member: str) -> str:
    statements: list[Any] = []
    for step in steps:
        match step.kind:
            case "team":
                statements.append(sl.put(team, {"id": step.id}))
            case "no team":
                statements.append(sl.delete(team, step.id))
            case "put":
                statements.append(sl.put(member, {"id": step.id, **step.fields}))
            case "patch":
                statements.append(sl.patch(member, step.id, step.fields))
            case "delete":
                statements.append(sl.delete(member, step.id))
    try:
        lake.mutate(statements)
    except NotFound:
        return "not_found"
    except Conflict as error:
        return str(error.detail["kind"])
    return "stored"
