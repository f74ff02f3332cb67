"""`api_keys`: a dependency that checks API keys and limits the requests of each key."""

import hashlib
import hmac
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, HTTPException
from fastapi.requests import HTTPConnection
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app_toolkit.config.settings import read_variables
from app_toolkit.core.rate_limits import MAX_PER_MINUTE, OverLimit, RateLimiter, RateLimits, RatePermit, takes_permit
from app_toolkit.errors import ChatError, ConfigError

SUBPROTOCOL = "bearer."
"""Prefix of a WebSocket subprotocol that carries an API key. Browsers cannot set the headers of a WebSocket."""

KEY_USAGE = "app_toolkit.api_key"
"""The entry of the scope with the `KeyUsage` of a request or a WebSocket."""

MEMORY = "memory://"
"""The storage of limits that hold for one process."""

MIN_LENGTH = 16
"""The minimum length of a key in characters. A shorter key can be guessed, because its hash is fast to compute."""

NAME = re.compile(r"[\w.@-]{1,64}")
KEY = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The characters of a Bearer token: RFC 6750, 2.1."""

HASH = re.compile(r"sha256:([0-9a-f]{64})")

LIMIT_ERRORS = {
    "max_concurrent": "the API key has reached its limit of requests at a time: {}",
    "max_per_minute": "the API key has reached its limit of requests per minute: {}",
}


class Limiter(Protocol):
    """The requests of one key, in this process or in all."""

    @property
    def running(self) -> int:
        """The number of requests that run in this process."""

    async def acquire(self, *, runs: bool = True) -> Any:
        """Admit a request and return its permit, or return `OverLimit`. May raise `ChatError`."""

    async def release(self, permit: Any, /) -> None:
        """Note that a request has ended, also if the caller is cancelled."""


class LocalLimiter:
    """The requests of one key in this process.

    It does not use the package `limits`, which has no limit of requests at a time and a clock of its own, and whose
    memory keeps tasks on one event loop.
    """

    def __init__(self, limits: RateLimits, now: Callable[[], float]) -> None:
        self._limiter = RateLimiter(limits)
        self._now = now

    @property
    def running(self) -> int:
        return self._limiter.running

    async def acquire(self, *, runs: bool = True) -> RatePermit | OverLimit:
        return self._limiter.acquire(self._now(), runs=runs)

    async def release(self, permit: RatePermit, /) -> None:
        self._limiter.release(permit)


class KeyUsage:
    """One key: its name, and the limits of its requests."""

    def __init__(self, name: str, limits: RateLimits, limiter: Limiter) -> None:
        self.name = name
        self._limits = limits
        self._limiter = limiter

    @property
    def running(self) -> int:
        """The number of requests that run in this process."""
        return self._limiter.running

    @asynccontextmanager
    async def request(self, *, runs: bool = True) -> AsyncIterator[None]:
        """Count a request, which runs until the end of the block.

        Parameters:
            runs: Whether it counts against `max_concurrent`. Default: True.

        Raises:
            HTTPException: 429, the request is over a limit; 503, the limits cannot be checked.
        """
        try:
            permit = await self._limiter.acquire(runs=runs)
        except ChatError as error:
            raise HTTPException(error.status, error.message, {"retry-after": "1"}) from None
        if isinstance(permit, OverLimit):
            text = LIMIT_ERRORS[permit.limit].format(getattr(self._limits, permit.limit))
            raise HTTPException(429, text, {"retry-after": str(max(1, math.ceil(permit.retry_after_s)))})
        try:
            yield
        finally:
            await self._limiter.release(permit)


def key_name(connection: HTTPConnection) -> str | None:
    """Return the name of the API key of a request. None: no `api_keys` has checked it."""
    usage: KeyUsage | None = connection.scope.get(KEY_USAGE)
    return None if usage is None else usage.name


class ApiKeys:
    """The dependency that `api_keys` returns. It stores the hashes of the keys, and not the keys."""

    def __init__(
        self,
        hashes: Mapping[str, bytes],
        limits: RateLimits,
        limiter: Callable[[str], Limiter],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Take the keys.

        Parameters:
            hashes: The hashes of the keys, by name.
            limits: The limits of each key.
            limiter: Returns what counts the requests of a key.
            close: Closes connections to a shared storage. Default: there are none.
        """
        self._hashes = dict(hashes)
        self._usages = {name: KeyUsage(name, limits, limiter(name)) for name in hashes}
        self._close = close

    def __repr__(self) -> str:
        return f"<{len(self._hashes)} API keys>"

    @property
    def running(self) -> dict[str, int]:
        """The number of requests that run in this process, by the name of the key."""
        return {name: usage.running for name, usage in self._usages.items()}

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
        key = credentials.credentials if credentials is not None else _subprotocol_key(connection)
        usage = None if key is None else self._find(key)
        if usage is None:
            problem = "the API key is missing: send it as Authorization: Bearer KEY"
            raise HTTPException(401, problem if key is None else "the API key is wrong", {"www-authenticate": "Bearer"})
        connection.scope[KEY_USAGE] = usage
        async with usage.request(runs=takes_permit(connection.scope.get("endpoint"))):
            yield usage.name

    def _find(self, key: str) -> KeyUsage | None:
        # Compare all keys, so that the timing does not reveal which one matched.
        digest = _hash(key)
        found = [name for name, each in self._hashes.items() if hmac.compare_digest(each, digest)]
        return self._usages[found[0]] if found else None


