"""`websocket_router`: a chat over one WebSocket, with several responses at a time that outlive it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, HTTPException, WebSocket
from starlette.websockets import WebSocketDisconnect

from app_toolkit import Bound, ChatError, ConfigError, StreamActive, StreamUnknown, on_disconnect
from app_toolkit.chat.catalog import Catalog, catalog_parameter
from app_toolkit.chat.chain import Source
from app_toolkit.chat.conversations import ConversationStore
from app_toolkit.chat.failures import InvalidParameter
from app_toolkit.chat.filed_conversations import filed
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.keys import KEY_USAGE, KeyUsage
from app_toolkit.chat.protocol import INTERRUPTED
from app_toolkit.chat.rate_limits import MAX_PER_MINUTE, SlidingWindow
from app_toolkit.chat.requests import checked_origins, origin_is_allowed
from app_toolkit.chat.users import user_parameter
from app_toolkit.chat.websocket.stored import StoredConversation
from app_toolkit.chat.websocket.wire import (
    EXPRESSED,
    ChatCommand,
    Document,
    InvalidCommand,
    PingCommand,
    ResumeCommand,
    StopCommand,
    encoded,
    error_document,
    frame,
    is_last,
    read_command,
    request_of,
)
from app_toolkit.streaming import Generation, Outcome, StreamLog, log_parameter, without_permit

logger = logging.getLogger("app_toolkit.chat")

SUBPROTOCOL = "app-toolkit.chat"
"""The subprotocol that the server accepts if the client offers it."""

CLOSE_S = 10.0
"""Seconds for which the server tries to send the close code to a client that does not read."""

UNSUPPORTED_DATA, POLICY_VIOLATION, TOO_BIG, TRY_AGAIN_LATER = 1003, 1008, 1009, 1013
"""Close codes: RFC 6455, 7.4.1, and the registry of IANA."""

FAILED: Document = {
    "type": "error",
    "status": 500,
    "code": "response_failed",
    "message": "the response has ended without a result",
}

ENDINGS: Mapping[Outcome, Document] = {
    "stopped": {"type": "finish", "reason": "stopped"},
    "finished": FAILED,  # the model has cancelled itself
    "failed": FAILED,
    "full": {
        "type": "error",
        "status": 503,
        "code": "stream_log_full",
        "message": "the stream log had no room for the next event",
    },
    "lost": {
        "type": "error",
        "status": 502,
        "code": "response_lost",
        "message": INTERRUPTED,
    },
}
"""The last event of a response that did not end by itself, by how its stream ended."""

EVICTED: Document = {
    "type": "error",
    "status": 410,
    "code": "history_evicted",
    "message": "the events after the given number are no longer kept",
}


@dataclass(frozen=True, slots=True)
class SocketOptions:
    """The options of one router."""

    origins: tuple[str, ...]
    max_responses: int
    max_message_bytes: int
    max_messages_per_minute: int
    send_timeout_s: float
    heartbeat_s: float
    linger_s: float
    max_duration_s: float

    def __post_init__(self) -> None:
        for name, most in (
            ("max_responses", 1_000),
            ("max_message_bytes", 16 * 2**20),
            ("max_messages_per_minute", MAX_PER_MINUTE),
        ):
            if not 1 <= (value := getattr(self, name)) <= most:
                raise ConfigError(f"websocket_router: {name} = {value!r}: must be from 1 to {most:,}")
        for name in ("send_timeout_s", "heartbeat_s", "linger_s", "max_duration_s"):
            if not 0 < (value := getattr(self, name)) <= 86_400:
                raise ConfigError(f"websocket_router: {name} = {value!r}: must be above 0 and at most 86,400")


def websocket_router(
    models: Source | Mapping[str, Source],
    *,
    log: "StreamLog | Bound[Any] | None" = None,
    conversations: ConversationStore | None = None,
    files: FileStore | None = None,
    user: Callable[..., Any] | None = None,
    origins: Sequence[str] = (),
    max_responses: int = 8,
    max_message_bytes: int = 4 * 2**20,
    max_messages_per_minute: int = 600,
    send_timeout_s: float = 20.0,
    heartbeat_s: float = 25.0,
    linger_s: float = 60.0,
    max_duration_s: float = 3_600.0,
) -> APIRouter:
    """Return a router with a WebSocket for chats. Include it with a prefix, such as `/api/ws`.

    Client and server exchange JSON objects; docs/chat-websocket.md lists them. The client sends `chat`, `stop`,
    `resume` and `ping`. Every event of a response has its id and a number. A response outlives its WebSocket: a client
    that has lost the connection opens another one and sends `resume` with the number of the last event that it has
    seen.

    The router checks the `Origin` of browsers, and no user: pass `dependencies=[Depends(api_keys(...))]` to
    `include_router`. Each response then counts against the limits of the key, and only the same key can resume or stop
    it.

    Parameters:
        models: A model, or models by name, of which the first one is the default: what `bind()` returns, an object with
            a method `chat`, or an async generator function.
        log: Where the events are kept, as of `resumable`. Default: that of the application.
        conversations: Where conversations are stored, as of `ai_sdk_router`. Default: nowhere.
        files: Where files are stored, as of `ai_sdk_router`. Messages may also name them by `file_id`. Default:
            nowhere.
        user: A dependency that returns the id of the user, whose conversations and files a client sees. Default: the
            name of the API key; without keys, all clients are one user.
        origins: Origins whose pages may open a WebSocket, such as `https://chat.example.com`, in addition to those of
            the same host and port. `*` allows all. Default: none.
        max_responses: Responses of one WebSocket at a time. Default: 8.
        max_message_bytes: Bytes of a message of the client, at most 16 MiB. A longer one closes the WebSocket with
            1009. Default: 4 MiB.
        max_messages_per_minute: Messages of one WebSocket in any 60 seconds. One more closes it with 1008.
            Default: 600.
        send_timeout_s: Seconds after which a client that does not read is closed with 1013. Default: 20.
        heartbeat_s: Seconds without a message of the server after which it sends a heartbeat. Default: 25.
        linger_s: Seconds without a reader after which a response is stopped. Default: 60.
        max_duration_s: Seconds after which a response is stopped. Default: 3600.

    Raises:
        ConfigError: There is no model, or an option is out of bounds.
    """
    options = SocketOptions(
        checked_origins("websocket_router", origins),
        max_responses,
        max_message_bytes,
        max_messages_per_minute,
        send_timeout_s,
        heartbeat_s,
        linger_s,
        max_duration_s,
    )
    return _router(
        catalog_parameter(models, files, user),
        log_parameter(log),
        options,
        filed(conversations, files),
        user,
    )


def _router(
    catalog_of: Any,
    log_of: Any,
    options: SocketOptions,
    conversations: ConversationStore | None,
    user: Callable[..., Any] | None,
) -> APIRouter:
    router = APIRouter()
    User: Any = user_parameter(user)

    @router.websocket("")
    @on_disconnect("notify")
    @without_permit
    async def chat(websocket: WebSocket, catalog: catalog_of, log: log_of, user: User) -> None:
        headers = websocket.headers
        if not origin_is_allowed(headers.get("origin"), headers.get("host"), options.origins):
            raise HTTPException(403, f"pages of {headers['origin']} may not open this WebSocket")

        def conversation(command: ChatCommand) -> StoredConversation | None:
            if command.conversation is None:
                return None
            if conversations is None:
                raise InvalidParameter("this server stores no conversations", "conversation")
            denied = {call.call_id: call.reason for call in command.denied_calls}
            return StoredConversation(conversations, log, user, command.conversation, command.parent_id, denied)

        await ChatSocket(websocket, cast(Catalog, catalog), cast(StreamLog, log), user, conversation, options).run()

    return router


class Ended(Exception):
    """The WebSocket ends. `code` None: the client has closed it."""

    def __init__(self, code: int | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Generating:
    """A response that was begun on a WebSocket."""

    generation: Generation
    task: "asyncio.Task[None]"
    """Ends with the generation, and holds the permit of its API key."""


class ChatSocket:
    """One WebSocket, the responses that were begun on it, and those that it follows.

    There is no queue of messages to send: each response is read from the stream log as fast as the client reads, one
    page at a time.
    """

    def __init__(
        self,
        websocket: WebSocket,
        catalog: Catalog,
        log: StreamLog,
        user: str,
        conversation: Callable[[ChatCommand], StoredConversation | None],
        options: SocketOptions,
    ) -> None:
        self._websocket = websocket
        self._catalog = catalog
        self._log = log
        self._user = user
        self._conversation = conversation
        self._options = options
        self._usage: KeyUsage | None = websocket.scope.get(KEY_USAGE)
        self._messages = SlidingWindow(options.max_messages_per_minute)
        self._following: set[str] = set()
        """The ids of the responses whose events are sent."""
        self._generating: dict[str, Generating] = {}
        """The responses that were begun here and have not ended, by their streams."""
        self._sending = asyncio.Lock()
        self._sent_at = 0.0
        self._group = asyncio.TaskGroup()

    async def run(self) -> None:
        """Talk with the client until one of both ends it, and wait until the responses have ended.

        If this is cancelled, they are cancelled, too.
        """
        await self._accept()
        ended: Ended | None = None
        try:
            try:
                async with self._group:
                    self._group.create_task(self._beat())
                    await self._receive()
            except* Ended as group:
                ended = cast(Ended, group.exceptions[0])
            if ended is not None and ended.code is not None:
                await self._close(ended.code, ended.reason)
            await asyncio.gather(*(response.task for response in self._generating.values()))
        finally:
            left = list(self._generating.values())
            await asyncio.gather(*(response.generation.cancel() for response in left))
            await asyncio.gather(*(response.task for response in left))

    async def _accept(self) -> None:
        offered = self._websocket.scope.get("subprotocols") or ()
        await self._websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)

    # Commands

    async def _receive(self) -> None:
        """Obey the client. Raises `Ended`."""
        clock = asyncio.get_running_loop().time
        options = self._options
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise Ended
            text = message.get("text")
            if text is None:
                raise Ended(UNSUPPORTED_DATA, "messages must be text")
            if len(text.encode()) > options.max_message_bytes:
                raise Ended(TOO_BIG, f"a message has at most {options.max_message_bytes:,} bytes")
            if not self._messages.admit(clock()):
                raise Ended(POLICY_VIOLATION, f"at most {options.max_messages_per_minute:,} messages a minute")
            await self._run_command(text)

    async def _run_command(self, text: str) -> None:
        try:
            command = read_command(text)
        except InvalidCommand as error:
            await self._send(json.dumps(error.document))
            return
        if isinstance(command, PingCommand):
            await self._send('{"type":"pong"}')
            return
        try:
            match command:
                case ChatCommand():
                    await self._begin(command)
                case ResumeCommand():
                    self._check_room(command.id)
                    self._follow(command.id, await self._stream(command.id), command.after)
                case StopCommand():
                    await self._log.stop(await self._stream(command.id))
        except StreamUnknown:
            unknown = ChatError(f"there is no response {command.id!r}", status=404, code="response_unknown")
            await self._send(_event(command.id, error_document(unknown)))
        except Exception as error:  # of the catalog, the limits, and the log
            await self._send(_event(command.id, error_document(error)))

    async def _begin(self, command: ChatCommand) -> None:
        """Begin a response. Raises `ChatError`, `InvalidParameter`, `HTTPException`, and as `StreamLog.begin` does."""
        conversation = self._conversation(command)
        model, request = self._catalog.find(command.model, EXPRESSED), request_of(command, self._catalog)
        request = await self._catalog.resolved(request)  # a stored message needs the addresses of its files
        call = partial(model, request) if conversation is None else partial(conversation.ask, model, request)
        self._check_room(command.id)
        async with AsyncExitStack() as permit:
            if self._usage is not None:
                await permit.enter_async_context(self._usage.request())
            generation = await self._begun(command.id, partial(encoded, call))
            task = asyncio.create_task(_held(permit.pop_all(), generation), name="app-toolkit chat response")
            self._generating[generation.id] = Generating(generation, task)
            task.add_done_callback(partial(self._forget, generation.id))
        self._follow(command.id, generation.id, 0)

    async def _begun(self, id: str, events: Callable[[], AsyncIterator[bytes]]) -> Generation:
        used = ChatError(
            f"there is a response {id!r} already: resume it, or choose another id", status=409, code="id_used"
        )
        if await self._log.find(self._key(id)) is not None:
            raise used
        generation = Generation(
            self._log,
            events(),
            "application/jsonl",
            key=self._key(id),
            linger_s=self._options.linger_s,
            max_duration_s=self._options.max_duration_s,
        )
        try:
            await generation.begin()
        except StreamActive:
            raise used from None
        return generation

    def _forget(self, stream: str, task: "asyncio.Task[None]") -> None:
        del self._generating[stream]

    def _check_room(self, id: str) -> None:
        if id in self._following:
            raise ChatError(f"this WebSocket follows the response {id!r} already", status=409, code="id_used")
        if max(len(self._generating), len(self._following)) >= self._options.max_responses:
            most = self._options.max_responses
            raise ChatError(
                f"this WebSocket has {most} responses at a time already", status=429, code="too_many_responses"
            )

    def _key(self, id: str) -> str:
        """Return the key of a response in the stream log. Other users, and other API keys, have other responses."""
        key = None if self._usage is None else self._usage.name
        return f"chat-websocket:{json.dumps([key, self._user, id])}"

    async def _stream(self, id: str) -> str:
        """Return the stream of a response. Raises `StreamUnknown`."""
        stream = await self._log.find(self._key(id))
        if stream is None:
            raise StreamUnknown(f"there is no response {id!r}")
        return stream

    # Events

    def _follow(self, id: str, stream: str, after: int) -> None:
        """Send the events of a response after a number."""
        self._following.add(id)
        self._group.create_task(self._send_response(id, stream, after))

    async def _send_response(self, id: str, stream: str, after: int) -> None:
        try:
            last = await self._send_events(id, stream, after)
        except Ended:
            raise
        except StreamUnknown:
            last = _event(id, EVICTED)
        except Exception as error:  # of the log
            logger.warning("response %r cannot be followed, because its log fails: %s", id, error)
            last = _event(id, ENDINGS["lost"])
        finally:
            self._following.discard(id)
        await self._send(last)

    async def _send_events(self, id: str, stream: str, after: int) -> str:
        """Send the events of a response. Return the last one, which is sent when the response holds no permit more."""
        # It reads the event that the client has seen last, too, to find out whether it was the last one of all.
        number, last = max(0, after - 1), None
        async with aclosing(self._log.follow(stream, number)) as pages:
            async for page in pages:
                if page.evicted and page.first > after + 1:
                    return _event(id, EVICTED)
                for number, event in enumerate(page.events, page.first):
                    if is_last(event):
                        last = frame(id, number, event)
                    elif number > after:
                        await self._send(frame(id, number, event))
                if page.outcome is not None:
                    outcome = page.outcome
        if stream in self._generating:
            await asyncio.wait([self._generating[stream].task])
        if number < after or (last is not None and number == after):
            problem = ChatError("no event follows: the response has ended", status=410, code="response_ended")
            return _event(id, error_document(problem))
        return last or _event(id, {"number": number + 1, **ENDINGS[outcome]})

    async def _beat(self) -> None:
        """Send a heartbeat whenever nothing was sent for `heartbeat_s`."""
        clock = asyncio.get_running_loop().time
        self._sent_at = clock()
        while True:
            rest = self._sent_at + self._options.heartbeat_s - clock()
            if rest > 0:
                await asyncio.sleep(rest)
            else:
                await self._send('{"type":"heartbeat"}')

    async def _send(self, text: str) -> None:
        """Send a message. Raises `Ended` if the client does not read, or has disconnected."""
        async with self._sending:
            try:
                async with asyncio.timeout(self._options.send_timeout_s):
                    await self._websocket.send_text(text)
            except TimeoutError:
                raise Ended(TRY_AGAIN_LATER, "the client has not read for too long") from None
            except (WebSocketDisconnect, RuntimeError):  # closed by the client, or by this server
                raise Ended from None
            self._sent_at = asyncio.get_running_loop().time()


async def _held(permit: AsyncExitStack, generation: Generation) -> None:
    """Hold the permit of an API key until a response has ended."""
    async with permit:
        await generation.ended()


def _event(id: str, document: Document) -> str:
    return json.dumps({"id": id, **document})
