"""The filter that keeps slow uploads from occupying slots.

A small body is received completely before the request asks for a permit, so that a slow client occupies no slot. Of a
larger one, the first bytes are received, and `exchange.upload_rate` decides whether it arrives slowly. Requests with
slow bodies may hold only a share of the slots of a replica, which the replica enforces.
"""

import math

from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.request import KEPT_BODY
from app_toolkit.exchange.upload_rate import is_slow
from app_toolkit.exchange.upstream import Terms

MEASURE_S = 0.2
"""Seconds after which a request asks for a permit, if not enough of its body has arrived before. The client may wait
for a response before it sends the rest of the body. The rate of the body is measured over this time."""


class UploadPacing:
    """Lets a request ask for a permit once enough of its body has arrived."""

    def waits(self, exchange: Exchange) -> float:
        request = exchange.request
        if request.complete or request.websocket or request.expects:
            return 0.0
        if request.body.waiting >= KEPT_BODY:
            self._measure(exchange)
            return 0.0
        return MEASURE_S if request.body_on_demand else math.inf

    def waited(self, exchange: Exchange) -> None:
        if exchange.wants_body:
            self._measure(exchange)

    def sending(self, exchange: Exchange, terms: Terms) -> None:
        terms.slow_body = self in exchange.marks and not exchange.request.complete

    def _measure(self, exchange: Exchange) -> None:
        """Find out whether the body arrives slowly, while or when the exchange stops reading it."""
        request = exchange.request
        if not request.body_on_demand:
            return
        arriving_s = exchange.plane.clock() - exchange.dispatcher.began
        if is_slow(request.body.received, request.missing, arriving_s):
            exchange.marks[self] = True
        else:
            exchange.marks.pop(self, None)
