"""Decides whether a client sends the body of its request fast enough, and how many slots slow bodies may hold."""

from dataclasses import dataclass

LONGEST_LOOK_S = 1.0
"""The maximum number of seconds that one check adds to the measured time. A process that was suspended for longer did
not read."""


@dataclass(frozen=True, slots=True)
class MinimumRate:
    """The bytes per second that must arrive on average in each period of `grace_s` seconds; 0: no minimum."""

    bytes_per_s: float
    grace_s: float


PROMPT = MinimumRate(bytes_per_s=64 * 1024, grace_s=2.0)
"""A body that arrives at this rate or more is not slow, whatever its length."""

PROMPT_S = 1.0
"""A body whose rest arrives within this number of seconds is not slow, whatever its rate."""


@dataclass(frozen=True, slots=True)
class Period:
    """The period that is being measured. Only time in which the server was ready to read counts."""

    looked_at: float
    received_before: int
    seconds: float = 0.0


def measured(period: Period, now: float, received: int, minimum: MinimumRate) -> Period | None:
    """Return the period after a check at `now`, with `received` bytes of the body in all; None: the client is too slow.

    The server must have been ready to read since the last check.
    """
    seconds = period.seconds + min(max(now - period.looked_at, 0.0), LONGEST_LOOK_S)
    if seconds < minimum.grace_s:
        return Period(now, period.received_before, seconds)
    if received - period.received_before < minimum.bytes_per_s * seconds:
        return None
    return Period(now, received)


def is_slow(received: int, missing: int | None, seconds: float) -> bool:
    """Return whether the rest of a body will probably hold a slot for long.

    Parameters:
        received: The bytes that have arrived.
        missing: The bytes that have not arrived; None: unknown.
        seconds: The time in which `received` arrived.
    """
    if missing == 0 or received >= PROMPT.bytes_per_s * seconds:
        return False
    return missing is None or missing * seconds > received * PROMPT_S


def most_slow_bodies(slots: int) -> int:
    """Return how many slots of a replica may be held by requests whose bodies arrive slowly: half, and at least one."""
    return max(1, slots // 2)
