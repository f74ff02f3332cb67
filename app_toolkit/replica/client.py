"""The client's side of one request, which may be read ahead: there is no other way to hear it hang up."""

import asyncio
from collections import deque
from collections.abc import Callable

from app_toolkit.types import Message, Receive

KEPT = 64 * 1024
"""Bytes that are read ahead of the app; one message more may be."""

HANG_UPS = frozenset({"http.disconnect", "websocket.disconnect"})


class ClientMessages:
    """One client, whose messages the app and a watcher read, never both at once.

    Whoever asks while the watcher reads waits for what that brings.
    """

    __slots__ = ("_ahead", "_arrival", "_kept", "_readers", "_receive", "_watcher", "asked", "gone", "whole")

    def __init__(self, receive: Receive) -> None:
        self.asked = False
        """Whether the app has ever asked for a message; a server that owes a `100 Continue` sends it then."""
        self.whole = False
        """Whether the body has come to its end."""
        self.gone = False
        """Whether it has hung up, or cannot be read any more."""
        self._receive = receive
        self._ahead: deque[Message] | None = None
        self._kept = 0
        self._readers = 0
        self._watcher: asyncio.Task[None] | None = None
        self._arrival: asyncio.Event | None = None

    async def receive(self) -> Message:
        """What the app gets: what was read ahead, then whatever comes."""
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
        """Whether the app waits for a message: it hears of a hang-up itself."""
        return self._readers > 0

    @property
    def unread(self) -> bool:
        """Whether messages of a WebSocket lie ahead of the app."""
        return any(message["type"] == "websocket.receive" for message in self._ahead or ())

    @property
    def watchable(self) -> bool:
        """Whether nobody reads, and there is room to read ahead."""
        return not (self.gone or self._readers or self._watcher is not None or self._kept > KEPT)

    def watch(self, hung_up: Callable[[], None]) -> asyncio.Task[None]:
        """Read ahead until the client hangs up, and say so; or until more is kept than `KEPT`.

        The task is the caller's to end. What was read is there for the app when it asks.
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
            self.gone = True  # whoever asks next meets the same
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
            self.whole = not message.get("more_body", False)
        elif kind in HANG_UPS:
            self.gone = True
        return message


def _size(message: Message) -> int:
    # The text of a WebSocket counts by letters: near enough for a bound.
    return len(message.get("body") or message.get("bytes") or message.get("text") or b"")
