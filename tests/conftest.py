"""What all tests share: one Spark for the whole run, a lake per test."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import create, failpoints
from strandline.lake import Lake
from tests.s3 import s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]

# A run in the background of a script inherits an ignored Ctrl-C, and would hand it on to every process it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Short jobs on two cores: the quick compiler and the simple collector start a JVM in half the time.
os.environ.setdefault("STRAND_SPARK_MASTER", "local[2]")
os.environ.setdefault(
    "STRAND_SPARK_CONF",
    json.dumps(
        {
            "spark.driver.memory": "1g",
            "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.python.worker.reuse": "true",
        }
    ),
)
os.environ.setdefault("STRAND_LEASE_TTL", "3s")
os.environ.setdefault("STRAND_ACTOR", "tester")

# Spark's workers inherit these from the JVM, which is started once: the tests' own S3 server takes them.
os.environ.update(
    AWS_ACCESS_KEY_ID="strandline", AWS_SECRET_ACCESS_KEY="strandline-tests-alone", AWS_EC2_METADATA_DISABLED="true"
)


@pytest.fixture(scope="session", autouse=True)
def _spark_stops_with_the_run() -> Iterator[None]:
    yield
    from strandline.engines.spark import session

    session.stop()


@pytest.fixture(autouse=True)
def _no_failpoint_survives_its_test() -> Iterator[None]:
    yield
    failpoints.arm(None)


@pytest.fixture
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A new lake with nothing in it; its warehouse is in a bucket where $STRAND_TEST_WAREHOUSE says so."""
    if os.environ.get("STRAND_TEST_WAREHOUSE") == "s3":
        bucket = request.getfixturevalue("s3")
        made = create.create(tmp_path / "lake", warehouse=bucket.uri, store=bucket.store)
    else:
        made = create.create(tmp_path / "lake")
    yield made
    made.close()
