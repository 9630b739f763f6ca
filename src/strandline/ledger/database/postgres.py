"""Postgres, as a ledger needs it: how to connect, what its errors mean, and how to ask whether a commit arrived.

Reads and writes have connections of their own. One that reads is REPEATABLE READ and READ ONLY for its whole life, so
every read is one database snapshot. One that writes is READ COMMITTED: a write locks the counter row first, and each of
its statements must see what was committed before it got the lock. So writers queue, none is ever refused for another's
sake, and none can wait for another in a circle.

A writer that is stopped in the middle of its transaction would keep all others waiting. Its session is ended, and it
runs its transaction again when it goes on. Between two statements the server sees to that. In the middle of one, or
behind a pipeline of several, the server has no limit (but for one of Postgres 17, which would end long work too): so a
writer that has waited in vain looks whether the one in front has been silent, and ends it.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from sqlalchemy import Column, Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from strandline.errors import BadRequest, Busy, Damaged, Environment, NoSpace, StrandError
from strandline.ledger.database.connections import LOOK, NotYet, read_room, standby, too_many
from strandline.ledger.database.pipeline import ANOTHER, SESSION, SESSION_SETTING, clean
from strandline.redaction import shown_address

LOCK_TIMEOUT_S = 30.0
"""How long a write waits for the others."""
IDLE_TIMEOUT_S = 15.0
"""How long a writer may say nothing in the middle of its transaction; less than what the others wait."""

_READS = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_WRITES = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"

# A line that is cut without a word must not be believed in for the two hours that are usual.
_CONNECT = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "strandline",
}


_HOST = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]+)(?::(?P<port>\d+))?")


def engine(url: str, *, writing: bool) -> Engine:
    """What opens connections that read, or those that write; `connections.py` keeps them."""
    address, several = _address(url)
    chosen = {key: value for key, value in _CONNECT.items() if key not in address.query} | several
    made = create_engine(address, poolclass=NullPool, connect_args=chosen)

    @event.listens_for(made, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.adapters.register_dumper(str, _text_dumper())
        connection.adapters.register_dumper(bytes, _bytes_dumper())
        # psycopg forgets all prepared statements after a rollback if it has any of its own, ours in the pipeline too.
        connection.prepare_threshold = None
        connection.autocommit = True
        # In one way there and back, because a crowded server's connections are opened anew for every transaction.
        record.info[SESSION] = session = secrets.token_hex(8)
        mark = f"SELECT set_config('{SESSION_SETTING}', '{session}', false)"
        answers = connection.execute(";".join([*(_settings() if writing else [_READS]), mark, LOOK]))
        while answers.nextset():
            pass
        record.info["strand_room"] = read_room(answers.fetchone())
        connection.autocommit = False

    return made


def look_alive(conn: Connection) -> None:
    """Ask whether a connection is still there, and is the one that was made ready."""
    session = conn.exec_driver_sql(f"SELECT current_setting('{SESSION_SETTING}', true)").scalar()
    if session != conn.info[SESSION]:
        raise another_session()


def another_session() -> Environment:
    """The error of a client behind a pooler that hands server connections from one client to the next."""
    return Environment(
        "the ledger's database is behind a pooler that gives every transaction another connection",
        hint="Set the pooler to session mode (PgBouncer: pool_mode = session), or connect to Postgres itself.",
    )


def _settings() -> list[str]:
    return [
        _WRITES,
        f"SET lock_timeout = {int(LOCK_TIMEOUT_S * 1000)}",
        f"SET idle_in_transaction_session_timeout = {int(IDLE_TIMEOUT_S * 1000)}",
        # An ack means that the bytes are on the disk, whatever this database's default is.
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
    ]


@lru_cache(maxsize=1)
def _text_dumper() -> type[Any]:
    """How text is sent."""
    from psycopg.types.string import StrDumper

    class Text(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(clean(obj))

    return Text


def _bytes_dumper() -> type[Any]:
    """How payloads are sent: as they are. As text they would be twice as long, while all writers wait for the lock."""
    from psycopg.types.string import BytesBinaryDumper

    return BytesBinaryDumper


def keep_as_it_is(conn: Connection, column: Column[bytes]) -> None:
    """Let Postgres store a column's bytes without an attempt to compress them: that is done where it pays."""
    conn.exec_driver_sql(f"ALTER TABLE {column.table} ALTER COLUMN {column.name} SET STORAGE EXTERNAL")


