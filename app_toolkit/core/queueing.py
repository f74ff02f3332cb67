"""Decides which request of a wait queue is served next: the oldest, or the newest while clients give up.

Serving the oldest request first is fair. In an overload in which clients give up, however, the queue grows until each
request is served just before its client disconnects, and the work is wasted. Serving the newest request first gives
every slot to a client that still waits (adaptive LIFO, in Maurer, "Fail at Scale", ACM Queue 13(8), 2015). Clients that
do not give up are served in order, regardless of the length of the queue.
"""

MEMORY = 1 / 32
"""The weight in `abandoned` of the last request that left the queue."""

MOST_ABANDONED = 0.05
"""The share of requests that may give up before the newest is served first. A single request that gives up stays below
this share. Two in quick succession exceed it."""


class ServingOrder:
    """The order of one wait queue. The queue calls a method when a request leaves it or enters it while it is empty."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        #: The share of requests that gave up, among those that left the queue recently.
        self.abandoned = 0.0

    @property
    def newest_first(self) -> bool:
        return self.abandoned > MOST_ABANDONED

    def began(self) -> None:
        """Note that a request enters the empty queue. An overload is over when the queue is empty."""
        self.abandoned = 0.0

    def served(self) -> None:
        """Note that a request left the queue because it got a slot."""
        self.abandoned -= MEMORY * self.abandoned

    def gave_up(self) -> None:
        """Note that a request left the queue without a slot: its client disconnected, or it waited for too long."""
        self.abandoned += MEMORY * (1 - self.abandoned)
