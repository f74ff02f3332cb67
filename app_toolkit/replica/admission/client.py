"""The messages of one client. They may be read ahead, because only reading detects a disconnect."""

import asyncio
from collections import deque
from collections.abc import Callable

from app_toolkit.types import Message, Receive

KEPT = 64 * 1024
"""Bytes that are read ahead of the app. One more message may exceed the limit."""

HANG_UPS = frozenset({"http.disconnect", "websocket.disconnect"})


class ClientMessages:
    """The messages of one client, which the app and a watcher read, but never both at once.

    If the app asks for a message while the watcher reads, it waits for the watcher's message.
    """

    __slots__ = (
        "_ahead",
        "_arrival",
        "_kept",
        "_readers",
        "_receive",
        "_watcher",
        "asked",
        "gone",
        "received",
        "whole",
    )

    def __init__(self, receive: Receive) -> None:
        self.asked = False
        """Whether the app has asked for a message. A server that owes a `100 Continue` sends it then."""
        self.whole = False
        """Whether the body is complete."""
        self.received = 0
        """The bytes of the body that were read."""
        self.gone = False
        """Whether the client has disconnected, or cannot be read any more."""
        self._receive = receive
        self._ahead: deque[Message] | None = None
        self._kept = 0
        self._readers = 0
        self._watcher: asyncio.Task[None] | None = None
        self._arrival: asyncio.Event | None = None

    async def receive(self) -> Message:
        """Return the next message for the app: those that were read ahead come first."""
        self.asked = True
        self._readers += 1
        try:
            while not self._ahead:
                if self._watcher is None:
                    return self._noted(await self._receive())
                if self._arrival is None:
                    self._arrival = asyncio.Event()
                await self._arrival.wait()
            message = self._ahead.popleft()
            self._kept -= _size(message)
            return message
        finally:
            self._readers -= 1

    @property
    def read(self) -> bool:
        """Whether the app waits for a message, and so notices a disconnect itself."""
        return self._readers > 0

    @property
    def unread(self) -> bool:
        """Whether messages of a WebSocket were read ahead."""
        return any(message["type"] == "websocket.receive" for message in self._ahead or ())

    @property
    def watchable(self) -> bool:
        """Whether neither the app nor a watcher reads, and there is room to read ahead."""
        return not (self.gone or self._readers or self._watcher is not None or self._kept > KEPT)

    def watch(self, hung_up: Callable[[], None]) -> asyncio.Task[None]:
        """Read ahead until the client disconnects, and then call `hung_up`. Stop if more than `KEPT` bytes are kept.

        The caller must cancel the task. The app receives the messages that were read.
        """
        self._ahead = self._ahead or deque()
        self._watcher = asyncio.get_running_loop().create_task(self._read_ahead(hung_up))
        return self._watcher

    async def _read_ahead(self, hung_up: Callable[[], None]) -> None:
        assert self._ahead is not None
        try:
            while self._kept <= KEPT and not self.gone:
                message = self._noted(await self._receive())
                self._ahead.append(message)
                self._kept += _size(message)
                self._wake()
            if self.gone:
                hung_up()
        except Exception:
            self.gone = True  # the next call of `receive` raises the same error
        finally:
            self._watcher = None
            self._wake()

    def _wake(self) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.set()

    def _noted(self, message: Message) -> Message:
        kind = message["type"]
        if kind == "http.request":
            self.received += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
        elif kind in HANG_UPS:
            self.gone = True
        return message


def _size(message: Message) -> int:
    # The text of a WebSocket is counted in characters, which is exact enough for a limit.
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")
