"""`Toolkit`: a FastAPI app whose routers can have replicas of their own."""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial
from typing import Any, ClassVar, cast

from fastapi import APIRouter, FastAPI, params
from fastapi.datastructures import Default
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute, APIWebSocketRoute, RouteContext, iter_route_contexts
from fastapi.telemetry import TelemetryConfig
from fastapi.utils import generate_unique_id
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Host, Mount, WebSocketRoute
from starlette.routing import Route as StarletteRoute

from app_toolkit.calls.batching import is_raw, slots_for
from app_toolkit.calls.http import NOT_FOR_REQUESTS, error_response
from app_toolkit.config.models import ApplicationConfig, DeploymentConfig, Route
from app_toolkit.contract.methods import is_idempotent
from app_toolkit.contract.routes import RouteTable
from app_toolkit.declare.deployment import Bound
from app_toolkit.declare.split import Split
from app_toolkit.errors import Misdirected, PlanningError, RequestError
from app_toolkit.observability.context import REPLICA
from app_toolkit.observability.logs import attach_fields
from app_toolkit.observability.tracing import is_unsampled
from app_toolkit.types import ASGIApp, Receive, Scope, Send
from app_toolkit.userapp.batch import is_batched
from app_toolkit.userapp.cors import cors_of
from app_toolkit.userapp.graph import batched_endpoints, calls, find

logger = logging.getLogger("app_toolkit.replica")

SENT_PATH = "app_toolkit.path"
"""The key of the path that the client has sent in a scope, which middlewares may change."""

# These match a request only by kind, method and path, so a route table can express them.
_PLAIN_MATCHES = {route.matches for route in (StarletteRoute, WebSocketRoute, Mount, APIRoute, APIWebSocketRoute)}


class _Keywords(ApplicationConfig):
    """The options of the application that its code sets."""

    @classmethod
    def display_name(cls, option: str = "") -> str:
        return f"Toolkit({option}=...)"


