"""Postgres, as a ledger needs it: how to connect, what its errors mean, and how to ask whether a commit arrived.

Reads and writes have connections of their own. One that reads is REPEATABLE READ and READ ONLY for its whole life, so
every read is one database snapshot. One that writes is READ COMMITTED: a write locks the counter row first, and each of
its statements must see what was committed before it got the lock. So writers queue, none is ever refused for another's
sake, and none can wait for another in a circle.

A writer that is stopped in the middle of its transaction would keep everybody waiting. Its session is ended, and it
runs its transaction again when it goes on. Between two statements the server sees to that. In the middle of one, or
behind a pipeline of several, the server has no limit (but for one of Postgres 17, which would end long work too): so
whoever has waited in vain looks whether the one in front has been silent, and ends it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Column, Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError

from strandline.errors import BadRequest, Busy, Damaged, Environment, NoSpace, StrandError
from strandline.ledger.pipeline import clean

LOCK_TIMEOUT_S = 30.0
"""How long a write waits for the others."""
IDLE_TIMEOUT_S = 15.0
"""How long a writer may say nothing in the middle of its transaction; less than what the others wait."""
POOL, MORE = 8, 64

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


def engine(url: str, *, writing: bool) -> Engine:
    """A pool of connections that read, or of those that write."""
    address = _address(url)
    chosen = {key: value for key, value in _CONNECT.items() if key not in address.query}
    # Who reads asks each connection first whether it is still there. Who writes finds out by the counter's lock, before
    # anything depends on it.
    made = create_engine(
        address, pool_size=POOL, max_overflow=MORE, pool_timeout=LOCK_TIMEOUT_S, pool_pre_ping=not writing,
        connect_args=chosen,
    )  # fmt: skip

    @event.listens_for(made, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.adapters.register_dumper(str, _text_dumper())
        connection.adapters.register_dumper(bytes, _bytes_dumper())
        connection.autocommit = True
        # psycopg forgets all prepared statements after a rollback if it has any of its own, ours in the pipeline too.
        connection.prepare_threshold = None
        connection.execute(_WRITES if writing else _READS)
        if writing:
            connection.execute(f"SET lock_timeout = {int(LOCK_TIMEOUT_S * 1000)}")
            connection.execute(f"SET idle_in_transaction_session_timeout = {int(IDLE_TIMEOUT_S * 1000)}")
            # An ack means that the bytes are on the disk, whatever this database's default is.
            connection.execute("SELECT set_config('synchronous_commit', 'on', false) "
                               "WHERE current_setting('synchronous_commit') = 'off'")  # fmt: skip
        connection.autocommit = False

    return made


@lru_cache(maxsize=1)
def _text_dumper() -> type[Any]:
    """How text is sent."""
    from psycopg.types.string import StrDumper

    class Text(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(clean(obj))

    return Text


def _bytes_dumper() -> type[Any]:
    """How payloads are sent: as they are. As text they would be twice as long, while everybody waits for the lock."""
    from psycopg.types.string import BytesBinaryDumper

    return BytesBinaryDumper


def keep_as_it_is(conn: Connection, column: Column[Any]) -> None:
    """Let Postgres store a column's bytes without an attempt to compress them: that is done where it pays."""
    conn.exec_driver_sql(f"ALTER TABLE {column.table} ALTER COLUMN {column.name} SET STORAGE EXTERNAL")


def login(engine: Engine) -> tuple[str, str]:
    """The user and the password by which we got in, wherever libpq found them: Iceberg's driver looks elsewhere."""
    with engine.connect() as conn:
        info = conn.connection.driver_connection.info  # type: ignore[union-attr]
        return str(info.user), str(info.password)


# The server waits for the client, in a transaction that has locked a row of the counter. Those who wait for that row
# themselves are here too, but not as ones who are silent; those who read hold another lock.
_END_SILENT = text(
    """
    SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid))
    FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
    WHERE l.relation = to_regclass('counter') AND l.mode = 'RowExclusiveLock' AND l.granted
      AND a.datname = current_database() AND a.usename = current_user
      AND a.wait_event = 'ClientRead' AND a.state_change < clock_timestamp() - make_interval(secs => :silent_s)
    """
)


