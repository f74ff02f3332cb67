"""The counters of rate limits, in memory or in Redis. Both have the interface of the package `limits`."""

import time
from collections import OrderedDict
from typing import Any

from limits.aio.storage import MemoryStorage, RedisStorage

from app_toolkit.config.models import REDIS_URL
from app_toolkit.config.settings import redis_url
from app_toolkit.errors import ConfigError

MOST_COUNTERS = 200_000
"""Counters in memory. Beyond, the oldest one is forgotten, so that clients that invent keys do not fill the memory."""

SOCKET_TIMEOUT_S = 1.0
"""Seconds to connect to Redis, and to receive the reply to a command."""

PREFIX = "app_toolkit:rate"
"""The beginning of the keys in Redis."""

MAX_CONNECTIONS = 32
"""Connections of one process to Redis. A further command waits for one."""


class Memory(MemoryStorage):
    """Counters in memory, of which the oldest ones are looked at. `MemoryStorage` looks at all for each request."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: OrderedDict[str, float] = OrderedDict()
        self.expirations = self._ends

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        now = time.time()
        if self._ends.get(key, 0.0) <= now:
            self._forget(key)
            self._make_room(now)
            self._ends[key] = now + expiry
        self.storage[key] += amount
        return self.storage[key]

    async def aclose(self) -> None:
        """Do nothing: nothing is open."""

    def __len__(self) -> int:
        return len(self._ends)

    def _make_room(self, now: float) -> None:
        while self._ends:
            oldest = next(iter(self._ends))
            if self._ends[oldest] > now and len(self._ends) < MOST_COUNTERS:
                return
            self._forget(oldest)

    def _forget(self, key: str) -> None:
        self._ends.pop(key, None)
        self.storage.pop(key, None)


class Redis(RedisStorage):
    """Counters in a Redis server. It connects for the first request."""

    def __init__(self, url: str) -> None:
        """Raise `ConfigError` if the package is missing, or the URL is invalid. The error does not show the URL."""
        try:
            from redis.asyncio import BlockingConnectionPool
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ImportError as error:
            raise ConfigError("rate limits in Redis need redis: pip install 'app-toolkit[redis]'") from error
        try:
            self._pool: Any = BlockingConnectionPool.from_url(
                url,
                max_connections=MAX_CONNECTIONS,
                timeout=SOCKET_TIMEOUT_S,
                socket_timeout=SOCKET_TIMEOUT_S,
                socket_connect_timeout=SOCKET_TIMEOUT_S,
                retry=Retry(NoBackoff(), 1),  # the server may have closed an idle connection
            )
        except (ValueError, RedisError):
            raise ConfigError("rate_limit_storage is no valid URL of a Redis server") from None
        # The address is that of the pool.
        address = "redis://localhost:6379"
        options: Any = {"implementation": "redispy", "key_prefix": PREFIX, "connection_pool": self._pool}
        super().__init__(address, **options)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()


def open_storage(choice: str) -> Memory | Redis:
    """Return the storage for a value of the option `rate_limit_storage`. Raises `ConfigError` if it cannot be used."""
    if choice == "memory":
        return Memory()
    url = redis_url() if choice == "redis" else choice
    if url is None:
        raise ConfigError(f'rate_limit_storage = "redis" needs the URL of a Redis server in {REDIS_URL}')
    return Redis(url)
