"""A collector of OpenTelemetry: it receives spans over OTLP/HTTP, and keeps them."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.url = ""

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for each in request.resource_spans:
            for scope in each.scope_spans:
                self.spans.extend(scope.spans)

    def of(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id.hex() == trace_id]

    def tree(self, trace_id: str) -> dict[str, list[str]]:
        """The names of the spans of a trace, by the path of names that leads to their parents."""
        spans = {span.span_id: span for span in self.of(trace_id)}
        found: dict[str, list[str]] = {}
        for span in sorted(spans.values(), key=lambda span: (span.start_time_unix_nano, span.name)):
            names, parent = [], spans.get(span.parent_span_id)
            while parent is not None:
                names.append(parent.name)
                parent = spans.get(parent.parent_span_id)
            found.setdefault(" > ".join(reversed(names)), []).append(span.name)
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
