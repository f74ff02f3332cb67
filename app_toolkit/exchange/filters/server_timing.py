"""The filter that adds the response field of W3C Server Timing."""

from typing import Any

from app_toolkit.exchange.dispatcher import Dispatcher
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.wire.pool import ResponseHead

SERVER_TIMING = b"server-timing"
"""The field name, in lowercase."""


class ServerTiming:
    """Adds how long a request was queued, and how long the app took to begin its response."""

    def request(self, exchange: Exchange) -> None:
        exchange.marks[self] = True

    def response(self, exchange: Exchange, head: ResponseHead) -> None:
        head.fields = [*head.fields, (SERVER_TIMING, server_timing(exchange.dispatcher, exchange.plane.clock()))]


def server_timing(dispatcher: Dispatcher[Any], now: float) -> bytes:
    """Return the value of the field of a response that begins now."""
    queued_s, _, attempt_s, _ = dispatcher.stage_times(now)
    app_s = now - dispatcher.began - (attempt_s or 0.0)
    return b"queue;dur=%.1f, app;dur=%.1f" % (1_000 * queued_s, 1_000 * app_s)
