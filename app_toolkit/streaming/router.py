"""Routes that follow and stop streams, whichever replica generates them."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request, Response

from app_toolkit import Bound, lasting_stream, on_disconnect
from app_toolkit.streaming.log import StreamLog
from app_toolkit.streaming.permits import without_permit
from app_toolkit.streaming.resumable import (
    OpenStream,
    Resume,
    StreamOptions,
    error_responses,
    existing,
    key_of,
    log_parameter,
    position,
)


def stream_router(
    *,
    log: "StreamLog | Bound[Any] | None" = None,
    linger_s: float = 60.0,
    max_duration_s: float = 3_600.0,
    retry_ms: int = 3_000,
    resume: Resume | None = None,
) -> APIRouter:
    """Return a router with `GET /{stream}` and `POST /{stream}/stop`. Include it with a prefix and your dependencies.

    `stream` is the id that the response header `X-Stream-ID` has, or the value of the route's `key`. GET sends the
    events after `Last-Event-ID` or `?after=`, and all that follow; 204 if there are none and none will follow. Stop
    ends the generator wherever it runs: 200 with `{"stopped": true}`, or false if the stream had ended. 404 if the log
    does not have the stream.

    Parameters:
        log: As of `resumable`.
        linger_s: As of `resumable`, for a stream that is resumed here. Default: 60.
        max_duration_s: As of `resumable`, for a stream that is resumed here. Default: 3600.
        retry_ms: Milliseconds after which an `EventSource` connects again. Default: 3000.
        resume: As of `resumable`.
    """
    router = APIRouter()
    options = StreamOptions(log, None, linger_s, max_duration_s, 0.0, retry_ms, resume)
    parameter = log_parameter(options.log)

    async def opened(stream: str, request: Request, log: parameter) -> AsyncIterator[OpenStream]:  # type: ignore[valid-type]
        _, after = position(request)
        async with await existing(request, log, await found(log, stream), after, options) as open_stream:
            yield open_stream

    @router.get("/{stream}", response_class=Response, responses={204: {}, 404: {}})
    @lasting_stream
    @on_disconnect("notify")
    async def read(open_stream: Annotated[OpenStream, Depends(opened)]) -> Any:
        return open_stream.response()

    @router.post("/{stream}/stop", responses={404: {}})
    @without_permit
    async def stop(stream: str, log: parameter) -> dict[str, bool]:  # type: ignore[valid-type]
        return {"stopped": await cast(StreamLog, log).stop(await found(log, stream))}

    return router


async def found(log: StreamLog, name: str) -> str:
    """Return the id of the stream with this id or key. Raises `HTTPException` 404."""
    with error_responses():
        id = await log.find(key_of(name)) or name
        await log.media_type(id)
    return id
