"""`@resumable`: a streamed response that outlives its client, who can come back and continue where it was."""

import asyncio
import inspect
import logging
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Annotated, Any, TypeVar, cast

import anyio
from anyio import BrokenResourceError
from fastapi import Depends, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import TypeAdapter
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.requests import HTTPConnection

from app_toolkit import (
    Bound,
    ConfigError,
    RequestError,
    StreamActive,
    StreamUnknown,
    clear_deadline,
    keeps_streams,
    lasting_stream,
    leave_slot,
    on_disconnect,
)
from app_toolkit.streaming import formats
from app_toolkit.streaming.generation import Generation
from app_toolkit.streaming.log import MemoryStreamLog, StreamLog
from app_toolkit.streaming.shared import application_log
from app_toolkit.streaming.stream_log import Page

logger = logging.getLogger("app_toolkit.streaming")

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

STREAM_ID = "x-stream-id"
"""The response header that names the stream."""

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

NUMBER = re.compile("[0-9]{1,15}")

NO_CONTENT = 204

ADOPT_S = 0.5
"""Seconds until a reader of a lost stream, which another process continues, looks for events again."""

HEARTBEAT_S = 15.0
"""Seconds without an event after which a comment is sent, so that proxies keep the connection. As in FastAPI."""

STREAM_ERRORS = {
    "failed": {"error": "stream_failed", "detail": "the generator of this stream raised an exception"},
    "full": {"error": "stream_log_full", "detail": "the stream log had no room for the next event"},
    "lost": {
        "error": "stream_lost",
        "detail": "the process that generated this stream has ended, or its log has failed",
    },
    "evicted": {"error": "history_evicted", "detail": "the events after the given one are no longer kept"},
}
"""The data of the last event of a stream that did not end by itself, by its outcome: failed, full, lost or evicted."""


@dataclass(frozen=True, slots=True)
class LostStream:
    """A stream whose process has died, as its route's `resume` function gets it."""

    id: str
    request: Request
    """The request of the client that follows the stream."""
    events: tuple[bytes, ...]
    """The data of the events that the log has. The function yields those that follow."""


Resume = Callable[[LostStream], AsyncIterator[Any]]

