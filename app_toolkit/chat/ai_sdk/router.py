"""`ai_sdk_router`: chats for clients of the Vercel AI SDK, such as `useChat` and assistant-ui."""

import asyncio
import json
import logging
import math
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from app_toolkit import (
    Bound,
    ChatError,
    ConfigError,
    NoReplica,
    QueueFull,
    QueueTimeout,
    ReplicaLost,
    RequestError,
    StreamActive,
    StreamUnknown,
    on_disconnect,
)
from app_toolkit.chat.ai_sdk.logged import REQUEST, LoggedResponse, request_event
from app_toolkit.chat.ai_sdk.messages import UIChat, answered_calls, has_answer, open_calls, read_chat
from app_toolkit.chat.ai_sdk.record import MessageRecord, ends_of_texts
from app_toolkit.chat.ai_sdk.stream import MessageParts, Part, encode, expressed
from app_toolkit.chat.catalog import Catalog, catalog_parameter
from app_toolkit.chat.chain import Source
from app_toolkit.chat.continued import PartialResponse
from app_toolkit.chat.conversations import ConversationStore
from app_toolkit.chat.files import FileStore
from app_toolkit.chat.protocol import INTERRUPTED, ChatEvent, ErrorEvent, OptionalEvent, TextEvent, closing
from app_toolkit.chat.requests import MAX_BODY_SIZE, CheckedRoute, RequestChecks, checked
from app_toolkit.chat.stored_chat import StoredChat, stored_parameter
from app_toolkit.streaming import (
    STREAM_ERRORS,
    Generation,
    LostStream,
    OpenStream,
    Outcome,
    Page,
    StreamLog,
    StreamOptions,
    log_parameter,
    tied_stream,
    without_permit,
)

logger = logging.getLogger("app_toolkit.chat")

Call = Callable[[UIChat], AsyncIterator[ChatEvent]]

Continued = Callable[
    [StoredChat, LoggedResponse, Callable[[], Generation | None]], Awaitable[AsyncGenerator[bytes, None] | None]
]

HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-vercel-ai-ui-message-stream": "v1",
    "x-accel-buffering": "no",
}

TEXT_HEADERS = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}

FIRST_EVENT_S = 15.0
"""Seconds for which a response waits for the first event of the model, so that an error can still have a status."""

KEEP_ALIVE_S = 15.0
"""Seconds without an event after which a comment is sent."""

STOP_S = 20.0
"""Seconds for which a request waits until an earlier response has ended; the lease of a lost one expires before."""

NEWEST = 2**53 - 1
"""A number that no event of a stream has."""

OPEN, KEEP_ALIVE, DONE = b": stream-open\n\n", b": keep-alive\n\n", b"data: [DONE]\n\n"


FAILED = "An error occurred."

STREAM_ID = "x-stream-id"
"""The response header that names the stream, as of `resumable`."""

BUSY = "The server is busy. Try again in a moment."

ENDINGS: Mapping[Outcome | None, Part] = {
    "stopped": {"type": "abort"},
    "failed": {"type": "error", "errorText": FAILED},
    "full": {"type": "error", "errorText": INTERRUPTED},
    "lost": {"type": "error", "errorText": INTERRUPTED},
}
"""The last part of a stream that did not end by itself."""

LOST: Part = {"type": "data-error", "data": STREAM_ERRORS["lost"], "transient": True}
"""The part before the error of a stream whose process has died. Programs find the reason in it; `onData` gets it."""

EVICTED: Part = {"type": "error", "errorText": "The response is too long to be read again from its start."}

LAST_PARTS = ("finish", "error")
"""The types of the last part of a stream."""

BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "description": "The id of the chat"},
                        "messages": {"type": "array", "items": {"type": "object"}, "description": "UI messages"},
                        "message": {"type": "object", "description": "The last UI message, instead of all"},
                        "trigger": {"type": "string", "enum": ["submit-message", "regenerate-message"]},
                        "messageId": {"type": "string"},
                        "model": {"type": "string", "description": "The name of a model"},
                    },
                }
            }
        },
    }
}
"""The body is read by hand, because a `Body` of the user's own dependencies would change what FastAPI expects."""


