"""`strand branch`, `tag`, `merge`, `diff`, `changes`, `log`, `show`: lines of commits, and what each changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline import private
from strandline.cli import output
from strandline.cli.maintenance import ask_first
from strandline.cli.params import Actor, All, Branch
from strandline.cli.session import Session, session_of
from strandline.errors import BadRequest, PreconditionFailed
from strandline.model.wording import counted

if TYPE_CHECKING:
    from strandline.lake.branches import BranchEntry, CommitEntry, ShownCommit
    from strandline.model.history.changes import RowChange, RowDiff
    from strandline.model.history.merge import Merged

VALUE_CHARS = 40
CONFLICT = 4


def register(app: typer.Typer) -> None:
    """Put these commands into the tree."""
    group = typer.Typer(help="Make, list, rename and delete branches.", no_args_is_help=True, rich_markup_mode=None)
    group.command("create", short_help="Make a branch, at a newest or at an older commit.")(create)
    group.command("list")(list_)
    group.command("rename")(rename)
    group.command("delete")(delete)
    group.command("protect", short_help="Let a branch change by merges alone.")(protect)
    app.add_typer(group, name="branch")
    app.command("log")(log)
    app.command("show", short_help="One commit: who made it, when, and the rows that it changed.")(show)
    app.command("tag", short_help="Give a commit a name; list the names, or delete one.")(tag)
    app.command("merge", short_help="Bring what a branch changed into another one.")(merge)
    app.command("diff", short_help="The rows of keyed tables that differ between two points.")(diff)
    app.command("changes", short_help="What commits changed in a keyed table, row by row.")(changes)


Name = Annotated[str, typer.Argument(metavar="NAME", help="The branch's name, as in git.")]


def create(
    context: typer.Context,
    name: Name,
    from_: Annotated[str, typer.Option("--from", metavar="BRANCH|TAG|COMMIT", help="Where it begins.")] = "main",
) -> None:
    """Make a branch at the newest commit of another one, at a tag or at any commit.

    From a newest commit no data is copied. From an older one, Spark writes files again without later rows.

    \b
    Example: strand branch create try-out --from main
    """
    session = session_of(context)
    with session.open() as lake:
        made = lake.branches.new(name, from_)
    session.emit(made, lambda: output.say(f"Made branch {name} at {made.tip or 'nothing yet'}, from {from_}."))


def list_(context: typer.Context) -> None:
    """List the branches with their newest commits.

    \b
    Example: strand branch list
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        branches = lake.branches.entries()
    heads = ["branch", "tip", "from", "made"]
    rows = [
        [_named(branch), branch.tip or "", branch.from_ or "", output.when(branch.created_at)] for branch in branches
    ]
    session.emit(branches, lambda: output.table(heads, rows))


def _named(branch: BranchEntry) -> str:
    return f"{branch.branch} (protected)" if branch.protected else branch.branch


def rename(
    context: typer.Context, name: Name, to: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")]
) -> None:
    """Give a branch another name.

    \b
    Example: strand branch rename try-out experiment
    """
    session = session_of(context)
    with session.open() as lake:
        renamed = lake.branches.rename(name, to)
    session.emit(renamed, lambda: output.say(f"Branch {name} is called {to} now."))


def delete(
    context: typer.Context,
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Also with commits that are on no other branch.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --force: do it without asking.")] = False,
    actor: Actor = "",
) -> None:
    """Remove a branch. With --force also commits that only it has, and on a terminal it asks first.

    \b
    Example: strand branch delete try-out
    """
    session = session_of(context)
    with session.open() as lake:
        if force:
            ask_first(session, f"Branch {name} would be deleted, with the commits that only it has", yes=yes)
        deleted = lake.branches.delete(name, force=force, actor=actor)
    session.emit(deleted, lambda: output.say(f"Deleted branch {name}."))


def protect(
    context: typer.Context,
    name: Name,
    off: Annotated[bool, typer.Option("--off", help="Lift it.")] = False,
) -> None:
    """Let a branch change by merges alone, and keep it from being deleted or renamed.

    \b
    Example: strand branch protect main
    """
    session = session_of(context)
    with session.open() as lake:
        protection = lake.branches.protect(name, protected=not off)
    text = f"Branch {name} is not protected any more." if off else f"Branch {name} is protected: it changes by merges."
    session.emit(protection, lambda: output.say(text))


def tag(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The tag; without one, all are listed.")] = None,
    commit: Annotated[str, typer.Argument(metavar="[COMMIT]", help="A commit, branch, tag or time.")] = "main",
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag.")] = False,
) -> None:
    """Give a commit a name, and keep what it needs to be read; or list the tags, or delete one.

    \b
    Example: strand tag v1 main
    """
    session = session_of(context)
    if name is None and delete:
        raise typer.BadParameter("name the tag that is to be deleted", ctx=context)
    if name is None:
        _list_tags(session)
        return
    with session.open() as lake:
        if delete:
            deleted = lake.branches.delete_tag(name)
            session.emit(deleted, lambda: output.say(f"Deleted tag {name}."))
            return
        made = lake.branches.new_tag(name, commit)
    session.emit(made, lambda: output.say(f"Tag {name} is commit {made.commit}."))


