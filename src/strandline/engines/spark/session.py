"""One Spark per process, one session per lake.

Starting a JVM takes seconds, so a process starts one and keeps it. Each lake gets a session of its own from it: the
catalog has the same name, `strand`, in every lake (the name is part of the key in a JDBC catalog, and outside engines
must use it too), so two lakes in one process must not share a session's settings.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

from strandline import private
from strandline.config import Store
from strandline.engines.spark import archive, jars, java
from strandline.engines.storage import S3, hadoop_settings, iceberg_settings
from strandline.errors import Environment, Unreachable, of_outage
from strandline.outages import OutageKind, judge_text
from strandline.redaction import is_public_spark

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

CATALOG = "strand"
# One staged file is one task: a task then holds one unbroken range of seqs, and so does the file that it writes.
_SPLIT_BYTES = str(128 << 20)
JVM_ENDS_S = 300
STANDALONE = "spark://"
MASTER_ANSWERS_S = 5

_lock = threading.Lock()
_root: SparkSession | None = None


def start(master: str, conf: Mapping[str, str]) -> SparkSession:
    """This process's Spark; the first call starts it and decides its master."""
    global _root
    with _lock:
        if _root is None or _root.sparkContext._jsc is None:
            _root = _start(master, conf)
        return _root


def stop(*, and_wait: bool = False) -> None:
    """Stop this process's Spark, if it was started; its JVM ends with the process, or is waited for here."""
    global _root
    with _lock:
        if _root is None:
            return
        _root.stop()
        _root = None
        if and_wait:
            _end_jvm()


def _end_jvm() -> None:
    from pyspark import SparkContext

    context: Any = SparkContext
    gateway, context._gateway, context._jvm = context._gateway, None, None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(JVM_ENDS_S)


def kill() -> None:
    """End this process's JVM at once, whatever it is doing; what it was writing stays unfinished."""
    root = _root
    jvm = getattr(root.sparkContext._gateway, "proc", None) if root is not None else None
    if jvm is not None:
        jvm.kill()
        jvm.wait()
    forget_dead()


def lives() -> bool:
    """Whether this process's Spark was started, and its JVM is still there."""
    root = _root
    if root is None or root.sparkContext._jsc is None:
        return False
    jvm = getattr(root.sparkContext._gateway, "proc", None)
    return jvm is None or jvm.poll() is None


def dies(time_s: float) -> bool:
    """Whether the JVM ends within a time; one that lost its line may be on its way."""
    deadline_s = time.monotonic() + time_s
    while lives():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def forget_dead() -> None:
    """Forget a JVM that has died, so that `start` makes another. PySpark keeps it in its classes, and would not."""
    global _root
    with _lock:
        if _root is None or lives():
            return
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        classes: Any = SparkContext
        classes._active_spark_context = classes._gateway = classes._jvm = None
        sessions: Any = SparkSession
        sessions._instantiatedSession = None
        _root = None


def lake_session(
    root: SparkSession, catalog: Mapping[str, str], name: str = CATALOG, store: Store | None = None
) -> SparkSession:
    """A session that knows one catalog: a lake's, by the properties of `catalog_properties`, or a sink's target.

    A store is for plain files at `s3://`: a catalog's own tables have it in the catalog's properties.
    """
    session = root.newSession()
    prefix = f"spark.sql.catalog.{name}"
    settings = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{key}": value for key, value in catalog.items()},
        "spark.sql.files.maxPartitionBytes": _SPLIT_BYTES,
        "spark.sql.files.openCostInBytes": _SPLIT_BYTES,
        **(hadoop_settings(store) if store is not None else {}),
    }
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def catalog_properties(uri: str, warehouse: str, login: Mapping[str, str], store: Store) -> dict[str, str]:
    """What Iceberg must be told to find a lake's catalog; outside engines use the same."""
    return {
        "type": "jdbc",
        "uri": uri,
        "warehouse": warehouse,
        "jdbc.schema-version": "V1",
        "cache-enabled": "false",
        **login,
        **(iceberg_settings(store) if warehouse.startswith(S3) else {}),
    }


def _start(master: str, conf: Mapping[str, str]) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java.find().home)
    os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif master.startswith(STANDALONE):
        _reach(master)
    # The import alone costs half a second, and most commands need no Spark.
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.sql import SparkSession

    progress = java.say if sys.stderr.isatty() else None  # fetching jars takes minutes, the first time
    settings = SparkConf(loadDefaults=False).setMaster(master).setAppName("strandline")
    for key, value in {**_defaults(master, [str(path) for path in jars.resolve(progress)]), **conf}.items():
        settings.set(key, value)
    # A JVM says things on stderr that no user can act on. They are shown when it does not start, and else not.
    with tempfile.TemporaryFile() as jvm_words, _own_interrupts():
        try:
            launch: Any = java_gateway.launch_gateway
            gateway = launch(_harmless(settings), popen_kwargs={"stderr": jvm_words})
            context = SparkContext(gateway=gateway, conf=settings)
        except Exception as error:
            jvm_words.seek(0)
            tail = jvm_words.read()[-2000:].decode(errors="replace").strip()
            if (outage := judge_text(f"{error}\n{tail}")) is not None and outage.kind is OutageKind.FULL:
                raise of_outage(outage, f"the working folder of Spark ({private.working_folder()})") from error
            raise Environment(
                f"Spark did not start: {error}\n{tail}",
                hint="Check [spark] in strand.toml, the memory it asks for, and `strand doctor`.",
            ) from error
    context.setLogLevel("ERROR")
    return SparkSession(context)


def _harmless(settings: SparkConf) -> SparkConf:
    """The settings that a JVM may be started with: its command line is shown to every user of the machine.

    The others reach it through the gateway, before Spark starts.
    """
    from pyspark import SparkConf

    shown = SparkConf(loadDefaults=False)
    for key, value in settings.getAll():
        if is_public_spark(key) or key.startswith("spark.driver."):  # what a JVM must know when it starts
            shown.set(key, value)
    return shown


def _reach(master: str) -> None:
    """Say at once that no master answers; Spark would try for a minute, and then say that its context was stopped."""
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        with suppress(OSError, ValueError), socket.create_connection((host, int(port)), timeout=MASTER_ANSWERS_S):
            return
    raise Unreachable(
        f"no Spark master answers at {master}",
        hint="Check [spark] master in strand.toml, and whether the cluster runs. Rows are taken in meanwhile.",
    )


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep Ctrl-C ours: PySpark's handler asks the JVM first, which fails in the middle of another call."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if in_main_thread and before is not None:
            signal.signal(signal.SIGINT, before)


def java_options(more: Sequence[str]) -> str:
    """What our JVM is told, with something more."""
    quiet = resources.files("strandline.engines.spark").joinpath("log4j2.properties")
    return " ".join([f"-Dlog4j2.configurationFile={quiet}", *more])


def _defaults(master: str, paths: list[str]) -> dict[str, str]:
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.driver.extraClassPath": os.pathsep.join(paths),
        "spark.driver.extraJavaOptions": java_options(
            [f'"-Djava.io.tmpdir={private.working_folder()}"', *archive.options(archive.find())]
        ),
        "spark.driver.memory": "2g",
        # Hadoop's own starts a process for every file and folder, to set its permissions: a third of a small flush.
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        # Hadoop sets permissions itself, by a umask of its own.
        "spark.hadoop.fs.permissions.umask-mode": "077",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        settings["spark.local.dir"] = str(private.working_folder())  # on a cluster it is the workers' own
    else:
        settings["spark.jars"] = ",".join(paths)
    return settings