def end_silent(engine: Engine) -> bool:
    """End the session of a writer that holds the counter and has said nothing for longer than it may."""
    with engine.connect() as conn:
        return bool(conn.execute(_END_SILENT, {"silent_s": IDLE_TIMEOUT_S}).scalar_one())


def is_locked_out(error: BaseException) -> bool:
    """Whether a lock was waited for in vain."""
    found = error.orig if isinstance(error, DBAPIError) else error
    return getattr(found, "sqlstate", None) == "55P03"


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, and not merely the statement."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or is_lost(error.orig) if error.orig is not None else False
    state = getattr(error, "sqlstate", None)
    if state is not None:
        # 57014: a statement that was cancelled. 25P03, 25P04: the session of one who was silent, or took too long.
        return (state[:2] in ("08", "57") and state != "57014") or state in ("25P03", "25P04")
    return type(error).__name__ in ("OperationalError", "InterfaceError")


def is_refused(error: BaseException) -> bool:
    """Whether a statement required something that is not so: it divided by how often it is."""
    return getattr(error, "sqlstate", None) == "22012"


def translate(error: DBAPIError, url: str) -> StrandError | None:
    """What Postgres said, in the words of our own errors; None when it is no matter of the database."""
    said = str(error.orig).strip()
    state = getattr(error.orig, "sqlstate", None) or ""
    where = _shown(url)
    if state in ("55P03", "57014"):
        return Busy(
            f"the ledger was locked by another process for {LOCK_TIMEOUT_S:.0f} s",
            hint="Try again. `select * from pg_stat_activity` on the database shows who holds it.",
            reason="ledger_behind",
        )
    if state in ("40001", "40P01"):
        return Busy(f"the ledger's database ended the transaction: {said}", reason="ledger_behind")
    if state == "53100":
        return NoSpace(f"no room on the ledger's disk: {said}")
    if state in ("42501", "25006"):
        return Environment(
            f"no permission to write the ledger: {said}",
            hint=f"Grant this user the tables of {where}, and CREATE on its schema to `strand init`.",
        )
    if state in ("42P01", "42703"):
        return Damaged(f"the ledger has another shape than this strandline's: {said}", hint="Is it a lake's ledger?")
    if state in ("XX001", "XX002"):
        return Damaged(f"the ledger can't be read: {said}", hint="Restore the lake from a backup.")
    if is_lost(error):
        return _unreachable(said, where)
    return None


def _unreachable(said: str, where: str) -> StrandError:
    line = _short(said)
    if "password" in said or "authentication failed" in said or "pg_hba.conf" in said:
        return Environment(
            f"the ledger's database refuses this user: {line}",
            hint="Check the user and the password: in the URL, $PGPASSWORD, or the file that $PGPASSFILE names.",
        )
    if 'database "' in said and "does not exist" in said:
        return Environment(
            f"the ledger's database is not there: {line}",
            hint=f"Make it first (`createdb`), or correct the name: {where}.",
        )
    if 'role "' in said and "does not exist" in said:
        return Environment(f"the ledger's database does not know this user: {line}", hint="Check the user in the URL.")
    if "resolve" in said or "translate host name" in said:
        return Environment(f"the ledger's host has no address: {line}", hint=f"Check the host's name: {where}.")
    return Busy(
        f"the ledger's database does not answer: {line}",
        hint=f"Is Postgres running, and can it be reached from here? The ledger is {where}.",
        reason="ledger_behind",
    )


def may_pass(error: StrandError) -> bool:
    """Whether waiting a little may help: a server that starts or restarts, a line that was cut."""
    return isinstance(error, Busy)


def _short(said: str) -> str:
    """libpq adds lines of advice behind a tab, which we give ourselves."""
    lines = [line.strip() for line in said.splitlines() if not line.startswith("\t")]
    return "; ".join(lines)[:600] or "no reason was given"


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)


def _address(url: str) -> URL:
    try:
        return make_url(url).set(drivername="postgresql+psycopg")
    except ValueError as error:
        raise BadRequest(
            f"can't read the ledger's URL: {error}", hint="Write postgresql://USER@HOST/DATABASE."
        ) from None
