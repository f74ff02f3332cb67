"""Which end of a queue is served next: the oldest request, or the newest while clients give up.

A queue that serves the oldest request first is fair, and useless in an overload whose clients give up: it grows until
each request reaches its turn just before its client leaves, and the work is done for nobody. Serving the newest first
gives every slot to a client that is still there (adaptive LIFO, in Maurer, "Fail at Scale", ACM Queue 13(8), 2015).
Clients that do not give up are served in their order, however long the queue is.
"""

MEMORY = 1 / 32
"""Weight in `abandoned` of the request that left the queue last."""

MOST_ABANDONED = 0.05
"""Share of requests that may give up before the newest is served first. One that gives up alone is fewer, two in quick
succession are more."""


class ServingOrder:
    """The order of one queue, which reports each request that leaves it, and each that finds it empty."""

    __slots__ = ("abandoned",)

    def __init__(self) -> None:
        #: The share of requests that gave up, of those that left the queue lately.
        self.abandoned = 0.0

    @property
    def newest_first(self) -> bool:
        return self.abandoned > MOST_ABANDONED

    def began(self) -> None:
        """The queue was empty, and a request enters it. An overload is over when its queue has drained."""
        self.abandoned = 0.0

    def served(self) -> None:
        """A request left the queue because it was given a slot."""
        self.abandoned -= MEMORY * self.abandoned

    def gave_up(self) -> None:
        """A request left the queue without a slot: its client disconnected, or it waited for too long."""
        self.abandoned += MEMORY * (1 - self.abandoned)
