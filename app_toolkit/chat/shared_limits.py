"""The limits of API keys in Redis, which all processes share. It needs the extra `redis`.

The package `limits` counts the requests of the last minute, as a list of their times. The requests that run are leases
in a sorted set, by the time at which they expire. Their process renews them, so the leases of a process that was killed
expire after `LEASE_S`.
"""

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat.budgets import Spent
from app_toolkit.chat.rate_limits import BUSY_RETRY_S, KeyLimits, OverLimit
from app_toolkit.chat.to_the_end import to_its_end

try:
    from limits import RateLimitItemPerMinute
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import MovingWindowRateLimiter
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
except ImportError as error:
    raise ConfigError("limits in Redis need the packages limits and redis: pip install 'app-toolkit[redis]'") from error

logger = logging.getLogger("app_toolkit.chat")

LEASE_S = 30.0
"""Seconds after which a request no longer counts whose process has died."""

RENEWAL_S = 10.0
"""Seconds between two renewals of a lease."""

SOCKET_TIMEOUT_S = 3.0
"""Seconds to connect to Redis, and to receive the reply to a command."""

MAX_CONNECTIONS = 32
"""Connections of one process. A further call waits for `SOCKET_TIMEOUT_S`."""

ACQUIRE = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local limit, lease = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if limit > 0 and not redis.call('ZSCORE', KEYS[1], ARGV[3]) and redis.call('ZCARD', KEYS[1]) >= limit then return 0 end
redis.call('ZADD', KEYS[1], now + lease, ARGV[3])
redis.call('PEXPIRE', KEYS[1], lease)
return 1
"""
"""Acquire a lease, unless as many run as may, or renew it if the limit is 0. The server's clock counts."""


SPEND = """
local clock = redis.call('TIME')
local day = math.floor(tonumber(clock[1]) / 86400)
if day > tonumber(redis.call('HGET', KEYS[1], 'day') or '-1') then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], 'day', day)
end
for index, name in ipairs({'tokens', 'nanos'}) do
    local sum = redis.pcall('HINCRBY', KEYS[1], name, ARGV[index])
    if type(sum) == 'table' then redis.call('HSET', KEYS[1], name, '9223372036854775807') end
end
redis.call('EXPIRE', KEYS[1], 172800)
return {clock[1], clock[2], redis.call('HGET', KEYS[1], 'day'), redis.call('HGET', KEYS[1], 'tokens'),
    redis.call('HGET', KEYS[1], 'nanos')}
"""
"""Add to what a key has spent on the present day of the server's clock, and return its time and what is spent then.

A sum stays at the highest integer of Redis. A clock that goes back does not begin an earlier day.
"""


@dataclass(eq=False, slots=True)
class Lease:
    """The right to run one request, which its process renews."""

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    renewal: "asyncio.Task[None] | None" = None
    """Renews the lease in Redis. None: the request does not count against `max_concurrent`."""


class SharedLimiter:
    """The requests of one API key in all processes."""

    def __init__(self, redis: "SharedLimits", name: str, limits: KeyLimits) -> None:
        self._redis = redis
        self._name = name
        self._limits = limits
        self._leases: set[Lease] = set()

    @property
    def running(self) -> int:
        """The number of requests that run in this process."""
        return len(self._leases)

    async def remaining(self) -> int | None:
        """Return the requests that the limit of a minute admits now. None: it is unknown, or there is no such limit."""
        if self._limits.max_per_minute is None:
            return None
        try:
            return await self._redis.remaining(self._name, self._limits.max_per_minute)
        except RedisError:
            return None

    async def acquire(self, *, runs: bool = True) -> Lease | OverLimit:
        """Admit a request, whose lease the caller releases when it ends, or refuse it.

        Raises:
            ChatError: 503, Redis cannot be reached.
        """
        lease, limits = Lease(), self._limits
        try:
            most = limits.max_concurrent if runs else None
            # A command that is cancelled may still be executed, also after the one that removes the lease.
            if most is not None and not await to_its_end(self._lease(lease, most)):
                return OverLimit("max_concurrent", BUSY_RETRY_S)
            if runs:
                self._leases.add(lease)
            if limits.max_per_minute is not None:
                wait_s = await self._redis.count(self._name, limits.max_per_minute)
                if wait_s is not None:
                    await self.release(lease)
                    return OverLimit("max_per_minute", wait_s)
        except RedisError as error:
            await self.release(lease)
            raise _unavailable(self._name, error) from None
        except BaseException:
            await self.release(lease)
            raise
        return lease

    async def release(self, lease: Lease) -> None:
        """Note that a request has ended, also if the caller is cancelled. Otherwise the lease would stay for long."""
        self._leases.discard(lease)
        if lease.renewal is not None:
            await to_its_end(self._release(lease, lease.renewal))

    async def _lease(self, lease: Lease, limit: int) -> bool:
        admitted = await self._redis.lease(self._name, lease.id, limit)
        if admitted:
            lease.renewal = asyncio.create_task(self._renew(lease), name="app-toolkit key lease")
        return admitted

    async def _release(self, lease: Lease, renewal: "asyncio.Task[None]") -> None:
        lease.ended.set()
        await renewal
        try:
            await self._redis.end(self._name, lease.id)
        except RedisError as error:
            logger.warning("a request of the API key %r counts until its lease expires: %s", self._name, error)

    async def _renew(self, lease: Lease) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL_S):
                    await lease.ended.wait()
                    return
            try:
                await self._redis.lease(self._name, lease.id, 0)
            except RedisError as error:
                logger.warning("a lease of the API key %r was not renewed: %s", self._name, error)


