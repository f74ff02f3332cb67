"""The option `affinity` of an ingress: where requests have the key of their session."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
"""The name of a field or a cookie in RFC 9110, 5.6.2, in lower case."""

_NO_KEYS = frozenset(
    (
        *("accept", "cache-control", "connection", "content-encoding", "content-length", "content-type", "cookie"),
        *("date", "etag", "expect", "host", "location", "origin", "proxy-authorization", "referer", "server"),
        *("set-cookie", "te", "traceparent", "tracestate", "transfer-encoding", "upgrade", "vary", "x-request-id"),
    )
)
"""Fields that proxies and clients interpret, so that no pin can be added to them."""

Where = Literal["header", "query", "cookie", "own_cookie", "client"]
_NAMED: tuple[Where, ...] = ("header", "query", "cookie")


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the affinity key of a request may be: one entry of the option `affinity`."""

    where: Where
    name: str = ""
    """The name of the field, the parameter or the cookie. Empty for the proxy's own cookie and for the client."""


@lru_cache(256)
def key_sources(option: str) -> tuple[KeySource, ...]:
    """Parse a value of the option `affinity`: one entry, or several separated by commas. Raises `ValueError`."""
    return tuple(_key_source(entry.strip()) for entry in option.split(","))


def _key_source(entry: str) -> KeySource:
    word, _, name = entry.partition(":")
    if entry == "client":
        return KeySource("client")
    if entry == "cookie":
        return KeySource("own_cookie")
    where = next((kind for kind in _NAMED if kind == word), None)
    if where is None or not name:
        raise ValueError("should be header:NAME, query:NAME, cookie:NAME, cookie or client")
    if where == "header":
        name = name.lower()
        if name in _NO_KEYS or name.startswith("x-app-toolkit-"):
            raise ValueError(f"the header {name!r} cannot be a key")
    if where != "query" and not _TOKEN.fullmatch(name.lower()):
        raise ValueError(f"{name!r} is not the name of a {where}")
    return KeySource(where, name)