Encoder = Callable[[Any], bytes | None]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one route, as of `resumable`."""

    log: "StreamLog | Bound[Any] | None"
    """None: the log of the application."""
    key: str | None
    linger_s: float
    max_duration_s: float
    first_event_s: float
    retry_ms: int
    resume: Resume | None


def resumable(
    *,
    log: "StreamLog | Bound[Any] | None" = None,
    key: str | None = None,
    linger_s: float = 60.0,
    max_duration_s: float = 3_600.0,
    first_event_s: float = 15.0,
    retry_ms: int = 3_000,
    resume: Resume | None = None,
) -> Callable[[Endpoint], Endpoint]:
    """Let a streamed response outlive its client. Put it below the decorator of the route.

    ```python
    @app.get("/answer", response_class=EventSourceResponse)
    @resumable()
    async def answer(question: str) -> AsyncIterable[str]:
        async for token in model(question):
            yield token
    ```

    The route yields items (server-sent events or JSON lines), or returns a `StreamingResponse`. Its generator runs to
    its end although its client disconnects. Every event has a number. A client that comes back with the header
    `Last-Event-ID`, as `EventSource` does, or with `?stream=ID&after=NUMBER`, gets the events that it has missed and
    all that follow. `stream_router` adds routes that follow and stop a stream.

    An exception before the first event is the response of the route, with its status. A later one ends the stream with
    an event of the type `error`.

    Parameters:
        log: Where the events are kept. Default: where the option `stream_log` of the application says. If it is not
            set, several replicas share a log, and one replica has it in its memory. Otherwise: a `StreamLog`, or a
            bound `StreamLogDeployment`, whose events end with the next update of the application.
        key: Name of the parameter of the route whose value is another name of the stream. One stream with this name is
            active at a time; a request for a second one gets 409. Default: None, streams have only an id.
        linger_s: Seconds without a reader after which the generator is stopped. Default: 60.
        max_duration_s: Seconds after which the generator is stopped. Default: 3600.
        first_event_s: Seconds for which the response waits for the first event, so that an exception can still have a
            status. Default: 15.
        retry_ms: Milliseconds after which an `EventSource` connects again. Default: 3000.
        resume: Async generator function that continues a stream whose process has died, in the process of a client that
            follows it. Default: None, such a stream ends with an event of the type `error`.

    Raises:
        ConfigError: A number is out of bounds, or the function has no parameter `key`.
    """
    for name, value in (("linger_s", linger_s), ("max_duration_s", max_duration_s)):
        if not 0 < value <= 86_400:
            raise ConfigError(f"resumable: {name} = {value!r}: must be above 0 and at most 86,400")
    if not 0 <= first_event_s <= 3_600:
        raise ConfigError(f"resumable: first_event_s = {first_event_s!r}: must be from 0 to 3,600")
    if not 0 <= retry_ms <= 3_600_000:
        raise ConfigError(f"resumable: retry_ms = {retry_ms!r}: must be from 0 to 3,600,000")
    options = StreamOptions(log, key, linger_s, max_duration_s, first_event_s, retry_ms, resume)

    def decorate(function: Endpoint) -> Endpoint:
        return cast(Endpoint, _endpoint(function, options))

    return decorate


def _endpoint(function: Callable[..., Any], options: StreamOptions) -> Callable[..., Any]:
    """Return the endpoint that FastAPI sees, which has one dependency: the function `_opened` for this route."""
    yields = _yields(function)
    signature = inspect.signature(function, eval_str=True)
    if options.key is not None and options.key not in signature.parameters:
        raise ConfigError(f"resumable: {function.__qualname__} has no parameter {options.key!r}")
    declared = formats.item_type(signature.return_annotation)
    opened = Depends(_opener(function, signature, declared, options))

    async def items(stream: "OpenStream") -> AsyncIterator[Any]:
        async with aclosing(stream.items()) as items:
            async for item in items:
                yield item

    async def respond(stream: "OpenStream | Response") -> Response:
        return stream if isinstance(stream, Response) else stream.response()

    endpoint: Any = wraps(function)(items if yields else respond)
    parameter = inspect.Parameter("stream", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, opened])
    returned = signature.return_annotation if declared is None else formats.logged(signature.return_annotation)
    endpoint.__signature__ = inspect.Signature([parameter], return_annotation=returned)
    endpoint.__annotations__ = {"stream": parameter.annotation}
    if returned is not inspect.Signature.empty:
        endpoint.__annotations__["return"] = returned
    del endpoint.__wrapped__  # FastAPI would look at the function itself
    return cast(Callable[..., Any], lasting_stream(on_disconnect("notify")(endpoint)))


def _opener(
    function: Callable[..., Any],
    signature: inspect.Signature,
    declared: "TypeAdapter[Any] | None",
    options: StreamOptions,
) -> Callable[..., AsyncGenerator[Any, None]]:
    """Return the dependency that opens the stream of a request.

    It is a dependency, because an exception in it has a status, and because FastAPI ends the function's own
    dependencies after it: a session that the generator uses stays open until the generator has ended.
    """

    async def open_stream(
        app_toolkit_request: Request, app_toolkit_response: Response, app_toolkit_log: StreamLog, **arguments: Any
    ) -> AsyncGenerator[Any, None]:
        request, log = app_toolkit_request, app_toolkit_log
        encoder = formats.item_encoder(declared, request.scope.get("route"))
        id, after = position(request)
        if id is not None:
            stream = await existing(request, log, id, after, options)
        else:
            result = await _call(function, arguments)
            media_type = _media_type_of(request, result)
            if media_type is None:  # an error, or another response that is not streamed
                yield result
                return
            name = None if options.key is None else str(arguments[options.key])
            stream = await _begun(request, log, result, media_type, options, name, encoder)
        stream.encoder, stream.typed = encoder, declared is not None
        app_toolkit_response.headers[STREAM_ID] = stream.id
        async with stream:
            try:
                yield stream
            except* BrokenResourceError:
                # FastAPI raises this for server-sent events if the client disconnects while an event is on its way.
                # The response is over, and the client has gone: it is no error.
                pass

    own = [
        inspect.Parameter("app_toolkit_request", inspect.Parameter.KEYWORD_ONLY, annotation=Request),
        inspect.Parameter("app_toolkit_response", inspect.Parameter.KEYWORD_ONLY, annotation=Response),
        inspect.Parameter("app_toolkit_log", inspect.Parameter.KEYWORD_ONLY, annotation=log_parameter(options.log)),
    ]
    theirs = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    opener: Any = open_stream
    opener.__signature__ = inspect.Signature([*theirs, *own])
    opener.__name__ = f"{function.__name__}_stream"
    return cast(Callable[..., AsyncGenerator[Any, None]], opener)


def log_parameter(log: "StreamLog | Bound[Any] | None") -> Any:
    """Return the annotation of a parameter that is a log; None: that of the application.

    The planner finds deployments, and routes that keep streams, in this way.
    """
    if isinstance(log, Bound):
        return Annotated[Any, Depends(log)]

    @keeps_streams("memory" if isinstance(log, MemoryStreamLog) else "other")
    async def given() -> StreamLog | None:
        return log

    @keeps_streams("application")
    async def of_application(connection: HTTPConnection) -> StreamLog:
        with error_responses():
            return application_log(connection.scope)

    return Annotated[Any, Depends(of_application if log is None else given)]


def position(request: Request) -> tuple[str | None, int]:
    """Return the stream that the client follows, and the number of the last event that it has seen.

    The stream is None if the client names none.

    Raises:
        HTTPException: 400, the number has other characters than digits.
    """
    id, _, number = request.headers.get("last-event-id", "").rpartition(":")
    id = request.query_params.get("stream", id)
    number = request.query_params.get("after", number if id else "0")
    if number and NUMBER.fullmatch(number) is None:
        raise HTTPException(400, f"the number of the last event is {number!r}: it must have 1 to 15 digits only")
    return id or None, int(number or 0)


async def existing(request: Request, log: StreamLog, id: str, after: int, options: StreamOptions) -> "OpenStream":
    """Return a stream that the log has.

    Raises:
        HTTPException: 204, no event follows; 400, the stream has no event with the number `after`.
    """
    with error_responses():
        try:
            stream = OpenStream(request, log, id, after, await log.media_type(id), options)
            outcome, last = await log.outcome(id, after), await log.last(id)
        except StreamUnknown:
            raise HTTPException(NO_CONTENT) from None
    if after > last:
        raise HTTPException(400, f"the last event of the stream has the number {last}: none can follow number {after}")
    if outcome in ("finished", "stopped"):
        raise HTTPException(NO_CONTENT)
    return stream


def key_of(name: str) -> str:
    """Return the key of a stream with this name, which is no key of the chat routers: they may have the same log."""
    return f"stream:{name}"


@contextmanager
def error_responses() -> Iterator[None]:
    """Raise an error of the log as `HTTPException`, so that it has its status in every app of FastAPI."""
    try:
        yield
    except RequestError as error:
        headers = None if error.retry_after_s is None else {"retry-after": str(math.ceil(error.retry_after_s))}
        raise HTTPException(error.status, str(error), headers) from error


async def _begun(
    request: Request,
    log: StreamLog,
    result: Any,
    media_type: str,
    options: StreamOptions,
    name: str | None,
    encoder: Encoder,
) -> "OpenStream":
    """Begin the generation of a stream. Raises as `StreamLog.begin` does, and what the generator raises first."""
    generation = Generation(
        log,
        _encoded(result, media_type, encoder),
        media_type,
        key=None if name is None else key_of(name),
        linger_s=options.linger_s,
        max_duration_s=options.max_duration_s,
        followed=True,
    )
    with error_responses():
        try:
            await generation.begin()
        except StreamActive:
            raise StreamActive(f"the stream of {name!r} has not ended") from None
    await generation.first_event(options.first_event_s)
    stream = OpenStream(request, log, generation.id, 0, media_type, options)
    stream.generation = generation
    if isinstance(result, Response):
        stream.status, stream.headers = result.status_code, dict(result.headers)
    return stream


async def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    return function(**arguments) if _yields(function) else await run_in_threadpool(function, **arguments)


def _yields(function: Callable[..., Any]) -> bool:
    return inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)


def _media_type_of(request: Request, result: Any) -> str | None:
    """Return the media type of the stream that a function yields or returns; None: it returned something else."""
    if isinstance(result, Response):
        return formats.essence(result.headers.get("content-type")) if hasattr(result, "body_iterator") else None
    if not hasattr(result, "__aiter__") and not hasattr(result, "__next__"):
        return None
    response_class = getattr(request.scope.get("route"), "response_class", None)
    is_sse = inspect.isclass(response_class) and issubclass(response_class, EventSourceResponse)
    return formats.SSE if is_sse else formats.JSON_LINES


async def _encoded(result: Any, media_type: str, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    if isinstance(result, Response):
        chunks = cast(Any, result).body_iterator
        async for event in formats.split(media_type, chunks, formats.chunk_encoder(result)):
            yield event
        return
    items = result if hasattr(result, "__aiter__") else iterate_in_threadpool(result)
    try:
        async for item in items:
            if (encoded := encoder(item)) is not None:
                yield encoded
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


class OpenStream:
    """A stream that one request follows."""

    def __init__(
        self, request: Request, log: StreamLog, id: str, after: int, media_type: str, options: StreamOptions
    ) -> None:
        """Use it with `async with`, and send what `pages` yields, or `response`.

        Parameters:
            request: The request that follows the stream.
            log: The log of the stream.
            id: The id of the stream.
            after: The number of the last event that the client has; 0: none.
            media_type: The media type of the stream.
            options: The options of the route. `log`, `key` and `first_event_s` are not used.
        """
        self.id = id
        self.generation: Generation | None = None
        """The generation that ends before the request; None: another request or process generates the stream."""
        self.encoder: Encoder = formats.encode
        """Encodes the items of a `resume` function."""
        self.typed = False
        """Whether the endpoint declares the type of its items."""
        self.status = 200
        self.headers: dict[str, str] = {}
        self._request = request
        self._log = log
        self._after = after
        self._media_type = media_type
        self._options = options

    async def __aenter__(self) -> "OpenStream":
        clear_deadline()  # reading goes on for as long as the stream
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for the generation of the stream, if this request generates it. Its response is over."""
        if self.generation is not None:
            leave_slot(self._request.scope)
            await self.generation.ended()

    async def pages(self) -> AsyncGenerator[Page, None]:
        """Yield the pages of the stream. A lost stream continues if its route has a `resume` function."""
        after = self._after
        resume = self._options.resume
        while True:
            try:
                if self.generation is not None:
                    async with aclosing(self.generation.follow(after)) as pages:
                        async for page in pages:
                            after = page.first + len(page.events) - 1
                            yield page
                async with aclosing(self._log.follow(self.id, after)) as pages:
                    async for page in pages:
                        after = page.first + len(page.events) - 1
                        if page.outcome == "lost" and resume is not None:
                            yield replace(page, outcome=None)
                            break
                        yield page
                    else:
                        return
                await self._continue(after, resume)
            except StreamUnknown:
                yield Page(after + 1, (), evicted=True)
                return
            except Exception as error:
                logger.warning("stream %s cannot be followed, because its log fails: %s", self.id, error)
                yield Page(after + 1, (), outcome="lost")
                return

    async def _continue(self, last: int, resume: Resume) -> None:
        """Generate the rest of a lost stream, unless another process does."""
        events = [event async for event in self._events_until(last)]
        lost = LostStream(self.id, self._request, tuple(event.partition(b"\n")[2] for event in events))
        generation = Generation(
            self._log,
            _encoded(resume(lost), self._media_type, self.encoder),
            self._media_type,
            linger_s=self._options.linger_s,
            max_duration_s=self._options.max_duration_s,
            followed=True,
        )
        if await generation.adopt(self.id, last):
            self.generation = generation
        else:
            await asyncio.sleep(ADOPT_S)

    async def _events_until(self, last: int) -> AsyncIterator[bytes]:
        async with aclosing(self._log.follow(self.id, 0)) as pages:
            async for page in pages:
                for event in page.events:
                    yield event
                if page.first + len(page.events) > last:
                    return

    async def items(self) -> AsyncGenerator[Any, None]:
        """Yield the events as a route of FastAPI does."""
        sse = self._media_type == formats.SSE
        retry: int | None = self._options.retry_ms
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                if page.evicted:
                    yield _error_item("evicted", sse)
                    return
                for number, event in enumerate(page.events, page.first):
                    kind, data = formats.parts(event)
                    if sse:
                        yield ServerSentEvent(raw_data=data, event=kind, id=f"{self.id}:{number}", retry=retry)
                        retry = None
                    else:
                        yield formats.decode(data, typed=self.typed)
                if page.outcome in STREAM_ERRORS:
                    yield _error_item(page.outcome, sse)

    def response(self) -> Response:
        """Return the events as a response with the media type of the stream."""
        headers = {name: value for name, value in self.headers.items() if name != "content-length"}
        frames = self.frames() if self._media_type != formats.SSE else _with_heartbeats(self.frames())
        return StreamingResponse(
            frames, self.status, {**HEADERS, "content-type": self._media_type, **headers, STREAM_ID: self.id}
        )

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the events as clients receive them."""
        media_type = self._media_type
        retry: int | None = self._options.retry_ms
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                if page.evicted:
                    yield formats.error_frame(media_type, STREAM_ERRORS["evicted"])
                    return
                framed: Sequence[bytes] = [
                    formats.frame(media_type, event, f"{self.id}:{number}", retry if number == page.first else None)
                    for number, event in enumerate(page.events, page.first)
                ]
                if framed:
                    retry = None
                    yield b"".join(framed)
                if page.outcome in STREAM_ERRORS:
                    yield formats.error_frame(media_type, STREAM_ERRORS[page.outcome])


async def _with_heartbeats(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield frames, and a comment whenever none comes for `HEARTBEAT_S`."""
    waiting: asyncio.Task[bytes] | None = None
    async with aclosing(frames):
        try:
            while True:
                waiting = waiting or asyncio.create_task(cast(Any, anext(frames)), name="app-toolkit next frames")
                done, _ = await asyncio.wait([waiting], timeout=HEARTBEAT_S)
                if not done:
                    yield formats.HEARTBEAT
                    continue
                item, waiting = waiting, None
                try:
                    frame = item.result()
                except StopAsyncIteration:
                    return
                yield frame
        finally:
            if waiting is not None:
                waiting.cancel()
                with anyio.CancelScope(shield=True):  # the frames can be closed when the task has ended
                    await asyncio.wait([waiting])


def _error_item(outcome: str, sse: bool) -> Any:
    return ServerSentEvent(event="error", data=STREAM_ERRORS[outcome]) if sse else STREAM_ERRORS[outcome]
