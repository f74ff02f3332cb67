"""The number of requests of each client address at a proxy."""

from collections import defaultdict

from app_toolkit.errors import TooManyRequests


class Clients:
    """The requests and WebSockets of each client address, limited by `max_requests_per_client`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._requests: defaultdict[str, set[object]] = defaultdict(set)

    def enter(self, host: str, request: object) -> None:
        """Add a request. Raise `TooManyRequests` if its client address has reached the limit."""
        requests = self._requests[host]
        if len(requests) >= self._most:
            raise TooManyRequests(
                f"the client {host} has {len(requests)} requests at this proxy, its max_requests_per_client is "
                f"{self._most}: send fewer at a time"
            )
        requests.add(request)

    def leave(self, host: str, request: object) -> None:
        """Remove a request. Does nothing if the request was not added."""
        requests = self._requests.get(host)
        if requests is None:
            return
        requests.discard(request)
        if not requests:
            del self._requests[host]

    def __len__(self) -> int:
        """Return the number of client addresses that have requests."""
        return len(self._requests)