def ai_sdk_router(
    models: "Source | Mapping[str, Source]",
    *,
    log: "StreamLog | Bound[Any] | None" = None,
    resume: bool = True,
    version: int = 5,
    linger_s: float = 60.0,
    max_duration_s: float = 3_600.0,
    conversations: ConversationStore | None = None,
    files: FileStore | None = None,
    user: Callable[..., Any] | None = None,
    origins: Sequence[str] = (),
    max_body_size: int = MAX_BODY_SIZE,
) -> APIRouter:
    """Return a router for `useChat` of the Vercel AI SDK. Include it with a prefix, such as `/api/chat`.

    `POST` to the prefix streams a response as a UI message stream, version 1. `POST /text` streams its text only, for
    `TextStreamChatTransport`. With `resume`, `GET /{chat}/stream` replays the active response of a chat from its start
    and follows it (204 if none is active or lost), and `POST /{chat}/stop` stops it and says
    whether there was one.

    An error before the first event has its status, and its body is the message, which the AI SDK shows to the user. A
    later one is a part of the type `error`; an exception other than `ChatError` shows no details.

    A body must be JSON with the type `application/json` (415). A request with cookies must come from a page of the same
    host and port, or one of `origins` (403).

    Parameters:
        models: A model, or models by name, of which the body's `model` chooses one: what `bind()` returns, an object
            with a method `chat`, or an async generator function.
        log: Where the events are kept, as of `resumable`. Default: that of the application.
        resume: True: a disconnect does not stop the model, and a client can come back. A new message stops the
            response that is active in its chat. False: a disconnect stops the model. Default: True.
        version: The oldest version of the AI SDK of the clients. From 6 on, the last part has `finishReason`, and the
            model can ask for approvals.
            Default: 5.
        linger_s: Seconds without a client after which a model is stopped. Default: 60.
        max_duration_s: Seconds after which a model is stopped. Default: 3600.
        conversations: Where the messages of each chat are stored, and the earlier ones are read if a client sends only
            the last one. `conversations_router` serves them. Default: nowhere.
        files: Where files are stored. Messages may name those of the user by their addresses, which `files_router`
            serves; files within messages are moved there before a conversation is stored. Default: nowhere.
        user: A dependency that returns the id of the user, a string. The chats of two users are separate, even if they
            have the same id. An empty id is refused with 403. Default: the name of the API key
            that `api_keys` has checked; without keys, all clients are one user.
        origins: Origins whose pages may send requests with cookies, such as `https://chat.example.com`, in addition to
            those of the same host and port. `*` allows all. Default: none.
        max_body_size: Bytes of a request's body. Default: 16 MiB.

    Raises:
        ConfigError: There is no model, or an option is out of bounds.
    """
    if version < 5:
        raise ConfigError(f"ai_sdk_router: version = {version!r}: must be 5 or above")
    for name, value in (("linger_s", linger_s), ("max_duration_s", max_duration_s)):
        if not 0 < value <= 86_400:
            raise ConfigError(f"ai_sdk_router: {name} = {value!r}: must be above 0 and at most 86,400")
    options = StreamOptions(log, None, linger_s, max_duration_s, FIRST_EVENT_S, 0, None)
    checks = RequestChecks.of("ai_sdk_router", origins, max_body_size)
    router = APIRouter(route_class=checked(PlainTextRoute, checks))
    catalog = catalog_parameter(models, files, user)
    stored = stored_parameter(conversations, files, user)
    _add_text(router, catalog, options)
    if resume:
        _add_resumable(router, catalog, stored, version, options)
    else:
        _add_plain(router, catalog, stored, version, options)
    return router


def _add_text(router: APIRouter, models: Any, options: StreamOptions) -> None:
    async def opened(request: Request, catalog: models) -> AsyncIterator[OpenStream]:
        chat = read_chat(await request.body())
        response = TextResponse(chat, _call(chat, catalog))
        async with _tied(request, response, options) as stream:
            yield stream

    @router.post("/text", response_class=PlainTextResponse, openapi_extra=BODY)
    @on_disconnect("cancel")
    async def send_text(stream: Annotated[OpenStream, Depends(opened)]) -> Any:
        return StreamingResponse(_text_chunks(stream), headers=TEXT_HEADERS)


