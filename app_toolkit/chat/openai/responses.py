"""The routes of OpenAI's Responses API, whose responses are streams of a stream log."""

import asyncio
import hashlib
import json
import logging
import math
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.types import Receive, Scope, Send

from app_toolkit import Bound, ChatError, StreamUnknown, leave_slot, on_disconnect
from app_toolkit.chat.catalog import Catalog
from app_toolkit.chat.events import with_known_runners
from app_toolkit.chat.failures import Failure, InvalidParameter, ModelFailed, failure_of
from app_toolkit.chat.keys import key_name
from app_toolkit.chat.live_response import (
    CLIENT_GONE,
    HEARTBEAT,
    SSE,
    ClientGone,
    EventWriter,
    LiveResponse,
    document_response,
    json_line,
)
from app_toolkit.chat.openai.conversations import ItemConversations
from app_toolkit.chat.openai.errors import error_response
from app_toolkit.chat.openai.response_items import (
    DeletedResponse,
    InputTokens,
    InputTokensRequest,
    ItemPage,
    ResponseDocument,
    ResponseItem,
    ResponseRequest,
    asked_calls,
    identified,
    input_items,
    page_of,
    response_chat_request,
    response_head,
)
from app_toolkit.chat.openai.response_stream import (
    EXPRESSED,
    ITEM_ID,
    Document,
    ResponseEvents,
    ResponseReader,
    WireEvent,
)
from app_toolkit.chat.protocol import ChatEvent, ErrorEvent, ToolCall, closing
from app_toolkit.streaming import Generation, StreamLog, log_parameter, tied_stream, until_disconnect, without_permit

logger = logging.getLogger("app_toolkit.chat")

Call = Callable[[], AsyncIterator[ChatEvent]]

Body = TypeVar("Body", bound=ResponseRequest)

REFERENCE = "item_reference"
"""The type of an item of the input that is an item of a stored response."""

ID = re.compile(r"resp_[0-9a-f]{32}")
"""The id of a response. The ids of other streams are different."""

INPUT = b"input"
"""The type of the first event of a stream in the log, which no client receives: the items that the model got."""

OFFSET = 2
"""The number in the log of the event with the `sequence_number` 0."""

NEWEST = 2**53 - 1
"""A number that no event of a stream has."""

FIRST_EVENT_S = 15.0
"""Seconds for which a response waits for the first event of the model, so that an error can still have a status."""

STOP_S = 20.0
"""Seconds for which a request waits until a response that it cancels has ended."""

FINAL_EVENTS = frozenset({b"response.completed", b"response.incomplete", b"response.failed"})

WHOLE = FINAL_EVENTS | {b"response.created", b"response.queued", b"response.in_progress"}
"""The types of the events that have the whole response."""

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The response; with `stream`, its events as server-sent events.",
        "content": {SSE: {"schema": {"type": "string"}}},
    }
}


def stream_of(id: str, owner: str | None) -> str:
    """Return the id that the stream of a response has in the log, so that no other API key finds it.

    Parameters:
        id: The response, as clients name it.
        owner: The name of the API key; None: the router checks none.

    Raises:
        ChatError: 404, this is not the id of a response.
    """
    if not ID.fullmatch(id):
        raise _missing(id)
    return id if owner is None else f"{id}.{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


async def stored_stream(response_id: str, request: Request) -> str:
    """Return the stream of the response that a request names. Raises `ChatError` 404."""
    return stream_of(response_id, key_name(request))


Stored = Annotated[str, Depends(stored_stream)]


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """The options of the routes."""

    log: StreamLog | Bound[Any] | None
    linger_s: float
    max_duration_s: float


def add_responses(router: APIRouter, catalog_of: Any, conversations_of: Any, options: ResponseOptions) -> None:
    """Add the routes of the Responses API to a router.

    Parameters:
        router: The router.
        catalog_of: Annotation of a parameter that is the catalog of the models.
        conversations_of: Annotation of a parameter that is the conversations of the user.
        options: Where responses are kept, and for how long models run.
    """
    parameter = log_parameter(options.log)
    _add_create(router, catalog_of, conversations_of, parameter, options)
    _add_stored(router, parameter)
    _add_input_tokens(router, catalog_of, conversations_of, parameter)


