"""The options `rate_limit` and `rate_limit_by` of an ingress: how many requests a client may send in a time."""

import re
from dataclasses import dataclass
from functools import lru_cache

from app_toolkit.config.affinity import KeySource, key_sources

WINDOWS_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
"""The time that a limit applies to, in seconds, by its name."""

MOST = 1_000_000_000
"""The highest limit."""

_LIMIT = re.compile(rf"([1-9][0-9]{{0,9}})/({'|'.join(WINDOWS_S)})")

BY = "should be client, session, header:NAME, query:NAME or cookie:NAME"


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A value of the option `rate_limit`."""

    most: int
    """Requests in one window."""
    window_s: int
    """The length of a window in seconds. It begins with the first request of a client."""


@lru_cache(256)
def rate_limit(option: str) -> RateLimit:
    """Parse a value of the option `rate_limit`. Raises `ValueError`."""
    parsed = _LIMIT.fullmatch(option)
    if parsed is None or int(parsed[1]) > MOST:
        raise ValueError(f"should be a number up to {MOST:,} per {', '.join(WINDOWS_S)}, such as 100/minute")
    return RateLimit(int(parsed[1]), WINDOWS_S[parsed[2]])


@lru_cache(256)
def counted_by(option: str) -> KeySource | None:
    """Parse a value of the option `rate_limit_by`. None: the key of the session. Raises `ValueError`."""
    if option == "session":
        return None
    if "," in option or option == "cookie":
        raise ValueError(BY)
    try:
        (source,) = key_sources(option)
    except ValueError as error:
        raise ValueError(BY if str(error).startswith("should be") else str(error)) from None
    return source
