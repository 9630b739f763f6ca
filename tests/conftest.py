"""What all tests of a process share: one Spark, one Postgres; and a lake per test.

A test marked `both_ledgers` runs on a SQLite ledger and, if it is one of the acceptance list, on a Postgres one; with
`only=[…]` these of its parameters alone. The others run on SQLite. `--ledger postgres` (or $STRAND_TEST_LEDGER) runs
all of them on Postgres, but for those marked `sqlite_only`; `--ledger both` runs all on both.
$STRAND_TEST_WAREHOUSE=s3 puts their files into buckets of a real S3 server.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from strandline import create, failpoints
from strandline.lake import Lake
from tests import slices
from tests.s3 import new_bucket, s3, s3_endpoint
from tests.scratch import leave_memory, use_memory
from tests.sharing import Sharing, _spark_stays_out

__all__ = ["_spark_stays_out", "s3", "s3_endpoint"]

if TYPE_CHECKING:
    from tests.postgres import Server

# A busy machine is no error: no example is judged by the time it takes.
settings.register_profile("strandline", deadline=None)
settings.load_profile("strandline")

# A run in the background of a script inherits an ignored Ctrl-C, and would hand it on to every process it starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Short jobs on two cores: the quick compiler and the simple collector start a JVM in half the time, and to compile a
# query takes longer than to run it on a few rows. A run that dies wherever one can compiles queries as everybody does.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
os.environ.setdefault("STRAND_SPARK_MASTER", "local[2]")
os.environ.setdefault(
    "STRAND_SPARK_CONF",
    json.dumps(
        {
            "spark.driver.memory": "1g",
            "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.python.worker.reuse": "true",
            **({} if slices.all_places() else INTERPRETED),
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run choose where ledgers are."""
    default = os.environ.get("STRAND_TEST_LEDGER", "core")
    choices = ("core", "sqlite", "postgres", "both")
    parser.addoption("--ledger", default=default, choices=choices, help="where the tests' ledgers are")


def pytest_configure(config: pytest.Config) -> None:
    """Name our marks, and where lakes are made."""
    use_memory(config)
    config.addinivalue_line("markers", "both_ledgers(only): runs on SQLite and on Postgres, or there with these alone")
    config.addinivalue_line("markers", "sqlite_only: needs a ledger that is a file")


def pytest_report_header() -> str:
    """Say which places this run's sweeps visit."""
    return slices.head()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let two processes have a Spark, however many there are."""
    return Sharing(config, log)


def pytest_collection_finish() -> None:
    """Let no garbage collection look at what was imported and collected: it stays, and to look takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the end of the process clean up as ever."""
    gc.unfreeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give the memory of the run's lakes back."""
    leave_memory(session)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses a lake once for each kind of ledger that was asked for."""
    if "ledger_kind" not in metafunc.fixturenames:
        return
    asked = metafunc.config.getoption("--ledger")
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    kinds = ["sqlite", "postgres"] if asked == "both" or (asked == "core" and "both_ledgers" in marks) else [asked]
    kinds = ["sqlite" if kind == "core" else kind for kind in kinds]
    if "sqlite_only" in marks:
        kinds = [kind for kind in kinds if kind == "sqlite"]
    # One of one kind keeps its name, so that a test can be called by it.
    ids = [kind if len(kinds) > 1 else pytest.HIDDEN_PARAM for kind in kinds]
    metafunc.parametrize("ledger_kind", kinds, ids=ids, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a test does not run on Postgres too."""
    if config.getoption("--ledger") == "core":
        items[:] = [item for item in items if not _is_for_sqlite_alone(item)]


def _is_for_sqlite_alone(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    given = item.callspec.params
    if given.get("ledger_kind") != "postgres":
        return False
    only = next((mark.kwargs["only"] for mark in item.iter_markers("both_ledgers") if "only" in mark.kwargs), None)
    is_accepted = item.path.parent.name == "acceptance" or re.match(r"test_f\d+_", item.originalname)
    return not is_accepted or (only is not None and set(only).isdisjoint(given.values()))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The run's Postgres."""
    from tests.postgres import serving

    with serving() as server:
        yield server


@pytest.fixture
def places(ledger_kind: str, request: pytest.FixtureRequest) -> Callable[[], dict[str, Any]]:
    """Where a new lake's ledger and files go in this run, as `create` is told; each call names another place."""
    server = request.getfixturevalue("postgres") if ledger_kind == "postgres" else None
    endpoint = request.getfixturevalue("s3_endpoint") if os.environ.get("STRAND_TEST_WAREHOUSE") == "s3" else None

    def place() -> dict[str, Any]:
        ledger = None if server is None else server.new_database()
        if endpoint is None:
            return {"ledger": ledger}
        bucket = new_bucket(endpoint)
        return {"ledger": ledger, "warehouse": bucket.uri, "store": bucket.store}

    return place


@pytest.fixture
def lake(tmp_path: Path, places: Callable[[], dict[str, Any]]) -> Iterator[Lake]:
    """A new lake with nothing in it."""
    made = create.create(tmp_path / "lake", **places())
    yield made
    made.close()
