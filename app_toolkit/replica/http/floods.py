"""Decides when a client sends too many WebSocket frames.

Backpressure limits messages: a message waits until the app has read the previous one. Pings, pongs and short fragments
of a message are not limited in this way. The server reads them as fast as they arrive, and has no time for anything
else.
"""

MOST_PER_S = 1_000.0
"""The maximum number of pings, pongs and short fragments per second. Normal clients send only a few."""

BURST = 10 * MOST_PER_S
"""The maximum burst, which is that of ten seconds, because one message may consist of many short fragments. It costs up
to 0.2 s of CPU time, but not all at once."""

SHORT = 126
"""A fragment with a payload of fewer bytes is short: its frame costs more than its payload."""


class FrameBudget:
    """A token bucket for the pings, pongs and short fragments of one WebSocket."""

    __slots__ = ("_at", "_left")

    def __init__(self, now: float) -> None:
        """`now` is in seconds and never decreases."""
        self._left = BURST
        self._at = now

    def spend(self, frames: int, now: float) -> bool:
        """Count frames that have arrived by `now`. Return False if the client has sent too many."""
        self._left = min(self._left + (now - self._at) * MOST_PER_S, BURST) - frames
        self._at = now
        return self._left >= 0
