"""Decides whether a client sends the body of its request fast enough."""

from dataclasses import dataclass

LONGEST_LOOK_S = 1.0
"""The maximum number of seconds that one check adds to the measured time. A process that was suspended for longer did
not read."""


@dataclass(frozen=True, slots=True)
class MinimumRate:
    """The bytes per second that must arrive on average in each period of `grace_s` seconds; 0: no minimum."""

    bytes_per_s: float
    grace_s: float


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
