"""The ASGI app of a class deployment's replica: it serves calls of the methods of one object."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Protocol

from app_toolkit.calls.hosted_object import HostedObject
from app_toolkit.calls.http import http_app, serves_http
from app_toolkit.calls.payload_store import PayloadStore
from app_toolkit.config.models import ClassConfig
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.errors import BadRequest, PlanningError, RemoteError, StartupError
from app_toolkit.interfaces import Call
from app_toolkit.observability.context import REPLICA, ReplicaContext
from app_toolkit.observability.secrets import redact
from app_toolkit.replica.admission.streams import open_stream
from app_toolkit.replica.disconnect import on_disconnect
from app_toolkit.types import ASGIApp, Receive, Scope, Send
from app_toolkit.userapp.graph import find
from app_toolkit.wire import hop
from app_toolkit.wire.calls import (
    Frame,
    FrameReader,
    Piece,
    decode_call,
    encode_end,
    encode_error,
    encode_item,
    encode_out_of_band,
    encode_value,
    frames_of,
    is_out_of_band,
)

NO_CALL = b"this deployment serves method calls, not HTTP"


def host_class(app: Any, spec: ReplicaSpec, payloads: PayloadStore) -> "Calls":
    """Return the app that serves calls of one deployment. Raises `PlanningError` if the app does not use it."""
    assert isinstance(spec.config, ClassConfig), "an ingress has no calls"
    bound = next((candidate for candidate in find(app) if candidate.name == spec.deployment), None)
    if bound is None:
        raise PlanningError(f"the app {spec.target!r} uses no deployment {spec.deployment!r}")
    context = ReplicaContext(spec.application, spec.deployment, spec.id, spec.revision)
    hosted = HostedObject(bound.make, name=spec.deployment, sync_threads=spec.config.sync_threads, replica=context)
    hosted.limit_batches(spec.reloadable.batch)
    http = http_app(bound.cls, hosted.respond) if serves_http(bound.cls) else None
    return Calls(hosted, spec.reloadable.user_config, payloads, http)


class ResultReceiver(Protocol):
    """Receives the result of a call in this process.

    The result is one `value`, or any number of `item` followed by `end`. An `error` replaces what is missing.

    Nothing follows when the call is cancelled or its deadline passes. If a method does not react to its cancellation,
    its results are dropped.
    """

    def value(self, value: Any) -> None: ...

    async def item(self, item: Any) -> None:
        """Return when there is room for another item."""

    def end(self) -> None: ...

    def error(self, error: Exception) -> None: ...


@on_disconnect("cancel")
class Calls:
    """Serves the calls of one hosted object. The lifespan of this app starts and closes it.

    For `Replica`, a call is a request: the response begins with the first item or with the result. From its first item
    on, a call that yields items is an open stream. For a call of this process, `scope["extensions"]["app_toolkit"]` has
    the `Call` as "call" and its `ResultReceiver` as "result", and the messages to the server are empty. A request that
    is not a call goes to `http`, if there is one.
    """

    def __init__(
        self,
        hosted: HostedObject,
        user_config: Mapping[str, Any] | None = None,
        payloads: PayloadStore | None = None,
        http: ASGIApp | None = None,
    ) -> None:
        """`payloads`: where callers over a connection put and get large payloads; None: not supported.

        `http`: the app for requests that are not calls; None: they get a 404.
        """
        self.hosted = hosted
        self._user_config = user_config
        self._payloads = payloads
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        ours = scope.get("extensions", {}).get("app_toolkit", {})
        call = ours.get("call")
        if call is None and self._http is None:
            await _serves_no_http(scope["type"], send)
            return
        outer = REPLICA.get()
        REPLICA.set(self.hosted.replica)
        try:
            if call is None:
                assert self._http is not None
                await self._http(scope, receive, send)
                return
            scope["endpoint"] = self  # its mark says what happens when the caller disconnects
            if isinstance(call, Call):
                await self._call_here(call, ours["result"], scope, send)
            else:
                await self._call_over_the_wire(call, scope, receive, send)
        finally:
            REPLICA.set(outer)

    async def _call_here(self, call: Call, result: ResultReceiver, scope: Scope, send: Send) -> None:
        begun = False
        try:
            if self.hosted.streams(call.method):
                scope["endpoint"] = _stream
                async with aclosing(self.hosted.stream(call.method, call.args, call.kwargs)) as items:
                    async for item in items:
                        if not begun:
                            begun = True
                            await _begin(send, self.hosted)
                        await result.item(item)
                result.end()
            else:
                result.value(await self.hosted.call(call.method, call.args, call.kwargs))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            result.error(_cancelled_inside(call.method))
        except Exception as error:  # a result like any other
            result.error(error)
        if not begun:
            await _begin(send, self.hosted)
        await send({"type": "http.response.body", "body": b""})

    async def _call_over_the_wire(self, field: str, scope: Scope, receive: Receive, send: Send) -> None:
        method, key, out_of_band = hop.decode_call(field)
        payloads = self._payloads
        frames_out = _ResultFrames(self.hosted, receive, send, key, payloads if key else None)
        try:
            if out_of_band and payloads is not None:
                frames = await _out_of_band_arguments(method, key, payloads, receive)
            else:
                frames = await _read(method, receive)
            if frames is None:
                return
            call = decode_call(method, _arguments(method, frames))
            del frames  # the arguments must not outlive the method's own references to them
            if self.hosted.streams(method):
                scope["endpoint"] = _stream
                async with aclosing(self.hosted.stream(method, call.args, call.kwargs)) as items:
                    async for item in items:
                        await frames_out.item(encode_item(item))
                last = encode_end()
            else:
                last = encode_value(await self.hosted.call(method, call.args, call.kwargs))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            last = encode_error(_cancelled_inside(method))
        except Exception as error:
            redact(error)
            last = encode_error(error)
        await frames_out.last(last)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.hosted.start(self._user_config)
        except StartupError as error:
            await send({"type": "lifespan.startup.failed", "message": "\n".join((str(error), *error.__notes__))})
            return
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            await self.hosted.aclose()
        await send({"type": "lifespan.shutdown.complete"})


@open_stream
@on_disconnect("cancel")
def _stream() -> None:
    """The endpoint of the calls that yield items. It has only marks, because `Calls` runs the method."""


class _ResultFrames:
    """Sends the frames of a response to a caller over a connection.

    A frame that the caller gets out-of-band is kept until the caller has it. Such a response does not end
    by itself: the caller closes the connection when it has everything, and until then the call is ongoing.
    """

    __slots__ = ("_begun", "_hosted", "_key", "_payloads", "_receive", "_send", "_sent_out_of_band")

    def __init__(
        self, hosted: HostedObject, receive: Receive, send: Send, key: str, payloads: PayloadStore | None
    ) -> None:
        """`payloads`: None if the caller does not support out-of-band transfer."""
        self._hosted = hosted
        self._receive = receive
        self._send = send
        self._key = key
        self._payloads = payloads
        self._begun = False
        self._sent_out_of_band = False

    async def item(self, pieces: list[Piece]) -> None:
        if not self._begun:
            self._begun = True
            await _begin(self._send, self._hosted)
        if self._payloads is None or not is_out_of_band(pieces):
            await _send(pieces, self._send, more=True)
            return
        self._sent_out_of_band = True
        with self._payloads.kept(self._key, pieces) as removed:
            await _send(encode_out_of_band(), self._send, more=True)
            await asyncio.wrap_future(removed)

    async def last(self, pieces: list[Piece]) -> None:
        if self._sent_out_of_band or (self._payloads is not None and is_out_of_band(pieces)):
            await self.item(pieces)
            while (await self._receive())["type"] != "http.disconnect":
                pass
            return
        if not self._begun:
            await _begin(self._send, self._hosted, sum(map(len, pieces)))
        await _send(pieces, self._send, more=False)


def _is_cancelled() -> bool:
    """Return whether this call itself is cancelled, and not only something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cancelled_inside(method: str) -> RemoteError:
    # If the CancelledError was passed on, the caller would take it for its own cancellation.
    return RemoteError(f"{method} raised CancelledError, but its call was not cancelled")


