"""Secrets of many kinds, planted wherever a person can type one, and looked for wherever something is shown or kept."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client import generate_latest

from strandline import logs
from strandline.backup import backup
from strandline.create import create
from strandline.errors import Conflict
from strandline.lake import Lake
from strandline.redaction import redacted, remember, secret_of, shown_address
from strandline.worker.metrics import WorkerMetrics
from tests.kit import Ran, call, in_ledger, make_table, messages

pytestmark = pytest.mark.sqlite_only

PLANTED = "hush-Zq9x"
"""Every planted secret has this in it."""


def secret(kind: str) -> str:
    """A secret that says where it was planted."""
    return f"{PLANTED}-{kind}"


def leaked(*ran: Ran) -> list[str]:
    """The lines of what commands printed that have a planted secret in them."""
    return [line for answer in ran for line in (answer.out + "\n" + answer.err).splitlines() if PLANTED in line]


REFUSED_AT_INIT = {
    "password": ["--ledger", "postgresql://me@127.0.0.1:1/db?password={}"],
    "sslpassword": ["--ledger", "postgresql://me@127.0.0.1:1/db?sslmode=require&sslpassword={}"],
    "unreachable": ["--ledger", "postgresql://me:{}@127.0.0.1:1/db"],
    "sqlite option": ["--ledger", "sqlite:///ledger.db?key={}"],
    "another database": ["--ledger", "mysql://me:{}@127.0.0.1/db"],
    "bucket's user": ["--warehouse", "s3://AKIA:{}@bucket/prefix"],
    "bucket's option": ["--warehouse", "s3://bucket/prefix?secret={}"],
    "another store": ["--warehouse", "gs://me:{}@bucket"],
    "endpoint's user": ["--warehouse", "s3://bucket/x", "--endpoint", "http://me:{}@127.0.0.1:1"],
    "endpoint's option": ["--warehouse", "s3://bucket/x", "--endpoint", "http://127.0.0.1:1/?sig={}"],
}


@pytest.mark.parametrize("kind", REFUSED_AT_INIT)
@pytest.mark.parametrize("how", [(), ("--json",), ("--debug",)], ids=["text", "json", "debug"])
def test_f90_no_place_of_a_new_lake_shows_its_secret(tmp_path: Path, kind: str, how: tuple[str, ...]) -> None:
    """Each is refused, with a word about what is wrong and not the word itself; nothing is left behind."""
    places = [word.format(secret(kind.replace("'", "").replace(" ", "-"))) for word in REFUSED_AT_INIT[kind]]
    done = call(*how, "init", tmp_path / "lake", *places)
    assert done.code in (3, 5, 6)
    assert leaked(done) == []
    assert not (tmp_path / "lake" / "strand.toml").exists()


SINKS = {
    "token": ("forward", {"url": "http://127.0.0.1:9", "token": "{}", "max_attempts": "1"}),
    "header": (
        "iceberg",
        {"uri": "http://127.0.0.1:9", "catalog": "rest", "catalog.header.Authorization": "Bearer {}"},
    ),
    "key": ("iceberg", {"uri": "http://127.0.0.1:9", "catalog": "rest", "catalog.s3.access-key-id": "{}"}),
    "credential": ("iceberg", {"uri": "http://127.0.0.1:9", "catalog": "rest", "catalog.credential": "id:{}"}),
    "unheard-of": ("iceberg", {"uri": "http://127.0.0.1:9", "catalog": "rest", "catalog.x.y": "{}"}),
    "password": ("iceberg", {"uri": "jdbc:sqlite:/x", "warehouse": "/x", "catalog.jdbc.password": "{}"}),
    "login-server": (
        "iceberg",
        {"uri": "http://127.0.0.1:9", "catalog": "rest", "catalog.oauth2-server-uri": "https://me:{}@login"},
    ),
}
REFUSED_SINKS = {
    "user": ("forward", {"url": "https://{}@receiver"}),
    "login": ("forward", {"url": "https://me:{}@receiver"}),
    "option": ("forward", {"url": "https://receiver/?api_key={}"}),
    "scheme": ("forward", {"url": "ftp://me:{}@receiver"}),
    "variable": ("forward", {"url": "https://receiver", "token_env": "{}"}),
    "jdbc": ("iceberg", {"uri": "jdbc:postgresql://h/db?user=me&password={}", "warehouse": "/x"}),
    "semicolon": ("iceberg", {"uri": "jdbc:sqlserver://h;password={}", "warehouse": "/x"}),
    "bucket": ("blob", {"uri": "s3://AKIA:{}@bucket"}),
    "signed": ("blob", {"uri": "s3://bucket", "endpoint": "https://store/?X-Amz-Signature={}"}),
    "fragment": ("forward", {"url": "https://receiver/#{}"}),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A lake with a table and rows."""
    with create(tmp_path / "lake") as lake:
        make_table(lake)
        lake.append("messages", messages(0, 3))
    return tmp_path / "lake"