def login(conn: Connection) -> tuple[str, str]:
    """The user and the password by which we got in, wherever libpq found them: Iceberg's driver looks elsewhere."""
    info = conn.connection.driver_connection.info  # type: ignore[union-attr]
    return str(info.user), str(info.password)


# The server waits for the client, in a transaction that has locked a row of the counter. Sessions that wait for that
# row themselves are here too, but not as silent ones; those that read hold another lock.
_END_SILENT = text(
    """
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
    FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
    WHERE l.relation = to_regclass('counter') AND l.mode = 'RowExclusiveLock' AND l.granted
      AND a.datname = current_database() AND a.usename = current_user
      AND a.wait_event = 'ClientRead' AND a.state_change < clock_timestamp() - make_interval(secs => :silent_s)
    """
)


def end_silent(conn: Connection) -> bool:
    """End the session of a writer that holds the counter and has said nothing for longer than it may.

    On the connection of a writer that waited for it in vain, and whose transaction is over.
    """
    with suppress(DBAPIError):
        conn.rollback()
        ended = conn.execute(_END_SILENT, {"silent_s": IDLE_TIMEOUT_S}).scalar_one()
        conn.rollback()
        return bool(ended)
    return False


def is_locked_out(error: BaseException) -> bool:
    """Whether a lock was waited for in vain."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) == "55P03"


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, and not merely the statement."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or is_lost(error.orig) if error.orig is not None else False
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is not None:
        # 57014: a statement that was cancelled. 25P03, 25P04: a session that was silent, or took too long.
        return (sqlstate[:2] in ("08", "57") and sqlstate != "57014") or sqlstate in ("25P03", "25P04")
    names = {kind.__name__ for kind in type(error).__mro__}  # a timeout of the connection is an error of its own
    return bool(names & {"OperationalError", "InterfaceError"})


def is_away(error: BaseException) -> bool:
    """Whether another connection, later, may do what this one did not: it is lost, or of a server that only reads."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(error, NotYet) or getattr(original, "sqlstate", None) == "25006" or is_lost(error)


# While a connection is opened, libpq hands out no codes: 53300 and 57P03 are known by their words.
_FULL = ("too many clients", "connection slots are reserved", "too many connections for", "no more connections allowed")
_NOT_YET = ("the database system is", "session is read-only", "server is in hot standby mode")


def is_full(error: BaseException) -> bool:
    """Whether there were connections enough, and all are taken."""
    return is_lost(error) and any(words in str(error) for words in _FULL)


def has_answered(error: BaseException) -> bool:
    """Whether it was Postgres that said no, so that at least the address is right."""
    if isinstance(error, NotYet) or not is_lost(error):
        return True
    return is_full(error) or any(words in str(error) for words in _NOT_YET)


def is_refused(error: BaseException) -> bool:
    """Whether a statement required something that is not so: it divided by how often it is."""
    return getattr(error, "sqlstate", None) == "22012"


