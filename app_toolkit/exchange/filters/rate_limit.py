"""The filter that limits how many requests a client may send in a time.

A window begins with the first request of a client, and has a counter. The package `limits` keeps the counters: in the
memory of this process, or in a Redis server, which all proxies share. The keys of the counters are hashes, so no API
key is stored. While the storage does not answer, requests are not limited.

The response fields are those of draft-ietf-httpapi-ratelimit-headers-10.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from app_toolkit.config.affinity import key_sources
from app_toolkit.config.rate_limit import RateLimit, counted_by, rate_limit
from app_toolkit.errors import RequestError, TooManyRequests
from app_toolkit.exchange import builtin
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.request import value_at
from app_toolkit.observability.metrics import DEPLOYMENT, Sample, declare
from app_toolkit.types import Header

RATE_LIMITED = declare(
    "app_toolkit_rate_limited_total",
    "counter",
    "Requests to ingresses with a `rate_limit`: admitted, refused, or unchecked because the storage has failed.",
    (*DEPLOYMENT, "result"),
    "proxies",
)


if TYPE_CHECKING:
    from app_toolkit.exchange.filters.rate_counters import Memory, Redis

log = logging.getLogger("app_toolkit.proxy")

TIMEOUT_S = 1.0
"""Seconds that the storage may take to answer. A request that has waited so long is not limited."""

PAUSE_S = 1.0
"""Seconds after a failure of the storage in which it is not asked, so that requests do not wait for it."""

LOG_INTERVAL_S = 60.0
"""The least seconds between two log messages about a storage that fails."""

Result = Literal["admitted", "refused", "unchecked"]


@dataclass(frozen=True, slots=True)
class Usage:
    """The requests of a client in its present window, with this one."""

    count: int
    reset_s: float
    """Seconds until the window ends."""


class RateLimits:
    """Limits the requests of each client to each ingress with the option `rate_limit`.

    A request is counted once, when its ingress is known: before it waits for a replica, and not again for a retry.
    """

    option = "rate_limit"

    def __init__(self, storage: str) -> None:
        """Take the option `rate_limit_storage`. Raises `ConfigError` if the storage cannot be used."""
        self._choice = storage
        # The package is imported for the first request that needs it, because the import takes time. Mistakes in the
        # address of a server are found at once.
        self._storage: Memory | Redis | None = None if storage == "memory" else open_storage(storage)
        self._tasks: set[asyncio.Task[None]] = set()
        #: The requests by ingress and result.
        self._counts: Counter[tuple[str, Result]] = Counter()
        self._asks_at = self._logs_at = -math.inf  # when the storage may be asked, and its failure logged, again
        self._unlogged = 0

    # Hooks

    def request(self, exchange: Exchange) -> None:
        """Begin to count a request, unless it is a preflight, which browsers send by themselves."""
        policy, request = exchange.dispatcher.router.policy, exchange.request
        assert policy.rate_limit is not None, "the ingress has the option"
        if builtin.preflight(exchange.plane.cors(exchange.ingress, request.path), request) is not None:
            return
        if exchange.plane.clock() < self._asks_at:
            self._failed(exchange, None)
            return
        limit = rate_limit(policy.rate_limit)
        key = f"{exchange.ingress.main.name}:{limit.window_s}:{client_key(exchange, policy.rate_limit_by)}"
        exchange.marks[self] = True
        task = asyncio.get_running_loop().create_task(self._check(exchange, limit, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def waits(self, exchange: Exchange) -> float:
        return math.inf if self in exchange.marks else 0.0

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the requests of ingresses with limits. Thread-safe."""
        for labels, count in dict(self._counts).items():
            yield Sample(RATE_LIMITED, labels, [count])

    async def aclose(self) -> None:
        """End all tasks, and the connections to the storage."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._storage is not None:
            await self._storage.aclose()

    # One request

    async def _check(self, exchange: Exchange, limit: RateLimit, key: str) -> None:
        """Count a request. Then let it proceed, or fail it."""
        usage = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                usage = await self._count(key, limit.window_s)
        except asyncio.CancelledError:  # by `aclose`: nothing else would end the request
            if not exchange.done:
                exchange.dismiss()
            raise
        except Exception as error:
            self._failed(exchange, error)
        del exchange.marks[self]
        if exchange.done:  # its client has left, or its deadline has passed
            return
        if usage is None:
            exchange.proceed()
            return
        exchange.fields += fields(limit, usage)
        refused = usage.count > limit.most
        self._counts[exchange.ingress_name, "refused" if refused else "admitted"] += 1
        if refused:
            exchange.fields.append((b"retry-after", b"%d" % seconds(usage.reset_s)))
            exchange.fail(refusal(exchange.ingress_name, limit))
        else:
            exchange.proceed()

    async def _count(self, key: str, window_s: int) -> Usage:
        storage = self._storage
        if storage is None:
            storage = self._storage = open_storage(self._choice)
        count = await storage.incr(key, window_s)
        return Usage(count, await storage.get_expiry(key) - time.time())

    def _failed(self, exchange: Exchange, error: Exception | None) -> None:
        """Count and log a request that is not limited, because the storage fails now, or has failed just before."""
        now = exchange.plane.clock()
        self._counts[exchange.ingress_name, "unchecked"] += 1
        self._unlogged += 1
        if error is not None:
            self._asks_at = now + PAUSE_S
        if error is not None and now >= self._logs_at:
            self._logs_at = now + LOG_INTERVAL_S
            # The text of the error may have the address of the server.
            why = type(error).__name__
            log.warning("rate limits do not apply, their storage fails: %s (%d requests)", why, self._unlogged)
            self._unlogged = 0


def client_key(exchange: Exchange, by: str) -> str:
    """Return the hash of what identifies the client of a request: as `rate_limit_by` says, or else its address."""
    source = counted_by(by)
    if source is None:
        value = session_key(exchange)
    else:
        value = None if source.where == "client" else value_at(source, exchange.request)
    identity = f"client {exchange.downstream.host}" if value is None else f"{by} {value}"
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def session_key(exchange: Exchange) -> str | None:
    """Return the affinity key of a request, without a pin. None: it has none, or its ingress has no sessions."""
    if exchange.preference is not None:  # in one process, nothing reads it
        return exchange.preference.key
    affinity = exchange.dispatcher.router.policy.affinity
    sources = () if affinity is None else key_sources(affinity)
    values = (value_at(source, exchange.request) for source in sources if source.name)
    return next((value for value in values if value is not None), None)


def fields(limit: RateLimit, usage: Usage) -> list[Header]:
    """Return the fields that tell a client its limit, and what is left of it."""
    left = max(0, limit.most - usage.count)
    return [
        (b"ratelimit-policy", b'"ingress";q=%d;w=%d' % (limit.most, limit.window_s)),
        (b"ratelimit", b'"ingress";r=%d;t=%d' % (left, seconds(usage.reset_s))),
    ]


def seconds(reset_s: float) -> int:
    """Return whole seconds after which the window has ended, at least one."""
    return max(1, math.ceil(reset_s))


def refusal(ingress: str, limit: RateLimit) -> RequestError:
    why = f"the client has sent more than {limit.most} requests in {limit.window_s} s, the rate_limit of {ingress}"
    error = cast(RequestError, TooManyRequests(why))
    error.retry_after_s = None  # the exchange would replace it by the time that the queue needs
    return error


def open_storage(choice: str) -> "Memory | Redis":
    from app_toolkit.exchange.filters import rate_counters

    return rate_counters.open_storage(choice)
