"""The outages of the soak: what the gate before a server does, and that the judge notices what needs a person."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strandline import create
from strandline.lake import Lake
from strandline.ledger.tables.tables import refuse_writes
from strandline.ledger.workers.jobs import begin_job, fail_job
from tests.kit import make_table
from tests.soak.gate import Gate, Outage
from tests.soak.outages import CREDENTIALS, FULL, GONE, STORE, Judge


class Echo(BaseHTTPRequestHandler):
    """A server that says which one it is."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    do_POST = do_PUT  # noqa: N815  (a name of the library)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        body = str(self.server.server_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def echoes() -> Iterator[list[int]]:
    """The ports of two such servers."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Echo) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def gate(echoes: list[int]) -> Iterator[Gate]:
    made = Gate(echoes[0])
    yield made
    made.close()


def ask(gate: Gate, method: str = "GET", target: str = "/x", body: bytes | None = None) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)) as client:
        client.request(method, target, body)
        answer = client.getresponse()
        return answer.status, answer.read()


def test_a_gate_passes_everything_on_and_leads_elsewhere(gate: Gate, echoes: list[int]) -> None:
    """Many requests on one connection; another server behind it cuts what there was."""
    client = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)
    for body in (b"a" * 300_000, b"", b"b"):
        client.request("PUT", "/x", body)
        assert client.getresponse().read() == str(echoes[0]).encode()
    gate.lead_to(echoes[1])
    with pytest.raises((http.client.HTTPException, OSError)):
        client.request("GET", "/x")
        client.getresponse()
    client.close()
    assert ask(gate)[1] == str(echoes[1]).encode()


@pytest.mark.parametrize("outage", [*STORE.values(), *CREDENTIALS.values(), GONE], ids=lambda ill: ill.code or "none")
def test_in_an_outage_the_gate_answers_or_nobody_does(gate: Gate, outage: Outage) -> None:
    """Every request meets it, and none after it; one that waits for an answer is cut when it is over."""
    with gate.failing(outage):
        if outage.status:
            for method, body in (("GET", None), ("PUT", b"x" * 100_000)):
                status, answer = ask(gate, method, body=body)
                assert status == outage.status and outage.code.encode() in answer
        elif outage.cuts:
            with pytest.raises((http.client.HTTPException, OSError)):
                ask(gate)
        else:
            errors: list[Exception] = []

            def wait() -> None:
                try:
                    ask(gate)
                except (http.client.HTTPException, OSError) as error:
                    errors.append(error)

            silent = threading.Thread(target=wait)
            silent.start()
            gate.cut_all()
            silent.join(timeout=30)
            assert len(errors) == 1
    assert ask(gate)[0] == 200


def test_a_full_store_reads_and_deletes(gate: Gate) -> None:
    with gate.failing(FULL):
        assert ask(gate)[0] == 200
        assert ask(gate, "POST", "/x?delete", b"<Delete/>")[0] == 200
        assert ask(gate, "PUT", body=b"x")[0] == ask(gate, "POST", "/x?uploads", b"")[0] == 507


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with create.create(tmp_path / "lake") as lake:
        make_table(lake)
    return tmp_path / "lake"


def refuse(root: Path) -> None:
    """A table that needs a person."""
    with Lake(root) as lake, lake.ledger.write() as txn:
        head = lake.view().branch_table("messages").head
        refuse_writes(txn, head.branch_id, head.table_id, "its file is gone")


def park(root: Path) -> None:
    """A job that is not tried again."""
    with Lake(root) as lake, lake.ledger.write() as txn:
        begin_job(txn, "flush:messages", "why", "worker", now_us=1, seen_runs=0, attempts=12)
        how = {"code": "environment", "error": "the store is away", "failures": 12, "wait_us": 0, "parked_at_us": 1}
        fail_job(txn, "flush:messages", 0, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", [refuse, park], ids=["a table that refuses writes", "a parked job"])
def test_what_an_outage_leaves_for_a_person_is_wrong(root: Path, damage: object) -> None:
    """However much is delivered; what was there before is not this outage's."""
    units, wrong = itertools.count(), list[str]()
    judge = Judge(root, lambda: next(units), patience_s=0)
    with judge.passing("an outage", wrong):
        pass
    assert wrong == []
    with judge.passing("an outage", wrong):
        damage(root)  # type: ignore[operator]
    assert len(wrong) == 1 and "a person is needed" in wrong[0] and "messages" in wrong[0]
    with judge.passing("the next outage", wrong):
        pass
    assert len(wrong) == 1


def test_an_outage_after_which_nothing_is_delivered_is_wrong(root: Path) -> None:
    """A lake that can't be read is, too."""
    wrong: list[str] = []
    with Judge(root, lambda: 7, patience_s=0).passing("an outage", wrong):
        pass
    assert wrong == ["0 s after an outage: nothing was delivered"]
    with Judge(root, itertools.count().__next__, patience_s=0).passing("an outage", wrong):
        (root / "strand.toml").rename(root / "away")
    assert wrong[1:] == ["0 s after an outage: the lake can't be read"]