def _add_create(
    router: APIRouter, catalog_of: Any, conversations_of: Any, parameter: Any, options: ResponseOptions
) -> None:
    async def begun(
        body: ResponseRequest, request: Request, catalog: catalog_of, conversations: conversations_of, log: parameter
    ) -> AsyncIterator[OpenResponse]:
        body.check()
        model = cast(Catalog, catalog).find(body.model, EXPRESSED)
        owner = key_name(request)
        body = await with_referenced_items(body, log, owner)
        items = await _earlier(body, log, conversations, owner)
        asked = response_chat_request(body, items)
        call = partial(model, asked, used_ids=asked_calls([*items, *input_items(body)]))
        generated = GeneratedResponse(body, call, items, owner, asked.approved_calls)
        if body.conversation_id is not None:
            generated.conversation = conversations
        opened = _kept(generated, log, options) if body.stored else _tied(generated, request, options)
        async with opened as response:
            try:
                yield response
            finally:
                leave_slot(request.scope)

    @router.post("/responses", response_model=ResponseDocument, responses=STREAMED)
    @on_disconnect("notify")
    async def create_response(request: Request, response: Annotated[OpenResponse, Depends(begun)]) -> Any:
        generated, log = response.generated, response.log
        if generated.body.stream:
            return LiveResponse(FollowedResponse(log, generated.stream, greet=not generated.begun).send)
        if generated.body.background:
            return document_response(generated.head)
        logged = await until_disconnect(request.receive, read_response(log, generated.stream, wait=True))
        if logged is None:
            return Response(status_code=CLIENT_GONE)
        if generated.error is not None:
            return error_response(generated.error)
        return document_response(logged.document)


