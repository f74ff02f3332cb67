"""`api_keys`: a dependency that checks API keys and limits the requests of each key."""

import logging
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, HTTPException
from fastapi.requests import HTTPConnection
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat.allowances import ALLOWANCES, Allowance, Allowances
from app_toolkit.chat.budgets import MAX_PRICE, NANOS, Cost, Spent, over_budget, tokens_of
from app_toolkit.chat.key_files import KeyFile, hash_of, hashes_of, parse_keys
from app_toolkit.chat.protocol import UsageEvent
from app_toolkit.chat.rate_limits import MAX_PER_MINUTE, MINUTE_S, KeyLimits, OverLimit, RateLimiter, RatePermit
from app_toolkit.chat.usage import SPENDER, cost_counter, key_label
from app_toolkit.streaming import takes_permit

logger = logging.getLogger("app_toolkit.chat")

SUBPROTOCOL = "bearer."
"""Prefix of a WebSocket subprotocol that carries an API key. Browsers cannot set the headers of a WebSocket."""

KEY_USAGE = "app_toolkit.api_key"
"""The entry of the scope with the `KeyUsage` of a request or a WebSocket."""

MEMORY = "memory://"
"""The storage of limits that hold for one process."""

LIMIT_ERRORS = {
    "max_concurrent": "the API key has reached its limit of requests at a time: {}",
    "max_per_minute": "the API key has reached its limit of requests per minute: {}",
    "max_tokens_per_day": "the API key has used {used:,} tokens today (UTC), and its limit is {:,}",
    "max_cost_per_day": "the API key has spent {used:g} today (UTC), and its limit is {:g}",
}

NO_RETRY = {"x-should-retry": "false"}
"""Tells the SDKs of OpenAI and Anthropic not to retry. Anthropic's SDK would sleep until the next day begins."""


class Limiter(Protocol):
    """The requests of one key, in this process or in all."""

    @property
    def running(self) -> int:
        """The number of requests that run in this process."""

    async def remaining(self) -> int | None:
        """Return the requests that the limit of a minute admits now. None: it is unknown, or there is no such limit."""

    async def acquire(self, *, runs: bool = True) -> Any:
        """Admit a request and return its permit, or return `OverLimit`. May raise `ChatError`."""

    async def release(self, permit: Any, /) -> None:
        """Note that a request has ended, also if the caller is cancelled."""


class Budget(Protocol):
    """What one key has spent today, in this process or in all."""

    async def spent(self) -> tuple[float, Spent]:
        """Return the time in seconds since 1970, and what is spent then. May raise `ChatError`."""

    async def add(self, tokens: int, nanos: int, /) -> None:
        """Add what a response costs, also if the caller is cancelled."""


