"""The filter that measures the time between two chunks of a streamed response."""

from collections.abc import Callable

from app_toolkit.dispatch.exchange import Exchange
from app_toolkit.observability.counts import Histogram
from app_toolkit.transport.pool import ResponseHead


class StreamGaps:
    """Observes the chunks of each stream.

    `gaps`: returns the histogram of a deployment.
    """

    def __init__(self, gaps: Callable[[str], Histogram]) -> None:
        self._gaps = gaps

    def response(self, exchange: Exchange, head: ResponseHead) -> None:
        if head.stream is not None:
            exchange.observe(Chunks(self._gaps(exchange.ingress), exchange.plane.clock))


class Chunks:
    """The chunks of one stream."""

    __slots__ = ("_at", "_clock", "_gaps")

    def __init__(self, gaps: Histogram, clock: Callable[[], float]) -> None:
        self._gaps = gaps
        self._clock = clock
        self._at = 0.0  # when the last chunk arrived

    def received(self, data: bytes) -> None:
        now, before = self._clock(), self._at
        if before:
            self._gaps.observe(now - before)
        self._at = now