def _add_stored(router: APIRouter, parameter: Any) -> None:
    @router.get("/responses/{response_id}", response_model=ResponseDocument, responses=STREAMED)
    @without_permit
    async def get_response(
        stored: Stored,
        log: parameter,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0, le=NEWEST - OFFSET)] = None,
    ) -> Any:
        if not stream:
            return document_response((await read_response(log, stored)).document)
        with _known(stored):
            await cast(StreamLog, log).media_type(stored)
        after = -1 if starting_after is None else starting_after
        return LiveResponse(FollowedResponse(log, stored, after, greet=True).send)

    @router.post("/responses/{response_id}/cancel", response_model=ResponseDocument)
    @on_disconnect("notify")
    @without_permit
    async def cancel_response(stored: Stored, log: parameter) -> Any:
        return document_response((await _stop(log, stored)).document)

    @router.get("/responses/{response_id}/input_items")
    @without_permit
    async def list_input_items(
        stored: Stored,
        log: parameter,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> ItemPage:
        items = (await read_response(log, stored)).items
        if items is None:
            raise ChatError("the input of the response is no longer kept", status=410, code="history_evicted")
        return page_of(items, limit, order, after)

    @router.delete("/responses/{response_id}")
    @on_disconnect("notify")
    @without_permit
    async def delete_response(response_id: str, stored: Stored, log: parameter) -> DeletedResponse:
        await _stop(log, stored)
        await cast(StreamLog, log).remove(stored)
        return DeletedResponse(id=response_id)


def _add_input_tokens(router: APIRouter, catalog_of: Any, conversations_of: Any, parameter: Any) -> None:
    @router.post("/responses/input_tokens")
    @on_disconnect("cancel")
    async def count_input_tokens(
        body: InputTokensRequest, request: Request, catalog: catalog_of, conversations: conversations_of, log: parameter
    ) -> InputTokens:
        body.check()
        count = cast(Catalog, catalog).counter(body.model)
        body = await with_referenced_items(body, log, key_name(request))
        items = await _earlier(body, log, conversations, key_name(request))
        return InputTokens(input_tokens=await count(response_chat_request(body, items)))


async def _earlier(
    body: ResponseRequest, log: StreamLog, conversations: ItemConversations, owner: str | None
) -> list[ResponseItem]:
    """Return the items that come before the input. Raises `ChatError` if there is no such conversation or response."""
    if body.conversation_id is not None:
        return await conversations.items(body.conversation_id)
    before = body.previous_response_id
    return [] if before is None else await earlier_items(log, before, owner)


class GeneratedResponse:
    """A response of a model, as the events of a stream in the log."""

    def __init__(
        self,
        body: ResponseRequest,
        call: Call,
        earlier: list[ResponseItem],
        owner: str | None,
        approved: Sequence[ToolCall] = (),
    ) -> None:
        """Prepare a response.

        Parameters:
            body: The request of the client.
            call: Calls the model.
            earlier: The items of the conversation that the request continues.
            owner: The name of the API key of the client; None: the router checks none.
            approved: The calls that the user has approved. Default: none.

        Raises:
            ChatError: 400, the request has a number that JSON does not have.
        """
        self.id = f"resp_{uuid.uuid4().hex}"
        self.stream = stream_of(self.id, owner)
        self.body = body
        self.committed = bool(body.background)
        """Whether the client has a status, so that an error can only be an event."""
        self.conversation: ItemConversations | None = None
        """Where the input and the output are stored; None: nowhere."""
        self.error: Failure | None = None
        """Why the model has failed."""
        self.head = response_head(body, self.id, int(time.time()))
        """The response before anything is generated."""
        items = [identified(item).model_dump(exclude_none=True) for item in [*earlier, *input_items(body)]]
        try:
            self._input = INPUT + b"\n" + json_line(items)
            json_line(self.head)
        except ValueError:
            raise ChatError("the request has a number that is infinite or not a number") from None
        self._call = call
        self._events = ResponseEvents(self.head, approved)
        self.begun = False
        """Whether there are events."""
        self._started = False

    async def encoded(self) -> AsyncGenerator[bytes, None]:
        """Yield the events for the log. An exception before the first one is raised, unless it is too late for that."""
        try:
            if self.body.background:
                for event in self._begin():
                    yield event
            async with aclosing(_called(self._call)) as events:
                async for model_event in events:
                    for event in self._start():
                        yield event
                    for event in _encoded(self._events.translate(model_event)):
                        yield event
                    await asyncio.sleep(0)  # a model that never waits must not block the event loop
            started, completed = self._start(), self._events.completed(int(time.time()))
            await self._store(completed[-1]["response"]["output"])
            for event in [*started, *_encoded(completed)]:
                yield event
        except Exception as failed:
            if not self._started and not self.committed:
                raise
            self.error = error = failure_of(failed)
            for event in [*self._start(), *_encoded(self._events.failed(error.code or "server_error", error.message))]:
                yield event

    async def _store(self, output: list[Document]) -> None:
        """Add the input and the output to the conversation, before a client can read that the response is complete."""
        id = self.body.conversation_id
        if self.conversation is None or id is None:
            return
        items = [*input_items(self.body), *(ResponseItem.model_validate(document) for document in output)]
        try:
            await self.conversation.add(id, items, self.body.model)
        except ChatError as error:
            logger.warning("a response of the conversation %r was not stored: %s", id, error)

    def _begin(self) -> list[bytes]:
        if self.begun:
            return []
        self.begun = True
        return [self._input, *_encoded(self._events.created())]

    def _start(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        return [*self._begin(), *_encoded(self._events.started())]


async def _called(call: Call) -> AsyncGenerator[ChatEvent, None]:
    """Yield the events of a model, which is closed at the end. Raises `ModelFailed` for an `ErrorEvent`."""
    try:
        async with closing(with_known_runners(call())) as events:
            async for event in events:
                if isinstance(event, ErrorEvent):
                    raise ModelFailed(event.message, event.code)
                yield event
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("a model was cancelled, although its request was not") from None


@dataclass(frozen=True, slots=True)
class OpenResponse:
    """A response that has begun, and the log that has its events."""

    generated: GeneratedResponse
    log: StreamLog


@asynccontextmanager
async def _kept(generated: GeneratedResponse, log: StreamLog, options: ResponseOptions) -> AsyncIterator[OpenResponse]:
    """Begin a response that outlives its client."""
    generation = Generation(
        log,
        generated.encoded(),
        SSE,
        id=generated.stream,
        linger_s=math.inf if generated.body.background else options.linger_s,
        max_duration_s=options.max_duration_s,
    )
    await generation.begin()
    try:
        await generation.first_event(FIRST_EVENT_S)
    except BaseException:
        await log.remove(generated.stream)  # no client knows it
        raise
    generated.committed = True
    try:
        yield OpenResponse(generated, log)
    except asyncio.CancelledError:  # the server is shutting down
        await generation.cancel()
        raise
    finally:
        await generation.ended()


@asynccontextmanager
async def _tied(
    generated: GeneratedResponse, request: Request, options: ResponseOptions
) -> AsyncIterator[OpenResponse]:
    """Begin a response that ends with its request."""
    async with tied_stream(
        generated.encoded(),
        SSE,
        request.receive,
        id=generated.stream,
        first_event_s=FIRST_EVENT_S,
        max_duration_s=options.max_duration_s,
    ) as (log, _):
        generated.committed = True
        yield OpenResponse(generated, log)


@dataclass(frozen=True, slots=True)
class LoggedResponse:
    """What the log has of a response."""

    items: list[ResponseItem] | None
    """The items that the model got; None: they are no longer kept."""
    document: Document


async def read_response(log: StreamLog, id: str, *, wait: bool = False) -> LoggedResponse:
    """Return a response.

    Parameters:
        log: The log.
        id: The response.
        wait: Whether to wait for its end. Default: False, the output of a response is empty until it has ended.

    Raises:
        ChatError: 404, the log does not have it; 410, the log has no longer what is needed.
    """
    reader = ResponseReader()
    items, outcome = None, None
    with _known(id):
        ended = None if wait else await log.outcome(id, NEWEST)
        async with aclosing(log.follow(id, 0)) as pages:
            async for page in pages:
                for event in page.events:
                    kind, _, text = event.partition(b"\n")
                    if kind == INPUT:
                        items = [ResponseItem.model_validate(item) for item in json.loads(text)]
                    elif ended != "finished" or kind in WHOLE:
                        reader.add(json.loads(text))
                if ended is None and not wait:
                    break
                outcome = page.outcome
    document = reader.document(outcome)
    if document is None:
        raise ChatError("the events of the response are no longer kept", status=410, code="history_evicted")
    return LoggedResponse(items, document)


async def earlier_items(log: StreamLog, id: str, owner: str | None) -> list[ResponseItem]:
    """Return the items of the conversation that ends with a response.

    Raises:
        InvalidParameter: The response cannot be continued.
    """
    param = "previous_response_id"
    try:
        response = await read_response(log, stream_of(id, owner))
    except ChatError as error:
        raise InvalidParameter(error.message, param, "previous_response_not_found") from None
    status = response.document["status"]
    if status not in ("completed", "incomplete"):
        raise InvalidParameter(f"the response {id!r} is {status}: it cannot be continued", param)
    if response.items is None:
        raise InvalidParameter(f"the input of the response {id!r} is no longer kept", param)
    return response.items + [ResponseItem.model_validate(item) for item in response.document["output"]]


async def with_referenced_items(body: Body, log: StreamLog, owner: str | None) -> Body:
    """Return a request whose references to items of stored responses are these items.

    Raises:
        InvalidParameter: There is no such item.
    """
    items, documents = input_items(body), dict[str, dict[str, Document]]()
    if not any(item.type == REFERENCE for item in items):
        return body
    found = []
    for number, item in enumerate(items):
        if item.type == REFERENCE:
            matched = ITEM_ID.fullmatch(item.id or "")
            id = f"resp_{matched[1]}" if matched else ""
            if id and id not in documents:
                with suppress(ChatError):
                    output = (await read_response(log, stream_of(id, owner))).document["output"]
                    documents[id] = {document["id"]: document for document in output}
            document = documents.get(id, {}).get(item.id or "")
            if document is None:
                raise InvalidParameter(
                    f"the item {item.id!r} does not exist, or its response is no longer kept",
                    f"input[{number}].id",
                    "item_not_found",
                )
            item = ResponseItem.model_validate(document)
        found.append(item)
    return body.model_copy(update={"input": found})


class FollowedResponse:
    """A response that one request follows: the events that are there first, and then new ones."""

    def __init__(self, log: StreamLog, id: str, after: int = -1, *, greet: bool = False) -> None:
        """Choose what to follow.

        Parameters:
            log: The log.
            id: The response.
            after: The `sequence_number` of the last event that the client has. Default: -1, none.
            greet: Whether to send a comment first, because an event may not come soon. Default: False.
        """
        self._log = log
        self._id = id
        self._last = after
        self._greet = greet

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. An exception before the first one is a response with its status."""
        writer = EventWriter(send)
        with suppress(ClientGone):
            try:
                async with writer.kept_alive(), aclosing(self._frames()) as frames:
                    if self._greet:
                        await writer.write(HEARTBEAT)
                    async for frame in frames:
                        await writer.write(frame)
                await writer.end(b"")
            except ClientGone:
                raise
            except Exception as failed:
                error = failure_of(failed)
                if writer.started:
                    await writer.end(self._error(error.code or "server_error", error.message))
                else:
                    await error_response(error)(scope, receive, send)

    async def _frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the events as clients receive them. Raises `ChatError` 404."""
        is_over = False
        with _known(self._id):
            async with aclosing(self._log.follow(self._id, self._last + OFFSET)) as pages:
                async for page in pages:
                    if page.evicted:
                        yield self._error("history_evicted", "events of this response are no longer kept")
                        return
                    if page.events:
                        self._last = page.first + len(page.events) - 1 - OFFSET
                        is_over = page.events[-1].partition(b"\n")[0] in FINAL_EVENTS
                        yield b"".join(map(_framed, page.events))
                    if page.outcome is not None and not is_over:
                        last = await self._missing_event()
                        if last is not None and last["sequence_number"] > self._last:
                            yield _frame(last)

    async def _missing_event(self) -> WireEvent | None:
        """Return the last event of a response whose stream has ended without one. None: it has one."""
        reader = ResponseReader()
        async with aclosing(self._log.follow(self._id, OFFSET - 1)) as pages:
            async for page in pages:
                for event in page.events:
                    reader.add(json.loads(event.partition(b"\n")[2]))
                if page.outcome is not None:
                    return reader.missing(page.outcome)
        return None

    def _error(self, code: str, message: str) -> bytes:
        number = self._last + 1
        return _frame({"type": "error", "code": code, "message": message, "param": None, "sequence_number": number})


async def _stop(log: StreamLog, id: str) -> LoggedResponse:
    """Stop a response, wherever it is generated, wait for its end, and return it. Raises `ChatError` 404."""
    with _known(id):
        await log.stop(id)
    try:
        async with asyncio.timeout(STOP_S):
            return await read_response(log, id, wait=True)
    except TimeoutError:
        logger.warning("the response %s has not ended %g s after its stop", id, STOP_S)
        return await read_response(log, id)


@contextmanager
def _known(stream: str) -> Iterator[None]:
    """Raise `ChatError` 404 if the log does not have a response."""
    try:
        yield
    except StreamUnknown:
        raise _missing(stream.partition(".")[0]) from None


def _missing(id: str) -> ChatError:
    return ChatError(f"the response {id!r} does not exist, or is no longer kept", status=404, code="not_found")


def _encoded(events: Iterable[WireEvent]) -> list[bytes]:
    """Return events as the log keeps them."""
    return [event["type"].encode() + b"\n" + json_line(event) for event in events]


def _framed(event: bytes) -> bytes:
    """Return an event of the log as clients receive it."""
    kind, _, text = event.partition(b"\n")
    return b"event: %b\ndata: %b\n\n" % (kind, text)


def _frame(event: WireEvent) -> bytes:
    (encoded,) = _encoded([event])
    return _framed(encoded)