async def _read(method: str, receive: Receive) -> list[Frame] | None:
    """Read the frames of the body. Return None if the caller disconnects before they are complete.

    Raises `BadRequest` if the body is invalid.
    """
    frames = FrameReader()
    read_frames: list[Frame] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        try:
            read_frames += frames.feed(message.get("body", b""))
        except ValueError as error:
            raise BadRequest(_no_arguments(method, error)) from error
        more = message.get("more_body", False)
    if not frames.between:
        raise BadRequest(f"the body of a call of {method} ends in the middle of a frame")
    return read_frames


async def _out_of_band_arguments(method: str, key: str, payloads: PayloadStore, receive: Receive) -> list[Frame] | None:
    """Return the frames of arguments that are transferred out-of-band, or None if the caller disconnects.

    The body is empty, but the app asks for it: that tells the caller that the replica waits for the arguments.
    """
    with payloads.expected(key) as came:
        if (await receive())["type"] == "http.disconnect":
            return None
        pieces = await asyncio.wrap_future(came)
    try:
        return frames_of(pieces)
    except ValueError as error:
        raise BadRequest(_no_arguments(method, error)) from error


def _arguments(method: str, frames: list[Frame]) -> list[Frame]:
    """Return the same frames. Raises `BadRequest` if they are not those of one call."""
    if not frames or frames[0].kind != "call" or any(frame.kind != "value" for frame in frames[1:]):
        raise BadRequest(f"the body of a call of {method} must be one frame of arguments, followed by values")
    return frames


def _no_arguments(method: str, error: ValueError) -> str:
    return f"the arguments of {method} cannot be decoded: {error}"


async def _begin(send: Send, hosted: HostedObject, length: int | None = None) -> None:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    if (holdings := hosted.holdings()) is not None:
        headers.append((hop.HOLDINGS, holdings))
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(pieces: list[Piece], send: Send, *, more: bool) -> None:
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": pieces[-1], "more_body": more})


async def _serves_no_http(kind: str, send: Send) -> None:
    prefix = "http.response" if kind == "http" else "websocket.http.response"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(NO_CALL))]
    await send({"type": f"{prefix}.start", "status": 404, "headers": headers})
    await send({"type": f"{prefix}.body", "body": NO_CALL})
