"""Which answers are long, as far as those before them tell.

A caller chooses the connection before it knows the answer. What is long flows better over a connection of the kernel's
than over a circuit, whose two ends allow each other a window at a time.
"""

from collections.abc import Hashable

LONG = 256 * 1024
"""Bytes from which on an answer is long: a circuit's window."""

MOST = 1_024
"""Kinds of requests that are remembered; of more, those whose answers have been long for the longest are forgotten."""


class LongAnswers:
    """The kinds of requests, as their caller tells them apart, that were last answered at length."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        #: Hashes alone: a kind may be a path of thousands of bytes. Two that share one cost nobody anything.
        self._kinds: dict[int, None] = {}

    def __contains__(self, kind: Hashable) -> bool:
        return bool(self._kinds) and hash(kind) in self._kinds

    def note(self, kind: Hashable, size: int) -> None:
        """An answer had so many bytes."""
        if size >= LONG:
            self._kinds[hash(kind)] = None
            if len(self._kinds) > MOST:
                del self._kinds[next(iter(self._kinds))]
        elif self._kinds:
            self._kinds.pop(hash(kind), None)

    def __len__(self) -> int:
        return len(self._kinds)
