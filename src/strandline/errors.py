"""Every error a caller can meet.

    StrandError
    ├── CallerError            the caller can fix it; nothing was changed
    │   ├── BadRequest         bad_request          the call itself is wrong
    │   ├── NotFound           not_found            no such lake, table, branch, file
    │   ├── InvalidRows        invalid_rows         rows that don't fit the table's schema
    │   ├── TooLarge           too_large            more than one call may carry
    │   ├── Unsupported        unsupported          a format or type we don't take
    │   ├── HistoryGone        history_gone         what a view names is no longer kept
    │   ├── Conflict           conflict             another writer was first
    │   │   ├── MergeConflict  two branches changed the same rows
    │   │   ├── SchemaMoved    rows were judged by a schema that has changed since
    │   │   ├── TakesNoVersions a table that can't take versions of rows from another lake
    │   │   ├── TableMoved     a table, or what hangs on it, is not as it was looked at
    │   │   ├── TableExists    the name is taken
    │   │   ├── KeyExists      rows, or an idempotency key, are there already
    │   │   └── OwnedByAnother a sink's place belongs to another sink
    │   └── PreconditionFailed precondition_failed  an `expect` did not hold
    ├── TransientError         the same call may work later
    │   ├── Busy               busy                 a lock or lease is held
    │   │   ├── HeldByAnother  another process does the same work, or holds the table
    │   │   ├── Unreachable    a store, a catalog or Spark does not answer
    │   │   └── KeysExpired    the keys for a store have expired
    │   ├── TooManyRequests    too_many_requests    one actor has too much in flight
    │   ├── RequestTimeout     request_timeout      a request's body did not arrive in time
    │   ├── LeaseLost          lease_lost           another process took over; nothing was published
    │   ├── NoSpace            no_space             the disk is full
    │   └── ClockBehind        clock_behind         nothing is deleted by a clock that is behind the ledger's
    └── PersonError            a person must look
        ├── Unauthorized       unauthorized         no token, or one that is not valid
        ├── Forbidden          forbidden            a valid token, for something else
        ├── Environment        environment          Java, permissions, packages
        │   └── SinkFault      a package's type of sinks does not work
        ├── NewerFormat        newer_format         the lake was written by a newer strandline
        ├── RecoveryRequired   recovery_required    a record of a dead process that we can't read
        ├── Displaced          displaced            a copied or moved lake, or a warehouse that is not its own
        │   ├── NoMarker       the warehouse has no marker of any lake
        │   └── Fenced         the warehouse or the ledger was put back
        ├── Damaged            damaged              bytes that should be there are not
        └── Internal           internal             a bug

A message says what happened and to what; `hint` says what to do next; `detail` is for programs. The command line, HTTP
and Python share the codes, so each class has exactly one code, one HTTP status and one exit code. A special case has
those of the class above it, and a `kind` or a `reason` of its own in `detail`. Where code decides by one, it is a class
here; others stand in `detail` alone.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypedDict

from strandline.outages import Outage, OutageKind, judge
from strandline.redaction import redacted, redacted_fields

Detail: TypeAlias = dict[str, Any]
"""What an error says to programs. Each kind of error has keys of its own, which its class or its kind tells."""


class ErrorRecord(TypedDict):
    """An error as `--json` and HTTP print it, and as it goes to another process."""

    code: str
    message: str
    hint: str
    detail: Detail


class StrandError(Exception):
    """The root of the tree: catch this to catch everything Strandline raises on purpose."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 70
    hint: str = ""
    marks: ClassVar[Mapping[str, str]] = {}
    """What `detail` tells a special case from others of its code by: it is a class to code, a mark to programs."""

    def __init_subclass__(cls, **marks: str) -> None:
        super().__init_subclass__()
        cls.marks = {**cls.marks, **marks}

    def __init__(self, message: str, *, hint: str | None = None, **detail: object) -> None:
        message = redacted(message)
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = redacted(hint)
        self.detail: Detail = redacted_fields({**self.marks, **detail})

    def __reduce__(self) -> tuple[Any, ...]:
        """How it is copied and pickled: as it is, because not every class can be made of its message alone."""
        return _as_it_was, (type(self), self.args, self.__dict__)

    def as_dict(self) -> ErrorRecord:
        """The error document that `--json` and HTTP print."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "detail": self.detail}


def _as_it_was(kind: type[StrandError], args: tuple[Any, ...], attributes: dict[str, Any]) -> StrandError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class CallerError(StrandError):
    """The caller can fix it, and nothing was changed."""

    code, http_status, exit_code = "bad_request", 400, 3


class TransientError(StrandError):
    """The same call may work later, and nothing was changed."""

    code, http_status, exit_code = "busy", 503, 5


class PersonError(StrandError):
    """A person is needed."""

    code, http_status, exit_code = "damaged", 500, 6


class BadRequest(CallerError):
    """The call itself is wrong: a name, a type, an option."""

    code, http_status, exit_code = "bad_request", 400, 3


class NotFound(CallerError):
    """There is no such lake, table, branch, operation or file."""

    code, http_status, exit_code = "not_found", 404, 3


class InvalidRows(CallerError):
    """Rows that don't fit the table's schema; `detail["rows"]` lists them by index, field, value and reason."""

    code, http_status, exit_code = "invalid_rows", 422, 3


class TooLarge(CallerError):
    """More than one call may carry."""

    code, http_status, exit_code = "too_large", 413, 3


class Unsupported(CallerError):
    """A file format, a type or a statement that Strandline does not take."""

    code, http_status, exit_code = "unsupported", 415, 3


class HistoryGone(CallerError):
    """What a view names has been cleaned up since; it is an error, and never missing rows."""

    code, http_status, exit_code = "history_gone", 410, 3
    hint = "Take a new view (run the command again). If that says the same, `strand doctor` says which file is gone."


OF_ITS_CLASS = "the one that its class is marked with"
"""A conflict's kind where the caller names none."""


