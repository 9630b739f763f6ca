"""`python -m examples.demo [DIR] [--rows N] [--json]`: exit code 0 when every figure is right, 1 when one is not."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

import orjson
from rich.console import Console

from examples.demo.conductor import conduct
from examples.demo.narrator import Narrator
from examples.demo.plan import LEAST_ROWS
from examples.demo.report import as_document, show
from examples.demo.run import Settings
from strandline import logs
from strandline.errors import StrandError


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration; returns the exit code."""
    options = _parser().parse_args(arguments)
    settings = Settings(Path(options.folder), options.rows, options.seed)
    logs.set_format("text")
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(stderr=options.json, highlight=False)
    try:
        with Narrator(console) as narrator:
            _check_java()
            outcome = conduct(settings, narrator)
    except StrandError as error:
        print(f"error[{error.code}]: {error}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: the processes of the demonstration are stopped", file=sys.stderr)
        return 130
    if options.json:
        print(orjson.dumps(as_document(outcome), option=orjson.OPT_INDENT_2).decode())
    else:
        show(console, outcome, settings.root)
    return 1 if outcome.wrong else 0


def _check_java() -> None:
    """Say now that Java is missing, and not from within a child process."""
    from strandline.engines.spark import java

    java.find()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _rows(text: str) -> int:
    rows = int(text.replace(",", "").replace("_", ""))
    if rows < LEAST_ROWS:
        raise argparse.ArgumentTypeError(f"at least {LEAST_ROWS}")
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Four processes write to a lake, and a worker flushes it, forwards it to a second lake and writes "
        "it to files. A writer is killed on the way, and the worker twice; then every destination is compared with "
        "what was acked.",
    )
    parser.add_argument("folder", nargs="?", default="demo-lake", help="where to make the lake (default: demo-lake)")
    parser.add_argument(
        "--rows", type=_rows, default=200_000, help="how many rows are offered in all (default: 200000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="another number makes other messages")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout; the steps go to stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
