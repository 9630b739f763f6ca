"""What a chunk meets at the least: a server that decompresses it, decodes it, and inserts it into bare SQLite.

`rows` inserts every row with its columns, `bytes` one blob for each chunk. Both are one transaction for each chunk, in
a file with WAL and `synchronous=FULL`, as the ledger has it. It knows no tokens, no marks and no schema.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import sys

import pyarrow as pa
import uvicorn
import zstandard
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool


def main() -> None:
    """Serve on a free port, and print it."""
    path, how = sys.argv[1:]
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    print(json.dumps({"listen": f"127.0.0.1:{bound.getsockname()[1]}"}), flush=True)
    app = application(path, as_rows=how == "rows")
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[bound])


def application(path: str, *, as_rows: bool) -> FastAPI:
    """One route."""
    app = FastAPI()
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")

    def store(body: bytes) -> int:
        table = pa.ipc.open_stream(zstandard.decompress(body)).read_all()
        connection.execute("BEGIN IMMEDIATE")
        if as_rows:
            names = table.schema.names
            connection.execute(f"CREATE TABLE IF NOT EXISTS messages ({', '.join(names)})")
            values = zip(*(_plain(column) for column in table.columns), strict=True)
            connection.executemany(f"INSERT INTO messages VALUES ({', '.join('?' for _ in names)})", values)
        else:
            connection.execute("CREATE TABLE IF NOT EXISTS chunks (body BLOB)")
            connection.execute("INSERT INTO chunks VALUES (?)", (body,))
        connection.execute("COMMIT")
        return int(table.num_rows)

    @app.post("/chunks")
    async def receive(request: Request) -> dict[str, int]:
        """Store one chunk."""
        return {"stored": await run_in_threadpool(store, await request.body())}

    return app


def _plain(column: pa.ChunkedArray) -> list[object]:
    """Values that SQLite takes: times as numbers."""
    plain: list[object] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return plain


if __name__ == "__main__":
    main()