class Conflict(CallerError):
    """Somebody else was first. `detail["kind"]` says in what; `expected` and `actual` say what differs."""

    code, http_status, exit_code = "conflict", 409, 4

    def __init__(self, message: str, *, kind: str = OF_ITS_CLASS, hint: str | None = None, **detail: object) -> None:
        if kind is OF_ITS_CLASS:
            kind = self.marks["kind"]  # only a special case may leave it out
        super().__init__(message, hint=hint, **{"kind": kind, **detail})


class MergeConflict(Conflict, kind="merge_conflicts"):
    """Two branches changed the same rows, each in its own way; `conflicts` lists them, and nothing was written.

    One that came from another process has them in its `detail` alone, as entries under `actual`.
    """

    def __init__(
        self,
        message: str,
        *,
        conflicts: Sequence[object] = (),
        kind: str = OF_ITS_CLASS,
        hint: str | None = None,
        **detail: object,
    ) -> None:
        super().__init__(message, kind=kind, hint=hint, **detail)
        self.conflicts = tuple(conflicts)


class SchemaMoved(Conflict, kind="schema_moved"):
    """Rows, or a plan, were judged by what tables declared before: judged again, they may be taken."""


class TakesNoVersions(Conflict, kind="versions"):
    """A table can't take versions of rows from another lake, by its schema as it is known."""


class TableMoved(Conflict, kind="table_moved"):
    """A table, or what hangs on it, is not as it was when the work was chosen: it is to be chosen again."""


class TableExists(Conflict, kind="table_exists"):
    """There is a table of this name already."""


class KeyExists(Conflict, kind="key_exists"):
    """Rows with these keys are there already, or an idempotency key has been used for something else."""


class OwnedByAnother(Conflict, kind="owner"):
    """The place that a sink delivers to belongs to another sink."""


class PreconditionFailed(CallerError):
    """What the caller expected to be there is not."""

    code, http_status, exit_code = "precondition_failed", 412, 4


class Busy(TransientError):
    """A lock or a lease is held by somebody who is alive."""

    code, http_status, exit_code = "busy", 503, 5
    hint = "Try again in a moment; `strand status` shows what is running."


class HeldByAnother(Busy, reason="lease_held"):
    """Another process that is alive does the same work, or holds the table; it will finish it."""


class Unreachable(Busy, reason="unreachable"):
    """A store, the catalog's database or Spark does not answer: so it will be for every table."""


