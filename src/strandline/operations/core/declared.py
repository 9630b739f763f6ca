"""An operation that people and the worker can ask for, declared once.

A class says all of it: its docstring is the command's help, its fields are the options, and its methods say when it is
due, how large a bite a worker takes, and what is done. An instance is a request with its options set. The command, the
request that travels through the ledger, the worker's schedule and the documentation are made of these; what `run`
begins says in the same file what it covers, stages and publishes.

This module is read by every start of the command line: it imports nothing heavy.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

from strandline.errors import BadRequest
from strandline.settings_text import parse_duration, parse_size

if TYPE_CHECKING:
    from strandline.config import MaintenanceConfig
    from strandline.model.maintenance import Maintained
    from strandline.model.operations import Arguments
    from strandline.model.tables import BranchTable
    from strandline.operations.core.branch_moment import BranchMoment
    from strandline.operations.core.context import Context

_OPTION = "option"


@dataclass(frozen=True)
class Option:
    """How a person says an option, and whether it travels with a request.

    Without a flag no command has it; `read` turns what was typed into the value, or says what is wrong with it.
    """

    flag: str = ""
    help: str = ""
    metavar: str | None = None
    read: Callable[[str, str], float] | None = None
    is_sent: bool = True


def option(
    flag: str = "",
    help: str = "",
    *,
    metavar: str | None = None,
    read: Callable[[str, str], float] | None = None,
    is_sent: bool = True,
) -> Mapping[str, Option]:
    """The metadata of a field that is an option."""
    return {_OPTION: Option(flag, help, metavar, read, is_sent)}


def read_size(flag: str, text: str) -> int:
    """Bytes, as a person writes them."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise BadRequest(f"{flag} is {text!r}, expected {error}", hint="Write 10GiB.") from None


def read_duration(_flag: str, text: str) -> float:
    """Seconds, as a person writes them."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no time, expected {error}", hint="Write 10m.") from None


DRY_RUN = option("--dry-run", "Say what would be done, and do nothing.")
MAX_BYTES = option("--max-bytes", "Rewrite about so much at most, such as 1GiB.", metavar="SIZE", read=read_size)
MAX_TIME = option("--max-time", "Begin nothing more after that, such as 10m.", metavar="TIME", read=read_duration)
GRACE = option("--grace", "Instead of the lake's own, 15m.", metavar="TIME", read=read_duration)
YES = option("--yes", "Do it without asking.")

WORKERS_BYTES = 4 << 30
WORKERS_S = 300.0
"""How much one job of a worker does: what is left is for the next time."""


@dataclass(frozen=True)
class Due:
    """Why a worker should do it now, and how urgent that is beside other tables."""

    why: str
    urgency: float = 0.0


@dataclass(frozen=True)
class Docs:
    """What the documentation says beside the help: what it takes away, what never, and when a worker does it."""

    takes_away: str
    never: str = ""
    when: str = ""


@dataclass(frozen=True)
class Declared(abc.ABC):
    """What differs from one operation to the next; an instance is asked for with its options."""

    name: ClassVar[str]
    docs: ClassVar[Docs]
    turn: ClassVar[int] = 0
    """A worker's order where several are due for one table: what removes goes before what rewrites."""
    of_lake: ClassVar[bool] = False
    """Whether a worker does it for the whole lake at once."""
    of_one_table: ClassVar[bool] = False
    """Whether it is asked for with one table, and not with several or all."""
    has_actor: ClassVar[bool] = True
    branch_before: ClassVar[str] = ""
    """The option that --branch stands before in the help; behind all of them where there is none."""
    nothing: ClassVar[str] = "There are no tables yet."

    @abc.abstractmethod
    def run(self, ctx: Context, tables: Sequence[str], branch: str, actor: str) -> list[Maintained]:
        """Do it to these tables, or to all."""

    @classmethod
    def count(cls, look: BranchMoment, branch_table: BranchTable) -> dict[str, int]:
        """What the ledger knows of a table that decides whether it is due; no file is opened."""
        return {}

    @classmethod
    def count_lake(cls, look: BranchMoment) -> dict[str, int]:
        """The same of the lake, for what is done to all of it at once."""
        return {}

    @classmethod
    def due(cls, counts: Mapping[str, int], rules: MaintenanceConfig) -> Due | None:
        """Whether a worker should do it, by what was counted."""
        return None

    @classmethod
    def bite(cls) -> Self:
        """How a worker asks for it: bounded, and only for what is worth it."""
        return cls()

    def loss(self, planned: Maintained) -> str:
        """What a person has to agree to beforehand, by what a dry run has said."""
        raise AssertionError(f"{self.name} asks nobody beforehand, but of {planned.table}")

    @property
    def asks_beforehand(self) -> bool:
        """Whether a person has to agree to a `loss`, and has not yet."""
        return type(self).loss is not Declared.loss and not (self.has("dry_run") or self.has("yes"))

    @property
    def takes_yes_when_refused(self) -> bool:
        """Whether `yes` is all that a refusal wants."""
        return type(self).loss is Declared.loss and hasattr(self, "yes") and not self.has("yes")

    def has(self, name: str) -> bool:
        """Whether an option is set; one that the operation does not have is not."""
        return bool(getattr(self, name, False))

    def with_option(self, name: str) -> Self:
        """The same with an option set."""
        return replace(self, **{name: True})

    def request(self, tables: Sequence[str], branch: str, actor: str) -> Arguments:
        """As it travels through the ledger, maybe to a worker of another version: no name in it may change."""
        sent = {field.name: getattr(self, field.name) for field, meant in options(type(self)) if meant.is_sent}
        needed = {name: sent.pop(name) for name in required(type(self))}
        if self.of_one_table:
            return {"table": tables[0], **needed, "actor": actor, "how": {"branch": branch, **sent}}
        return {"tables": list(tables), "branch": branch, "actor": actor, **needed, "how": sent}

    @classmethod
    def requested(cls, arguments: Arguments) -> Requested:
        """What a request asks for; an option that this version does not have is refused."""
        how = {**arguments["how"], **{name: arguments[name] for name in required(cls)}}
        branch = how.pop("branch") if cls.of_one_table else arguments["branch"]
        tables = [arguments["table"]] if cls.of_one_table else arguments["tables"]
        unknown = how.keys() - {field.name for field in fields(cls)}
        if unknown:
            raise BadRequest(
                f"this version has no option {', '.join(sorted(unknown))} of {cls.name}",
                hint="A worker of an older version was asked: upgrade it, or use --here.",
            )
        return Requested(cls(**how), tables, branch, arguments["actor"])


@dataclass(frozen=True)
class Requested:
    """An operation with its options, and what it is to be done to."""

    operation: Declared
    tables: Sequence[str]
    branch: str
    actor: str


def options(operation: type[Declared]) -> Iterator[tuple[Field[object], Option]]:
    """Every option: its field, and how it is said."""
    for field in fields(operation):
        yield field, field.metadata[_OPTION]


def required(operation: type[Declared]) -> list[str]:
    """The options that have no default."""
    return [field.name for field, _ in options(operation) if field.default is MISSING]
