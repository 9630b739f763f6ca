"""What passes by itself, by the words that engines really said about a real store behind a proxy that was ill."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from strandline.config import Store
from strandline.engines.objects import ObjectPlace, store_error
from strandline.errors import WAREHOUSE, Busy, Damaged, Environment, NoSpace, in_our_words, may_pass, of_outage
from strandline.operations.core.deletion_time import ask_store
from strandline.operations.core.staging import Staging
from strandline.outages import Outage, judge, judge_text
from strandline.outages import OutageKind as Kind

PYARROW = "When getting information for key 'x/a.parquet' in bucket 'b': AWS Error {} during HeadObject operation: {}"
OBSTORE = "Generic S3 error: Error performing PUT http://127.0.0.1:41267/b/x/put in 444ms, after 3 retries  - {}"
NON_2XX = "Server returned non-2xx status code: {}: <Error><Code>{}</Code></Error>"
JAVA = "An error occurred while calling o70.loadTable.\n: software.amazon.awssdk.{}\n\tat software.amazon.x(Y.java:113)"
S3_EXCEPTION = "services.s3.model.S3Exception: the store says {} (Service: S3, Status Code: {}, Request ID: 1)"
SPARK = (
    "An error occurred while calling o62.sql.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0: java.io.UncheckedIOException: Failed to "
    "close current writer\n\tat org.apache.iceberg.io.RollingFileWriter.close(RollingFileWriter.java:156)\nCaused by: "
    "java.io.IOException: software.amazon.awssdk.{}\n\t... 8 more"
)
HADOOP = "An error occurred while calling o166.parquet.\n: {}: getFileStatus on s3://b/w/a.parquet: software.amazon.{}"

SEEN = [
    (PYARROW.format("UNKNOWN (HTTP status 500)", "No response body."), Kind.AWAY),
    (PYARROW.format("UNKNOWN (HTTP status 503)", "No response body."), Kind.AWAY),
    (PYARROW.format("INTERNAL_FAILURE", "the store says InternalError"), Kind.AWAY),
    (PYARROW.format("SLOW_DOWN", "the store says SlowDown"), Kind.AWAY),
    (PYARROW.format("SERVICE_UNAVAILABLE", "the store says ServiceUnavailable"), Kind.AWAY),
    (PYARROW.format("NETWORK_CONNECTION", "curlCode: 28, Timeout was reached; Details: Operation too slow"), Kind.AWAY),
    (PYARROW.format("NETWORK_CONNECTION", "curlCode: 56, Recv failure: Connection reset by peer"), Kind.AWAY),
    (PYARROW.format("NETWORK_CONNECTION", "curlCode: 7, Could not connect to server"), Kind.AWAY),
    (PYARROW.format("UNKNOWN (HTTP status 403)", "Unable to parse ExceptionName: ExpiredToken"), Kind.EXPIRED),
    (PYARROW.format("ACCESS_DENIED", "No response body."), Kind.REFUSED),
    (PYARROW.format("INVALID_ACCESS_KEY_ID", "the store says InvalidAccessKeyId"), Kind.REFUSED),
    (OBSTORE.format(NON_2XX.format("500 Internal Server Error", "InternalError")), Kind.AWAY),
    (OBSTORE.format(NON_2XX.format("503 Service Unavailable", "SlowDown")), Kind.AWAY),
    (OBSTORE.format(NON_2XX.format("403 Forbidden", "ExpiredToken")), Kind.EXPIRED),
    (OBSTORE.format(NON_2XX.format("403 Forbidden", "AccessDenied")), Kind.REFUSED),
    (OBSTORE.format("HTTP error: error sending request"), Kind.AWAY),
    (JAVA.format(S3_EXCEPTION.format("InternalError", 500)), Kind.AWAY),
    (JAVA.format(S3_EXCEPTION.format("SlowDown", 503)), Kind.AWAY),
    (JAVA.format(S3_EXCEPTION.format("ExpiredToken", 403)), Kind.EXPIRED),
    (JAVA.format("services.s3.model.AccessDeniedException: x (Service: S3, Status Code: 403)"), Kind.REFUSED),
    (JAVA.format("core.exception.SdkClientException: Unable to execute HTTP request: Read timed out"), Kind.AWAY),
    (JAVA.format("x.SdkClientException: Unable to load credentials from any of the providers"), Kind.REFUSED),
    (SPARK.format(S3_EXCEPTION.format("InternalError", 500)), Kind.AWAY),
    (SPARK.format("core.exception.SdkClientException: Unable to execute HTTP request: Connection reset"), Kind.AWAY),
    (SPARK.format(S3_EXCEPTION.format("ExpiredToken", 403)), Kind.EXPIRED),
    (HADOOP.format("org.apache.hadoop.fs.s3a.AWSStatus500Exception", "x"), Kind.AWAY),
    (HADOOP.format("org.apache.hadoop.fs.s3a.AWSServiceThrottledException", "x"), Kind.AWAY),
    (HADOOP.format("org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException", "x"), Kind.AWAY),
    (HADOOP.format("java.net.ConnectException", "x"), Kind.AWAY),
    (HADOOP.format("java.nio.file.AccessDeniedException", "x (Service: S3, Status Code: 403)"), Kind.REFUSED),
    ("org.postgresql.util.PSQLException: Connection to 127.0.0.1:5432 refused. Check that the hostname", Kind.CATALOG),
    ("Caused by: org.postgresql.util.PSQLException: FATAL: the database system is starting up", Kind.CATALOG),
    ("org.postgresql.util.PSQLException: FATAL: terminating connection due to administrator command", Kind.CATALOG),
    ("Caused by: java.io.IOException: No space left on device\n\tat java.base/sun.nio.ch", Kind.FULL),
    ("org.sqlite.SQLiteException: [SQLITE_FULL] Insertion failed because database is full", Kind.FULL),
]  # fmt: skip


def test_a_database_that_is_away_under_spark_is_not_taken_for_the_store() -> None:
    """Whoever is called at night looks at the right server."""
    words = "PSQLException: An I/O error occurred while sending to the backend.\nCaused by: java.net.SocketException: x"
    outage = judge_text(
        f"org.apache.iceberg.jdbc.UncheckedSQLException: Failed\nCaused by: org.postgresql.util.{words}"
    )
    assert outage is not None and outage.kind is Kind.CATALOG
    error = of_outage(outage, "s3://bucket/lake")
    assert "catalog" in str(error) and "store" not in str(error) and "s3://" not in str(error)


@pytest.mark.parametrize(("text", "kind"), SEEN)
def test_f103_words_that_engines_said_are_one_kind(text: str, kind: Kind) -> None:
    outage = judge_text(text)
    assert outage is not None and outage.kind is kind
    assert may_pass(of_outage(outage)), "a worker would give it up"


@pytest.mark.parametrize(
    "text",
    [
        "org.postgresql.util.PSQLException: FATAL: password authentication failed for user",
        "software.amazon.awssdk.core.exception.SdkClientException: Unable to load region from any of the providers",
        "org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found.",
        "Invalid Input Error: No magic bytes found at end of file 'x.parquet'",
        "java.lang.OutOfMemoryError: Java heap space",
        "When reading key 'x' in bucket 'b': AWS Error NO_SUCH_KEY during GetObject operation",
    ],
)
def test_f103_what_needs_a_person_is_none_of_it(text: str) -> None:
    assert judge_text(text) is None


def test_f103_the_store_is_named_and_java_s_stack_is_not_repeated() -> None:
    text = SPARK.format(S3_EXCEPTION.format("InternalError", 500))
    outage = judge_text(f"{text}\n s3://bucket/warehouse/a.parquet")
    assert outage is not None
    assert outage.where == "s3://bucket/warehouse/a.parquet"
    assert outage.words.endswith("the store says InternalError (Service: S3, Status Code: 500, Request ID: 1)")
    by_key = judge(OSError(PYARROW.format("SLOW_DOWN", "")))
    assert by_key is not None and by_key.where == "s3://b/x/a.parquet"


def test_f103_numbers_of_the_system_and_causes_are_looked_at() -> None:
    """An error that somebody wrapped is still what it was; one that was put aside on purpose is not."""
    full = OSError(errno.ENOSPC, "No space left on device", "/mnt/x")
    assert judge(full) == Outage(Kind.FULL, "/mnt/x", "[Errno 28] No space left on device: '/mnt/x'")
    assert judge(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) is not None
    assert judge(TimeoutError()) is not None
    wrapped = RuntimeError("a step failed")
    wrapped.__cause__ = full
    assert isinstance(in_our_words(wrapped), NoSpace)
    apart = RuntimeError("a step failed")
    apart.__context__, apart.__suppress_context__ = full, True
    assert judge(apart) is None


def test_f103_only_what_passes_is_tried_for_ever() -> None:
    """A refusal is among it, though a person may be needed: a store can't tell expired keys from wrong ones."""
    refused = of_outage(Outage(Kind.REFUSED, "s3://b", "403"))
    assert isinstance(refused, Environment) and may_pass(refused)
    assert may_pass(Busy("x")) and may_pass(NoSpace("x"))
    assert not may_pass(Environment("no Java")) and not may_pass(Damaged("x")) and not may_pass(ValueError("x"))


