"""Work that may need Spark, as a command or a route asks for it: typed, done by a worker that lives or in this process.

Each function decides whether a worker is of use at all, makes the request and reads its answer; both are plain JSON,
because they travel through the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from strandline.actors import default_actor
from strandline.ledger.ledger import MAIN
from strandline.worker import delegation

if TYPE_CHECKING:
    from strandline.lake import Lake
    from strandline.model.maintenance import Maintained
    from strandline.model.operations import Flushed, Loaded, Recovered
    from strandline.model.tables import Dedupe
    from strandline.operations.core.declared import Declared
    from strandline.operations.load.load_request import Mode
    from strandline.sinks.tick import Ticked


class Loading(TypedDict, total=False):
    """How files are loaded: see `Lake.load`."""

    branch: str
    again: bool
    key: str | None
    mode: Mode
    actor: str


class Adopting(TypedDict, total=False):
    """How a table is taken in: see `Lake.adopt`."""

    row_key: Sequence[str]
    partition_by: Sequence[str]
    dedupe: Dedupe
    actor: str


def flush(
    lake: Lake, tables: Sequence[str] = (), *, branch: str = MAIN, actor: str = "", in_this_process: bool = False
) -> list[Flushed]:
    """Move the tails of these tables, or of all, into Iceberg; no worker is asked where nothing waits."""
    from strandline.model.operations import Flushed

    view = lake.view(branch).whole()  # rows of a dropped table are still delivered, and looked back at
    names = [view.branch_table(name).table.name for name in tables or view.tables]
    idle = not any(view.branch_table(name).tail for name in names)
    arguments = {"tables": list(dict.fromkeys(names)), "branch": branch, "actor": actor or default_actor()}
    answers = _carry_out(lake, "flush", arguments, in_this_process=in_this_process or idle)
    return [Flushed(**answer) for answer in answers]


def load(
    lake: Lake, table: str, files: Sequence[str], *, in_this_process: bool = False, **how: Unpack[Loading]
) -> Loaded:
    """Load files, once however often it is called: by a worker only if they are too large for the ledger alone.

    A load that is to be done `again` is not asked for: taken back from a worker that had nearly done it, it would be
    loaded twice more. The same goes for modes that run every time.
    """
    from strandline.model.operations import Loaded

    again, mode = how.get("again", False), how.get("mode", "append")
    alone = in_this_process or again or mode != "append" or not lake.load_needs_spark(files)
    arguments = {
        "table": table,
        "files": list(files) if alone else [_absolute(name) for name in files],
        "branch": how.get("branch", MAIN),
        "again": again,
        "key": how.get("key"),
        "mode": mode,
        "actor": how.get("actor") or default_actor(),
    }
    local_files = any(map(_is_local, files))
    return Loaded(**_carry_out(lake, "load", arguments, in_this_process=alone, local_files=local_files))


def adopt(lake: Lake, name: str, source: str, *, in_this_process: bool = False, **how: Unpack[Adopting]) -> Loaded:
    """Take an existing Iceberg table or a folder of Parquet files in as a new table; the source is only read."""
    from strandline.model.operations import Loaded

    arguments = {
        "name": name,
        "source": _absolute(source) if Path(source).expanduser().exists() else source,
        "row_key": list(how.get("row_key", ())),
        "partition_by": list(how.get("partition_by", ())),
        "dedupe": how.get("dedupe", "table"),
        "actor": how.get("actor") or default_actor(),
    }
    local_files = _is_local(source)
    return Loaded(**_carry_out(lake, "adopt", arguments, in_this_process=in_this_process, local_files=local_files))


def tick(
    lake: Lake, names: Sequence[str] = (), *, actor: str = "", take_over: bool = False, in_this_process: bool = False
) -> list[Ticked]:
    """Deliver what is due, now: of these sinks, or of all."""
    from strandline.sinks.tick import Ticked

    arguments = {"names": list(names), "actor": actor or default_actor(), "take_over": take_over}
    return [Ticked(**stream) for stream in _carry_out(lake, "tick", arguments, in_this_process=in_this_process)]


def maintain(
    lake: Lake,
    operation: Declared,
    tables: Sequence[str] = (),
    *,
    branch: str = MAIN,
    actor: str = "",
    in_this_process: bool = False,
) -> list[Maintained]:
    """Do any operation that was declared; whether a person has to agree, `lake.maintenance.unagreed` says."""
    from strandline.model.maintenance import Maintained

    request = operation.request(tables, branch, actor or default_actor())
    answers = _carry_out(lake, operation.name, request, in_this_process=in_this_process)
    return [Maintained(**answer) for answer in answers]


def recover(lake: Lake, *, in_this_process: bool = False) -> list[Recovered]:
    """Finish or undo what dead processes left, after the silence that tells whether they are dead."""
    from strandline.model.operations import Recovered

    return [Recovered(**answer) for answer in _carry_out(lake, "recover", {}, in_this_process=in_this_process)]


def _carry_out(
    lake: Lake, kind: str, arguments: Mapping[str, Any], *, in_this_process: bool, local_files: bool = False
) -> Any:
    return delegation.carry_out(
        lake,
        kind,
        arguments,
        in_this_process=in_this_process,
        local_files=local_files,
        report=lake.context.report,
    )


def _is_local(name: str) -> bool:
    return "://" not in name or name.startswith("file://")


def _absolute(name: str) -> str:
    """A worker has another current folder."""
    return name if "://" in name else str(Path(name).expanduser().absolute())