class KeysExpired(Busy, reason="expired"):
    """The keys for a store have expired: work goes on when there are newer ones."""


class TooManyRequests(TransientError):
    """One actor has as much in flight as it may; `detail["reason"]` is in_flight or bytes."""

    code, http_status, exit_code = "too_many_requests", 429, 5
    hint = "Wait as Retry-After says, and send fewer requests at once."


class RequestTimeout(TransientError):
    """A request's body did not arrive in time; nothing was stored."""

    code, http_status, exit_code = "request_timeout", 408, 5
    hint = "Send the same request again, in smaller pieces if the line is slow."


class LeaseLost(TransientError):
    """Another process took over while this one was away; nothing was published."""

    code, http_status, exit_code = "lease_lost", 503, 5
    hint = "The other process is finishing the work. Run `strand status` to see it."


class NoSpace(TransientError):
    """The disk is full; what was acked before is safe."""

    code, http_status, exit_code = "no_space", 507, 5
    hint = "Free some room on the lake's disk and run the same command again; no restart is needed."


class ClockBehind(TransientError):
    """The clock lies before the ledger's time: nothing is deleted by it. It passes, or a person says that it is right.

    A time of day of that span can't be looked back at either. `detail["behind_s"]` says by how much it is behind.
    """

    code, http_status, exit_code = "clock_behind", 503, 5
    hint = "`strand doctor` says which clocks differ and what to do."


class Unauthorized(PersonError):
    """There is no token with the request, or none that is valid."""

    code, http_status, exit_code = "unauthorized", 401, 6
    hint = "Send `Authorization: Bearer TOKEN`; `strand token create ACTOR` makes one on the server's machine."


class Forbidden(PersonError):
    """The token is valid, and not for this."""

    code, http_status, exit_code = "forbidden", 403, 6
    hint = "A token writes in the name of its own actor alone; use that one's token."


class Environment(PersonError):
    """Something the machine should provide is missing: Java, a package, a permission, a free port."""

    code, http_status, exit_code = "environment", 503, 6


class SinkFault(Environment, reason="sink_type"):
    """What another package brings for a type of sinks does not work: it raised what it may not, or is not whole."""


class NewerFormat(PersonError):
    """The lake was written by a newer Strandline than this one."""

    code, http_status, exit_code = "newer_format", 505, 6
    hint = "Upgrade this machine's strandline; an older one must not write to this lake."


class RecoveryRequired(PersonError):
    """A dead process left a record that this version can't read; operations on its tables wait for a person."""

    code, http_status, exit_code = "recovery_required", 503, 6
    hint = "`strand doctor` says which record, and what to do."


class Displaced(PersonError):
    """The lake is not where it was made, or its warehouse is not its own any more; nothing was written.

    `detail["kind"]` is copied, other_warehouse, no_marker or fenced.
    """

    code, http_status, exit_code = "displaced", 503, 6
    hint = "`strand doctor` says where the lake is at home, and what to do."


class NoMarker(Displaced, kind="no_marker"):
    """The warehouse has no marker of any lake: it is not mounted, was emptied, or is another one."""


class Fenced(Displaced, kind="fenced"):
    """The warehouse is there and belongs to this lake, but one of the two was put back, or there is a newer copy."""


class Damaged(PersonError):
    """Bytes that should be there are gone or changed."""

    code, http_status, exit_code = "damaged", 500, 6
    hint = "`strand doctor` says what is damaged and what to do."


class Internal(PersonError):
    """A bug in Strandline."""

    code, http_status, exit_code = "internal", 500, 70
    hint = "This is a bug in strandline. Run again with --debug and report what it prints."


def in_our_words(error: Exception) -> StrandError:
    """The error in our words. What the system refuses is the machine's; anything else unforeseen is a bug."""
    match error:
        case StrandError():
            return error
        case OSError(errno=errno.EROFS):
            return read_only_mount(str(error.filename))
        case OSError(errno=errno.EACCES | errno.EPERM):
            return Environment(f"{error.strerror}: {error.filename}", hint="Check the owner and mode of what it names.")
    if (outage := judge(error)) is not None:
        return of_outage(outage)
    first, second = [*str(error).splitlines(), "", ""][:2]
    java_words = second.removeprefix(": ") if second.startswith(": ") else first  # Java's own words stand behind Py4J's
    return Internal(f"{type(error).__name__}: {java_words}" if java_words else type(error).__name__)


