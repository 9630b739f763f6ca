"""Spans: what was done, for how long, and how it ended.

Operations and deliveries say what they are about, and watchers listen: a worker counts their durations for Prometheus,
and OpenTelemetry gets them as traces where an endpoint is configured (`OTEL_EXPORTER_OTLP_ENDPOINT`). Without a
listener, a span costs one look at an empty list.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strandline import logs
from strandline.redaction import redacted, redacted_fields

log = logs.Logger("strandline.spans")

Value = str | int | float | bool
Listener = Callable[[str, Mapping[str, Value], float, BaseException | None], None]
"""Told at the end of a span: its name, what it is about, its seconds, and what it ended with."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_listeners: list[Listener] = []
_tracer: Any = None
_provider: Any = None


@contextmanager
def span(name: str, **about: Value) -> Iterator[None]:
    """The block is one thing that is done; spans inside it are parts of it."""
    if not _listeners and _tracer is None:
        yield
        return
    began_s = time.monotonic()
    failure: BaseException | None = None
    try:
        with _traced(name, about):
            yield
    except BaseException as error:
        failure = error
        raise
    finally:
        for listener in _listeners:
            listener(name, about, time.monotonic() - began_s, failure)


def listen(listener: Listener) -> Callable[[], None]:
    """Tell this listener of every span from now on; returns what ends that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


@contextmanager
def _traced(name: str, about: Mapping[str, Value]) -> Iterator[None]:
    if _tracer is None:
        yield
        return
    title = f"{name} {about['kind']}" if "kind" in about else name
    shown = {f"strand.{key}": value for key, value in redacted_fields(about).items()}
    # An exception of a library's own may have anything in its text; ours is in the log, by the operation's id.
    with _tracer.start_as_current_span(title, attributes=shown, record_exception=False) as span:
        try:
            yield
        except BaseException as error:
            attributes = {"exception.type": type(error).__name__, "exception.message": redacted(str(error))}
            span.add_event("exception", attributes)
            raise


@contextmanager
def traces(service: str) -> Iterator[None]:
    """Send spans to the endpoint that the environment names, if it names one; the last of them when the block ends."""
    if _tracer is not None or not any(os.environ.get(name) for name in ENDPOINTS):
        yield
        return
    _start(service)
    try:
        yield
    finally:
        flush()


def flush() -> None:
    """Send what has not been sent: for a process that ends in a hurry."""
    if _provider is not None:
        _provider.force_flush(timeout_millis=2000)


def _start(service: str) -> None:
    global _tracer, _provider
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("an OTLP endpoint is set, and the package is missing", install="pip install 'strandline[otel]'")
        return
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    _provider = TracerProvider(resource=Resource.create({"service.name": name}))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = _provider.get_tracer("strandline")
