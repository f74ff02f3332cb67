"""How many requests each client address has at a proxy."""

from collections import defaultdict

from app_toolkit.errors import TooManyRequests


class Clients:
    """The requests and WebSockets of each client address, bounded by `max_requests_per_client`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._requests: defaultdict[str, set[object]] = defaultdict(set)

    def enter(self, host: str, request: object) -> None:
        """Raises `TooManyRequests` for one beyond the bound."""
        requests = self._requests[host]
        if len(requests) >= self._most:
            raise TooManyRequests(
                f"the client {host} has {len(requests)} requests at this proxy, its max_requests_per_client is "
                f"{self._most}: send fewer at a time"
            )
        requests.add(request)

    def leave(self, host: str, request: object) -> None:
        """Nothing happens for a request that did not enter."""
        requests = self._requests.get(host)
        if requests is None:
            return
        requests.discard(request)
        if not requests:
            del self._requests[host]

    def __len__(self) -> int:
        """How many addresses have requests."""
        return len(self._requests)
