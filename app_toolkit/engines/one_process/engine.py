"""Serves ingresses in one process: each is a router and one replica, and requests pass the exchange."""

import asyncio
import itertools
import secrets
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Request

from app_toolkit.calls.batching import forget, override
from app_toolkit.calls.http import http_app, serves_http
from app_toolkit.config import settings
from app_toolkit.config.models import CorsSettings, DeploymentConfig, Route
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.routes import RequestKind, RouteTable, route_path
from app_toolkit.engines.one_process.asgi import ASGIRequest, ASGIUpstreams
from app_toolkit.engines.one_process.calls import APPLICATION, IN_PROCESS, LOCAL, Local, context_of
from app_toolkit.errors import ToolkitError
from app_toolkit.exchange.builtin import BuiltinResponse
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters import Filters
from app_toolkit.exchange.filters.ingress import ingress_filters
from app_toolkit.exchange.ingress_state import UNOWNED, IngressState
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.request import ClientRequest
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Deployable
from app_toolkit.observability.metrics import Sample
from app_toolkit.types import Address, ASGIApp, Message, Receive, Scope, Send
from app_toolkit.userapp.cors import cors_of
from app_toolkit.userapp.graph import find


class OneProcess:
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
        self.options = settings.request_options()
        self.app = app
        self.configs = ingresses
        self.stream_log = stream_log
        self.find_cors = cors
        self._make_table = table
        self._find = deployments
        self._table: RouteTable | None = None
        self.planes: WeakKeyDictionary[asyncio.AbstractEventLoop, LocalPlane] = WeakKeyDictionary()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        plane = self.planes.get(loop)
        if plane is None:
            self._forget_closed_loops()
            plane = self.planes[loop] = LocalPlane(self)
        request = ASGIRequest(scope, receive, send, plane.served)
        await request.serve(Exchange(plane, request, request))

    def _forget_closed_loops(self) -> None:
        """Drop the planes of closed event loops: a timer of a plane keeps its loop alive."""
        for plane in self.planes.keyrefs():  # a list, because other threads may add planes
            loop = plane()
            if loop is not None and loop.is_closed():
                self.planes.pop(loop, None)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app's own lifespan within that of the deployments that it uses, so that it may call them."""
        startup = await receive()
        lives = False

        async def stop() -> None:
            nonlocal lives
            if lives:
                lives = False
                await IN_PROCESS.stop()
                plane = self.planes.pop(asyncio.get_running_loop(), None)
                if plane is not None:
                    await plane.filters.aclose()

        try:
            self._make_table()  # raises if it cannot be planned; the first request makes it again, with later routes
            deployments = self._find()
            lives = True
            IN_PROCESS.list_unapplied(self.configs.values(), deployments)
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
            await self.app(scope, receive_again, send_last)
        finally:
            await stop()

    @property
    def table(self) -> RouteTable:
        if self._table is None:
            self._table = self._make_table()
            IN_PROCESS.list_unapplied(self.configs.values(), ())
        return self._table


class LocalPlane:
    """What the exchanges of one event loop share. Everything belongs to this loop."""

    clock = staticmethod(time.monotonic)

    def __init__(self, served_by: OneProcess) -> None:
        self._table = served_by.table  # from now on, all ingresses are known
        self._cors = served_by.find_cors()
        self.ingresses = {
            name: Ingress(name, served_by.app, config, self._cors, served_by.stream_log)
            for name, config in served_by.configs.items()
        }
        self._keys = {name: ingress.state.key for name, ingress in self.ingresses.items()}
        self.upstreams = ASGIUpstreams(self._at)
        self.records = IN_PROCESS.records
        self.filters = Filters(
            *ingress_filters(served_by.options, count_gap=IN_PROCESS.gap_counter),
        )
        self.unowned = IngressState(UNOWNED, self.clock)
        #: By ingress: the preference for its replica. All clients have the same replica.
        self.served: dict[ReplicaSetKey, Preference] = {}
        self._process = secrets.token_hex(6).encode()
        self._count = itertools.count(1)
        IN_PROCESS.expose(self)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the filters. Thread-safe."""
        return self.filters.samples()

    def mint_id(self) -> bytes:
        return b"%b-%x" % (self._process, next(self._count))

    def own_response(self, request: ClientRequest) -> BuiltinResponse | None:
        return None

    def find(self, exchange: Exchange) -> tuple[ReplicaSetKey, str]:
        request = cast(ASGIRequest, exchange.request)
        table, path = self._table, request.path
        if not table.root_path:  # that of the app replaces that of the server
            path = route_path(request.scope.get("root_path", ""), path)
        kind: RequestKind = "websocket" if request.websocket else "http"
        owner, route = table.match(kind, request.method.decode(), path)
        assert owner is not None  # every route of the app is served here
        return self._keys[owner], route

    def router(self, ingress: ReplicaSetKey) -> Router | None:
        served = self.ingresses.get(ingress.deployment)
        return None if served is None else served.router

    def ingress_state(self, ingress: ReplicaSetKey) -> IngressState:
        return self.ingresses[ingress.deployment].state

    def cors(self, ingress: ReplicaSetKey, path: str) -> Sequence[CorsSettings]:
        return self._cors

    def _at(self, address: Address) -> "Ingress":
        return self.ingresses[address.removeprefix(LOCAL)]


class Ingress(Local):
    """One ingress within one event loop."""

    def __init__(
        self, name: str, app: ASGIApp, config: DeploymentConfig, cors: Sequence[CorsSettings], stream_log: str
    ) -> None:
        self.context = context_of(name)
        self.stream_log = stream_log
        super().__init__(name, app, config, cors)
        self.state = IngressState(ReplicaSetKey(APPLICATION, name), time.monotonic, name)
        if config.batch:
            override(self.context, config.reloadable_options.batch)
            weakref.finalize(self, forget, self.context).atexit = False


def in_one_process(
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
    if getattr(app, "serves_itself", False):
        return cast(ASGIApp, app)
    if not isinstance(app, Deployable):
        config = config or DeploymentConfig(name="app")
        deployments = partial(find, app) if isinstance(app, FastAPI) else tuple
        table = partial(_table, app, config.name, routes)
        cors = partial(cors_of, app)
        return OneProcess(app, {config.name: config}, table, deployments, stream_log=stream_log, cors=cors)
    respond = partial(_respond, app)
    http = http_app(app.cls, respond) if serves_http(app.cls) else FastAPI(openapi_url=None)
    return OneProcess(http, {app.name: app.config}, partial(RouteTable, app.name, ()), partial(find, app))


def _table(app: ASGIApp, name: str, routes: Callable[[FastAPI], Iterable[Route]] | None) -> RouteTable:
    """Return the table of an app that is the ingress of this name."""
    table = routes(app) if routes is not None and isinstance(app, FastAPI) else ()
    root_path = app.root_path if isinstance(app, FastAPI) else ""
    return RouteTable(name, [route.model_copy(update={"owner": name}) for route in table], root_path=root_path)


async def _respond(deployment: Deployable, request: Request) -> Any:
    return await IN_PROCESS.deployed_of(deployment).hosted.respond(request)
