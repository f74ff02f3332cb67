"""The filter that measures the time between two chunks of a streamed response."""

from collections.abc import Callable

from app_toolkit.exchange.exchange import Exchange


class StreamGaps:
    """Observes the chunks of each stream.

    `counter`: returns the function that counts a gap in seconds of the responses of an ingress.
    """

    def __init__(self, counter: Callable[[str], Callable[[float], None]]) -> None:
        self._counter = counter

    def stream(self, exchange: Exchange) -> None:
        exchange.observe(Chunks(self._counter(exchange.ingress_name), exchange.plane.clock))


class Chunks:
    """The chunks of one stream."""

    __slots__ = ("_at", "_clock", "_count")

    def __init__(self, count: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._at = 0.0  # when the last chunk arrived

    def received(self, data: bytes) -> None:
        now, before = self._clock(), self._at
        if before:
            self._count(now - before)
        self._at = now
