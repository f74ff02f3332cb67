"""The upstreams of a proxy: pooled connections, on which requests are framed for replicas."""

from collections.abc import Callable, Sequence
from typing import Any

from app_toolkit.edge.request_parser import Request
from app_toolkit.errors import ReplicaGone
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.upstream import Terms
from app_toolkit.types import Address, Header
from app_toolkit.wire import hop
from app_toolkit.wire.pool import Pool, PooledConnection

SLOW_BODY = (hop.SLOW_BODY, b"1")


class PooledUpstreams:
    """Sends requests on the connections of a pool.

    `token`: authenticates the hop fields. `redeem`: the field with which a request redeems a reservation.
    """

    def __init__(self, pool: Pool, token: bytes, redeem: Header) -> None:
        self._pool = pool
        self._token = token
        self._redeem = redeem
        self.distrust = pool.distrust

    def take(self, address: Address) -> Any:
        return self._pool.take(address)

    def dial(
        self, address: Address, reached: Callable[[PooledConnection], None], failed: Callable[[ReplicaGone], None]
    ) -> None:
        self._pool.dial(address, reached, failed)

    def give_back(self, upstream: Any) -> None:
        self._pool.give_back(upstream)

    def send(self, upstream: Any, exchange: Exchange, terms: Terms) -> None:
        head_only = exchange.request.method == b"HEAD"
        upstream.begin(exchange, head_only=head_only, decode=has_no_chunks(exchange, terms))
        upstream.write_all((self._head(exchange, terms), *body_of(exchange, terms)))

    def _head(self, exchange: Exchange, terms: Terms) -> bytes:
        request = exchange.request
        assert isinstance(request, Request), "a proxy parses the requests of its clients"
        assert request.id is not None
        version, peers = request.version.encode(), exchange.downstream.peers
        identity = hop.encode(self._token, request.id, version, peers, terms.timeout_ms)
        attempt = fields_of_attempt(terms, self._redeem)
        return request.head(identity, attempt, terms.replaced, mirrored=terms.mirrored)


def fields_of_attempt(terms: Terms, redeem: Header) -> Sequence[Header]:
    """Return the internal fields of an attempt. `redeem`: the field with which a request redeems a reservation."""
    if not (terms.redeems or terms.slow_body):
        return ()
    return [*([redeem] if terms.redeems else ()), *([SLOW_BODY] if terms.slow_body else ())]


def has_no_chunks(exchange: Exchange, terms: Terms) -> bool:
    """Return whether the exchange takes the body of the response without its framing."""
    return exchange.request.version == "1.0" or terms.mirrored


def body_of(exchange: Exchange, terms: Terms) -> Sequence[Any]:
    """Return the part of the body that is sent with the head."""
    return () if exchange.holding and not terms.mirrored else exchange.request.body.take()
