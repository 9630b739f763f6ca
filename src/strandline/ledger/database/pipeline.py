"""Several statements to Postgres in one way there and back.

psycopg has a pipeline too. It sends each statement by itself, so a writer that is stopped between two of them would
leave the server in the middle of a request, where it does not count how long a transaction is idle; and it ends with a
message after which the server does not count either. Here everything goes out at once, its end included. So this
speaks to libpq itself, which psycopg hands out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from select import POLLIN, POLLOUT, poll
from typing import Any, TypeAlias

from sqlalchemy import Dialect
from sqlalchemy.pool import PoolProxiedConnection

Row: TypeAlias = tuple[Any, ...]
"""A row as the driver has it: its statement says what the columns are."""
Statement: TypeAlias = tuple[str, Sequence[object]]
"""A text with the places `$1`, `$2`, …, and what belongs there."""

SESSION, SESSION_SETTING = "strand_session", "strand.session"
"""What a connection knows of the session that it made ready, and where that session knows it."""
ANOTHER = "another session"
# An error where a pooler has put another session behind this connection, whose settings are not ours: then nothing
# behind it is run.
_SAME_SESSION = (
    f"SELECT CASE WHEN current_setting('{SESSION_SETTING}', true) = $1 THEN 0 "
    f"ELSE ('{ANOTHER}: ' || coalesce(current_setting('{SESSION_SETTING}', true), ''))::int END"
).encode()

_INTEGERS = {20, 21, 23}
"""The types int8, int2 and int4, by Postgres's own numbers."""
_BYTES = 17
"""The type bytea."""


@lru_cache(maxsize=1)
def numbered() -> Dialect:
    """For SQLAlchemy: how to write a statement's parameters."""
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    made: Dialect = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    return made


def run(connection: PoolProxiedConnection, statements: Sequence[Statement], *, commit: bool) -> list[list[Row]]:
    """Run these in a transaction, which is begun if none is open, and return the rows of each.

    The first error is raised; nothing behind it was run, and nothing was committed.
    """
    from psycopg import Error

    driver: Any = connection.driver_connection
    try:
        prepared = connection.info.setdefault("strand_prepared", {})
        return _run(driver.pgconn, prepared, connection.info[SESSION].encode(), statements, commit)
    except BaseException as error:
        if driver.pgconn.pipeline_status or not isinstance(error, Error):  # answers may be on their way
            driver.close()
        raise


def _run(
    server: Any, prepared: dict[str, bytes], session: bytes, statements: Sequence[Statement], commit: bool
) -> list[list[Row]]:
    from psycopg.pq import TransactionStatus

    rows: list[list[Row]] = []
    heard: list[Callable[[Any], object]] = []  # what to do with each answer
    new: dict[str, bytes] = {}
    begin = server.transaction_status == TransactionStatus.IDLE
    server.enter_pipeline_mode()
    if begin:
        server.send_query_params(b"BEGIN", None)
        server.send_query_params(_SAME_SESSION, [session])
        heard += [_nothing, _nothing]
    for text, values in statements:
        name = prepared.get(text) or new.get(text)
        if name is None:
            name = new[text] = b"strand_%d" % (len(prepared) + len(new))
            server.send_prepare(name, text.encode())
            heard.append(partial(_note, prepared, text, name))
        server.send_query_prepared(name, [_sent(value) for value in values], [type(value) is bytes for value in values])
        heard.append(lambda answer: rows.append(_rows(answer)))
    if commit:
        server.send_query_params(b"COMMIT", None)
        heard.append(_nothing)
    server.pipeline_sync()
    _send(server)
    _hear(server, heard)
    return rows


def _send(server: Any) -> None:
    waiting = poll()
    waiting.register(server.socket, POLLIN | POLLOUT)
    while server.flush():
        if any(event & ~POLLOUT for _, event in waiting.poll()):
            server.consume_input()


def _hear(server: Any, heard: Sequence[Callable[[Any], object]]) -> None:
    """Read all the answers, up to the end of the pipeline, and raise the first error."""
    from psycopg import OperationalError
    from psycopg.pq import ExecStatus

    failed: Exception | None = None
    for do in heard:
        answer = _answer(server)
        if answer is None:  # the line was cut, and nothing more will come
            raise failed or OperationalError(server.get_error_message())
        if answer.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            do(answer)
        elif failed is None:
            failed = _error(server, answer)
        _answer(server)  # None: the end of this one
    _answer(server)
    server.exit_pipeline_mode()
    if failed is not None:
        raise failed


def _answer(server: Any) -> Any:
    waiting = poll()
    waiting.register(server.socket, POLLIN)
    while server.is_busy():
        waiting.poll()
        server.consume_input()
    return server.get_result()


def _error(server: Any, answer: Any) -> Exception:
    from psycopg import OperationalError
    from psycopg.errors import error_from_result
    from psycopg.pq import ConnStatus

    error = error_from_result(answer)
    if error.sqlstate is None and server.status == ConnStatus.BAD:
        return OperationalError(str(error))  # not the server said so, but that it is gone
    return error


def _rows(answer: Any) -> list[Row]:
    types = [answer.ftype(at) for at in range(answer.nfields)]
    return [
        tuple(_received(answer.get_value(row, at), kind) for at, kind in enumerate(types))
        for row in range(answer.ntuples)
    ]


def _received(value: bytes | None, kind: int) -> Any:
    if value is None:
        return None
    if kind in _INTEGERS:
        return int(value)
    return bytes.fromhex(value[2:].decode()) if kind == _BYTES else value.decode()


def _sent(value: Any) -> bytes | None:
    """A parameter: bytes as they are, anything else as text."""
    if value is None or type(value) is bytes:
        return value
    return clean(str(value)).encode()


def clean(text: str) -> str:
    """Postgres has no zero bytes in text; what a destination said may, and must be noted somehow."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def _note(prepared: dict[str, bytes], text: str, name: bytes, _answer: Any) -> None:
    prepared[text] = name


def _nothing(_answer: Any) -> None:
    return None
