"""What a command is given besides its own arguments: the flags that every command takes, and the ways to answer.

Flags such as `--json` are accepted before and after the command, because that is where people type them. So they are
taken out of the line first, and what is left is parsed as if they had not been there.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from strandline import logs, spans
from strandline.cli import output

if TYPE_CHECKING:
    import typer

    from strandline.config import QueryConfig
    from strandline.errors import StrandError
    from strandline.lake import Lake

_FLAGS = {"--json": "json", "-q": "quiet", "--quiet": "quiet", "--debug": "debug"}
_VALUES = {"--lake": "lake", "--log-format": "log_format"}
_LOG_FORMATS = ("text", "json")


@dataclass
class Session:
    """One run of `strand`."""

    lake: str | None = None
    json: bool = False
    quiet: bool = False
    debug: bool = False
    log_format: logs.Format = "text"
    own_process: bool = False
    tell: Callable[[StrandError], int] = lambda error: error.exit_code
    """Prints an error, as the command line does at its end."""
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def open(self, *, read_only: bool = False) -> Iterator[Lake]:
        """The lake that the line, the environment or the current folder names."""
        from strandline.cli.progress import Progress
        from strandline.config import find_root
        from strandline.errors import HistoryGone
        from strandline.lake import Lake

        root = find_root(Path(self.lake) if self.lake is not None else None)
        with (
            spans.traces("strandline"),
            Progress(shown=not self.quiet) as progress,
            Lake(root, read_only=read_only, report=progress.report) as lake,
        ):
            for recovered in lake.recovered:
                self.note(f"operation {recovered.op_id} of a dead process was {_past(recovered.outcome)}")
            try:
                yield lake
            except HistoryGone as error:
                reason = lake.displaced or lake.context.fence.why_not_there()
                if reason is None:
                    raise
                raise reason from error

    @contextmanager
    def delegating(self) -> Iterator[None]:
        """Say what becomes of work that a worker was asked for, when the command is interrupted."""
        from strandline.worker.delegation import Left

        try:
            yield
        except Left as left:
            self.note(
                "cancelled: the worker had not begun it"
                if left.cancelled
                else f"the worker goes on with it; `strand status` shows request {left.request_id}"
            )
            raise

    @contextmanager
    def without_pandas(self) -> Iterator[None]:
        """Keep PyArrow from importing pandas, which it does to recognise a Series and which takes a third of a second.

        PyArrow asks once and remembers the answer, so this is only for a process that ends with the command.
        """
        if not self.own_process or "pandas" in sys.modules:
            yield
            return
        sys.meta_path.insert(0, _NoPandas)
        try:
            yield
        finally:
            sys.meta_path.remove(_NoPandas)

    @contextmanager
    def walled(self, limits: QueryConfig) -> Iterator[None]:
        """Let the operating system end a query that DuckDB does not; only in a process that runs this command alone."""
        if not self.own_process:
            yield
            return
        from strandline.cli.walled import walled

        with walled(limits, self.tell):
            yield

    @contextmanager
    def ending_spark(self) -> Iterator[None]:
        """Let no JVM go on with a query that was given up; only in a process that runs this command alone."""
        from strandline.errors import TooLarge

        try:
            yield
        except (TooLarge, KeyboardInterrupt):
            if self.own_process:
                from strandline.engines.spark import session

                session.kill()
            raise

    def emit(self, result: object, human: Callable[[], None] | None = None) -> None:
        """The answer: its JSON document, or whatever `human` prints. --quiet leaves out notes, never this."""
        if self.json:
            output.write_json(self.document_of(result))
        elif human is not None:
            human()

    def document_of(self, result: object) -> object:
        """A result as --json prints it, with what the user should know of this run."""
        from strandline.lake.documents import document

        plain = document(result)
        if isinstance(plain, dict) and self.warnings:
            return {**plain, "warnings": [*plain.get("warnings", []), *self.warnings]}
        return plain

    def keep_log(self) -> None:
        """Log everything from here on: this command works until it is stopped, and its log is all that it says."""
        logs.set_format(self.log_format)

    def warn(self, text: str) -> None:
        """What the user should know, though the command did its work."""
        if text not in self.warnings:
            self.warnings.append(text)
            output.to_stderr(f"warning: {text}")

    def note(self, text: str) -> None:
        """A remark that no reader needs."""
        if not self.quiet and not self.json:
            output.to_stderr(text)

    @contextmanager
    def catching_warnings(self) -> Iterator[None]:
        """Our own warnings become lines for people; those of libraries are for their developers."""

        def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
            if category.__module__.startswith("strandline"):
                self.warn(str(message))
            elif self.debug:
                output.to_stderr(f"{category.__name__}: {message}")

        with warnings.catch_warnings():
            warnings.simplefilter("always" if self.debug else "default")
            warnings.showwarning = show
            logs.set_format(self.log_format, is_answering=True)
            try:
                yield
            finally:
                logs.set_format("text")


class _NoPandas:
    """An import hook that finds nothing under one name."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Refuse pandas, and leave everything else to the hooks behind."""
        if name == "pandas":
            raise ImportError("this command works without pandas", name=name)


def session_of(context: typer.Context) -> Session:
    """The session of the command that is being run."""
    session = context.obj
    assert isinstance(session, Session)
    return session


def hoist(arguments: Sequence[str]) -> tuple[Session, list[str]]:
    """The flags of every command, wherever they stand before `--`, and the rest of the line.

    What is wrong (a flag without its value) stays in the line, at its front, where the parser complains about it.
    """
    session = Session()
    rest: list[str] = []
    wrong: list[str] = []
    todo = list(arguments)
    while todo:
        argument = todo.pop(0)
        name, equals, value = argument.partition("=")
        if argument == "--":
            rest += [argument, *todo]
            break
        if argument in _FLAGS:
            setattr(session, _FLAGS[argument], True)
        elif name in _VALUES and (equals or todo):
            value = value if equals else todo.pop(0)
            if name == "--log-format" and value not in _LOG_FORMATS:
                wrong += [name, value]
            else:
                setattr(session, _VALUES[name], value)
        elif name in _VALUES:
            wrong.append(argument)
        else:
            rest.append(argument)
    return session, [*wrong, *rest]


def _past(outcome: str) -> str:
    return {"rolled_forward": "finished", "rolled_back": "undone"}.get(outcome, outcome)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person is looking."""
    return bool((stream or sys.stdout).isatty())
