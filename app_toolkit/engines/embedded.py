"""Serves ingresses in one process without Ray: each is a router and one replica, which the router calls directly."""

import asyncio
import logging
import math
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app_toolkit.config import settings
from app_toolkit.config.models import CorsSettings, DeploymentConfig, Route
from app_toolkit.core.cors import preflight_response, response_fields
from app_toolkit.core.deadlines import TIMEOUT_FIELD, timeout_s
from app_toolkit.core.preference import Preference
from app_toolkit.core.recent import Recent, retry_after_s
from app_toolkit.core.routes import RouteTable, route_path
from app_toolkit.core.server_timing import SERVER_TIMING
from app_toolkit.core.trace import trace_of
from app_toolkit.core.traffic import SHARD_KEY, shard_key
from app_toolkit.dispatch.dispatcher import Dispatcher, RetainedRequest
from app_toolkit.engines.local import IN_PROCESS, Local, context_of
from app_toolkit.errors import ContentTooLarge, DeadlineExceeded, RequestError, ToolkitError
from app_toolkit.interfaces import Deployable
from app_toolkit.observability import tracing
from app_toolkit.observability.context import REPLICA
from app_toolkit.observability.records import CLIENT_CLOSED_REQUEST, CLIENT_GONE, CUT, LONGEST_PATH, OK, Record
from app_toolkit.proxy.request import REQUEST_ID_GRAMMAR
from app_toolkit.replica.admission.admitted_request import BODIES, RESPONSE_MESSAGES
from app_toolkit.replica.admission.client import ClientMessages
from app_toolkit.replica.admission.streams import is_stream
from app_toolkit.replica.objects.batching import forget, override
from app_toolkit.replica.objects.http import http_app, serves_http
from app_toolkit.router.targets import Permit
from app_toolkit.transport.hop import STREAM, is_internal
from app_toolkit.types import ASGIApp, Header, Message, Receive, ReplicaId, Scope, Send
from app_toolkit.userapp.cors import cors_of
from app_toolkit.userapp.graph import find

logger = logging.getLogger("app_toolkit.replica")

SWITCHING_PROTOCOLS, FORBIDDEN = 101, 403

LATE = "the deadline of {request} passed while it waited for {deployment}"
"""The error of a request whose deadline has passed before it ran."""


class Embedded:
    """An ASGI app that serves each ingress by a router, a replica with admission control, and the user's app.

    The lifespan of the app is run by the server, such as uvicorn or a `TestClient`. If every request has an event loop
    of its own (`TestClient` without `with`), the limits apply within each loop.
    """

    def __init__(
        self,
        app: ASGIApp,
        ingresses: Mapping[str, DeploymentConfig],
        table: Callable[[], RouteTable],
        deployments: Callable[[], Sequence[Deployable]],
        *,
        stream_log: str = "memory",
        cors: Callable[[], Sequence[CorsSettings]] = tuple,
    ) -> None:
        """Create the app. The callables are called with the first request, so that nothing is missing then."""
        IN_PROCESS.begin_tracing()
        self._find_cors = cors
        self._stream_log = stream_log
        self._app = app
        self._configs = ingresses
        self._make_table = table
        self._find = deployments
        self._table: RouteTable | None = None
        self.ingresses_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Ingress]] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        ingress, route = self._ingress(scope)
        await ingress(scope, receive, send, route)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app's own lifespan within that of the deployments that it uses, so that it may call them."""
        startup = await receive()
        lives = False

        async def stop() -> None:
            nonlocal lives
            if lives:
                lives = False
                await IN_PROCESS.stop()

        try:
            self._make_table()  # raises if it cannot be planned; the first request makes it again, with later routes
            deployments = self._find()
            lives = True
            IN_PROCESS.list_unapplied(self._configs.values(), deployments)
            await IN_PROCESS.start(deployments)
        except ToolkitError as error:
            await stop()
            await send({"type": "lifespan.startup.failed", "message": "".join(traceback.format_exception(error))})
            return
        messages = [startup]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        async def send_last(message: Message) -> None:
            if message["type"] != "lifespan.startup.complete":
                await stop()
            await send(message)

        try:
            await self._app(scope, receive_again, send_last)
        finally:
            await stop()

    def _ingress(self, scope: Scope) -> tuple["Ingress", str]:
        """Return the ingress that serves a request, and the path template of its route."""
        ingresses = self.ingresses_by_loop.setdefault(asyncio.get_running_loop(), {})
        name, route = self._match(scope)
        if name not in ingresses:
            ingresses[name] = Ingress(name, self._app, self._configs[name], self._stream_log, self._find_cors())
        return ingresses[name], route

    def _match(self, scope: Scope) -> tuple[str, str]:
        if self._table is None:
            self._table = self._make_table()
            IN_PROCESS.list_unapplied(self._configs.values(), ())
        path: str = scope["path"]
        if not self._table.root_path:  # that of the app replaces that of the server
            path = route_path(scope.get("root_path", ""), path)
        owner, route = self._table.match(scope["type"], scope.get("method", ""), path)
        assert owner is not None  # every route of the app is served here
        return owner, route


