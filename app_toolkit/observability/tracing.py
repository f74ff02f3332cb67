"""Creates OpenTelemetry spans, and exports them to the collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names.

* A request or a call gets the IDs of its spans when it begins (`Tracing.begin`), because replicas need the ID of their
  parent. Its spans are created from its record when it ends (`Tracing.add`), with the times of its stages.
* The spans of replicas and batches are created while these run (`ReplicaSpan`, `batch_span`). They are the current span
  of OpenTelemetry, so the spans of user code and its libraries are their children.
"""

import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
)

from app_toolkit.config import settings
from app_toolkit.observability.context import TRACE, ReplicaContext
from app_toolkit.observability.records import CLIENT_GONE, NOT_OWNED, OK, Record
from app_toolkit.observability.trace_context import TRACEPARENT, TRACESTATE, Trace, formatted, is_sampled, parsed
from app_toolkit.types import Header, Scope

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger("app_toolkit.tracing")

FLUSH_MS = 2_000
"""Milliseconds that a process waits at its end until its last spans are exported."""

EXTRA = "pip install 'app-toolkit[otel]'"

_NS = 1_000_000_000


class _Ids(threading.local):
    """The IDs of the next span of this thread; None: random ones."""

    trace_id: int | None = None
    span: int | None = None


