"""Out-of-band payloads of a replica: arguments that callers put, and results that callers get."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from app_toolkit.wire.calls import Piece


class PayloadStore:
    """Payloads, each kept only while its exchange waits for it.

    So there are never more payloads than ongoing calls. `put` and `take` are safe from any thread. Call the other
    methods on the event loop that serves the calls.
    """

    def __init__(self) -> None:
        self._expected: dict[str, Future[Sequence[Piece]]] = {}
        self._kept: dict[str, tuple[Sequence[Piece], Future[None]]] = {}

    def __len__(self) -> int:
        """Return how many exchanges wait: to receive a payload, or until theirs is taken."""
        return len(self._expected) + len(self._kept)

    # For an exchange

    @contextmanager
    def expected(self, key: str) -> "Iterator[Future[Sequence[Piece]]]":
        """Accept a payload under this key. The future gets it."""
        came = self._expected[key] = Future()
        try:
            yield came
        finally:
            self._expected.pop(key, None)

    @contextmanager
    def kept(self, key: str, pieces: Sequence[Piece]) -> "Iterator[Future[None]]":
        """Keep a payload under this key until it is taken. The future completes then."""
        removed: Future[None] = Future()
        self._kept[key] = pieces, removed
        try:
            yield removed
        finally:
            self._kept.pop(key, None)

    # For the caller of the exchange

    def put(self, key: str, pieces: Sequence[Piece]) -> None:
        came = self._expected.pop(key, None)
        if came is not None and came.set_running_or_notify_cancel():
            came.set_result(pieces)

    def take(self, key: str) -> Sequence[Piece] | None:
        """Return a payload and stop keeping it; None: none is kept under this key."""
        pieces, removed = self._kept.pop(key, (None, None))
        if removed is not None and removed.set_running_or_notify_cancel():
            removed.set_result(None)
        return pieces