def of_outage(outage: Outage, where: str = "", *, note: str = "", **detail: object) -> StrandError:
    """The error of something that is full, away or refuses; `where` names it better than the outage does itself.

    `note` says what has become of what was under way.
    """
    where = where or outage.where
    prefix, after = f"{where}: " if where else "", f"; {note}" if note else ""
    match outage.kind:
        case OutageKind.FULL:
            return NoSpace(f"{prefix}no room: {outage.words}{after}", hint=None, **detail)
        case OutageKind.REFUSED:
            return Environment(
                f"{prefix}the store does not let us in: {outage.words}{after}",
                hint="Check the keys of the process (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a "
                "role), and what they may do: list, read, write and delete. Keys that come later are taken at once.",
                **{"reason": REFUSED, **detail},
            )
        case OutageKind.EXPIRED:
            return _busy(
                KeysExpired,
                f"{prefix}the keys for the store have expired: {outage.words}{after}",
                hint="Work goes on when there are newer ones; whoever renews them may be late.",
                **detail,
            )
        case OutageKind.CATALOG:
            return _busy(
                Unreachable,
                f"the database of the Iceberg catalog can't be reached: {outage.words}{after}",
                hint="A lake's own catalog is on its ledger's server, or in catalog.db beside a SQLite ledger. Work "
                "goes on when it answers again.",
                **detail,
            )
        case OutageKind.AWAY:
            return _busy(
                Unreachable,
                f"{prefix}the store can't be reached: {outage.words}{after}",
                hint="Check the `endpoint`, the `region` and the network; work goes on when it answers again.",
                **detail,
            )


def _busy(special: type[Busy], message: str, *, hint: str | None, **detail: object) -> Busy:
    """The error of an outage; where another reason is given, that one alone decides what becomes of it."""
    return (Busy if "reason" in detail else special)(message, hint=hint, **detail)


REFUSED = "refused"
"""The reason of an error of a store that refused our keys."""

WAREHOUSE = "warehouse"
"""The reason of an error that a reader of a lake's own files met: no destination is to blame for it."""


def may_pass(error: BaseException) -> bool:
    """Whether the same may work later without a person: what is tried again and not given up.

    A store's refusal is among it: it can't say of every question whether keys have expired or are wrong. So is a
    warehouse without its marker: an empty mount point looks like that, and is not written to.
    """
    away = isinstance(error, Environment | Displaced) and error.detail.get("reason") in (REFUSED, WAREHOUSE)
    return isinstance(error, TransientError) or away


def read_only_mount(path: str) -> Environment:
    """The error of a write to what is mounted for reading alone."""
    hint = "Mount it for writing, or use another place. Commands that only read work from it as it is."
    return Environment(f"{path} is on a file system that is mounted read-only", hint=hint)


def from_dict(document: Mapping[str, object]) -> StrandError:
    """The error that `as_dict` described, of the same class: how one comes back from another process."""
    by_code = {kind.code: kind for kind in kinds(StrandError)}
    stored: Any = document["detail"]
    detail = {key: value for key, value in stored.items() if key not in ("message", "hint")}
    error_class = by_code.get(str(document["code"]), Internal)
    for special in error_class.__subclasses__():
        if special.marks and all(detail.get(name) == value for name, value in special.marks.items()):
            error_class = special
    return error_class(str(document["message"]), hint=str(document["hint"]), **detail)


def kinds(kind: type[StrandError]) -> Iterator[type[StrandError]]:
    """All that have a code of their own; the most special ones last."""
    for child in kind.__subclasses__():
        if "code" in child.__dict__:
            yield child
        yield from kinds(child)


def nearest(name: str, names: Iterable[str]) -> str:
    """The hint for a name that does not exist: the nearest one that does, or all of them."""
    listed = sorted(names)
    close = difflib.get_close_matches(name, listed, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(listed)}." if listed else "There are none yet."
