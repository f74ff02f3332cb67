"""What lies at a replica beside its sockets: arguments that were deposited for a call, and what is to be collected."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from app_toolkit.transport.calls import Piece


class Deposits:
    """Payloads, each for as long as its exchange waits for it: what nobody waits for is not kept.

    So there are never more of them than ongoing calls. `put` and `take` are safe from any thread; the others belong to
    the loop that serves the calls.
    """

    def __init__(self) -> None:
        self._expected: dict[str, Future[Sequence[Piece]]] = {}
        self._kept: dict[str, tuple[Sequence[Piece], Future[None]]] = {}

    def __len__(self) -> int:
        """How many exchanges wait: for something to come, or to be collected."""
        return len(self._expected) + len(self._kept)

    # An exchange

    @contextmanager
    def expected(self, key: str) -> "Iterator[Future[Sequence[Piece]]]":
        """Take in what comes under this key; the future has it then."""
        came = self._expected[key] = Future()
        try:
            yield came
        finally:
            self._expected.pop(key, None)

    @contextmanager
    def kept(self, key: str, pieces: Sequence[Piece]) -> "Iterator[Future[None]]":
        """Keep this under the key until it is taken, which the future tells."""
        taken: Future[None] = Future()
        self._kept[key] = pieces, taken
        try:
            yield taken
        finally:
            self._kept.pop(key, None)

    # Its caller

    def put(self, key: str, pieces: Sequence[Piece]) -> None:
        came = self._expected.pop(key, None)
        if came is not None and came.set_running_or_notify_cancel():
            came.set_result(pieces)

    def take(self, key: str) -> Sequence[Piece] | None:
        """None where nothing is kept (any more)."""
        pieces, taken = self._kept.pop(key, (None, None))
        if taken is not None and taken.set_running_or_notify_cancel():
            taken.set_result(None)
        return pieces