class Tracing:
    """Creates the spans of one process with a tracer provider."""

    def __init__(self, provider: "TracerProvider", ids: _Ids) -> None:
        """`ids`: the provider takes the IDs of its next span from them (`create_tracing`)."""
        self.provider = provider
        self.tracer = provider.get_tracer("app_toolkit")
        self._ids = ids

    def begin(self, parent: str | None) -> Trace:
        """Return the IDs of a new request or call.

        `parent`: its trace in the format of `observability.trace_context`. None: a new trace.
        """
        span, attempt = random.getrandbits(64) or 1, random.getrandbits(64) or 1
        if parent is None:
            trace_id = random.getrandbits(128) or 1
            return Trace(trace_id, 0, span, attempt, self._samples(None, trace_id))
        trace_id, parent_span, parent_sampled, state = parsed(parent)
        around = _within(trace_id, parent_span, parent_sampled, state)
        return Trace(trace_id, parent_span, span, attempt, self._samples(around, trace_id), state)

    def _samples(self, around: context.Context | None, trace_id: int) -> bool:
        return self.provider.sampler.should_sample(around, trace_id, "request").decision.name == "RECORD_AND_SAMPLE"

    def begin_call(self) -> Trace:
        """Return the IDs of a new call of the current context."""
        current = trace.get_current_span().get_span_context()
        return self.begin(_trace_of(current) if current.is_valid else TRACE.get())

    def add(self, record: Record) -> None:
        """Create the spans of a request or a call that has ended just now."""
        if record.trace is None or not record.trace.is_sampled:
            return
        found, end = record.trace, time.time_ns()
        began = end - int(record.seconds * _NS)
        around = _within(found.trace_id, found.parent, True, found.state) if found.parent else context.Context()
        if record.kind == "call":
            name = f"{record.deployment}.{record.method.decode()}"
            span = self._span(name, around, began, found.span, found.trace_id, kind=SpanKind.CLIENT)
            span.set_attributes({"rpc.system": "app_toolkit", "rpc.service": record.deployment})
            span.set_attribute("rpc.method", record.method.decode())
        else:
            method, path = record.method.decode("latin-1"), record.path.decode("latin-1")
            name = f"{method} {record.route}" if record.route else method
            span = self._span(name, around, began, found.span, found.trace_id, kind=SpanKind.SERVER)
            span.set_attributes({"http.request.method": method, "url.path": path})
            span.set_attribute("http.response.status_code", record.status)
            span.set_attribute("client.address", record.peers.split(b" ", 1)[0].decode("latin-1"))
            if record.route:
                span.set_attribute("http.route", record.route)
            if record.deployment != NOT_OWNED:
                span.set_attribute("app_toolkit.deployment", record.deployment)
        span.set_attribute("app_toolkit.request_id", record.id.decode("latin-1"))
        span.set_attribute("app_toolkit.outcome", record.outcome)
        if record.status >= 500 or record.outcome not in (OK, CLIENT_GONE):
            span.set_status(StatusCode.ERROR, record.outcome if record.outcome != OK else None)
        self._add_stages(record, found, began, end)
        span.end(end)

    def _add_stages(self, record: Record, found: Trace, began: int, end: int) -> None:
        """Create a span for the time in the queue, and one for each attempt."""
        around = _within(found.trace_id, found.span, True, found.state)
        attempt_at = end if record.attempt_s is None else began + int(record.attempt_s * _NS)
        if record.queued_s > 0:
            # Of several waits, the span has all of the time, and the end of the last one.
            self._span("queue", around, attempt_at - int(record.queued_s * _NS)).end(attempt_at)
        for number, failed in enumerate(record.failed, 1):
            at = began + int(failed.began_s * _NS)
            span = self._span("attempt", around, at, kind=SpanKind.CLIENT)
            span.set_attributes({"app_toolkit.attempt": number, "app_toolkit.replica": failed.replica})
            span.set_status(StatusCode.ERROR, failed.result)
            span.end(at + int(failed.seconds * _NS))
        if record.attempt_s is not None and record.tries > len(record.failed):
            span = self._span("attempt", around, attempt_at, found.attempt, kind=SpanKind.CLIENT)
            span.set_attributes({"app_toolkit.attempt": record.tries, "app_toolkit.replica": record.replica})
            span.end(end)

    def _span(
        self,
        name: str,
        around: context.Context,
        start: int,
        span: int | None = None,
        trace_id: int | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Begin a span. `around`: with its parent. `span`: its ID. `trace_id`: that of a span without a parent."""
        self._ids.span, self._ids.trace_id = span, trace_id
        try:
            return self.tracer.start_span(name, around, kind, start_time=start)
        finally:
            self._ids.span = self._ids.trace_id = None


current: Tracing | None = None
"""The tracing of this process; None: it is off."""


class ReplicaSpan:
    """The span of a request or a call in a replica, and the current one from its creation to its end.

    It is not a context manager with a token: a coroutine that is discarded is closed in another context.
    """

    __slots__ = ("_outer", "_span", "forwarded")

    def __init__(self, tracing: Tracing, parent: str, replica: ReplicaContext | None) -> None:
        """`parent`: the trace in the format of `observability.trace_context`."""
        self._outer = context.get_current()
        if is_sampled(parent):
            attributes: dict[str, Any] = {}
            if replica is not None:
                attributes["app_toolkit.deployment"] = f"{replica.application}/{replica.deployment}"
                attributes["app_toolkit.replica"] = replica.replica_id
            around = _within(*parsed(parent))
            self._span = tracing.tracer.start_span("replica", around, SpanKind.SERVER, attributes)
            forwarded = _trace_of(self._span.get_span_context())
        else:  # libraries must not begin traces of their own
            self._span, forwarded = _Unsampled(parent), parent
        context.attach(trace.set_span_in_context(self._span, self._outer))
        #: The trace for the calls of the replica and for the app, in the format of `observability.trace_context`.
        self.forwarded = forwarded

    def end(self, error: BaseException | None) -> None:
        context.attach(self._outer)
        if isinstance(error, Exception):
            self._span.set_status(StatusCode.ERROR, type(error).__name__)
        self._span.end()


class _Unsampled(NonRecordingSpan):
    """A span of another process in a trace that is not sampled. Most requests have one, and few read its context."""

    def __init__(self, parent: str) -> None:
        """`parent`: the trace in the format of `observability.trace_context`."""
        super().__init__(INVALID_SPAN_CONTEXT)
        self._parent = parent

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.get_span_context()!r})"

    def get_span_context(self) -> SpanContext:
        return _context_of(*parsed(self._parent))


def with_trace(headers: Sequence[Header], forwarded: str) -> list[Header]:
    """Return the fields of a request with another trace. `forwarded`: as `trace_context` writes it."""
    parent, _, state = forwarded.partition(" ")
    kept = [field for field in headers if field[0] not in (TRACEPARENT, TRACESTATE)]
    kept.append((TRACEPARENT, parent.encode()))
    return [*kept, (TRACESTATE, state.encode())] if state else kept


def is_unsampled(scope: Scope) -> bool:
    """Return whether this process creates spans, but none for this request."""
    if current is None:
        return False
    trace_of_scope = scope.get("extensions", {}).get("app_toolkit", {}).get("trace")
    return trace_of_scope is not None and not is_sampled(trace_of_scope)


def current_span() -> SpanContext | None:
    """Return the current span, for a later `batch_span`. None: tracing is off, or there is none."""
    if current is None:
        return None
    span = trace.get_current_span().get_span_context()
    return span if span.is_valid else None


@contextmanager
def batch_span(name: str, items: Sequence[SpanContext | None]) -> Iterator[None]:
    """Create the span of a batch. It belongs to the trace of its first item, and is linked to all of them.

    `items`: the spans of its items, as `current_span` returned them.
    """
    spans = [span for span in items if span is not None]
    if current is None or not spans:
        yield
        return
    around = trace.set_span_in_context(NonRecordingSpan(spans[0]), context.Context())
    links = [Link(span) for span in spans]
    attributes = {"app_toolkit.batch.size": len(items)}
    with current.tracer.start_as_current_span(f"batch {name}", around, attributes=attributes, links=links):
        yield


def begin_tracing(replica: ReplicaContext) -> Tracing | None:
    """Export the spans of this process from now on, if the environment names a collector. Call this once in a process.

    `replica`: the replica, or the context of another process, whose application is empty. Returns None if tracing is
    off.
    """
    global current
    if not settings.exports_traces():
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("a collector is set for OpenTelemetry, but no spans are exported: %s", EXTRA)
        return None
    tracing = create_tracing(replica)
    tracing.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracing.provider)
    current = tracing
    return tracing


def create_tracing(replica: ReplicaContext) -> Tracing:
    """Return a tracing that exports nothing yet. Requires the SDK of OpenTelemetry."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    ids = _Ids()

    class PresetIds(RandomIdGenerator):
        """Random IDs, except for the spans whose IDs other processes know already."""

        def generate_span_id(self) -> int:
            return ids.span or super().generate_span_id()

        def generate_trace_id(self) -> int:
            return ids.trace_id or super().generate_trace_id()

    named: dict[str, str] = {"service.instance.id": replica.replica_id}
    if not settings.names_service():
        named["service.name"] = replica.application or "app_toolkit"
    return Tracing(TracerProvider(resource=Resource.create(named), id_generator=PresetIds()), ids)


def end_tracing() -> None:
    """Export the spans that this process still has, for at most `FLUSH_MS`."""
    if current is not None:
        current.provider.force_flush(FLUSH_MS)


def _within(trace_id: int, span: int, sampled: bool, state: str = "") -> context.Context:
    """Return a context with a span of another process as the parent."""
    parent = _context_of(trace_id, span, sampled, state)
    return trace.set_span_in_context(NonRecordingSpan(parent), context.Context())


def _context_of(trace_id: int, span: int, sampled: bool, state: str) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    return SpanContext(trace_id, span, True, flags, TraceState.from_header([state]) if state else None)


def _trace_of(span: SpanContext) -> str:
    return formatted(span.trace_id, span.span_id, span.trace_flags.sampled, span.trace_state.to_header())
