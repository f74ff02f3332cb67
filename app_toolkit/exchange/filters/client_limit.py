"""The filter that limits the number of requests of each client address at a proxy."""

from collections import defaultdict

from app_toolkit.errors import TooManyRequests
from app_toolkit.exchange.exchange import Exchange


class ClientLimit:
    """The requests and WebSockets of each client address, limited by `max_requests_per_client`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._exchanges: defaultdict[str, set[Exchange]] = defaultdict(set)

    def arrived(self, exchange: Exchange) -> None:
        """Count a request. Raise `TooManyRequests` if its client address has reached the limit."""
        host = exchange.downstream.host
        exchanges = self._exchanges[host]
        if len(exchanges) >= self._most:
            raise TooManyRequests(
                f"the client {host} has {len(exchanges)} requests at this proxy, its max_requests_per_client is "
                f"{self._most}: send fewer at a time"
            )
        exchanges.add(exchange)
        exchange.marks[self] = True

    def ended(self, exchange: Exchange, status: int, outcome: str) -> None:
        host = exchange.downstream.host
        exchanges = self._exchanges.get(host)
        if exchanges is not None:
            exchanges.discard(exchange)
            if not exchanges:
                del self._exchanges[host]

    def __len__(self) -> int:
        """Return the number of client addresses that have requests."""
        return len(self._exchanges)