def embedded(
    app: ASGIApp | Deployable,
    config: DeploymentConfig | None = None,
    *,
    routes: Callable[[FastAPI], Iterable[Route]] | None = None,
    stream_log: str = "memory",
) -> ASGIApp:
    """Return the ASGI app that serves a target in this process.

    A `Toolkit` serves itself. Any other app, and a deployment, becomes one ingress. `config` and `stream_log`: the
    options of an app that is no `Toolkit`. `routes`: returns the routes of an app, for its records; None: they are not
    known.
    """
    if getattr(app, "is_embedded", False):
        return cast(ASGIApp, app)
    if not isinstance(app, Deployable):
        config = config or DeploymentConfig(name="app")
        deployments = partial(find, app) if isinstance(app, FastAPI) else tuple
        table = partial(_table, app, config.name, routes)
        cors = partial(cors_of, app)
        return Embedded(app, {config.name: config}, table, deployments, stream_log=stream_log, cors=cors)
    respond = partial(_respond, app)
    http = http_app(app.cls, respond) if serves_http(app.cls) else FastAPI(openapi_url=None)
    return Embedded(http, {app.name: app.config}, partial(RouteTable, app.name, ()), partial(find, app))


def _table(app: ASGIApp, name: str, routes: Callable[[FastAPI], Iterable[Route]] | None) -> RouteTable:
    """Return the table of an app that is the ingress of this name."""
    found = routes(app) if routes is not None and isinstance(app, FastAPI) else ()
    root_path = app.root_path if isinstance(app, FastAPI) else ""
    return RouteTable(name, [route.model_copy(update={"owner": name}) for route in found], root_path=root_path)


async def _respond(deployment: Deployable, request: Request) -> Any:
    return await IN_PROCESS.deployed_of(deployment).hosted.respond(request)


