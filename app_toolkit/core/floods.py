"""When the frames of one WebSocket are a flood.

The messages of a client wait until the app has read those before them, so a client is as fast as the app. Pings, pongs
and short fragments of a message wait for nobody: the server reads them as fast as they come, and nothing else.
"""

MOST_PER_S = 1_000.0
"""Pings, pongs and short fragments a second. Clients that are well send a few."""

MOST_AT_ONCE = 10 * MOST_PER_S
"""Those of ten seconds: one message may consist of many short fragments. They cost up to 0.2 s of CPU, in slices."""

SHORT = 126
"""Bytes of the payload of a fragment; a shorter one carries less than its frame costs."""


class FrameBudget:
    """How many pings, pongs and short fragments one WebSocket may still send: a token bucket."""

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        """`now` is in seconds and never falls."""
        self._left = MOST_AT_ONCE
        self._at = now

    def spend(self, frames: int, now: float) -> bool:
        """Whether the client may have sent so many more by `now`."""
        self._left = min(self._left + (now - self._at) * MOST_PER_S, MOST_AT_ONCE) - frames
        self._at = now
        return self._left >= 0
