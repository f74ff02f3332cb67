"""Responses that stop their work when their client disconnects, under every ASGI server."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from app_toolkit.chat.failures import Failure, failure_of
from app_toolkit.chat.protocol import ChatEvent, closing
from app_toolkit.streaming import until_disconnect

Document = dict[str, Any]

HEARTBEAT_S = 15.0
"""Seconds without an event after which a heartbeat is sent. Proxies close connections on which nothing is sent."""

HEARTBEAT = b": keep-alive\n\n"

SSE = "text/event-stream"

CLIENT_GONE = 499
"""The status of a response that no client receives."""

HEADERS = [
    (b"content-type", f"{SSE}; charset=utf-8".encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The server reports that the connection is closed."""


class LiveResponse(Response):
    """A response that a function sends, which is cancelled when the client disconnects."""

    def __init__(self, respond: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self._respond(scope, receive, send))


class EventWriter:
    """Writes server-sent events, several tasks at a time. The head of the response is sent with the first event.

    It sends no `id:` and no `retry:`. With one of these, OpenAI's SDK takes a comment for an event without data.
    """

    def __init__(
        self, send: Send, heartbeat: bytes = HEARTBEAT, headers: Iterable[tuple[bytes, bytes]] = HEADERS
    ) -> None:
        """Begin no response yet.

        Parameters:
            send: The channel of the response.
            heartbeat: The frame that keeps the connection open. Default: a comment.
            headers: The headers of the response. Default: those of server-sent events.
        """
        self.started = False
        """Whether the head has been sent."""
        self._send = send
        self._heartbeat = heartbeat
        self._headers = list(headers)
        self._writing = asyncio.Lock()
        self._written_at = 0.0

    async def write(self, frames: bytes) -> None:
        """Send complete frames. Raises `ClientGone`."""
        await self._write(frames, more=True)

    async def end(self, frames: bytes) -> None:
        """Send the last frames. Raises `ClientGone`."""
        await self._write(frames, more=False)

    async def _write(self, frames: bytes, more: bool) -> None:
        async with self._writing:
            try:
                if not self.started:
                    await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
                    self.started = True
                await self._send({"type": "http.response.body", "body": frames, "more_body": more})
            except OSError as error:
                raise ClientGone from error
            self._written_at = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Send the heartbeat whenever nothing was sent for `HEARTBEAT_S`."""
        beating = asyncio.ensure_future(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        self._written_at = clock()
        while True:
            rest = self._written_at + HEARTBEAT_S - clock()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                await self.write(self._heartbeat)


def streamed(
    documents: Callable[[], AsyncGenerator[list[Document], None]],
    frame: Callable[[Document], bytes],
    error_frames: Callable[[Failure], bytes],
    respond: Callable[[Failure], Response],
    *,
    heartbeat: bytes = HEARTBEAT,
    headers: Iterable[tuple[bytes, bytes]] = HEADERS,
) -> LiveResponse:
    """Return a response that sends each document of a stream as a frame.

    An exception before the first frame is a response with its status. A later one is the last frame.

    Parameters:
        documents: Returns the documents, those of one write at a time.
        frame: Returns a document as a frame.
        error_frames: Returns the last frames of a stream that has failed.
        respond: Returns a failure as a response of the protocol.
        heartbeat: The frame that keeps the connection open. Default: a comment.
        headers: The headers of the response. Default: those of server-sent events.
    """

    async def send_frames(scope: Scope, receive: Receive, send: Send) -> None:
        writer = EventWriter(send, heartbeat, headers)

        async def write() -> None:
            async with aclosing(documents()) as groups:
                async for group in groups:
                    await writer.write(b"".join(map(frame, group)))

        with suppress(ClientGone):
            try:
                async with writer.kept_alive():
                    await together([write])
                await writer.end(b"")
            except ClientGone:
                raise
            except Exception as error:
                failure = failure_of(error)
                if writer.started:
                    await writer.end(error_frames(failure))
                else:
                    await respond(failure)(scope, receive, send)

    return LiveResponse(send_frames)


async def translated(
    events: AsyncIterator[ChatEvent], translate: Callable[[ChatEvent], Iterable[Document]]
) -> AsyncGenerator[list[Document], None]:
    """Yield what the events of a model become in a protocol, that of one event at a time. The model is closed."""
    async with closing(events):
        async for event in events:
            if documents := list(translate(event)):
                yield documents
            await asyncio.sleep(0)  # a model that never waits must not block the event loop


def document_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON document as a response. Half of a surrogate pair, which some models write, becomes `?`."""
    return Response(_json(document).encode(errors="replace"), status, headers, "application/json")


def data(document: Any) -> bytes:
    """Return an event whose data is a JSON document."""
    return b"data: %b\n\n" % json_line(document)


def json_line(document: Any) -> bytes:
    """Return a JSON document in one line. Raises `ValueError` for infinities and NaN, which JSON does not have."""
    text = _json(document)
    # Many clients split lines with functions for text, which also split at these.
    for separator, escaped in (("\u2028", "\\u2028"), ("\u2029", "\\u2029"), ("\x85", "\\u0085")):
        if separator in text:
            text = text.replace(separator, escaped)
    return text.encode(errors="replace")


def _json(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


async def together(work: list[Callable[[], Awaitable[None]]]) -> None:
    """Run functions at the same time. The first exception cancels the others and is raised when they have ended."""

    async def run(function: Callable[[], Awaitable[None]]) -> None:
        try:
            await function()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("a model was cancelled, although its request was not") from None

    try:
        async with asyncio.TaskGroup() as group:
            for piece in work:
                group.create_task(run(piece))
    except ExceptionGroup as failed:
        error: Exception = failed
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__
