"""How long a request may take: the deployment says, and the request itself may ask for less."""

import re
from collections.abc import Iterable

from app_toolkit.errors import BadRequest

TIMEOUT_FIELD = b"x-request-timeout-seconds"
"""In small letters."""

GRAMMAR = re.compile(rb"\d{1,6}(\.\d{1,6})?")


def timeout_s(asked: bytes | None, limit: float | None) -> float | None:
    """The shorter of `X-Request-Timeout-Seconds` and `request_timeout_s`; None where neither says anything.

    Raises `BadRequest` for what is not a plain decimal number above 0.
    """
    if asked is None:
        return limit
    asked = asked.strip(b" \t")  # RFC 9110, 5.5: whitespace around a value is no part of it
    seconds = float(asked) if GRAMMAR.fullmatch(asked) else 0.0
    if seconds <= 0:
        raise BadRequest(
            f"X-Request-Timeout-Seconds is {asked[:40].decode('latin-1')!r}, it must be a decimal number above 0, "
            "with at most six digits before the point and six behind it"
        )
    return seconds if limit is None else min(seconds, limit)


def until(now: float, allowed: Iterable[float | None], outer: float | None) -> float | None:
    """When a call must have ended: the first of what it is allowed, in seconds from now, and of the request's own end.

    None where nothing bounds it.
    """
    ends = [now + seconds for seconds in allowed if seconds is not None]
    if outer is not None:
        ends.append(outer)
    return min(ends, default=None)
