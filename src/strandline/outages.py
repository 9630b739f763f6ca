"""What passes by itself: one judgement of what disks, stores, networks and databases say, for every engine.

PyArrow, obstore, DuckDB, Spark's Java and JDBC drivers each have words of their own for a store that is away, a disk
that is full or keys that have run out, and wrap them in each other's errors. No other module looks at these words:
sinks, operations, views and the worker ask here, and so agree on what is tried again and what a person has to look at.

A question about an object's head has an answer without a body, so a store can't say there why it refuses: keys that
have expired look like keys that are wrong. What is refused is therefore tried again too.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class OutageKind(Enum):
    """Why something could not be done now."""

    FULL = "full"
    AWAY = "away"
    CATALOG = "catalog"
    EXPIRED = "expired"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outage:
    """One of these kinds, what it is about as far as the error says so, and the words that tell."""

    kind: OutageKind
    where: str
    words: str


_FULL_ERRNO = {errno.ENOSPC, errno.EDQUOT}
_AWAY_ERRNO = {
    errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH,
    errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ESTALE, errno.ENOTCONN,
}  # fmt: skip

_WORDS: tuple[tuple[OutageKind, re.Pattern[str]], ...] = (
    (
        OutageKind.FULL,
        re.compile(
            r"No space left on device|Disk quota exceeded|SQLITE_FULL|database or disk is full|InsufficientStorage"
            r"|XMinioStorageFull|[Ss]tatus(?: [Cc]ode)?:? 507|HTTP status 507"
        ),
    ),
    (
        OutageKind.EXPIRED,
        re.compile(
            r"ExpiredToken|EXPIRED_TOKEN|TokenRefreshRequired|RequestExpired|RequestTimeTooSkewed|REQUEST_EXPIRED"
        ),
    ),
    (
        OutageKind.REFUSED,
        re.compile(
            r"AWS Error (?:ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID"
            r"|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN|INVALID_SIGNATURE)"
            r"|HTTP status 40[13]|HTTP response code:? 40[13]|Status Code: 40[13]|status code: 40[13]"
            r"|<Code>(?:AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch)</Code>"
            r"|Unable to load credentials from any of the providers|NoAuthWithAWSException"
            r"|org\.apache\.iceberg\.exceptions\.(?:NotAuthorizedException|ForbiddenException)"
        ),
    ),
    (  # before the store's: a driver of a database says which of the network's errors it had
        OutageKind.CATALOG,
        re.compile(
            r"java\.sql\.SQL(?:NonTransient|Transient)ConnectionException|SQLITE_BUSY|database is locked"
            r"|PSQLException: (?:Connection to |The connection attempt failed|An I/O error occurred"
            r"|This connection has been closed"
            r"|FATAL: (?:the database system is|terminating connection|sorry, too many clients|remaining connection))"
        ),
    ),
    (
        OutageKind.AWAY,
        re.compile(
            r"AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE"
            r"|REQUEST_TIMEOUT|THROTTLING)"
            r"|(?:HTTP status|HTTP response code:?|Status Code:|status code:) (?:5\d\d|429|408)"
            r"|HTTP error: (?:error sending request|operation timed out|request or response body error|error decoding)"
            r"|software\.amazon\.awssdk\.core\.exception\.(?:RetryableException|ApiCall\w*Timeout\w*)"
            r"|SdkClientException: Unable to execute HTTP request"
            r"|org\.apache\.hadoop\.fs\.s3a\.(?:AWSServiceThrottledException|AWSStatus500Exception|AWSServiceIOException"
            r"|AWSClientIOException|AWSNoResponseException|AWSApiCallTimeoutException)"
            r"|org\.apache\.hadoop\.net\.ConnectTimeoutException"
            r"|java\.net\.(?:ConnectException|SocketException|SocketTimeoutException|UnknownHostException"
            r"|NoRouteToHostException|http\.HttpTimeoutException)"
            r"|org\.apache\.http\.(?:NoHttpResponseException|ConnectionClosedException|conn\.\w+Exception)"
            r"|org\.apache\.iceberg\.exceptions\.(?:ServiceUnavailableException|ServiceFailureException)"
        ),
    ),
)

_WHERE = (
    (re.compile(r"key '([^']*)' in bucket '([^']*)'"), "s3://{1}/{0}"),
    (re.compile(r"for existence of bucket '([^']*)'"), "s3://{0}"),
    (re.compile(r"(s3a?://[^\s'\":,;)]+)"), "{0}"),
    (re.compile(r"Error performing [A-Z]+ (https?://\S+)"), "{0}"),
)


def judge(error: BaseException) -> Outage | None:
    """What an error is about, if that passes by itself or may do so; the error's causes are looked at too."""
    texts: list[str] = []
    for each in _causes(error):
        if isinstance(each, OSError) and each.errno in _FULL_ERRNO:
            return Outage(OutageKind.FULL, str(each.filename or ""), str(each))
        if isinstance(each, OSError) and (each.errno in _AWAY_ERRNO or isinstance(each, TimeoutError)):
            return Outage(OutageKind.AWAY, str(each.filename or ""), str(each) or type(each).__name__)
        texts.append(_text(each))
    return judge_text("\n".join(texts))


def judge_text(text: str) -> Outage | None:
    """The same of words alone: an error that another process, or another language, has written down."""
    for kind, pattern in _WORDS:
        match = pattern.search(text)
        if match is not None:
            return Outage(kind, _where(text), _line_of(text, match.start()))
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _text(error: BaseException) -> str:
    """All that an error says. Java's causes stand in the text of its stack, which PySpark keeps beside its own."""
    try:
        text = str(error)
    except Exception:  # py4j asks the JVM for it, which may be dead
        text = ""
    stack, cause = getattr(error, "_stackTrace", None), getattr(error, "_cause", None)
    more = [str(stack)] if stack else []
    more += [_text(cause)] if isinstance(cause, BaseException) else []
    return "\n".join([text, *more])


def _where(text: str) -> str:
    for pattern, shape in _WHERE:
        match = pattern.search(text)
        if match is not None:
            return shape.format(*match.groups())
    return ""


def _line_of(text: str, place: int) -> str:
    """The line that tells, without what Java and Python put before it."""
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    line = text[start : end if end >= 0 else None].strip()
    return re.sub(r"\s+", " ", re.sub(r"^(?:Caused by: |: |[\w.]*(?:Error|Exception): )+", "", line))[:400]