def _add_plain(router: APIRouter, models: Any, chats: Any, version: int, options: StreamOptions) -> None:
    async def opened(request: Request, catalog: models, user_chats: chats) -> AsyncIterator[OpenStream]:
        chat = read_chat(await request.body())
        response = MessageResponse(
            chat, _call(chat, catalog, expressed(version)), user_chats.find(chat.id, _model(chat, catalog)), version
        )
        async with _tied(request, response, options) as stream:
            yield stream

    @router.post("", response_class=Response, openapi_extra=BODY)
    @on_disconnect("cancel")
    async def send_message(request: Request, stream: Annotated[OpenStream, Depends(opened)]) -> Any:
        return StreamingResponse(_frames(stream), headers=_headers(request))


def _add_resumable(router: APIRouter, models: Any, chats: Any, version: int, options: StreamOptions) -> None:
    parameter: Any = log_parameter(options.log)

    async def begun(request: Request, catalog: models, user_chats: chats, log: parameter) -> AsyncIterator[OpenStream]:
        chat = read_chat(await request.body())
        response = MessageResponse(
            chat, _call(chat, catalog, expressed(version)), user_chats.find(chat.id, _model(chat, catalog)), version
        )
        key = user_chats.key(chat.id)
        response.model, response.can_continue = _model(chat, catalog), catalog.can_continue(chat.model)
        if (
            chat.continued is not None
            and key is not None
            and response.stored is not None
            and await _active(log, key) is not None
            and await response.stored.repeats_answer(chat)
        ):  # for example in a second tab: the tool must not be stopped while it runs
            raise ChatError(
                "the call of the tool has been answered already, and the response is being generated: load the "
                "conversation again",
                status=409,
                code="approval_answered",
            )
        async with _kept(request, response, log, key, options) as stream:
            yield stream

    async def existing(
        chat: str, request: Request, catalog: models, user_chats: chats, log: parameter
    ) -> AsyncIterator[OpenStream | None]:
        active = await _active(log, user_chats.key(chat), or_lost=True)
        if active is None:
            yield None
            return
        continued = partial(_continued, catalog=catalog, version=version)
        async with _resumed(request, log, active, user_chats.find(chat), options, continued) as stream:
            yield stream

    @router.post("", response_class=Response, openapi_extra=BODY)
    @on_disconnect("notify")
    async def send_message(request: Request, stream: Annotated[OpenStream, Depends(begun)]) -> Any:
        return StreamingResponse(_frames(stream), headers={**_headers(request), STREAM_ID: stream.id})

    @router.get("/{chat}/stream", response_class=Response, responses={204: {}})
    @on_disconnect("notify")
    @without_permit
    async def resume_stream(request: Request, stream: Annotated[OpenStream | None, Depends(existing)]) -> Any:
        if stream is None:
            return Response(status_code=204)
        return StreamingResponse(_frames(stream), headers={**_headers(request), STREAM_ID: stream.id})

    @router.post("/{chat}/stop", response_class=JSONResponse)
    @without_permit
    async def stop_stream(chat: str, request: Request, user_chats: chats, log: parameter) -> dict[str, bool]:
        named = _named_stream(await request.body())
        stream = await _active(log, user_chats.key(chat))
        stopped = False
        if stream is not None and named in (None, stream):
            try:
                async with asyncio.timeout(STOP_S):
                    stopped = await _stop(log, stream)
            except TimeoutError:
                logger.warning("stream %s has not ended %g s after its stop", stream, STOP_S)
        return {"success": True, "stopped": stopped}  # clients of the AI SDK expect success, whatever was active


