"""One request of an ASGI server: a WebSocket over a connection, or any request in one process."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from app_toolkit.observability.context import DEADLINE, READ_STREAMS, REQUEST_ID, SHARD_KEY, TRACE
from app_toolkit.replica.admission.client import ClientMessages
from app_toolkit.replica.admission.live_sets import LiveSets
from app_toolkit.replica.admission.replica_request import CHUNKS_PER_TURN, ReplicaRequest
from app_toolkit.replica.admission.stage import (
    CUT,
    ENDED,
    HELD,
    REPLACED,
    RESPONDING,
    RUNNING,
    STARTED,
    TRANSITIONS,
    UNSENT,
)
from app_toolkit.replica.http.head import BODYLESS, checked, checked_head, for_caller
from app_toolkit.types import Header, Message, Receive, Scope, Send
from app_toolkit.wire.frames import why_not_closed_with

logger = logging.getLogger("app_toolkit.replica")

BODIES = frozenset({"http.response.body", "websocket.http.response.body"})
HEADS = frozenset({"http.response.start", "websocket.http.response.start"})
INTERNAL_ERROR = 1011
"""The close code of a WebSocket that its handler closes with an invalid code; RFC 6455, 7.4.1."""


class ServerRequest(ReplicaRequest):
    """One request of an ASGI server, in the task of the server.

    Only reading from the server detects a disconnect. The server checks the order of the messages, and the length of
    the body.
    """

    _outer: tuple[Any, ...]
    """The variables of the task before the request."""
    _message: Message
    """The head that the app has sent, with checked fields."""
    _client: ClientMessages | None = None
    """The messages of the client. None: nobody has asked for one."""
    _bodyless = False
    """Whether the response has no body, whatever the app sends."""
    _watcher: asyncio.Task[None] | None = None
    _completion: asyncio.Event | None = None

    def __init__(self, scope: Scope, live: LiveSets, receive: Receive, send: Send) -> None:
        super().__init__(scope, live)
        self._receive = receive
        self._deliver = send

    def _enter(self) -> None:
        self._outer = REQUEST_ID.get(), READ_STREAMS.get(), TRACE.get(), SHARD_KEY.get(), DEADLINE.get()
        super()._enter()

    def _leave(self, error: BaseException | None) -> bool:
        # Not `reset(token)`: a coroutine that is discarded is closed in another context.
        request_id, read_streams, trace, shard_key, deadline = self._outer
        REQUEST_ID.set(request_id)
        READ_STREAMS.set(read_streams)
        TRACE.set(trace)
        SHARD_KEY.set(shard_key)
        DEADLINE.set(deadline)
        if self._watcher is not None:
            self._watcher.cancel()
        return super()._leave(error)

    # From the client

    @property
    def gone(self) -> bool:
        return self._client is not None and self._client.gone

    @property
    def has_left(self) -> bool:
        # uvicorn's protocol of a WebSocket, whose method `receive` is, has this attribute.
        return self.gone or getattr(getattr(self._receive, "__self__", None), "disconnected", False) is True

    @property
    def asked(self) -> bool:
        return self._client is not None

    @property
    def body_read(self) -> bool:
        return self._client is not None and self._client.whole

    @property
    def received(self) -> int:
        return 0 if self._client is None else self._client.received

    @property
    def reading(self) -> int:
        return self._client is not None and self._client.read

    @property
    def watched(self) -> bool:
        """Whether a disconnect ends the handler at once."""
        return self._watcher is not None

    async def receive(self) -> Message:
        message = await self._reader().receive()
        if message["type"] == "http.disconnect" and self._withholds_disconnect():
            self._completion = self._completion or asyncio.Event()
            await self._completion.wait()
        return message

    def _reader(self) -> ClientMessages:
        if self._client is None:
            self._client = ClientMessages(self._receive)
        return self._client

    def _watch(self) -> None:
        client = self._reader()
        if client.watchable and not self._owes_continue(client):
            self._watcher = client.watch(self._disconnected)

    def _owes_continue(self, client: ClientMessages) -> bool:
        """Whether the server would send `100 Continue` to the client if a message were requested."""
        return not (self.stage.begun or client.asked) and any(name == b"expect" for name, _ in self.scope["headers"])

    def _disconnected(self) -> None:
        if not self._reader().unread:
            self._hung_up()

    def _wake(self) -> None:
        if self._completion is not None:
            self._completion.set()

    # From the app

    async def send(self, message: Message) -> None:
        kind, stage = message["type"], self.stage
        is_body = kind in BODIES
        if stage is REPLACED or stage is CUT:
            if is_body and self._sent_part(message.get("more_body", False)):
                await asyncio.sleep(0)
            return
        if stage < RESPONDING and kind in HEADS:
            if not self._begin(message):
                await self._deliver(self._message)
            return
        if kind == "websocket.accept":
            message = self._accepted(message)
        elif stage is HELD:
            if is_body and not self._begins_body(len(message.get("body", b"")), message.get("more_body", False)):
                await asyncio.sleep(0)  # a response with an empty body must not block the event loop
                return
            await self._send_kept_head()
            if self.stage is CUT:  # meanwhile
                await self.send(message)
                return
        elif kind == "websocket.close":  # also uvicorn's own 403, if that is the first message
            if stage.begun:
                message = self._closable(message)
            self.stage = TRANSITIONS[stage, ENDED]
        if self._bodyless and is_body:
            message = {**message, "body": b""}
        await self._deliver(message)
        if kind == "http.response.body" and self._sent_part(message.get("more_body", False)):
            await asyncio.sleep(0)

    def _begin(self, message: Message) -> bool:
        """Begin the response with a head. Return whether it is kept."""
        if self.stage is HELD:
            raise RuntimeError("the app sends a second head")
        head = checked_head(message["status"], message.get("headers", ()))
        fields = for_caller(head.fields) if head.closes and self.from_caller else list(head.fields)
        # A copy: the app may use its own again.
        self._message = {**message, "headers": fields}
        if self._keep(head):
            return True
        self._bodyless = head.bodyless
        fields += self._stream_fields(head)
        self.stage = TRANSITIONS[self.stage, STARTED]
        return False

    async def _send_kept_head(self) -> None:
        head, self._head = self._head, None
        self.stage = TRANSITIONS[self.stage, STARTED]
        try:
            await self._deliver(self._message)
        except BaseException:  # the sender may be cancelled while it waits, and may try again
            if self.stage is RESPONDING:
                self.stage = TRANSITIONS[self.stage, UNSENT]
                self._head = head
            raise

    def _accepted(self, message: Message) -> Message:
        fields, _ = checked(None, message.get("headers", ()))
        if self.from_caller:
            fields = for_caller(fields)
        if self.stage is RUNNING:
            self.stage = TRANSITIONS[self.stage, STARTED]
        return {**message, "headers": fields}

    def _sent_part(self, more: bool) -> bool:
        """Note a part of the body that was sent or dropped. Return whether the app must yield to the event loop."""
        if more:
            self._chunks += 1
            return self._chunks % CHUNKS_PER_TURN == 0
        self.stage = TRANSITIONS[self.stage, ENDED]
        self._complete()
        return False

    def _closable(self, close: Message) -> Message:
        """Return the message, or one with code 1011 if a frame cannot carry the code or the reason."""
        code, reason = close.get("code") or 1000, close.get("reason") or ""
        why = why_not_closed_with(code, reason)
        if why is None:
            return close
        logger.error("the app closed the WebSocket of request %s, and %s; closing it with 1011", self.request_id, why)
        return {"type": "websocket.close", "code": INTERNAL_ERROR}

    # Responses of the replica itself

    async def respond(self, status: int, fields: Sequence[Header], body: bytes) -> None:
        # A WebSocket that is not accepted is answered through its denial extension, which has the same two messages.
        prefix = "http.response" if self._is_http else "websocket.http.response"
        if self.stage is not REPLACED:
            self.stage = TRANSITIONS[self.stage, STARTED]
        headers = list(fields) if status in BODYLESS else [*fields, (b"content-length", b"%d" % len(body))]
        await self._deliver({"type": f"{prefix}.start", "status": status, "headers": headers})
        await self._deliver({"type": f"{prefix}.body", "body": body})
        if self.stage is RESPONDING:
            self.stage = TRANSITIONS[self.stage, ENDED]
            self._complete()