def add(place: Path, name: str, type_: str, settings: dict[str, str], kind: str) -> Ran:
    """Add a sink by its command, with a planted secret."""
    pairs = [word for key, value in settings.items() for word in ("--set", f"{key}={value.format(secret(kind))}")]
    return call("--lake", place, "--json", "sink", "add", name, "--type", type_, *pairs, "--no-check")


def shown_everywhere(place: Path, *more: tuple[str, ...]) -> list[Ran]:
    """What the commands that show something print, for people and as JSON."""
    commands = [("status",), ("doctor",), ("sink", "list"), ("log",), ("audit",), ("table", "list"), *more]
    return [call("--lake", place, *how, *words) for words in commands for how in ((), ("--json",))]


def kept_in_clear(*folders: Path) -> list[str]:
    """Files that have a planted secret in them, but for those that secrets are put away in."""
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in paths if PLANTED.encode() in path.read_bytes() and path.parent.name != "secrets"]


def test_f90_what_may_be_secret_in_a_sink_is_put_away(place: Path, tmp_path: Path) -> None:
    """Seven kinds: none is in the ledger, its WAL, a backup, a clone, a metric or any output; all are in force."""
    for kind, (type_, settings) in SINKS.items():
        assert add(place, f"s-{kind}", type_, settings, kind).code == 0
    names = [("sink", "show", f"s-{kind}") for kind in SINKS]
    assert leaked(*shown_everywhere(place, *names, ("sink", "tick", "s-token"))) == []
    with Lake(place) as lake:
        backup(lake, tmp_path / "backup")
        assert PLANTED.encode() not in generate_latest(WorkerMetrics(lake.ledger).registry)
    assert leaked(call("--json", "clone", place, tmp_path / "clone")) == []
    assert kept_in_clear(place, tmp_path / "backup", tmp_path / "clone") == []
    put_away = "".join(path.read_text() for path in (place / "secrets").iterdir())
    assert all(secret(kind) in put_away for kind in SINKS)


@pytest.mark.parametrize("kind", REFUSED_SINKS)
def test_f90_an_address_with_a_secret_is_refused_with_a_hint(place: Path, kind: str) -> None:
    """It is neither stored nor repeated; the hint says where it belongs."""
    type_, settings = REFUSED_SINKS[kind]
    done = add(place, "s", type_, settings, kind)
    assert (done.code, leaked(done)) == (3, [])
    assert kept_in_clear(place) == []


