"""The app behind the gate of a deployment's replica: it serves calls of one object's methods."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Protocol

from app_toolkit.errors import BadRequest, PlanningError, RemoteError, StartupError
from app_toolkit.interfaces import Call, ReplicaSpec
from app_toolkit.observability.context import REPLICA, ReplicaContext
from app_toolkit.replica.disconnect import on_disconnect
from app_toolkit.replica.graph import find
from app_toolkit.replica.instance import Instance
from app_toolkit.transport.calls import (
    Frame,
    Frames,
    Piece,
    decode_call,
    encode_end,
    encode_error,
    encode_item,
    encode_value,
)
from app_toolkit.types import Receive, Scope, Send

NO_CALL = b"this deployment serves calls, and no HTTP"


def host_class(app: Any, spec: ReplicaSpec) -> "Calls":
    """What serves the calls of one of the app's classes. Raises `PlanningError` for one that it does not use."""
    bound = next((each for each in find(app) if each.name == spec.deployment), None)
    if bound is None:
        raise PlanningError(f"the app {spec.target!r} uses no deployment {spec.deployment!r}")
    context = ReplicaContext(spec.application, spec.deployment, spec.id)
    instance = Instance(bound.make, name=spec.deployment, sync_threads=spec.sync_threads, replica=context)
    return Calls(instance, bound.config.user_config)


class Reply(Protocol):
    """Where the outcome of a call in this process goes: `value`, or any number of `item` and then `end`; or `error`,
    instead of what is missing.

    Where the call is cancelled, or its deadline passes, nothing may come any more; what a method still gives that does
    not let itself be cancelled is for nobody.
    """

    def value(self, value: Any) -> None: ...

    async def item(self, item: Any) -> None:
        """Returns once there is room for another."""

    def end(self) -> None: ...

    def error(self, error: Exception) -> None: ...


@on_disconnect("cancel")
class Calls:
    """Serves the calls of one instance, whose life is its lifespan.

    To the gate a call is a request: the answer begins with the first item, or with the result. A call of this process
    is `scope["extensions"]["app_toolkit"]["call"]`, a `Call`, and its `Reply` is beside it, as "reply"; the messages to
    the server are empty then.
    """

    def __init__(self, instance: Instance, user_config: Mapping[str, Any] | None = None) -> None:
        self.instance = instance
        self._user_config = user_config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        ours = scope.get("extensions", {}).get("app_toolkit", {})
        call = ours.get("call")
        if call is None:
            await _serves_no_http(scope["type"], send)
            return
        scope["endpoint"] = self  # there the gate reads what becomes of it when its caller has gone
        outer = REPLICA.get()
        REPLICA.set(self.instance.replica)
        try:
            if isinstance(call, Call):
                await self._answer_here(call, ours["reply"], send)
            else:
                await self._answer_over_the_wire(call, receive, send)
        finally:
            REPLICA.set(outer)

    async def _answer_here(self, call: Call, reply: Reply, send: Send) -> None:
        begun = False
        try:
            if self.instance.streams(call.method):
                async with aclosing(self.instance.stream(call.method, call.args, call.kwargs)) as items:
                    async for item in items:
                        if not begun:
                            begun = True
                            await _begin(send)
                        await reply.item(item)
                reply.end()
            else:
                reply.value(await self.instance.call(call.method, call.args, call.kwargs))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            reply.error(_cancelled_inside(call.method))
        except Exception as error:  # an answer, like any other
            reply.error(error)
        if not begun:
            await _begin(send)
        await send({"type": "http.response.body", "body": b""})

    async def _answer_over_the_wire(self, method: str, receive: Receive, send: Send) -> None:
        begun = False
        try:
            call = await _read(method, receive)
            if call is None:
                return
            if self.instance.streams(method):
                async with aclosing(self.instance.stream(method, call.args, call.kwargs)) as items:
                    async for item in items:
                        pieces = encode_item(item)
                        if not begun:
                            begun = True
                            await _begin(send)
                        await _send(pieces, send, more=True)
                last = encode_end()
            else:
                last = encode_value(await self.instance.call(method, call.args, call.kwargs))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            last = encode_error(_cancelled_inside(method))
        except Exception as error:
            last = encode_error(error)
        if not begun:
            await _begin(send, sum(map(len, last)))
        await _send(last, send, more=False)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.instance.start(self._user_config)
        except StartupError as error:
            await send({"type": "lifespan.startup.failed", "message": "\n".join((str(error), *error.__notes__))})
            return
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            await self.instance.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def _is_cancelled() -> bool:
    """Whether somebody cancels this call, and not only something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cancelled_inside(method: str) -> RemoteError:
    # As itself it would tell the caller that he was cancelled.
    return RemoteError(f"{method} raised CancelledError, and nobody had cancelled its call")


async def _read(method: str, receive: Receive) -> Call | None:
    """The call whose arguments are the body; None where the caller goes before they are there.

    Raises `BadRequest` for a body that is no call, `TypeError` for arguments that cannot be read here.
    """
    frames = Frames()
    found: list[Frame] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        try:
            found += frames.feed(message.get("body", b""))
        except ValueError as error:
            raise BadRequest(f"the arguments of {method} do not come as such: {error}") from error
        more = message.get("more_body", False)
    if len(found) != 1 or found[0].kind != "call" or not frames.between:
        raise BadRequest(f"the body of a call of {method} is not one whole frame of arguments")
    return decode_call(method, found[0])


async def _begin(send: Send, length: int | None = None) -> None:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
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
