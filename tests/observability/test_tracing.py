"""Spans of OpenTelemetry from the records of requests and calls."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from app_toolkit.observability import tracing
from app_toolkit.observability.context import ReplicaContext
from app_toolkit.observability.records import FailedAttempt, Record
from app_toolkit.observability.trace_context import formatted, parsed, trace_of
from app_toolkit.observability.tracing import ReplicaSpan, Tracing, batch_span, create_tracing, current_span, with_trace
from app_toolkit.types import ReplicaId

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
IDS = st.integers(1, 2**64 - 1)


class Spans:
    """The tracing of a process, whose spans are kept."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.tracing: Tracing = create_tracing(ReplicaContext("shop", "web", ReplicaId("shop@13.web-1-1"), 13))
        self.tracing.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    def add(self, **fields: object) -> None:
        taken = {"arrived": 1.0, "seconds": 2.0, "kind": "http", "deployment": "shop/web", "replica": "r-1", "tries": 1}
        self.tracing.add(Record(**{**taken, "outcome": "ok", "method": b"GET", "status": 200, **fields}))  # type: ignore[arg-type]

    @property
    def ended(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._kept.get_finished_spans()}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    spans = Spans()
    monkeypatch.setattr(tracing, "current", spans.tracing)
    yield spans
    spans.tracing.provider.shutdown()


@given(IDS, IDS, st.booleans(), st.sampled_from(["", "a=1", "a=1,b=x"]))
def test_trace_is_read_as_it_was_written(trace_id: int, span: int, is_sampled: bool, state: str) -> None:
    written = formatted(trace_id, span, is_sampled, state)
    assert parsed(written) == (trace_id, span, is_sampled, state)
    assert trace_of(with_trace([(b"traceparent", b"another")], written)) == written


def test_request_of_a_client_is_its_child_and_forwards_its_last_attempt(spans: Spans) -> None:
    place = spans.tracing.begin(CLIENT + " a=1")
    assert place.forwarded == formatted(place.trace_id, place.attempt, True, "a=1")
    failed = FailedAttempt("r-2", 0.5, 0.25, "lost")
    spans.add(
        trace=place, route="/items/{id}", path=b"/items/7", queued_s=0.5, attempt_s=1.0, tries=2, failed=(failed,)
    )
    request, queue = spans.ended["GET /items/{id}"], spans.ended["queue"]
    assert request.parent is not None
    assert request.context is not None
    assert formatted(request.context.trace_id, request.parent.span_id, True) == CLIENT
    assert request.context.span_id == place.span
    assert request.kind is SpanKind.SERVER
    assert request.attributes is not None
    assert request.attributes["http.route"] == "/items/{id}"
    assert request.attributes["app_toolkit.deployment"] == "shop/web"
    assert spans.ended["attempt"].context.span_id == place.attempt  # the last one of this name
    began = {each.name: (each.start_time - request.start_time) / 1e9 for each in spans.ended.values()}
    assert began == pytest.approx({"GET /items/{id}": 0.0, "queue": 0.5, "attempt": 1.0}, abs=1e-6)
    assert (queue.end_time - queue.start_time) / 1e9 == pytest.approx(0.5, abs=1e-6)
    assert (request.end_time - request.start_time) / 1e9 == pytest.approx(2.0, abs=1e-6)


def test_request_without_a_trace_begins_one_that_its_record_continues(spans: Spans) -> None:
    place = spans.tracing.begin(None)
    spans.add(trace=place, kind="call", method=b"score", outcome="replica_lost", status=502)
    call = spans.ended["shop/web.score"]
    assert (call.context.trace_id, call.context.span_id, call.parent) == (place.trace_id, place.span, None)
    assert (call.kind, call.status.status_code, call.status.description) == (
        SpanKind.CLIENT,
        StatusCode.ERROR,
        "replica_lost",
    )
    assert call.resource.attributes["service.name"] == "shop"


def test_request_that_is_not_sampled_has_no_spans_in_any_process(spans: Spans) -> None:
    place = spans.tracing.begin(CLIENT[:-1] + "0")
    assert place.forwarded.endswith("-00")
    spans.add(trace=place)
    inside = ReplicaSpan(spans.tracing, place.forwarded, None)
    assert inside.forwarded.endswith("-00")
    inside.end(None)
    spans.add(trace=None)
    assert spans.ended == {}


def test_share_of_traces_is_that_of_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    random.seed(7)
    few = create_tracing(ReplicaContext("", "", ReplicaId("proxy")))
    sampled = [few.begin(None).is_sampled for _ in range(1_000)]
    assert 200 < sum(sampled) < 300
    few.provider.shutdown()


def test_span_of_a_replica_is_the_current_one_until_its_end(spans: Spans) -> None:
    place = spans.tracing.begin(CLIENT)
    inside = ReplicaSpan(spans.tracing, place.forwarded, ReplicaContext("shop", "web", ReplicaId("r-1")))
    call = spans.tracing.begin_call()
    assert (call.trace_id, formatted(call.trace_id, call.parent, True)) == (place.trace_id, inside.forwarded)
    inside.end(ValueError("no"))
    assert current_span() is None
    span = spans.ended["replica"]
    assert (span.parent.span_id, span.status.status_code) == (place.attempt, StatusCode.ERROR)
    assert span.attributes == {"app_toolkit.deployment": "shop/web", "app_toolkit.replica": "r-1"}


def test_batch_belongs_to_its_first_item_and_is_linked_to_all(spans: Spans) -> None:
    items = []
    for _ in range(2):
        with spans.tracing.tracer.start_as_current_span("item"):
            items.append(current_span())
    with batch_span("score", [None, *items]):
        assert trace.get_current_span().get_span_context().trace_id == items[0].trace_id
    batch = spans.ended["batch score"]
    assert batch.parent == items[0]
    assert [link.context for link in batch.links] == items
    assert batch.attributes == {"app_toolkit.batch.size": 3}


def test_nothing_is_traced_without_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert tracing.begin_tracing(ReplicaContext("", "", ReplicaId("proxy"))) is None
    assert current_span() is None
    with batch_span("score", [None]):
        assert not trace.get_current_span().get_span_context().is_valid
