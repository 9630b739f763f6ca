"""The versions that work together, as they really run, not only as they are pinned."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from strandline.engines.spark import archive, jars, java
from strandline.lake import Lake

OURS = {"pyspark": "4.1.4", "duckdb": "2.0.0", "pandas": "2.3.3", "pyiceberg": "0.12.0"}
TOO_NEW = {"pyspark": "4.2.0", "duckdb": "3.0.0", "pandas": "3.0.0"}


def jar_revisions() -> dict[str, str]:
    return {jar.name: jar.revision for jar in jars.pinned()}


def test_what_is_installed_is_what_the_facts_were_measured_on() -> None:
    """If one moves, nothing in this folder is known any more: run it, read what turns red, then change this list."""
    assert {name: version(name) for name in OURS} == OURS


def test_the_requirements_keep_out_what_does_not_work() -> None:
    """PySpark 4.2 has no Iceberg runtime and pandas 3 no PySpark: an install that took them would fail at first use."""
    wanted = {one.name: one.specifier for one in map(Requirement, requires("strandline") or [])}
    for name, too_new in TOO_NEW.items():
        assert not wanted[name].contains(too_new), f"{name} {too_new} may be installed"
        assert wanted[name].contains(OURS[name])
    assert not wanted["pyspark"].contains("4.1.3")


def test_the_iceberg_runtime_is_made_for_the_spark_that_runs(lake: Lake) -> None:
    """A runtime for another Spark starts, and then fails in the middle of a write with a missing method."""
    runtime = next(name for name in jar_revisions() if name.startswith("iceberg-spark-runtime"))
    spark, scala = re.findall(r"\d+\.\d+", runtime)
    running = Version(lake.spark.version)
    assert f"{running.major}.{running.minor}" == spark
    jvm: Any = lake.spark._jvm
    assert jvm.scala.util.Properties.versionNumberString().startswith(f"{scala}.")


def test_the_jvm_has_the_pinned_jars_on_its_class_path(lake: Lake) -> None:
    """An older Iceberg or JDBC driver found first would write tables by other rules than those held here."""
    jvm: Any = lake.spark._jvm
    revisions = jar_revisions()
    assert jvm.org.apache.iceberg.IcebergBuild.version() == revisions["iceberg-spark-runtime-4.1_2.13"] == "1.12.0"
    sqlite = jvm.java.sql.DriverManager.getDriver("jdbc:sqlite:")
    assert revisions["sqlite-jdbc"] == "3.50.3.0"
    assert revisions["sqlite-jdbc"].startswith(f"{sqlite.getMajorVersion()}.{sqlite.getMinorVersion()}.")
    assert jvm.java.sql.DriverManager.getDriver("jdbc:postgresql:x") is not None


def test_no_process_is_started_for_a_local_file(lake: Lake) -> None:
    """Hadoop's own file system starts a `chmod` for each; ours sets permissions by itself: to the owner's alone."""
    jvm: Any = lake.spark._jvm
    context: Any = lake.spark.sparkContext
    path = jvm.org.apache.hadoop.fs.Path(f"file://{lake.root}/probe/file")
    system = path.getFileSystem(context._jsc.hadoopConfiguration())
    assert system.getRawFileSystem().getClass().getSimpleName() == "NakedLocalFileSystem"
    system.create(path).close()
    made = lake.root / "probe" / "file"
    assert (made.stat().st_mode & 0o777, made.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_spark_runs_on_the_java_that_we_looked_for(lake: Lake) -> None:
    """Another Java than the one that was checked could be one that Spark's Hadoop fails on in the first job (24+)."""
    jvm: Any = lake.spark._jvm
    running = jvm.java.lang.Runtime.version().feature()
    assert java.OLDEST <= running <= java.NEWEST
    assert Path(jvm.java.lang.System.getProperty("java.home")).resolve() == Path(os.environ["JAVA_HOME"]).resolve()


def test_workers_run_our_python(lake: Lake) -> None:
    """With another Python, a load's first pass would lack our own package, or pickle for another version."""

    def executable(_: int) -> str:
        import sys

        return sys.executable

    (found,) = lake.spark.sparkContext.parallelize([0], 1).map(executable).collect()
    assert Path(found) == Path(sys.executable)


def test_the_driver_listens_on_loopback_alone(lake: Lake) -> None:
    """A driver on another interface can be reached, and on a laptop whose name has no address it does not start."""
    assert lake.spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert lake.spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


def test_spark_runs_from_the_archive_that_the_set_up_made(lake: Lake) -> None:
    """A JVM ignores an archive that does not fit and says nothing; what it maps into its memory tells."""
    made = archive.find()
    assert made is not None, "`make setup` makes it: python -m strandline.engines.spark.archive"
    jvm: Any = lake.spark._jvm
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        assert str(made) in str(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    else:
        assert str(made) in maps.read_text()
