"""Whether a client sends the body of its request fast enough."""

from dataclasses import dataclass

LONGEST_LOOK_S = 1.0
"""Most that one look at a body adds to the time measured. A process that stood still for longer did not read."""


@dataclass(frozen=True, slots=True)
class MinimumRate:
    """Bytes a second that must arrive in each period of `grace_s` seconds; 0: no minimum."""

    bytes_per_s: float
    grace_s: float


@dataclass(frozen=True, slots=True)
class Period:
    """The period that is being measured: the time in which the server was ready to read."""

    looked_at: float
    received_before: int
    seconds: float = 0.0


def measured(period: Period, now: float, received: int, minimum: MinimumRate) -> Period | None:
    """The period after a look at `now`, with `received` bytes of the body in all; None: the client is too slow.

    The server was ready to read since the last look.
    """
    seconds = period.seconds + min(max(now - period.looked_at, 0.0), LONGEST_LOOK_S)
    if seconds < minimum.grace_s:
        return Period(now, period.received_before, seconds)
    if received - period.received_before < minimum.bytes_per_s * seconds:
        return None
    return Period(now, received)
