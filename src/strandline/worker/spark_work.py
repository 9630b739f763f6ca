"""The work that needs Spark, by its name: the same functions for a worker that was asked and a command that does it.

What goes in and what comes out is plain JSON, because it travels through the ledger. Each of them may be begun again
after a crash in the middle and then finishes what is left: that is what lets a command take back what it asked a worker
for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict

from strandline.errors import Busy
from strandline.lake import Lake
from strandline.model.operations import Arguments
from strandline.operations.core import registry
from strandline.operations.core.recovery import recover_after_silence

Work = Callable[[Lake, Arguments, threading.Event], object]


def perform(lake: Lake, kind: str, arguments: Arguments, stop: threading.Event | None = None) -> object:
    """Do it, in this process."""
    if kind in registry.ENTRIES:
        requested = registry.declared(kind).requested(arguments)
        done = lake.maintenance.run(requested.operation, requested.tables, requested.branch, requested.actor)
        return [asdict(maintained) for maintained in done]
    return WORK[kind](lake, arguments, stop or threading.Event())


def _flush(lake: Lake, arguments: Arguments, stop: threading.Event) -> object:
    done = []
    for table in arguments["tables"]:
        if stop.is_set():
            raise Busy("the worker was told to stop", reason="stopping")
        done += [asdict(flushed) for flushed in lake.flush(table, actor=arguments["actor"], branch=arguments["branch"])]
    return done


def _tick(lake: Lake, arguments: Arguments, stop: threading.Event) -> object:
    done = lake.tick(*arguments["names"], actor=arguments["actor"], take_over=arguments["take_over"], stop=stop)
    return [asdict(ticked) for ticked in done]


def _load(lake: Lake, arguments: Arguments, _stop: threading.Event) -> object:
    options = {name: arguments[name] for name in ("actor", "branch", "key", "mode")}
    return asdict(lake.load(arguments["table"], arguments["files"], again=arguments["again"], **options))


def _adopt(lake: Lake, arguments: Arguments, _stop: threading.Event) -> object:
    options = {name: arguments[name] for name in ("actor", "row_key", "partition_by", "dedupe")}
    return asdict(lake.adopt(arguments["name"], arguments["source"], **options))


def _recover(lake: Lake, _arguments: Arguments, stop: threading.Event) -> object:
    done = [asdict(recovered) for recovered in recover_after_silence(lake.context, stop)]
    if stop.is_set():
        raise Busy("the worker was told to stop", reason="stopping")
    return done


WORK: dict[str, Work] = {
    "flush": _flush,
    "tick": _tick,
    "load": _load,
    "adopt": _adopt,
    "recover": _recover,
}
"""Besides the operations that are declared (`operations/core/registry.py`)."""
