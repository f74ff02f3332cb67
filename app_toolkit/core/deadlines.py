"""How long a client gives its request."""

import re

from app_toolkit.errors import BadRequest

TIMEOUT_FIELD = b"x-request-timeout-seconds"
TIMEOUT_GRAMMAR = re.compile(rb"[0-9]{1,6}(\.[0-9]{1,6})?")


def parse_timeout(value: bytes) -> float:
    """The seconds that an `X-Request-Timeout-Seconds` names. Raises `BadRequest` for what is no such number."""
    if TIMEOUT_GRAMMAR.fullmatch(value) is None or (seconds := float(value)) == 0:
        raise BadRequest(
            f"X-Request-Timeout-Seconds is {value[:20].decode('latin-1')!r}, "
            "not a number above 0 with at most 6 digits on either side of the point"
        )
    return seconds


def shortest(*times: float | None) -> float | None:
    """The shortest of some times; None is none."""
    return min((time for time in times if time is not None), default=None)