class SharedBudget:
    """What one API key has spent, in all processes."""

    def __init__(self, redis: "SharedLimits", name: str) -> None:
        self._redis = redis
        self._name = name

    async def spent(self) -> tuple[float, Spent]:
        """Return the time of the server, and what is spent then.

        Raises:
            ChatError: 503, Redis cannot be reached.
        """
        try:
            return await self._redis.spend(self._name, 0, 0)
        except RedisError as error:
            raise _unavailable(self._name, error) from None

    async def add(self, tokens: int, nanos: int) -> None:
        """Add what a response costs, also if the caller is cancelled. Raises `RedisError`."""
        await to_its_end(self._redis.spend(self._name, tokens, nanos))


def _unavailable(name: str, error: RedisError) -> ChatError:
    logger.warning("the limits of the API key %r cannot be checked: %s", name, type(error).__name__)
    return ChatError(
        "the limits of the API key cannot be checked now", status=503, code="limits_unavailable", retry_after_s=1
    )


class SharedLimits:
    """The limits of all keys in one Redis server. There are connections for each event loop."""

    def __init__(self, url: str, prefix: str) -> None:
        """Nothing is connected before the first request.

        Raises:
            ConfigError: The URL is invalid. The error does not show it, because it may have a password.
        """
        self._url = url
        self._prefix = prefix
        self._connected: WeakKeyDictionary[asyncio.AbstractEventLoop, Connected] = WeakKeyDictionary()
        try:
            Connected(url, prefix)
        except (ValueError, RedisError):
            raise ConfigError("api_keys: storage is no valid URL of a Redis server") from None

    def __repr__(self) -> str:
        return "<limits in Redis>"

    async def lease(self, name: str, id: str, limit: int) -> bool:
        """Acquire a lease, and return False if as many requests run as may. 0: renew it."""
        return bool(await self._here.acquire([f"{self._prefix}running:{name}"], [limit, int(LEASE_S * 1_000), id]))

    async def end(self, name: str, id: str) -> None:
        """Remove a lease."""
        await self._here.client.zrem(f"{self._prefix}running:{name}", id)

    async def count(self, name: str, limit: int) -> float | None:
        """Count a request. Return the seconds after which to retry if it is over the limit, and None otherwise."""
        item, window = RateLimitItemPerMinute(limit), self._here.window
        if await window.hit(item, name):
            return None
        reset, _ = await window.get_window_stats(item, name)
        return max(0.0, reset - time.time())

    async def remaining(self, name: str, limit: int) -> int:
        """Return the requests that the limit of a minute admits now."""
        _, remaining = await self._here.window.get_window_stats(RateLimitItemPerMinute(limit), name)
        return remaining

    async def spend(self, name: str, tokens: int, nanos: int) -> tuple[float, Spent]:
        """Add to what a key has spent. Return the time of the server, and what is spent then."""
        numbers = await self._here.spend([f"{self._prefix}spent:{name}"], [tokens, nanos])
        seconds, micros, *spent = map(int, numbers)
        return seconds + micros / 1_000_000, Spent(*spent)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        connected = self._connected.pop(asyncio.get_running_loop(), None)
        if connected is not None:
            await connected.client.aclose()
            await connected.pool.aclose()

    @property
    def _here(self) -> "Connected":
        loop = asyncio.get_running_loop()
        connected = self._connected.get(loop)
        if connected is None:
            connected = self._connected[loop] = Connected(self._url, self._prefix)
        return connected


class Connected:
    """The clients of one event loop, which share their connections."""

    def __init__(self, url: str, prefix: str) -> None:
        self.pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=SOCKET_TIMEOUT_S,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),
        )
        self.client: Any = Redis(connection_pool=self.pool)
        self.acquire: Any = self.client.register_script(ACQUIRE)
        self.spend: Any = self.client.register_script(SPEND)
        # The address is that of the pool.
        storage = RedisStorage(
            "redis://localhost:6379",
            implementation="redispy",
            key_prefix=f"{prefix}minute",
            connection_pool=self.pool,  # type: ignore[arg-type]
        )
        self.window = MovingWindowRateLimiter(storage)