class LocalBudget:
    """What one key has spent today in this process."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._spent = Spent(0)

    async def spent(self) -> tuple[float, Spent]:
        now = self._now()
        self._spent = self._spent.at(now)
        return now, self._spent

    async def add(self, tokens: int, nanos: int, /) -> None:
        self._spent = self._spent.at(self._now()).plus(tokens, nanos)


class LocalLimiter:
    """The requests of one key in this process.

    It does not use the package `limits`, which has no limit of requests at a time and a clock of its own, and whose
    memory keeps tasks on one event loop.
    """

    def __init__(self, limits: KeyLimits, now: Callable[[], float]) -> None:
        self._limiter = RateLimiter(limits)
        self._now = now

    @property
    def running(self) -> int:
        return self._limiter.running

    async def remaining(self) -> int | None:
        return self._limiter.remaining(self._now())

    async def acquire(self, *, runs: bool = True) -> RatePermit | OverLimit:
        return self._limiter.acquire(self._now(), runs=runs)

    async def release(self, permit: RatePermit, /) -> None:
        self._limiter.release(permit)


class RefusedKey(HTTPException):
    """A request that the limits of its key do not admit."""

    def __init__(self, status: int, detail: str, headers: dict[str, str], allowances: Allowances) -> None:
        super().__init__(status, detail, headers)
        self.allowances = allowances


class KeyUsage:
    """One key: its name, and the limits of its requests."""

    def __init__(
        self, name: str, limits: KeyLimits, limiter: Limiter, budget: Budget, costs: Mapping[str, Cost]
    ) -> None:
        self.name = name
        self._limits = limits
        self._limiter = limiter
        self._budget = budget
        self._costs = costs
        self._unpriced: set[str] = set()
        """The models of which the log says that they have no price."""

    @property
    def running(self) -> int:
        """The number of requests that run in this process."""
        return self._limiter.running

    @asynccontextmanager
    async def request(self, *, runs: bool = True) -> AsyncIterator[Allowances]:
        """Count a request, which runs until the end of the block. Yield what the key may still use.

        Parameters:
            runs: Whether it counts against `max_concurrent`, and needs a budget. Default: True.

        Raises:
            RefusedKey: 429, the request is over a limit; 503, the limits cannot be checked.
        """
        now, spent = 0.0, Spent(0)
        permit: Any = None
        try:
            if self._limits.has_budget:
                now, spent = await self._budget.spent()
            if runs:
                permit = over_budget(self._limits, spent, now)
            if permit is None:
                permit = await self._limiter.acquire(runs=runs)
        except ChatError as error:
            raise RefusedKey(error.status, error.message, {"retry-after": "1"}, Allowances()) from None
        if isinstance(permit, OverLimit):
            text = LIMIT_ERRORS[permit.limit].format(getattr(self._limits, permit.limit), used=permit.used)
            headers = {"retry-after": str(max(1, math.ceil(permit.retry_after_s)))}
            if permit.retry_after_s > MINUTE_S:
                headers |= NO_RETRY
            raise RefusedKey(429, text, headers, await self._allowances(now, spent))
        try:
            yield await self._allowances(now, spent)
        finally:
            await self._limiter.release(permit)

    async def spend(self, model: str, usage: UsageEvent) -> None:
        """Take what a response costs from the budget."""
        cost = self._costs.get(model)
        if cost is None and self._limits.max_cost_per_day is not None and model not in self._unpriced:
            self._unpriced.add(model)
            logger.warning("the model %r has no price in the costs of the API keys, and costs nothing", model)
        nanos = 0 if cost is None else cost.nanos(usage)
        if nanos:
            cost_counter().labels(model, key_label(model, self.name)).inc(nanos / NANOS)
        if self._limits.has_budget:
            await self._budget.add(tokens_of(usage), nanos)

    async def _allowances(self, now: float, spent: Spent) -> Allowances:
        remaining, minute, day = await self._limiter.remaining(), self._limits.max_per_minute, None
        if (most := self._limits.max_tokens_per_day) is not None:
            day = Allowance(most, max(0, most - spent.tokens), spent.reset_s(now))
        if remaining is None or minute is None:
            return Allowances(None, day)
        return Allowances(Allowance(minute, max(0, remaining), MINUTE_S), day)


def key_name(connection: HTTPConnection) -> str | None:
    """Return the name of the API key of a request. None: no `api_keys` has checked it."""
    usage: KeyUsage | None = connection.scope.get(KEY_USAGE)
    return None if usage is None else usage.name


class ApiKeys:
    """The dependency that `api_keys` returns. It stores the hashes of the keys, and not the keys."""

    def __init__(
        self,
        hashes: Callable[[], dict[str, bytes]],
        usage: Callable[[str], KeyUsage],
        close: Callable[[], Awaitable[None]] | None = None,
        file: KeyFile | None = None,
    ) -> None:
        """Take the keys.

        Parameters:
            hashes: Returns the present hashes of the keys, by name: the same object as long as they are the same.
            usage: Returns the limits of a key, and what it has used.
            close: Closes connections to a shared storage. Default: there are none.
            file: The file that has the keys. Default: none.
        """
        self.file = file
        """The file that has the keys; None: they do not change."""
        self._hashes = hashes
        self._make_usage = usage
        self._usages: dict[str, KeyUsage] = {}
        self._close = close
        self._searched: tuple[dict[str, bytes], Mapping[bytes, str]] = {}, {}
        """The hashes that were searched last, and the names of their keys by hash. A thread replaces both at once."""

    def __repr__(self) -> str:
        return f"<{len(self._hashes())} API keys>"

    @property
    def running(self) -> dict[str, int]:
        """The number of requests that run in this process, by the name of the key."""
        return {name: self._usage(name).running for name in self._hashes()}

    async def aclose(self) -> None:
        """Close the connections to the storage of the limits, if there are any. A later request opens them again."""
        if self._close is not None:
            await self._close()

    async def __call__(
        self,
        connection: HTTPConnection,
        credentials: Annotated[
            HTTPAuthorizationCredentials | None, Depends(HTTPBearer(scheme_name="ApiKey", auto_error=False))
        ],
    ) -> AsyncIterator[str]:
        """Yield the name of the client's key, and hold a permit until the response has ended.

        Raises:
            HTTPException: 401, the key is missing or wrong; 429, its requests are over a limit; 503, the limits cannot
                be checked.
        """
        sent = connection.headers.get("x-api-key") if credentials is None else credentials.credentials
        key = sent or _subprotocol_key(connection)
        usage = None if key is None else self._find(key)
        if usage is None:
            problem = "the API key is missing: send it as Authorization: Bearer KEY"
            raise HTTPException(401, problem if key is None else "the API key is wrong", {"www-authenticate": "Bearer"})
        connection.scope[KEY_USAGE] = usage
        token = SPENDER.set((usage.name, usage.spend))
        try:
            async with usage.request(runs=takes_permit(connection.scope.get("endpoint"))) as allowances:
                connection.scope[ALLOWANCES] = allowances
                yield usage.name
        except RefusedKey as refused:
            connection.scope[ALLOWANCES] = refused.allowances
            raise
        finally:
            with suppress(ValueError):  # a server may end the request in another context
                SPENDER.reset(token)

    def _find(self, key: str) -> KeyUsage | None:
        hashes = self._hashes()
        searched, names = self._searched
        if hashes is not searched:
            # The time of a search shows nothing of a key, because nobody can choose the hash of what is sent.
            names = {hashed: name for name, hashed in reversed(hashes.items())}
            self._searched = hashes, names
        name = names.get(hash_of(key))
        return None if name is None else self._usage(name)

    def _usage(self, name: str) -> KeyUsage:
        """Return the usage of a key, which stays when the key is revoked and created again."""
        if name not in self._usages:
            self._usages[name] = self._make_usage(name)
        return self._usages[name]


def api_keys(
    keys: Mapping[str, str] | None = None,
    *,
    variable: str | None = None,
    file: str | Path | None = None,
    max_concurrent: int | None = None,
    max_per_minute: int | None = None,
    max_tokens_per_day: int | None = None,
    max_cost_per_day: float | None = None,
    limits: Mapping[str, KeyLimits] | None = None,
    costs: Mapping[str, Cost] | None = None,
    storage: str = MEMORY,
    prefix: str = "app-toolkit:keys:",
    now: Callable[[], float] = time.monotonic,
    date: Callable[[], float] = time.time,
) -> ApiKeys:
    """Return a dependency that admits requests with one of these API keys, and limits the requests of each key.

    ```python
    keys = api_keys(variable="CHAT_KEYS", max_concurrent=4, max_per_minute=60)
    app.include_router(openai_router(models), prefix="/v1", dependencies=[Depends(keys)])
    ```

    Clients send `Authorization: Bearer KEY` or, as those of Anthropic's API, `x-api-key: KEY`; a browser sends the
    subprotocol `bearer.KEY` with a WebSocket. Other requests get 401 with `WWW-Authenticate`. A request over a limit
    gets 429 with `Retry-After`. The value of the dependency is the name of the key. Routers that share the returned
    object share its limits. In memory, the limits hold for one process: two replicas admit twice as much. With a Redis
    server as `storage`, they hold for all.

    Give the keys in one of three ways. In a variable or a file, they are entries `NAME=KEY`, separated by commas or
    lines; a line that begins with `#` is a comment. `NAME=sha256:HEX` gives the hash of a key instead of the key. Only
    hashes are kept.

    Parameters:
        keys: Keys by name.
        variable: Name of an environment variable with the keys.
        file: Path of a file with the keys. A change is noticed after a second. It may have no key.
        max_concurrent: Requests of a key at a time; a stream counts until its end. Default: no limit.
        max_per_minute: Requests of a key in any 60 seconds, at most 100,000. Default: no limit.
        max_tokens_per_day: Tokens of a key from 00:00 UTC on, of prompts and responses. A request is admitted while
            they are not used up. Default: no limit.
        max_cost_per_day: Money of a key from 00:00 UTC on. Default: no limit.
        limits: The limits of single keys by name, instead of all limits above. Default: none.
        costs: The prices of the models by name. A model without a price costs nothing. Default: none.
        storage: Where requests are counted: `memory://`, or the URL of a Redis server (`redis://`, `rediss://`,
            `unix://`), for which the extra `redis` is needed. Default: the memory of this process.
        prefix: The beginning of all names in Redis. Objects with the same prefix share the limits of keys with the same
            name. Default: `app-toolkit:keys:`.
        now: Clock in seconds, for limits in memory and the check of the file. Default: `time.monotonic`.
        date: Clock in seconds since 1970, for budgets in memory. Default: `time.time`.

    Raises:
        ConfigError: There is no key, a key or a name is invalid, the variable is not set, the file cannot be read, a
            limit is out of bounds, the storage is unknown, or a package for it is missing.
    """
    if [keys, variable, file].count(None) != 2:
        raise ConfigError("api_keys: pass one of keys, variable and file")
    shared_by_keys = KeyLimits(max_concurrent, max_per_minute, max_tokens_per_day, max_cost_per_day)
    by_name, prices = dict(limits or {}), dict(costs or {})
    for key_limits in (shared_by_keys, *by_name.values()):
        _check_limits(key_limits, prices)
    _check_costs(prices)
    key_file: KeyFile | None = None
    hashes: Callable[[], dict[str, bytes]]
    if variable is not None:
        source = f"the variable {variable}"
        text = os.environ.get(variable)
        if text is None:
            raise ConfigError(f"api_keys: {source} is not set")
        entries = parse_keys(text, source)
    elif file is not None:
        key_file = KeyFile(file, now)
        key_file.read()
    else:
        source, entries = "keys", list((keys or {}).items())
    if key_file is not None:
        hashes = key_file.hashes
    else:
        fixed = hashes_of(entries, source)
        if not fixed:
            raise ConfigError(f"api_keys: {source} has no key, so that no client could send a request")
        if (strange := next((name for name in by_name if name not in fixed), None)) is not None:
            raise ConfigError(f"api_keys: limits has {strange!r}: {source} has no key with this name")
        hashes = lambda: fixed  # noqa: E731
    if storage == MEMORY:

        def local(name: str) -> KeyUsage:
            key_limits = by_name.get(name, shared_by_keys)
            return KeyUsage(name, key_limits, LocalLimiter(key_limits, now), LocalBudget(date), prices)

        return ApiKeys(hashes, local, file=key_file)
    if not storage.startswith(("redis://", "rediss://", "unix://")):
        # The error does not show the URL, because it may have a password.
        raise ConfigError(
            "api_keys: storage must be memory://, or a URL that begins with redis://, rediss:// or unix://"
        )
    from app_toolkit.chat.shared_limits import SharedBudget, SharedLimiter, SharedLimits

    redis = SharedLimits(storage, prefix)

    def shared(name: str) -> KeyUsage:
        key_limits = by_name.get(name, shared_by_keys)
        return KeyUsage(name, key_limits, SharedLimiter(redis, name, key_limits), SharedBudget(redis, name), prices)

    return ApiKeys(hashes, shared, redis.aclose, key_file)


def _check_limits(limits: KeyLimits, costs: Mapping[str, Cost]) -> None:
    for name, most in (("max_concurrent", None), ("max_per_minute", MAX_PER_MINUTE), ("max_tokens_per_day", None)):
        value = getattr(limits, name)
        if value is not None and (value < 1 or (most is not None and value > most)):
            upper = "" if most is None else f" and at most {most:,}"
            raise ConfigError(f"api_keys: {name} = {value!r}: must be at least 1{upper}")
    money = limits.max_cost_per_day
    if money is None:
        return
    if not 0 < money < math.inf:
        raise ConfigError(f"api_keys: max_cost_per_day = {money!r}: must be above 0 and finite")
    if not costs:
        raise ConfigError(f"api_keys: max_cost_per_day = {money!r}: pass costs with the prices of the models")


def _check_costs(costs: Mapping[str, Cost]) -> None:
    for model, cost in costs.items():
        for name in ("input", "output", "cached"):
            price = getattr(cost, name)
            if price is not None and not 0 <= price <= MAX_PRICE:
                raise ConfigError(
                    f"api_keys: {name} = {price!r} of the model {model!r}: must be from 0 to {MAX_PRICE:,.0f}"
                )


def _subprotocol_key(connection: HTTPConnection) -> str | None:
    offered = connection.scope.get("subprotocols") or ()
    return next(
        (subprotocol.removeprefix(SUBPROTOCOL) for subprotocol in offered if subprotocol.startswith(SUBPROTOCOL)), None
    )