def api_keys(
    keys: Mapping[str, str] | None = None,
    *,
    variable: str | None = None,
    file: str | Path | None = None,
    max_concurrent: int | None = None,
    max_per_minute: int | None = None,
    storage: str = MEMORY,
    prefix: str = "app-toolkit:keys:",
    now: Callable[[], float] = time.monotonic,
) -> ApiKeys:
    """Return a dependency that admits requests with one of these API keys, and limits the requests of each key.

    ```python
    keys = api_keys(variable="CHAT_KEYS", max_concurrent=4, max_per_minute=60)
    app.include_router(openai_router(models), prefix="/v1", dependencies=[Depends(keys)])
    ```

    Clients send `Authorization: Bearer KEY`; a browser sends the subprotocol `bearer.KEY` with a WebSocket. Other
    requests get 401 with `WWW-Authenticate`. A request over a limit gets 429 with `Retry-After`. The value of the
    dependency is the name of the key. Routers that share the returned object share its limits. In memory, the limits
    hold for one process: two replicas admit twice as much. With a Redis server as `storage`, they hold for all.

    Give the keys in one of three ways. In a variable or a file, they are entries `NAME=KEY`, separated by commas or
    lines; a line that begins with `#` is a comment. `NAME=sha256:HEX` gives the hash of a key instead of the key. Only
    hashes are kept.

    Parameters:
        keys: Keys by name.
        variable: Name of an environment variable with the keys.
        file: Path of a file with the keys. It is read once.
        max_concurrent: Requests of a key at a time; a stream counts until its end. Default: no limit.
        max_per_minute: Requests of a key in any 60 seconds, at most 100,000. Default: no limit.
        storage: Where requests are counted: `memory://`, or the URL of a Redis server (`redis://`, `rediss://`,
            `unix://`), for which the extra `redis` is needed. Default: the memory of this process.
        prefix: The beginning of all names in Redis. Objects with the same prefix share the limits of keys with the same
            name. Default: `app-toolkit:keys:`.
        now: Clock in seconds, for limits in memory. Default: `time.monotonic`.

    Raises:
        ConfigError: There is no key, a key or a name is invalid, the variable is not set, the file cannot be read, a
            limit is out of bounds, the storage is unknown, or a package for it is missing.
    """
    if [keys, variable, file].count(None) != 2:
        raise ConfigError("api_keys: pass one of keys, variable and file")
    _check("max_concurrent", max_concurrent, None)
    _check("max_per_minute", max_per_minute, MAX_PER_MINUTE)
    if variable is not None:
        source = f"the variable {variable}"
        text = read_variables([variable]).get(variable)
        if text is None:
            raise ConfigError(f"api_keys: {source} is not set")
        entries = parse_keys(text, source)
    elif file is not None:
        source = f"the file {file}"
        try:
            entries = parse_keys(Path(file).read_text("utf-8-sig"), source)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_keys: {source} cannot be read: {error}") from None
    else:
        source, entries = "keys", list((keys or {}).items())
    hashes, limits = _hashes(entries, source), RateLimits(max_concurrent, max_per_minute)
    if storage == MEMORY:
        return ApiKeys(hashes, limits, lambda _: LocalLimiter(limits, now))
    if not storage.startswith(("redis://", "rediss://", "unix://")):
        # The error does not show the URL, because it may have a password.
        raise ConfigError(
            "api_keys: storage must be memory://, or a URL that begins with redis://, rediss:// or unix://"
        )
    from app_toolkit.chat.shared_limits import SharedLimiter, SharedLimits

    shared = SharedLimits(storage, prefix)
    return ApiKeys(hashes, limits, lambda name: SharedLimiter(shared, name, limits), shared.aclose)


