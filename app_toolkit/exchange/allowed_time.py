"""Computes how long a request may take: the option of the deployment, or less if the request asks for it."""

import re
from collections.abc import Iterable

from app_toolkit.errors import BadRequest

TIMEOUT_FIELD = b"x-request-timeout-seconds"
"""The field name in lowercase."""

GRAMMAR = re.compile(rb"\d{1,6}(\.\d{1,6})?")


def timeout_s(asked: bytes | None, limit: float | None) -> float | None:
    """Return the shorter of `X-Request-Timeout-Seconds` and `request_timeout_s`; None: neither is set.

    Raises `BadRequest` if the field is not a plain decimal number above 0.
    """
    if asked is None:
        return limit
    asked = asked.strip(b" \t")  # RFC 9110, 5.5: whitespace around a value is not part of it
    seconds = float(asked) if GRAMMAR.fullmatch(asked) else 0.0
    if seconds <= 0:
        raise BadRequest(
            f"X-Request-Timeout-Seconds is {asked[:40].decode('latin-1')!r}, it must be a decimal number above 0, "
            "with at most six digits before the point and six behind it"
        )
    return seconds if limit is None else min(seconds, limit)


def until(now: float, allowed: Iterable[float | None], outer: float | None) -> float | None:
    """Return the deadline of a call; None: it has none.

    This is the earliest of `now` plus each timeout in `allowed`, in seconds, and `outer`, the deadline of the request.
    """
    ends = [now + seconds for seconds in allowed if seconds is not None]
    if outer is not None:
        ends.append(outer)
    return min(ends, default=None)
