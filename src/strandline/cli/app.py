"""The tree of commands. Each group is a file beside this one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from strandline import __version__
from strandline.cli import (
    audit,
    backups,
    doctor,
    lakes,
    maintenance,
    output,
    quarantine,
    reading,
    recovery,
    schemas,
    serve,
    service,
    setup,
    sinks,
    status,
    tables,
    tokens,
    up,
    versions,
    worker,
    writing,
)
from strandline.lake import operations

HELP = """Capture rows durably, keep them in Iceberg, query them with SQL.

The lake is --lake, else $STRAND_LAKE, else the nearest folder upwards that holds a strand.toml.

\b
First steps:
  strand init lake && cd lake
  strand table create messages --columns "id:string,body:string?" --row-key id
  echo '{"id": "1", "body": "hello"}' | strand append messages
  strand sql "select * from messages"
"""


class Interrupted(BaseException):
    """SIGINT, past Typer, which has an answer of its own to it."""


class PipeClosed(BaseException):
    """The reader of our output has had enough."""


SUBJECTS = {
    "Begin": ("setup", "init", "table", "schema", "version"),
    "Write rows": ("append", "load", "adopt", "flush"),
    "Read rows": ("sql", "tail", "export", "changes"),
    "Branches and history": ("branch", "merge", "diff", "log", "show", "tag"),
    "Deliver elsewhere": ("sink",),
    "Run": ("up", "serve", "worker", "service", "token"),
    "Look after a lake": ("status", "doctor", "recover", "audit", "quarantine"),
    "Tidy up": tuple(operations.listed()),
    "Copy and move lakes": ("backup", "restore", "clone", "relocate"),
}
"""The commands by what they are for, as `strand --help` lists them. One that is missing here stands under Others."""


class _Root(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by subject, each with the whole of its short help."""
        listed = {name for names in SUBJECTS.values() for name in names}
        others = [name for name in self.commands if name not in listed]
        width = max(map(len, self.commands))
        for subject, names in {**SUBJECTS, "Others": others}.items():
            shown = [(name, self.commands[name]) for name in names if not self.commands[name].hidden]
            if shown:
                with formatter.section(subject):
                    limit = formatter.width - 6 - width
                    rows = [(name.ljust(width), command.get_short_help_str(limit)) for name, command in shown]
                    formatter.write_dl(rows)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; that of an operation is made now, of what the operation declares."""
        return maintenance.command_of(cmd_name) or super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise PipeClosed from None


class LogFormat(StrEnum):
    """How log lines look on stderr."""

    text = "text"
    json = "json"


app = typer.Typer(
    cls=_Root,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(is_set: bool) -> None:
    if is_set:
        output.say(f"strandline {__version__}")
        raise typer.Exit


# Here for the help and for completion alone: `session.hoist` has taken these flags out of the line before it is parsed.
@app.callback()
def _every_command(
    lake: Annotated[str | None, typer.Option(metavar="DIR", help="The lake's folder.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress, no remarks.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    log_format: Annotated[LogFormat, typer.Option(help="Log lines on stderr.")] = LogFormat.text,
    version: Annotated[
        bool, typer.Option("--version", help="Say the version.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    pass


lakes.register(app)
setup.register(app)
tables.register(app)
writing.register(app)
reading.register(app)
sinks.register(app)
status.register(app)
doctor.register(app)
recovery.register(app)
audit.register(app)
quarantine.register(app)
versions.register(app)
schemas.register(app)
maintenance.register(app)
backups.register(app)
serve.register(app)
tokens.register(app)
worker.register(app)
up.register(app)
service.register(app)