def _list_tags(session: Session) -> None:
    with session.open(read_only=True) as lake:
        tags = lake.branches.tag_entries()
    rows = [[tag.tag, tag.commit, output.when(tag.created_at)] for tag in tags]

    def human() -> None:
        if rows:
            output.table(["tag", "commit", "made"], rows)
        else:
            output.say("There are no tags yet. `strand tag NAME` makes one.")

    session.emit(tags, human)


def log(
    context: typer.Context,
    branch: Branch = "main",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many.")] = 50,
    before: Annotated[str | None, typer.Option(metavar="COMMIT", help="Only older ones: the next page.")] = None,
) -> None:
    """The commits of a branch, newest first.

    \b
    Example: strand log --limit 10
    """
    session = session_of(context)
    with session.open(read_only=True) as lake:
        commits = lake.branches.commits(branch, limit=limit, before=before)

    def human() -> None:
        if not commits:
            output.say("There are no commits.")
            return
        output.table(
            ["commit", "time", "kind", "actor", "tables", "message"],
            [
                [commit.commit, output.when(commit.at), commit.kind, commit.actor, _tables(commit), commit.message]
                for commit in commits
            ],
        )
        if len(commits) == limit:
            output.say(f"Older ones: `strand log --before {commits[-1].commit}`")

    session.emit(commits, human)


def show(
    context: typer.Context,
    commit: Annotated[
        str, typer.Argument(metavar="COMMIT", help="An id or its beginning, a branch, a tag or a time.")
    ] = "main",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many rows.")] = 20,
) -> None:
    """One commit: who made it, when, on top of what, and the rows that it changed.

    \b
    Example: strand show 019a8c
             strand show try-out
    """
    session = session_of(context)
    with session.without_pandas(), session.open(read_only=True) as lake:
        shown = lake.branches.show(commit, limit=limit)
    session.emit(shown, lambda: _show_commit(shown, limit))


def _show_commit(commit: ShownCommit, limit: int) -> None:
    output.say(f"commit {commit.commit}")
    facts = {
        "parents": ", ".join(commit.parents) or "none",
        "branch": commit.branch,
        "kind": commit.kind,
        "actor": commit.actor,
        "time": output.when(commit.at),
        "seq": f"{commit.seq:,}",
        "tables": _tables(commit) or "none",
        "message": commit.message,
    }
    for name, text in facts.items():
        output.say(f"  {name:<8} {text}")
    if commit.changes:
        output.say()
        _show_differences(commit.changes)
        if commit.more:
            output.say(f"More: --limit {limit * 10}")
    elif commit.changes is None and commit.parents:
        output.say("What it changed is not kept any more.")


def _tables(commit: CommitEntry) -> str:
    return ", ".join(f"{table} {rows:,}" for table, rows in commit.tables.items())