@pytest.mark.parametrize("uri", ["s3://bucket/prefix", "file:///nowhere/else"])
@pytest.mark.parametrize(
    "error",
    [
        OSError(
            "When listing objects under key 'a/' in bucket 'bucket': AWS Error NO_SUCH_BUCKET during ListObjectsV2"
        ),
        OSError(errno.EROFS, "Read-only file system", "/nowhere/else/x"),
        OSError(errno.EIO, "Input/output error", "/nowhere/else/x"),
    ],
    ids=["bucket", "read-only", "failing"],
)
def test_f103_a_sink_s_working_place_in_the_lake_s_own_warehouse_parks_nothing(uri: str, error: OSError) -> None:
    """A copy is staged there: whatever is the matter with it, the destination has no part in it."""
    own = store_error(error, ObjectPlace(uri, Store(), is_own=True), "x")
    assert own.detail.get("reason") == WAREHOUSE and may_pass(own)
    assert store_error(error, ObjectPlace(uri, Store()), "x").detail.get("reason") != WAREHOUSE


def test_f103_a_warehouse_that_is_not_there_is_no_bug_of_ours(tmp_path: Path) -> None:
    """Whoever asks it for the time waits for it."""
    with pytest.raises(Busy, match="nowhere"):
        ask_store(Staging(f"file://{tmp_path}/nowhere"))