class PlainTextRoute(CheckedRoute):
    """A route whose errors are plain text, because the AI SDK shows the body of an error to the user."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except (ChatError, RequestError, StarletteHTTPException, RequestValidationError) as error:
                status, headers = _status(error)
                if status < 400:
                    raise
                return PlainTextResponse(_message(error), status, headers)

        return handle


class MessageResponse:
    """A response of a model, as the parts of a UI message stream."""

    def __init__(self, chat: UIChat, call: Call, stored: StoredChat | None, version: int) -> None:
        self.committed = False
        """Whether the response has a status, so that an error can only be a part."""
        self.generation: Generation | None = None
        """The generation of a response that outlives its client; None: a disconnect is a stop."""
        self.stored = stored
        """Where the response is stored; None: nowhere."""
        self.model: str | None = None
        """The name of the model, if another process can store the response; None: it cannot."""
        self.can_continue = False
        """Whether another process can continue a new response."""
        self.answers_request = stored is not None and has_answer(chat.continued)
        """Whether the client answers a request for an approval. An active response may be the one that runs the call
        for another client, and must not be stopped.
        """
        self._chat = chat
        self._call = call
        continued = chat.continued
        # A client that gets another id for a message that it continues would show two messages.
        id = (continued.id if continued else "") or f"msg_{secrets.token_urlsafe(12)}"
        self._parts = MessageParts(id, version=version)

    async def encoded(self) -> AsyncGenerator[bytes, None]:
        """Yield the parts as events of a stream log, and store them. An exception before the first one is raised."""
        if self.stored is None:
            async with aclosing(self._translated(self._chat, None)) as events:
                async for event in events:
                    yield event
            return
        chat = await self.stored.begin(self._chat)
        continued = chat.continued
        parts = continued.parts if continued else ()
        request = None
        if self.model is not None and self.stored.question_id is not None:
            sent = chat if self.can_continue and continued is None else None
            request = request_event(self.model, self.stored.question_id, len(parts), sent)
        record = MessageRecord(parts)
        async with aclosing(self._recorded(chat, record)) as events:
            async for event in events:
                if request is not None:  # not earlier: an error before the first part has a status
                    yield request
                    request = None
                yield event

    async def rest(self, translator: MessageParts, parts: Iterable[Part]) -> AsyncGenerator[bytes, None]:
        """Yield the parts that follow those which a process has logged that has died, and store the response."""
        self.committed, self._parts, record = True, translator, MessageRecord()
        for part in parts:
            record.add(part)
        async with aclosing(self._recorded(self._chat, record)) as events:
            async for event in events:
                yield event

    async def _recorded(self, chat: UIChat, record: MessageRecord) -> AsyncGenerator[bytes, None]:
        assert self.stored is not None, "the response has a place where it is stored"
        is_stored = is_lost = False
        try:
            async with aclosing(self._translated(chat, record)) as events:
                async for event in events:
                    if record.has_ended:  # a client that reads the last part finds the response in the store
                        is_stored = True
                        await self.stored.end(record)
                    yield event
        finally:
            if self.generation is not None and not (record.has_ended or self.generation.was_stopped):
                is_lost = True
                record.add(ENDINGS["lost"])  # its log has failed, or its process ends
            if not is_stored:
                await self.stored.end(record, is_lost=is_lost)

    async def _translated(self, chat: UIChat, record: MessageRecord | None) -> AsyncGenerator[bytes, None]:
        def encoded(parts: list[Part]) -> Iterator[bytes]:
            for part in parts:
                event = encode(part)
                if record is not None:
                    record.add(part)
                yield event

        began = False
        self._parts.deny(call.id for call in answered_calls(chat.continued, approved=False))
        try:
            async with closing(self._call(chat)) as events:
                async for event in events:
                    if isinstance(event, ErrorEvent) and not began:
                        raise ChatError(event.message, status=500, code=event.code)
                    for part in encoded(self._parts.translate(event)):
                        began = True
                        yield part
        except Exception as error:
            if not began and not self.committed:
                if record is not None:  # who reloads the page reads why there is no response
                    for last in self._parts.fail(_text(error)):
                        record.add(last)
                raise
            if not isinstance(error, ChatError | RequestError | StarletteHTTPException):
                logger.exception("a chat model raised")
            for part in encoded(self._parts.fail(_message(error))):
                yield part


class TextResponse:
    """A response of a model, as the text of its message."""

    def __init__(self, chat: UIChat, call: Call) -> None:
        self.committed = False
        self._chat = chat
        self._call = call

    async def encoded(self) -> AsyncGenerator[bytes, None]:
        """Yield the text. An error is raised, because plain text has no other way to say that it is incomplete."""
        async with closing(self._call(self._chat)) as events:
            async for event in events:
                if isinstance(event, ErrorEvent):
                    raise ChatError(event.message, status=500, code=event.code)
                if isinstance(event, TextEvent):
                    yield event.text.encode()


def _call(chat: UIChat, catalog: Catalog, events: Collection[type[OptionalEvent]] = ()) -> Call:
    """Return a function that calls the model of a chat. Raises `ChatError` if there is no such model.

    The model is not called before its response has begun, which can fail, or wait for the end of another one.
    """
    model, name = catalog.find(chat.model, events), _model(chat, catalog)
    return lambda chat: model(chat.request(name), known_calls=open_calls(chat.continued))


def _model(chat: UIChat, catalog: Catalog) -> str:
    """Return the name of the model of a chat."""
    return chat.model or catalog.names[0]


def _status(error: Exception) -> tuple[int, Mapping[str, str] | None]:
    """Return the status and the headers of an error before the first event."""
    match error:
        case StarletteHTTPException():
            return error.status_code, error.headers
        case RequestError() | ChatError():
            seconds = error.retry_after_s
            return error.status, None if seconds is None else {"retry-after": str(math.ceil(seconds))}
    return 422, None


def _message(error: Exception) -> str:
    """Return what a user may read of an exception. What is hidden is logged."""
    if isinstance(error, (ReplicaLost, NoReplica, QueueFull, QueueTimeout)):
        logger.warning("a response was interrupted, or did not begin: %s", error)
    return _text(error)


def _text(error: Exception) -> str:
    """Return what a user may read of an exception."""
    if isinstance(error, StarletteHTTPException):
        return error.detail if isinstance(error.detail, str) else json.dumps(error.detail)
    if isinstance(error, RequestValidationError):
        return "; ".join(f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']}" for mistake in error.errors())
    if isinstance(error, (ReplicaLost, NoReplica, QueueFull, QueueTimeout)):  # its text names a deployment
        return INTERRUPTED if isinstance(error, ReplicaLost) else BUSY
    return str(error) if isinstance(error, ChatError | RequestError) else FAILED


@asynccontextmanager
async def _kept(
    request: Request, response: MessageResponse, log: StreamLog, chat: str | None, options: StreamOptions
) -> AsyncIterator[OpenStream]:
    """Begin a response that outlives its client, after the active one of the chat was stopped."""
    generation = Generation(
        log,
        response.encoded(),
        HEADERS["content-type"],
        key=chat,
        linger_s=options.linger_s,
        max_duration_s=options.max_duration_s,
        followed=True,
    )
    response.generation = generation

    async def recover() -> None:
        if chat is not None and response.stored is not None:
            await _recover(request, log, chat, response.stored, options)

    await _begin(generation, log, chat, recover, stops=not response.answers_request)
    await generation.first_event(options.first_event_s)
    response.committed = True
    stream = OpenStream(request, log, generation.id, 0, HEADERS["content-type"], options)
    stream.generation = generation
    async with stream:
        yield stream


@asynccontextmanager
async def _tied(
    request: Request, response: MessageResponse | TextResponse, options: StreamOptions
) -> AsyncIterator[OpenStream]:
    """Begin a response that ends with its request."""
    media_type = HEADERS["content-type"]
    first_event_s, max_duration_s = options.first_event_s, options.max_duration_s
    async with tied_stream(
        response.encoded(), media_type, request.receive, first_event_s=first_event_s, max_duration_s=max_duration_s
    ) as (log, stream):
        response.committed = True
        yield OpenStream(request, log, stream, 0, media_type, options)


async def _begin(
    generation: Generation,
    log: StreamLog,
    chat: str | None,
    recover: Callable[[], Coroutine[Any, Any, None]],
    *,
    stops: bool,
) -> None:
    """Begin a generation. Raises `ChatError` 409 if the active response of the chat does not end.

    Parameters:
        recover: It is called before each attempt.
        stops: Whether the active response is stopped. Otherwise, it has `STOP_S` to end.
    """
    try:
        async with asyncio.timeout(STOP_S):
            while True:
                await recover()
                try:
                    await generation.begin()
                    return
                except StreamActive:
                    active = None if chat is None else await _active(log, chat)
                    if active is not None:
                        await (_stop if stops else _outcome)(log, active)
    except TimeoutError:
        raise ChatError("the last response of this chat has not ended yet", status=409, code="chat_active") from None


async def _active(log: StreamLog, chat: str, *, or_lost: bool = False) -> str | None:
    """Return the id of the active stream of a chat; None: there is none. `or_lost`: a stream that is lost counts."""
    stream = await log.find(chat)
    try:
        outcome = None if stream is None else await log.outcome(stream, NEWEST)
        return stream if outcome is None or (or_lost and outcome == "lost") else None
    except StreamUnknown:
        return None


def _resumed(
    request: Request,
    log: StreamLog,
    stream: str,
    stored: StoredChat | None,
    options: StreamOptions,
    continued: Continued | None = None,
) -> OpenStream:
    """Return a response that one request follows. If its process has died, it is continued, or stored as it is.

    `continued`: returns the rest of a response; None: the response is not continued. Default: none is.
    """
    if stored is None:
        return OpenStream(request, log, stream, 0, HEADERS["content-type"], options)

    async def rest(lost: LostStream) -> AsyncGenerator[bytes, None]:
        logged = LoggedResponse.of(lost.events)
        parts = None if continued is None else await continued(stored, logged, lambda: opened.generation)
        async with aclosing(_interrupted(stored, logged) if parts is None else parts) as events:
            async for event in events:
                yield event

    opened = OpenStream(request, log, stream, 0, HEADERS["content-type"], replace(options, resume=rest))
    opened.encoder = bytes
    return opened


async def _continued(
    stored: StoredChat,
    logged: LoggedResponse,
    generation: Callable[[], Generation | None],
    *,
    catalog: Catalog,
    version: int,
) -> AsyncGenerator[bytes, None] | None:
    """Return the rest of a response whose process has died; None: it cannot be continued.

    `generation`: returns the generation of the rest.
    """
    if logged.chat is None or logged.chat.model not in catalog.names or not catalog.can_continue(logged.chat.model):
        return None
    replayed = logged.replayed(version)
    if replayed is None:
        return None
    translator, events = replayed
    try:
        chat = await stored.begin_again(logged.chat, logged.question_id, logged.parts[0]["messageId"])
    except Exception:  # of a store of the user's own
        logger.exception("a response was not continued")
        return None
    if chat is None:
        return None
    begun = PartialResponse(chat.request(_model(chat, catalog)))
    for event in events:
        begun.add(event)
    model = catalog.find(chat.model, expressed(version))

    async def call(_: UIChat) -> AsyncGenerator[ChatEvent, None]:
        for result in begun.interrupted():
            yield result
        async with closing(model(begun.request)) as rest:
            async for event in rest:
                yield event

    response = MessageResponse(chat, call, stored, version)
    response.generation = generation()
    logger.info("a response is continued after the death of its process")
    return response.rest(translator, logged.parts)


async def _interrupted(stored: StoredChat, logged: LoggedResponse) -> AsyncGenerator[bytes, None]:
    """Store what the log has of a response whose process has died, and yield its last parts."""
    has_ended = bool(logged.parts) and logged.parts[-1]["type"] in LAST_PARTS
    last = [] if has_ended else [*ends_of_texts(logged.parts), LOST, ENDINGS["lost"]]
    await stored.recover(logged, last)
    for part in last:
        yield encode(part)


async def _recover(request: Request, log: StreamLog, chat: str, stored: StoredChat, options: StreamOptions) -> None:
    """Store what the log has of the latest response of a chat, if its process has died."""
    stream = await _active(log, chat, or_lost=True)
    try:
        if stream is None or await log.outcome(stream, NEWEST) != "lost":
            return
    except StreamUnknown:
        return
    opened = _resumed(request, log, stream, stored, options)
    async with aclosing(opened.pages()) as pages:
        async for page in pages:
            if page.evicted:
                break
    if opened.generation is not None:
        await opened.generation.ended()


async def _stop(log: StreamLog, stream: str) -> bool:
    """Stop a stream, and wait for its end. Return False if it has ended by itself."""
    with suppress(StreamUnknown):
        await log.stop(stream)
    return await _outcome(log, stream) == "stopped"


async def _outcome(log: StreamLog, stream: str) -> Outcome | None:
    """Wait for the end of a stream. None: the log does not know it any more."""
    with suppress(StreamUnknown):
        async with aclosing(log.follow(stream, NEWEST)) as pages:
            async for page in pages:
                if page.outcome is not None:
                    return page.outcome
    return None


def _named_stream(body: bytes) -> str | None:
    """Return the stream that a request names. None: it means the active one."""
    try:
        document = json.loads(body)
    except ValueError:
        return None
    named = document.get("activeStreamId") if isinstance(document, dict) else None
    return named if isinstance(named, str) else None


def _headers(request: Request) -> dict[str, str]:
    """Return the headers of a stream. `Connection` is for HTTP/1.1 only, and a client may want to close."""
    closes = "close" in request.headers.get("connection", "").lower()
    if request.scope.get("http_version") == "1.1" and not closes:
        return {**HEADERS, "connection": "keep-alive"}
    return HEADERS


async def _frames(stream: OpenStream) -> AsyncGenerator[bytes, None]:
    """Yield a UI message stream as clients receive it."""
    yield OPEN
    unfinished: Part | None = None
    ended = False
    following = 1
    async with aclosing(_paced(stream.pages(), KEEP_ALIVE_S)) as pages:
        async for page in pages:
            if page is None:
                yield KEEP_ALIVE
                continue
            frames = []
            for event in () if page.evicted else page.events:
                kind, _, data = event.partition(b"\n")
                if kind == REQUEST.encode():
                    continue
                frames.append(b"data: " + data + b"\n\n")
                if b'-delta"' not in data[:32]:
                    part = json.loads(data)
                    ended = part["type"] in LAST_PARTS
                    if part["type"] in ("text-start", "reasoning-start"):
                        unfinished = {"type": part["type"].replace("-start", "-end"), "id": part["id"]}
                    elif part == unfinished:
                        unfinished = None
            last = ENDINGS.get(page.outcome)
            if page.evicted:  # without a gap, the log does not know the stream any more
                last = EVICTED if page.first > following else ENDINGS["lost"]
            following = page.first + len(page.events)
            if last is not None and not ended:
                if unfinished is not None:
                    frames.append(_frame(unfinished))
                if last is ENDINGS["lost"]:
                    frames.append(_frame(LOST))
                frames.append(_frame(last))
            if frames:
                yield b"".join(frames)
            if page.evicted:
                break
    yield DONE


def _frame(part: Part) -> bytes:
    return b"data: " + encode(part)[1:] + b"\n\n"


async def _text_chunks(stream: OpenStream) -> AsyncGenerator[bytes, None]:
    """Yield the text of a message. Raises `ChatError` at its end if it is incomplete, which breaks the connection."""
    async with aclosing(stream.pages()) as pages:
        async for page in pages:
            if page.evicted or page.outcome not in (None, "finished"):
                raise ChatError("the model has not finished its response", status=500)
            if page.events:
                yield b"".join(page.events)


async def _paced(pages: AsyncGenerator[Page, None], period_s: float) -> AsyncGenerator[Page | None, None]:
    """Yield the pages, and None whenever there was none for `period_s`."""
    queue: asyncio.Queue[Page | Exception | None] = asyncio.Queue(1)

    async def read() -> None:
        try:
            async with aclosing(pages):
                async for page in pages:
                    await queue.put(page)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    # A task of its own closes the pages even if the client has disconnected and nothing can be awaited any more.
    reading = asyncio.create_task(read(), name="app-toolkit chat reader")
    try:
        while True:
            try:
                async with asyncio.timeout(period_s):
                    page = await queue.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(page, Exception):
                raise page
            if page is None:
                return
            yield page
    finally:
        reading.cancel()


__all__ = ["ai_sdk_router"]
