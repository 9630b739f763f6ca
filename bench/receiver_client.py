"""Clients of a receiver in a process of their own: each posts one row after another over a connection that it keeps.

The first line of stdin has the token and the rows; every further one says for how many seconds to post. The answer to
each is a line with the seconds that every ack took. It imports little, because several of them start at once.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle

import httpx


def main() -> None:
    """Post when told to."""
    url, table, threads = sys.argv[1:]
    task = json.loads(sys.stdin.readline())
    headers = {"Authorization": f"Bearer {task['token']}", "Content-Type": "application/x-ndjson"}
    bodies = [row.encode() for row in task["rows"]]
    clients = [httpx.Client(base_url=url, headers=headers, timeout=30) for _ in range(int(threads))]
    with ThreadPoolExecutor(len(clients)) as pool:
        for line in sys.stdin:
            post = partial(_post, path=f"/v1/tables/{table}/rows", bodies=bodies, seconds=float(line))
            per_client = pool.map(post, clients)
            print(json.dumps([ack for taken in per_client for ack in taken]), flush=True)


def _post(client: httpx.Client, path: str, bodies: list[bytes], seconds: float) -> list[float]:
    taken: list[float] = []
    ends = time.perf_counter() + seconds
    for body in cycle(bodies):
        begun = time.perf_counter()
        if begun >= ends:
            break
        answer = client.post(path, content=body)
        assert answer.status_code == 201, answer.text
        taken.append(time.perf_counter() - begun)
    return taken


if __name__ == "__main__":
    main()