class Ingress(Local):
    """One ingress within one event loop."""

    def __init__(
        self,
        name: str,
        app: ASGIApp,
        config: DeploymentConfig,
        stream_log: str = "memory",
        cors: Sequence[CorsSettings] = (),
    ) -> None:
        super().__init__(name, app, config, cors)
        self._cors = cors
        self._stream_log = stream_log
        self._responses = Recent()
        self._server_timing = settings.server_timing()
        self._context = context_of(name)
        if config.batch:
            override(self._context, config.reloadable_options.batch)
            weakref.finalize(self, forget, self._context).atexit = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send, route: str = "") -> None:
        """Serve a request. `route`: the path template of its route; empty: it has none."""
        request_id = _request_id(scope)
        scope["headers"] = [field for field in scope["headers"] if not is_internal(field[0])]
        ours = {"request_id": request_id}
        if self._stream_log != "memory":
            ours["stream_log"] = self._stream_log
        trace, place = trace_of(scope["headers"]), None
        if tracing.current is not None:
            place = tracing.current.begin(trace)
            trace = place.forwarded
        if trace is not None:
            ours["trace"] = trace
        for name, value in scope["headers"]:
            if name == SHARD_KEY and (key := shard_key(value)) is not None:
                ours["shard_key"] = key
                break
        scope["extensions"] = {**scope.get("extensions", {}), "app_toolkit": ours}
        loop = asyncio.get_running_loop()
        dispatcher: Dispatcher[Permit] = Dispatcher(RetainedRequest("this request", request_id, LATE), time.monotonic())
        dispatcher.trace = place
        status, size, outcome = 0, 0, CLIENT_GONE
        first_byte_s: float | None = None
        chunk_at: float | None = None  # when the last chunk of a stream was sent
        outer = REPLICA.get()
        REPLICA.set(self._context)

        async def send_named(message: Message) -> None:
            nonlocal status, size, outcome, first_byte_s, chunk_at
            if message["type"] in RESPONSE_MESSAGES:
                status = message.get("status", SWITCHING_PROTOCOLS)
                first_byte_s = time.monotonic() - dispatcher.began
                self._responses.note(loop.time())
                headers = list(message.get("headers", ()))
                if all(name.lower() != b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", request_id.encode()))
                if self._server_timing:
                    headers.append((SERVER_TIMING, dispatcher.server_timing(time.monotonic())))
                message["headers"] = headers
                if is_stream(scope, headers):
                    chunk_at = 0.0
            elif message["type"] == "websocket.close" and not status:
                status = FORBIDDEN  # the ASGI server responds
            await send(message)
            if message["type"] in BODIES:
                if chunk_at is not None and message.get("body"):
                    now = time.monotonic()
                    if chunk_at:
                        IN_PROCESS.count_gap(self.router.name, now - chunk_at)
                    chunk_at = now
                if scope.get("method") != "HEAD":
                    size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    outcome = OK

        try:
            timeout = self._timeout_s(scope)
            if timeout is not None:
                dispatcher.attempts.deadline = dispatcher.began + timeout
            if scope["type"] == "websocket":
                await self._accepted(scope, receive, send_named, timeout)
                outcome = OK
                status = status or 500  # the ASGI server responds
            else:
                replaced = await self._bounded(scope, receive, send_named, dispatcher)
                if isinstance(replaced, DeadlineExceeded):
                    outcome = replaced.reason
        except RequestError as error:
            if status:
                outcome = OK if outcome == OK else CUT
                raise  # the ASGI server closes the connection
            outcome = error.reason
            if error.retry_after_s is not None:
                rate = self._responses.rate(loop.time())
                error.retry_after_s = retry_after_s(self.router.waiting, rate)
            response = _error_response(error, request_id, scope, self._cors)
            status = response.status_code
            size = 0 if scope.get("method") == "HEAD" else len(response.body)
            await response(scope, receive, send)
        except Exception:
            if outcome != OK:
                outcome, status = (CUT, status) if status else (OK, 500)
            # The ASGI server logs the traceback, and a test client raises it, but without the request ID.
            said = "request %s failed in %s: %r"
            own = {"request_id": request_id}  # the context of the request has ended
            logger.error(said, request_id, self.replica.name, scope["path"], extra=own)
            raise
        finally:
            REPLICA.set(outer)
            self._record(scope, dispatcher, status, outcome, size, first_byte_s, route)

    def _record(
        self,
        scope: Scope,
        dispatcher: Dispatcher[Permit],
        status: int,
        outcome: str,
        size: int,
        first_byte_s: float | None,
        route: str,
    ) -> None:
        """Record the end of a request, as the proxy does (`Exchange._record`)."""
        client, now = scope.get("client"), time.monotonic()
        queued_s, _, attempt_s, failed = dispatcher.stage_times(now)
        replica, tries = dispatcher.replica, dispatcher.attempts.count
        if scope["type"] == "websocket":  # it needs no permit, and waits for none
            replica, tries = ReplicaId(self.replica.name), 1
            attempt_s = 0.0
        if status == SWITCHING_PROTOCOLS:
            outcome = OK
        elif outcome == CLIENT_GONE:
            status = CLIENT_CLOSED_REQUEST
        if first_byte_s is None and outcome != CLIENT_GONE:  # the toolkit or the ASGI server responds now
            first_byte_s = now - dispatcher.began
        IN_PROCESS.records.add(
            Record(
                dispatcher.began,
                now - dispatcher.began,
                "websocket" if status == SWITCHING_PROTOCOLS else "http",
                self.router.name,
                replica,
                tries,
                outcome,
                scope.get("method", "GET").encode(),
                dispatcher.request.request_id.encode(),
                b"- 0" if client is None else f"{client[0]} {client[1]}".encode(),
                scope["path"].encode("latin-1", "replace")[:LONGEST_PATH],
                status,
                size,
                dispatcher.affinity,
                queued_s,
                first_byte_s,
                attempt_s,
                failed,
                route,
                dispatcher.trace,
            )
        )

    def _timeout_s(self, scope: Scope) -> float | None:
        asked = [value for name, value in scope["headers"] if name == TIMEOUT_FIELD]
        return timeout_s(b", ".join(asked) if asked else None, self.router.policy.request_timeout_s)

    async def _accepted(self, scope: Scope, receive: Receive, send: Send, timeout: float | None) -> None:
        """Serve a WebSocket. The timeout applies only to the handshake."""
        deadline = asyncio.timeout(timeout)

        async def send_in_time(message: Message) -> None:
            if not deadline.expired():  # otherwise the WebSocket is refused
                deadline.reschedule(None)
                await send(message)

        try:
            async with deadline:
                await self.replica.admit(scope, receive, send_in_time)
        except TimeoutError:
            if not deadline.expired():
                raise
        if deadline.expired():
            raise DeadlineExceeded(f"the WebSocket was not accepted within its {timeout:g} s")

    async def _bounded(
        self, scope: Scope, receive: Receive, send: Send, dispatcher: Dispatcher[Permit]
    ) -> RequestError | None:
        """Serve a request within its deadline and `max_body_size`. Return what `Replica.admit` returns."""
        most, body = self.router.policy.max_body_size, None
        if most is not None:
            length = next((int(value) for name, value in scope["headers"] if name == b"content-length"), None)
            if length is None:
                body = _Body(receive, send, most)
                receive, send = body.receive, body.send
            elif length > most:
                raise _too_large(length, most)
        try:
            return await self.dispatch(dispatcher, scope, receive, partial(self._pass_on, send), name=scope["path"])
        finally:
            if body is not None:
                body.check()

    async def _pass_on(self, send: Send, permit: Permit, message: Message) -> None:
        headers = message.get("headers")
        if headers and headers[-1][0] == STREAM:
            self.router.stream(permit, headers.pop()[1])
        await send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.router.release(permit)  # background tasks hold no permit

    async def _wait(
        self, dispatcher: Dispatcher[Permit], receive: Receive, preference: Preference
    ) -> tuple[Permit | None, Receive]:
        """Wait for a permit. Return None as the permit if the client disconnects first."""
        client, attempts = ClientMessages(receive), dispatcher.attempts
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[Permit] = loop.create_future()
        hung_up: asyncio.Future[None] = loop.create_future()
        deadline = math.inf if attempts.deadline is None else attempts.deadline
        too_long = attempts.since + self.router.policy.max_queue_wait_s
        waiter = self.router.wait(granted.set_result, attempts.since, again=attempts.count > 0)
        watch = client.watch(lambda: hung_up.set_result(None))
        try:
            await asyncio.wait(
                (granted, hung_up),
                timeout=min(too_long, deadline) - loop.time(),
                return_when=asyncio.FIRST_COMPLETED,
            )
            # End the watch before the app receives messages of the client.
            watch.cancel()
            await asyncio.wait((watch,))
        except asyncio.CancelledError:
            watch.cancel()
            if granted.done():
                self.router.release(granted.result())
            raise
        finally:
            self.router.leave(waiter)
        if granted.done():
            return granted.result(), client.receive
        if hung_up.done():
            return None, client.receive
        if loop.time() >= deadline:
            raise dispatcher.late()
        raise self.router.waited_too_long()


class _Body:
    """A body of unknown length. Once it is too large, the app can neither read it nor send a response."""

    def __init__(self, receive: Receive, send: Send, most: int) -> None:
        self._receive = receive
        self._send = send
        self._most = most
        self._size = 0

    def check(self) -> None:
        """Raise `ContentTooLarge` if the body was too large, even if the app has handled this error before."""
        if self._size > self._most:
            raise _too_large(self._size, self._most)

    async def receive(self) -> Message:
        self.check()
        message = await self._receive()
        self._size += len(message.get("body", b""))
        self.check()
        return message

    async def send(self, message: Message) -> None:
        if self._size <= self._most:
            await self._send(message)


def _too_large(size: int, most: int) -> ContentTooLarge:
    return ContentTooLarge(f"the body has at least {size} bytes; max_body_size is {most}")


def _request_id(scope: Scope) -> str:
    """Return the client's request ID if it is valid, or else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID_GRAMMAR.fullmatch(value):
            return str(value, "ascii")
    return uuid.uuid4().hex


def _error_response(error: RequestError, request_id: str, scope: Scope, settings: Sequence[CorsSettings]) -> Response:
    """Return the response for an error, as pages of other origins may read it."""
    response: Response
    fields: Iterable[Header]
    preflight = preflight_response(settings, scope.get("method", ""), scope["headers"])
    if preflight is None:
        response = JSONResponse(error.document(request_id), error.status)
        if error.retry_after_s is not None:
            response.headers["retry-after"] = str(math.ceil(error.retry_after_s))
        fields = response_fields(settings if scope["type"] == "http" else (), scope["headers"])
    else:
        status, fields, text = preflight
        response = PlainTextResponse(text, status)
    response.raw_headers += [*fields, (b"x-request-id", request_id.encode())]
    return response