def merge(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The branch whose changes are taken.")],
    into: Annotated[str, typer.Option(metavar="BRANCH", help="The branch that gets them.")] = "main",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would come of it.")] = False,
    ours: Annotated[bool, typer.Option("--ours", help="In a conflict the target's side counts.")] = False,
    theirs: Annotated[bool, typer.Option("--theirs", help="In a conflict the source's side counts.")] = False,
    resolve: Annotated[str | None, typer.Option(metavar="FILE", help="Decisions, one for each conflict.")] = None,
    write: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --dry-run: write the conflicts there, to be decided.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --write: also over a file with decisions in it.")] = False,
    message: Annotated[str, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = "",
    actor: Actor = "",
    every: All = False,
) -> None:
    """Bring what a branch changed into another one: rows, and fields of rows. Nothing is written while both disagree.

    Exit code 4 when they disagree, of a --dry-run too.

    \b
    Example: strand merge try-out --into main
    """
    session = session_of(context)
    if sum((ours, theirs, resolve is not None)) > 1:
        raise BadRequest("more than one decides", hint="Give one of --ours, --theirs and --resolve.")
    if write is not None and not dry_run:
        raise BadRequest("--write goes with --dry-run", hint="Add --dry-run, decide in the file, then use --resolve.")
    if write is not None and not yes:
        _refuse_decided(Path(write))
    decision: Any = "ours" if ours else "theirs" if theirs else _read_json(resolve) if resolve is not None else None
    with session.open(read_only=dry_run) as lake:
        done = lake.merge(source, into, actor=actor, message=message, dry_run=dry_run, resolve=decision)
    if write is not None:
        from strandline.model.history.merge import resolution_file

        private.write_text(Path(write), json.dumps(resolution_file(done), indent=2, ensure_ascii=False) + "\n")
    session.emit(done, lambda: _say_merged(done, write, dry_run=dry_run))
    if done.outcome == "conflicts":
        raise typer.Exit(CONFLICT)


def _refuse_decided(path: Path) -> None:
    """Refuse to write conflicts over a file in which a person has begun to decide, and over any other file."""
    import orjson

    from strandline.model.history.merge import read_resolution

    if not path.exists():
        return
    try:
        resolution = read_resolution(orjson.loads(path.read_bytes()))
    except (orjson.JSONDecodeError, BadRequest, OSError):
        what = f"{path} is there already, and no file of conflicts"
    else:
        decisions = len(resolution.tables) + len(resolution.rows)
        if not decisions:
            return
        what = f"{path} has {counted(decisions, 'decision')} in it already"
    raise PreconditionFailed(what, hint="Name another file; `--yes` writes over this one.")


def diff(
    context: typer.Context,
    before: Annotated[str, typer.Argument(metavar="A", help="A branch, tag, commit or time.")],
    after: Annotated[str | None, typer.Argument(metavar="[B]", help="Another one; without it, A against main.")] = None,
    table: Annotated[str | None, typer.Option(metavar="TABLE", help="Only this table.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many rows.")] = 100,
    skip: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the first so many: the next page.")] = 0,
    branch: Branch = "main",
) -> None:
    """The rows of keyed tables that are not the same at two points of the history, as they are at each.

    \b
    Example: strand diff main try-out
             strand diff try-out          (what it has that main has not)
    """
    session = session_of(context)
    before, after = (before, after) if after is not None else ("main", before)
    with session.without_pandas(), session.open(read_only=True) as lake:
        page = lake.branches.differences(before, after, table=table, branch=branch, skip=skip, limit=limit)

    def human() -> None:
        if not page.rows:
            output.say("There is no difference.")
            return
        _show_differences(page.rows)
        if page.more:
            output.say(f"More: --skip {skip + limit}")

    session.emit(page, human)


def _show_differences(rows: Sequence[RowDiff]) -> None:
    shown = [[row.table, row.kind, _key(row.key), _said_change(row.key, row.before, row.after)] for row in rows]
    output.table(["table", "what", "key", "change"], shown)


def changes(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A keyed table.")],
    since: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Changes after this _seq.")] = 0,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="So many.")] = 100,
    branch: Branch = "main",
) -> None:
    """What commits changed in a keyed table, one after another: each row before and after, with who and which commit.

    To go on later, give the `continuation` of the answer as --since.

    \b
    Example: strand changes person --since 1200 --branch try-out
    """

    session = session_of(context)
    with session.without_pandas(), session.open(read_only=True) as lake:
        page = lake.branches.changes_page(table, since, branch=branch, limit=limit)

    def human() -> None:
        if not page.rows:
            output.say(f"Nothing has changed since seq {since}." if since else "Nothing has changed yet.")
            return
        heads = ["seq", "time", "commit", "actor", "what", "key", "change"]
        output.table(heads, [_change_row(change) for change in page.rows])
        if page.more:
            output.say(f"More: --since {page.continuation}")

    session.emit(page, human)


def _change_row(change: RowChange) -> list[Any]:
    text = _said_change(change.key, change.before, change.after)
    return [change.seq, output.when(change.at), change.commit, change.actor, change.kind, _key(change.key), text]


Row = Mapping[str, Any]


def _said_change(key: Row, before: Row | None, after: Row | None) -> str:
    """What a row became, by field; of one that came or went, all of it."""
    if before is None or after is None:
        row = after or before or {}
        return ", ".join(f"{name}: {_value(value)}" for name, value in row.items() if name not in key)
    changed = (name for name in after if before.get(name) != after[name])
    return ", ".join(f"{name}: {_value(before.get(name))} → {_value(after[name])}" for name in changed)


def _value(value: Any) -> str:
    text = output.json_bytes(value).decode()
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"


def _read_json(name: str) -> Any:
    import orjson

    from strandline.cli.params import input_path

    try:
        return orjson.loads(input_path(name).read_bytes())
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{name} is not JSON: {error}", hint="Mend it, or write it anew with --dry-run.") from None


def _say_merged(done: Merged, write: str | None, *, dry_run: bool) -> None:
    from strandline.model.history.merge import conflict_entry, tables_of
    from strandline.model.reporting import listed_lines

    rows = ", ".join(f"{name} {counted(count, 'row')}" for name, count in done.tables.items()) or "no rows"
    match done.outcome:
        case "up_to_date":
            output.say(f"{done.into} has all of {done.source} already.")
        case "fast_forward":
            verb = "would move" if dry_run else "moved"
            output.say(f"{done.into} {verb} forward to {done.source_commit} ({rows}).")
        case "merged":
            verb = "Would merge" if dry_run else "Merged"
            output.say(f"{verb} {done.source} into {done.into}: {rows}.")
        case "conflicts":
            output.say(f"{done.source} and {done.into} disagree: {tables_of(done.conflicts)}.")
            listed = {
                "conflicts": [conflict_entry(conflict) for conflict in done.conflicts],
                "count": len(done.conflicts),
            }
            for line in listed_lines(listed):
                output.say(f"  {output.cell(line)}")
            if write is not None:
                output.say(f"Decide in {write}, by ours, theirs or a row, and then use --resolve {write}.")


def _key(key: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in key.values())