def parse_keys(text: str, source: str) -> list[tuple[str, str]]:
    """Return the names and the keys of entries `NAME=KEY`. An error does not show the entry, which may be a key.

    Parameters:
        text: Entries, separated by commas or lines. Lines that begin with `#` are comments.
        source: The variable or file that has the entries, for error messages.

    Raises:
        ConfigError: An entry has no name.
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    entries = [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]
    found = []
    for number, entry in enumerate(entries, 1):
        name, separator, key = entry.partition("=")
        if not separator or not NAME.fullmatch(name.strip()):
            raise ConfigError(f"api_keys: entry {number} of {source} has no name: write NAME=KEY")
        found.append((name.strip(), key.strip()))
    return found


def _check(name: str, value: int | None, most: int | None) -> None:
    if value is not None and (value < 1 or (most is not None and value > most)):
        upper = "" if most is None else f" and at most {most:,}"
        raise ConfigError(f"api_keys: {name} = {value!r}: must be at least 1{upper}")


def _hashes(entries: list[tuple[str, str]], source: str) -> dict[str, bytes]:
    """Return the hashes by name. An error shows no name that may be a key, and no key."""
    if not entries:
        raise ConfigError(f"api_keys: {source} has no key, so that no client could send a request")
    hashes: dict[str, bytes] = {}
    for number, (name, key) in enumerate(entries, 1):
        if not NAME.fullmatch(name):
            raise ConfigError(f"api_keys: name {number} of {source} must have 1 to 64 letters, digits, and _ . @ -")
        if name in hashes:
            raise ConfigError(f"api_keys: {source} has two keys with the name {name!r}")
        digest = _checked_hash(key, f"key {number} of {source}")
        if digest in hashes.values():
            raise ConfigError(f"api_keys: key {number} of {source} has two names")
        hashes[name] = digest
    return hashes


def _checked_hash(key: str, place: str) -> bytes:
    if (given := HASH.fullmatch(key)) is not None:
        return bytes.fromhex(given[1])
    if not KEY.fullmatch(key):
        raise ConfigError(
            f"api_keys: {place} must have only letters, digits and the characters -._~+/, and = at its end; a hash is "
            "sha256: and 64 hexadecimal digits"
        )
    if len(key) < MIN_LENGTH:
        raise ConfigError(f"api_keys: {place} has {len(key)} characters: it must have at least {MIN_LENGTH}")
    return _hash(key)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _subprotocol_key(connection: HTTPConnection) -> str | None:
    offered = connection.scope.get("subprotocols") or ()
    return next((each.removeprefix(SUBPROTOCOL) for each in offered if each.startswith(SUBPROTOCOL)), None)