def translate(error: DBAPIError, url: str, *, is_known: bool) -> StrandError | None:
    """What Postgres said, in the words of our own errors; None when it is no matter of the database.

    Of an address that `is_known` because a server has answered there before, a host's name without an address is an
    outage like any other.
    """
    message = str(error.orig).strip()
    sqlstate = getattr(error.orig, "sqlstate", None) or ""
    where = _shown(url)
    if sqlstate == "57014":
        return Busy(
            f"the ledger's database ended a statement: {message}",
            hint="If a statement_timeout did that: a write waits for others in a statement, up to "
            f"{LOCK_TIMEOUT_S:.0f} s. Set a longer one for this user, or none.",
            reason="ledger_behind",
        )
    if sqlstate in ("26000", "42P05") or (sqlstate == "22P02" and ANOTHER in message):
        return another_session()
    if sqlstate == "55P03":
        return Busy(
            f"the ledger was locked by another process for {LOCK_TIMEOUT_S:.0f} s",
            hint="Try again. `select * from pg_stat_activity` on the database shows who holds it.",
            reason="ledger_behind",
        )
    if sqlstate in ("40001", "40P01"):
        return Busy(f"the ledger's database ended the transaction: {message}", reason="ledger_behind")
    if sqlstate == "53100":
        return NoSpace(f"no room on the ledger's disk: {message}")
    if sqlstate == "25006":
        return standby()
    if sqlstate == "42501":
        return Environment(
            f"no permission to write the ledger: {message}",
            hint=f"Grant this user the tables of {where}, and CREATE on its schema to `strand init`.",
        )
    if sqlstate in ("42P01", "42703"):
        return Damaged(f"the ledger has another shape than this strandline's: {message}", hint="Is it a lake's ledger?")
    if sqlstate in ("XX001", "XX002"):
        return Damaged(f"the ledger can't be read: {message}", hint="Restore the lake from a backup.")
    if is_lost(error):
        return _unreachable(message, where, is_known)
    return None


def _unreachable(words: str, where: str, is_known: bool) -> StrandError:
    line = _short(words)
    if any(phrase in words for phrase in _FULL):
        return too_many(line)
    if "session is read-only" in words or "in hot standby mode" in words:
        return standby()
    if "password" in words or "authentication failed" in words or "pg_hba.conf" in words:
        return Environment(
            f"the ledger's database refuses this user: {line}",
            hint="Check the user and the password: in the URL, $PGPASSWORD, or the file that $PGPASSFILE names.",
        )
    if 'database "' in words and "does not exist" in words:
        return Environment(
            f"the ledger's database is not there: {line}",
            hint=f"Make it first (`createdb`), or correct the name: {where}.",
        )
    if 'role "' in words and "does not exist" in words:
        return Environment(f"the ledger's database does not know this user: {line}", hint="Check the user in the URL.")
    if not is_known and ("resolve" in words or "translate host name" in words):
        return Environment(f"the ledger's host has no address: {line}", hint=f"Check the host's name: {where}.")
    return Busy(
        f"the ledger's database does not answer: {line}",
        hint=f"Is Postgres running, and can it be reached from here? The ledger is {where}.",
        reason="ledger_behind",
    )


def may_pass(error: StrandError) -> bool:
    """Whether waiting a little may help: a server that starts or restarts, a line that was cut."""
    return isinstance(error, Busy)


def _short(message: str) -> str:
    """libpq adds lines of advice behind a tab, which we give ourselves."""
    lines = [line.strip() for line in message.splitlines() if not line.startswith("\t")]
    return "; ".join(lines)[:600] or "no reason was given"


def _shown(url: str) -> str:
    return shown_address(url)


def _address(url: str) -> tuple[URL, dict[str, str]]:
    """The URL as SQLAlchemy reads it, and the hosts and ports where it names several, as libpq has them."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    several: dict[str, str] = {}
    if "," in hosts:
        pairs = [_HOST.fullmatch(place) for place in hosts.split(",")]
        if None in pairs:
            raise _unreadable(f"{hosts!r} is not a list of hosts")
        places = [(pair["host"].strip("[]"), pair["port"] or "5432") for pair in pairs if pair is not None]
        several = {"host": ",".join(host for host, _ in places), "port": ",".join(port for _, port in places)}
        # Unless a person says otherwise, it is the one that takes writes: what a standby shows may be older.
        several |= {} if "target_session_attrs" in parts.query else {"target_session_attrs": "read-write"}
        url = urlunsplit(parts._replace(netloc=f"{login}{at}{places[0][0]}"))
    try:
        return make_url(url).set(drivername="postgresql+psycopg"), several
    except ValueError as error:
        raise _unreadable(str(error)) from None


def _unreadable(why: str) -> BadRequest:
    return BadRequest(f"can't read the ledger's URL: {why}", hint="Write postgresql://USER@HOST/DATABASE.")