def test_f90_a_config_with_secrets_is_not_repeated(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sections, comments and variables: what is wrong with them is said without them, and a backup has none."""
    with (place / "strand.toml").open("a") as file:
        file.write(f'# {secret("comment")}\n[sinks.a]\ntype = "forward"\nurl = "http://me:{secret("url")}@h"\n')
        file.write('[sinks.b]\ntype = "forward"\nurl = "http://127.0.0.1:9"\nmax_attempts = 1\n')
        file.write(f'token = "{secret("section")}"\n')
    monkeypatch.setenv("STRAND_SPARK_CONF", json.dumps({"spark.hadoop.fs.s3a.secret.key": secret("spark")}))
    assert leaked(*shown_everywhere(place, ("sink", "tick"))) == []
    with Lake(place) as lake:
        lake.sinks()
        backup(lake, tmp_path / "backup")
    assert kept_in_clear(tmp_path / "backup") == []
    monkeypatch.setenv("STRAND_SPARK_CONF", f'{{"spark.hadoop.fs.s3a.secret.key": "{secret("cut")}"')
    assert leaked(call("--lake", place, "status"), call("--lake", place, "--debug", "status")) == []
    monkeypatch.delenv("STRAND_SPARK_CONF")
    monkeypatch.setenv("STRAND_LAKE_LEDGER", f"postgresql://me:{secret('env')}@127.0.0.1:1/db?password={secret('opt')}")
    refused = [call("--lake", place, *how, "status") for how in ((), ("--json",), ("--debug",))]
    assert leaked(*refused) == [] and {done.code for done in refused} == {5}


class _Repeating(BaseHTTPRequestHandler):
    """A receiver that repeats what it was sent, as some gateways do in their errors."""

    def do_GET(self) -> None:
        body = f"who is {self.headers['Authorization']} at https://me:{secret('echo')}@h/?k={secret('echo')}".encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def repeating() -> Iterator[str]:
    """Its address."""
    server = HTTPServer(("127.0.0.1", 0), _Repeating)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("setting", ["token", "token_env", "token_file"])
def test_f90_a_destination_that_repeats_a_token_does_not_show_it(
    place: Path, repeating: str, setting: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither in the sink's last error, nor in a log, nor in the ledger."""
    (place / "token").write_text(secret(setting))
    monkeypatch.setenv("RECEIVERS_TOKEN", secret(setting))
    value = {"token": secret(setting), "token_env": "RECEIVERS_TOKEN", "token_file": "token"}[setting]
    pairs = ("--set", f"url={repeating}", "--set", f"{setting}={value}", "--set", "max_attempts=1")
    call("--lake", place, "sink", "add", "s", "--type", "forward", *pairs, "--no-check")
    logs.set_format("json")
    try:
        ticked = call("--lake", place, "--json", "sink", "tick", "s")
    finally:
        logs.set_format("text")
    shown = [
        call("--lake", place, *how, *words)
        for how in ((), ("--json",))
        for words in (("status",), ("sink", "show", "s"))
    ]
    assert any("500" in answer.out or "who is" in answer.out for answer in (ticked, *shown))
    assert leaked(ticked, *shown) == [] and PLANTED not in "".join(capfd.readouterr())
    (place / "token").unlink()
    assert kept_in_clear(place) == []


def test_f90_a_secret_that_an_older_version_stored_is_not_shown(place: Path, tmp_path: Path) -> None:
    """The sink goes on with it; doctor says so and what to do; a backup leaves it out; a new value puts it away."""
    assert add(place, "old", "iceberg", SINKS["header"][1] | {"catalog.type": "rest"}, "header").code == 0
    settings = {
        "uri": f"http://me:{secret('user')}@127.0.0.1:9/?key={secret('option')}",
        "catalog": "rest",
        "catalog.header.X-Api": secret("stored"),
    }
    in_ledger(place, "UPDATE sinks SET settings = :settings", settings=json.dumps(settings))
    assert leaked(*shown_everywhere(place, ("sink", "show", "old"))) == []
    findings = json.loads(call("--lake", place, "--json", "doctor").out)["findings"]
    (finding,) = [candidate for candidate in findings if candidate["kind"] == "secret_in_clear"]
    assert "catalog.header.X-Api" in finding["what"] and "uri" in finding["what"]
    with Lake(place) as lake:
        (sink,) = lake.sinks()
        assert sink.settings["catalog.header.X-Api"] == secret("stored")
        manifest = backup(lake, tmp_path / "backup")
    assert "the secrets of sink old" in manifest.left_out
    assert kept_in_clear(tmp_path / "backup") == []
    changed = ("--set", "uri=http://127.0.0.1:9", "--set", f"catalog.header.X-Api={secret('new')}")
    assert call("--lake", place, "sink", "set", "old", *changed).code == 0
    assert not any(
        finding["kind"] == "secret_in_clear"
        for finding in json.loads(call("--lake", place, "--json", "doctor").out)["findings"]
    )
    assert secret("new") in "".join(path.read_text() for path in (place / "secrets").iterdir())


def test_what_everybody_can_read_of_an_older_lake_is_told(place: Path) -> None:
    """A lake that was made with modes of the umask: doctor names each part, and the command that closes it."""
    for path in (place, place / "ledger.db", place / "strand.toml", place / "warehouse"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    findings = json.loads(call("--lake", place, "--json", "doctor").out)["findings"]
    names = {Path(finding["about"]).name for finding in findings if finding["kind"] == "readable_by_all"}
    assert names == {"ledger.db", "strand.toml", "warehouse"}
    place.chmod(0o700)
    findings = json.loads(call("--lake", place, "--json", "doctor").out)["findings"]
    assert not any(finding["kind"] == "readable_by_all" for finding in findings)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:pw@h:5432/db?sslmode=require", "postgresql://me:***@h:5432/db?sslmode=require"),
        ("postgresql://me@h/db", "postgresql://me@h/db"),
        ("postgresql://me:p@ss@h/db?Password=x&a%70i=y", "postgresql://me:***@h/db?Password=***&a%70i=***"),
        ("https://tok@h/p", "https://***@h/p"),
        ("https://h/p?sink=a&k=v#frag", "https://h/p?sink=a&k=***#***"),
        ("jdbc:postgresql://h/db?user=me&password=x", "jdbc:postgresql://h/db?user=me&password=***"),
        ("jdbc:sqlserver://h;password=x;user=me", "jdbc:sqlserver://h;password=***;user=me"),
        ("file:///a/b?c", "file:///a/b?c"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_an_address_shows_what_is_known_to_be_harmless(address: str, shown: str) -> None:
    assert shown_address(address) == shown
    assert (secret_of(address) is None) == (shown == address)
    assert redacted(f"can't reach '{address}': refused") == f"can't reach '{shown}': refused"


TOKENS = [
    "XbT3kq9ZpLw2Vn7Rf4Yc8Hd1",  # a webhook's, of 24 letters
    "9f86d081884c7d659a2feaa0c55ad015",
    "bot123456:ABC-DEF1234ghIkl-zyx57W2v1u123ew11",
    "kX2_vB8-qLw9ZpTn4Rf7Yc-1Hd3Jm_6SgQe5UaOiPz",
    "XbT3kq9ZpLw2%56n7Rf4Yc8Hd1",
]
PLAIN = [
    "v1/lake",
    "api/2.1/unity-catalog/iceberg",
    "catalog/3f2b8c1e-9d47-4a5b-8e6f-0a1b2c3d4e5f/v1",
    "v1/inbound/019c5f2a5900a0b1c2d3e4f5/messages",
    "ProductionLakehouseEurope2024/iceberg-rest-catalog-v2-staging",
    "a/00000-0-3f2b8c1e-9d47-4a5b-8e6f-0a1b2c3d4e5f-00001.parquet",
    "2024-01-31T12-00-00Z-run-000123",
]


@pytest.mark.parametrize("token", TOKENS)
def test_f90_a_token_in_a_path_is_not_shown(token: str) -> None:
    address = f"https://hooks.example:8443/services/T0AB12/B0CD34/{token}/v1?sink=a"
    shown = "https://hooks.example:8443/services/T0AB12/B0CD34/***/v1?sink=a"
    assert shown_address(address) == shown
    assert redacted(f"can't reach '{address}': refused") == f"can't reach '{shown}': refused"
    assert secret_of(address) is None, "it may be the id of an account: it is taken"
    assert shown_address(f"s3://bucket/{token}") == f"s3://bucket/{token}"


@pytest.mark.parametrize("path", PLAIN)
def test_f90_a_path_of_words_and_ids_is_shown(path: str) -> None:
    assert shown_address(f"https://host/{path}") == f"https://host/{path}"


def test_f90_a_sink_does_not_show_a_token_in_its_path(place: Path, tmp_path: Path) -> None:
    """Its commands, status, last error and metrics show the rest of the address; the sink works with all of it."""
    token = f"{PLANTED}-{TOKENS[0]}"
    added = {
        "hook": ("forward", {"url": f"http://127.0.0.1:9/services/{token}", "max_attempts": "1"}),
        "rest": ("iceberg", {"uri": f"http://127.0.0.1:9/{token}/v1", "catalog": "rest"}),
        "login": (
            "iceberg",
            {"uri": "http://127.0.0.1:9", "catalog": "rest", "catalog.oauth2-server-uri": f"https://h/{token}"},
        ),
    }
    printed = [add(place, name, type_, settings, "") for name, (type_, settings) in added.items()]
    assert [ran.code for ran in printed] == [0, 0, 0]
    printed += shown_everywhere(place, *(("sink", "show", name) for name in added), ("sink", "tick", "hook"))
    assert leaked(*printed) == []
    assert "http://127.0.0.1:9/services/***" in "".join(ran.out for ran in printed)
    with Lake(place) as lake:
        assert PLANTED.encode() not in generate_latest(WorkerMetrics(lake.ledger).registry)


def test_f90_an_error_shows_no_secret_of_an_address() -> None:
    """Whoever raises it, and wherever it is shown: its message, its hint and what it says to programs."""
    address = f"https://me:{secret('user')}@host/?sig={secret('option')}"
    error = Conflict(f"can't reach {address}", kind="gap", hint=f"Try {address}", actual=address)
    assert PLANTED not in f"{error} {error!r} {json.dumps(error.as_dict())}"
    assert error.detail["actual"] == "https://***@host/?sig=***"


def test_f90_a_secret_that_was_read_is_taken_out_of_texts() -> None:
    """Also as a part of an address, where it is encoded, and without any word before it that would give it away."""
    remember(f"{secret('read')}/=")
    assert PLANTED not in redacted(f"no such user {secret('read')}/=, nor {quote(secret('read') + '/=', safe='')}")


def test_the_jvms_command_line_has_no_secret() -> None:
    """Every user of the machine can read it; Spark gets the others through its gateway."""
    from pyspark import SparkConf

    from strandline.engines.spark.session import _harmless

    settings = (
        SparkConf(loadDefaults=False).set("spark.driver.memory", "1g").set("spark.hadoop.fs.s3a.secret.key", PLANTED)
    )
    assert dict(_harmless(settings).getAll()) == {"spark.driver.memory": "1g"}
    assert os.environ.get("PYSPARK_SUBMIT_ARGS") is None