class Toolkit(FastAPI):
    """A FastAPI app whose routers can have replicas of their own.

    Under uvicorn, `fastapi dev` and `TestClient` it runs in one process, with the limits of its deployments. Under
    `app-toolkit run`, every replica imports the app and serves the routes of one ingress; `/docs`, `url_for`, 404, 405
    and redirects are those of the whole app everywhere.
    """

    is_one_process: ClassVar[bool] = True
    """Whether the app applies the limits of its deployments itself when it runs in one process."""

    def __init__(
        self,
        *,
        deployment: DeploymentConfig | None = None,
        deployments: Sequence[Bound[Any] | Split[Any]] = (),
        stream_log: str | None = None,
        logging_config: dict[str, Any] | None = None,
        fork: bool = True,
        **fastapi: Any,
    ) -> None:
        """Create the app.

        Parameters:
            deployment: Options of the app's own ingress, which serves every router without one. Default: the name
                `app` and one replica.
            deployments: Bound deployments and splits that no route depends on, because only a middleware, a lifespan or
                a script calls them. Default: none.
            stream_log: Where routes that name no log keep their streams: `memory` of the process; `shared`, an
                application of its own that `run` and `deploy` start; `redis`, the server that the environment variable
                `APP_TOOLKIT_REDIS_URL` of the replicas names; or the URL of a Redis server without a password. In one
                process, `shared` is its memory. Default: `shared` if an ingress with such routes may have more than one
                replica, otherwise memory.
            logging_config: What each replica passes to `logging.config.dictConfig` before it imports the app: values of
                JSON only. Under `app-toolkit dev`, the process does that after it has imported the app; under plain
                uvicorn, nothing does. `disable_existing_loggers` is false unless it is given. Default: nothing.
            fork: Whether replicas on processes of this machine may be forks of one process that has imported the app.
                False: each replica imports the app itself. Default: True. On Ray, each replica does that anyway.
            **fastapi: All keywords of `FastAPI`.

        Raises:
            PlanningError: An item of `deployments` is not a bound deployment.
            ConfigError: `stream_log` is none of these, or `logging_config` has a mistake.
        """
        keywords: dict[str, Any] = {"stream_log": stream_log, "logging_config": logging_config, "fork": fork}
        options = {name: value for name, value in keywords.items() if value is not None}
        self.application_config: ApplicationConfig = _Keywords(**options)
        for bound in deployments:
            if not isinstance(bound, Bound | Split):
                raise PlanningError(f"Toolkit(deployments=...) takes what `bind` gives, not {bound!r}")
        self.deployments = tuple(deployments)
        self.default_ingress = deployment or DeploymentConfig(name="app")
        self._ingresses = {self.default_ingress.name: self.default_ingress}
        # By identity, because FastAPI's routes are not hashable. The routes live as long as the app does.
        self._owners: dict[int, str] = {}
        self._serving: str | None = None
        #: The ingresses whose routes were reached in other ingresses, so that each is logged once.
        self._misdirected: set[str] = set()
        self._one_process: ASGIApp | None = None
        # FastAPI's own spans take longer than many an endpoint, also if a request is not sampled.
        telemetry = cast(TelemetryConfig, {"exclude": is_unsampled, **(fastapi.pop("telemetry", None) or {})})
        super().__init__(telemetry=telemetry, **fastapi)
        attach_fields()  # a server may log before it calls the app
        # By default, a call that was refused is the response of the route that made it.
        self.exception_handlers.setdefault(RequestError, error_response)

    def include_router(
        self,
        router: APIRouter,
        *,
        deployment: DeploymentConfig | None = None,
        prefix: str = "",
        tags: list[str | Enum] | None = None,
        dependencies: Sequence[params.Depends] | None = None,
        responses: dict[int | str, dict[str, Any]] | None = None,
        deprecated: bool | None = None,
        include_in_schema: bool = True,
        default_response_class: type[Response] = Default(JSONResponse),
        callbacks: list[BaseRoute] | None = None,
        generate_unique_id_function: Callable[[APIRoute], str] = Default(generate_unique_id),
        max_body_size: int | None = None,
        form_limits: Any = None,
    ) -> None:
        """Include a router as `FastAPI.include_router` does, and choose the ingress that serves it.

        The lifespan of the router runs only in the replicas of its ingress. The state that it yields is promised only
        to the routes of the router. All parameters except `deployment` are those of FastAPI.

        Parameters:
            router: The router.
            deployment: Options of the ingress that serves the router. Default: the app's own ingress.

        Raises:
            PlanningError: Two routers give different options to ingresses of one name.
        """
        ingress = deployment or self.default_ingress
        registered = self._ingresses.setdefault(ingress.name, ingress)
        if registered != ingress:
            raise PlanningError(
                f"two ingresses are named {ingress.name!r} and differ: {_differences(registered, ingress)}"
            )
        outer = self.router.lifespan_context
        hooks = self.router.on_startup, self.router.on_shutdown
        before = [list(hook) for hook in hooks]
        first = len(self.router.routes)
        super().include_router(
            router,
            prefix=prefix,
            tags=tags,
            dependencies=dependencies,
            responses=responses,
            deprecated=deprecated,
            include_in_schema=include_in_schema,
            default_response_class=default_response_class,
            callbacks=callbacks,
            generate_unique_id_function=generate_unique_id_function,
            max_body_size=max_body_size,
            form_limits=form_limits,
        )
        for node in self.router.routes[first:]:
            self._owners[id(node)] = ingress.name
        # FastAPI copies a router's deprecated event handlers to the app, and also merges its lifespan, which runs them.
        for hook, handlers in zip(hooks, before, strict=True):
            hook[:] = handlers
        self.router.lifespan_context = self._only_in(ingress.name, outer, router.lifespan_context)

    def _only_in(self, ingress: str, outer: Any, own: Any) -> Any:
        """Return a lifespan that enters `own` inside of `outer`, but only if this process serves the ingress."""

        @asynccontextmanager
        async def lifespan(app: Any) -> AsyncIterator[Mapping[str, Any] | None]:
            async with outer(app) as outer_state:
                if self._serving not in (None, ingress):
                    yield outer_state
                    return
                async with own(app) as own_state:
                    if own_state is None and outer_state is None:
                        yield None
                    else:
                        yield {**(own_state or {}), **(outer_state or {})}

        return lifespan

    @property
    def ingresses(self) -> Mapping[str, DeploymentConfig]:
        """Every ingress by name. The app's own ingress is the first."""
        return self._ingresses

    def apply_options(self, configs: Mapping[str, DeploymentConfig], stream_log: str) -> None:
        """Replace the options of the app and of every ingress before the first request. The engine calls this."""
        # The other options belong to the process, and `dev` may serve one app for several applications.
        self.application_config = self.application_config.model_copy(update={"stream_log": stream_log})
        self._ingresses = dict(configs)
        self.default_ingress = self._ingresses[self.default_ingress.name]

    def owner_of(self, node: BaseRoute) -> str:
        """Return the name of the ingress that serves a top-level route of this app."""
        return self._owners.get(id(node), self.default_ingress.name)

    def serve_only(self, ingress: str) -> None:
        """Become a replica of one ingress: run only its lifespans, and answer 421 on the routes of others.

        Route matching, `url_for` and OpenAPI remain those of the whole app. For the engine of a replica. It
        cannot be undone.

        Raises:
            PlanningError: The app has no such ingress.
        """
        if ingress not in self._ingresses:
            raise PlanningError(f"the app has no ingress {ingress!r}; it has {', '.join(self._ingresses)}")
        self._serving = ingress
        for node in self.router.routes:
            owner = self.owner_of(node)
            if owner != ingress:
                node.handle = partial(self._refuse, owner, ingress)  # type: ignore[method-assign]

    async def _refuse(self, owner: str, ingress: str, scope: Scope, receive: Receive, send: Send) -> None:
        self._log_misdirected(owner, ingress, scope)
        cause = "a middleware has changed the path of this request, and " if _is_changed(scope) else ""
        raise HTTPException(Misdirected.status, f"{cause}this route belongs to ingress {owner!r}, not to {ingress!r}")

    async def _observe(self, owner: str, handle: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request in one process. Log a warning if another ingress has admitted it."""
        replica = REPLICA.get()
        if replica is not None and replica.deployment != owner:
            self._log_misdirected(owner, replica.deployment, scope)
        await handle(scope, receive, send)

    def _log_misdirected(self, owner: str, ingress: str, scope: Scope) -> None:
        if owner in self._misdirected or not _is_changed(scope):
            return
        self._misdirected.add(owner)
        logger.warning(
            "a middleware has changed the path %r to %r, whose route belongs to ingress %r; the request has reached "
            "ingress %r by the path that its client sent, and the replicas of `app-toolkit run` answer it with 421: "
            "serve the route by that ingress, or change paths in front of the app",
            scope[SENT_PATH],
            scope["path"],
            owner,
            ingress,
        )

    def _table(self) -> RouteTable:
        return RouteTable(self.default_ingress.name, tuple(route_table(self)), root_path=self.root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "path" in scope:
            scope.setdefault(SENT_PATH, scope["path"])
        if self._serving is not None:
            await super().__call__(scope, receive, send)
            return
        if self._one_process is None:
            from app_toolkit.engines.one_process.engine import (
                OneProcess,  # here, so that declarations do not import an engine
            )

            if len(self._ingresses) > 1:
                for node in self.router.routes:
                    node.handle = partial(self._observe, self.owner_of(node), node.handle)  # type: ignore[method-assign]
            self._one_process = OneProcess(
                super().__call__,
                self._ingresses,
                self._table,
                partial(find, self),
                stream_log=self.application_config.stream_log,
                cors=partial(cors_of, self),
            )
        await self._one_process(scope, receive, send)


def route_table(app: FastAPI, configs: Mapping[str, DeploymentConfig] | None = None) -> Iterator[Route]:
    """Yield every route with its ingress, in the order in which the app tries them.

    `configs`: the options of the app's ingresses, if they are not those of the code.
    """
    calls(app, app.router.routes)  # raises for a dependency that routes must not have
    ingresses = configs or (app.ingresses if isinstance(app, Toolkit) else {})
    several = len(ingresses) > 1
    for ingress in ingresses.values():
        for name, why in unfit_batches(app, ingress.name, ingress.batch):
            raise PlanningError(f"the ingress {ingress.name!r}: batch.{name}: {why}")
    for node in app.router.routes:
        owner = app.owner_of(node) if isinstance(app, Toolkit) else "app"
        for context in iter_route_contexts([node]):
            original = context.original_route
            _refuse_misplaced_marks(original, context, ingresses.get(owner))
            if several:
                _refuse_unwritable(original, context)
            if isinstance(original, Host):
                yield Route(kind="both", pattern=".*", path="/", owner=owner)
            elif isinstance(original, Mount):
                yield Route(kind="both", pattern=context.path_regex.pattern, path=context.path or "", owner=owner)
            else:
                websocket = isinstance(original, WebSocketRoute)
                yield Route(
                    kind="websocket" if websocket else "http",
                    pattern=context.path_regex.pattern,
                    methods=tuple(sorted(context.methods)) if context.methods else None,
                    path=context.path or "",
                    owner=owner,
                )


def unfit_batches(app: FastAPI, ingress: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names for which the ingress has no `@batch` endpoint, each with the reason."""
    routes = [route for route in app.router.routes if not isinstance(app, Toolkit) or app.owner_of(route) == ingress]
    batched = sorted({endpoint.__name__ for endpoint in batched_endpoints(routes)})
    for name in names:
        if name not in batched:
            yield name, f"it has no @batch endpoint {name!r}, only {', '.join(batched) or 'none'}"


def _refuse_misplaced_marks(route: BaseRoute, context: RouteContext, ingress: DeploymentConfig | None) -> None:
    endpoint = getattr(route, "endpoint", None)
    if endpoint is None:
        return
    if is_idempotent(endpoint):
        raise PlanningError(f"the route {context.path!r}: {NOT_FOR_REQUESTS}")
    if is_raw(endpoint):
        raise PlanningError(f"the route {context.path!r}: @batch stands above its decorator, and belongs below it")
    overrides = {} if ingress is None else ingress.reloadable_options.batch
    limits = overrides.get(endpoint.__name__, {}) if is_batched(endpoint) else {}
    slots = slots_for(endpoint, limits)
    if ingress is not None and slots > ingress.max_ongoing_requests:
        raise PlanningError(
            f"the route {context.path!r}: its batches are full with {slots} requests at a time, and the "
            f"max_ongoing_requests of {ingress.name!r} is {ingress.max_ongoing_requests}"
        )


def _refuse_unwritable(route: BaseRoute, context: RouteContext) -> None:
    """Raise `PlanningError` for a route whose owner the proxy cannot tell from the method and the path alone."""
    if isinstance(route, Host):
        raise PlanningError(
            f"the host route {route.host!r} is matched by its Host header, which an app with several ingresses "
            "cannot use: mount it by path, or serve the app with one ingress"
        )
    if type(route).matches not in _PLAIN_MATCHES:
        raise PlanningError(
            f"the route {context.path!r} is a {type(route).__name__}, which has a matches() of its own; an app with "
            "several ingresses needs routes that match by method and path: serve it with one ingress"
        )


def _is_changed(scope: Scope) -> bool:
    """Return whether a middleware has changed the path of a request."""
    return bool(scope.get(SENT_PATH, scope["path"]) != scope["path"])


def _differences(one: DeploymentConfig, other: DeploymentConfig) -> str:
    return ", ".join(
        f"{field} = {getattr(one, field)!r} and {getattr(other, field)!r}"
        for field in DeploymentConfig.model_fields
        if getattr(one, field) != getattr(other, field)
    )
