"""The deployments and splits that an app calls: the graph of its dependencies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts
from starlette.routing import BaseRoute, Host, Mount

from app_toolkit.errors import PlanningError
from app_toolkit.interfaces import DEPLOYMENT_CLASS, Callee, Deployable, Reference, WeightedCallee
from app_toolkit.userapp.batch import is_batched

Dependency = TypeVar("Dependency", bound=Callable[..., Any])

LogKind = Literal["application", "memory", "other"]

_LOG_KIND = "__app_toolkit_stream_log__"


def keeps_streams(log: LogKind) -> Callable[[Dependency], Dependency]:
    """Mark a dependency that returns a stream log, so that the plan of an app knows the routes that keep streams.

    Parameters:
        log: "application": the log that the option `stream_log` selects, which is shared by default if an application
            has several replicas. "memory": one in the memory of each replica; the plan warns if there are several.
            "other": any other log.
    """

    def mark(dependency: Dependency) -> Dependency:
        setattr(dependency, _LOG_KIND, log)
        return dependency

    return mark


def calls(app: FastAPI, routes: Sequence[BaseRoute]) -> tuple[str, ...]:
    """Return the names of the deployments that these routes of an app may call directly, as far as is known.

    Any route may call those that `Toolkit(deployments=...)` names. Raises `PlanningError` for a route that depends on a
    deployment's class instead of the value that `bind` returns.
    """
    return called((*getattr(app, "deployments", ()), *_used_by(routes)))


def called(callees: Iterable[Callee]) -> tuple[str, ...]:
    """Return the names of the deployments that are called: of a split, its members."""
    return tuple(dict.fromkeys(name for callee in callees for name in callee.members or (callee.name,)))


def find(app: FastAPI | Deployable) -> tuple[Deployable, ...]:
    """Return the deployments that an app calls, and those that they call, each after those that it is bound with.

    For a deployment: itself and those that it calls. For an app: the dependencies of its routes, WebSockets and mounted
    apps, and the ones that `Toolkit(deployments=...)` names. The members of a split are among them. Raises
    `PlanningError` if deployments are bound with each other in a circle, or if two have the same name.
    """
    return tuple(callee for callee in _callees(app) if isinstance(callee, Deployable))


def splits(app: FastAPI | Deployable) -> tuple[WeightedCallee, ...]:
    """Return the splits that an app and its deployments call, found as by `find`."""
    return tuple(callee for callee in _callees(app) if isinstance(callee, WeightedCallee))


def _callees(app: FastAPI | Deployable) -> tuple[Callee, ...]:
    callees: dict[int, Callee] = {}
    for callee in _used(app):
        _gather(callee, (), callees)
    names_in_use = dict.fromkeys(getattr(app, "ingresses", ()), "an ingress")
    for callee in callees.values():
        cls = callee.cls.__name__
        kind = f"a deployment of {cls}" if isinstance(callee, Deployable) else f"a split of {cls}"
        if callee.name in names_in_use:
            how = f'{cls}.options(name="...").bind(...)' if isinstance(callee, Deployable) else 'split(..., name="...")'
            raise PlanningError(
                f"{names_in_use[callee.name]} and {kind} are both named {callee.name!r}: give one another name, "
                f"as in {how}"
            )
        names_in_use[callee.name] = kind
    return tuple(callees.values())


def keeping_streams(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, LogKind]]:
    """Yield each of these routes that keeps streams, as its method and path, and its log as of `keeps_streams`."""
    for context in iter_route_contexts(routes):
        route = context.original_route
        if isinstance(route, Mount | Host):
            inner = route.app.routes if isinstance(route, Mount) and isinstance(route.app, FastAPI) else route.routes
            yield from keeping_streams(inner)
        elif isinstance(route, APIRoute | APIWebSocketRoute):
            kinds = set(_kinds_of_logs(context.dependant))
            method = "WebSocket" if isinstance(route, APIWebSocketRoute) else ",".join(sorted(context.methods or ()))
            for kind in sorted(kinds):
                yield f"{method} {context.path or '/'}", kind


def _kinds_of_logs(dependant: Dependant) -> Iterator[LogKind]:
    kind: LogKind | None = getattr(dependant.call, _LOG_KIND, None)
    if kind is not None:
        yield kind
    for dependency in dependant.dependencies:
        yield from _kinds_of_logs(dependency)


def batched_endpoints(routes: Sequence[BaseRoute]) -> Iterator[Callable[..., Any]]:
    """Yield the endpoints of these routes, and of mounted apps, that collect requests into batches."""
    for context in iter_route_contexts(routes):
        route = context.original_route
        if isinstance(route, Mount | Host):
            yield from batched_endpoints(route.routes)
        elif is_batched(endpoint := getattr(route, "endpoint", None)):
            yield endpoint


def _used(app: FastAPI | Deployable) -> Iterator[Callee]:
    if isinstance(app, Deployable):
        yield app
        return
    yield from getattr(app, "deployments", ())
    yield from _used_by(app.routes)


def _used_by(routes: Sequence[BaseRoute]) -> Iterator[Callee]:
    for context in iter_route_contexts(routes):
        route = context.original_route
        if isinstance(route, Mount) and isinstance(route.app, FastAPI):
            yield from _used(route.app)
        elif isinstance(route, Mount | Host):
            yield from _used_by(route.routes)
        elif isinstance(route, APIRoute | APIWebSocketRoute):
            yield from _called(context.dependant, context.path or "/")


def _called(dependant: Dependant, path: str) -> Iterator[Callee]:
    """Yield the deployments and splits of a dependency.

    Raises `PlanningError` for a class that was not bound: FastAPI would construct it for each request.
    """
    call = dependant.call
    if isinstance(call, Callee):
        yield call
    elif isinstance(call, Reference):
        yield call._deployment
    elif isinstance(call, type) and hasattr(call, DEPLOYMENT_CLASS):
        raise PlanningError(
            f"the route {path!r} has Depends({call.__name__}), which constructs the class for each request: bind it, "
            f"as in model = {call.__name__}.bind(...), and depend on that: Depends(model)"
        )
    for dependency in dependant.dependencies:
        yield from _called(dependency, path)


def _gather(callee: Callee, callers: tuple[Callee, ...], callees: dict[int, Callee]) -> None:
    if id(callee) in callees:
        return
    if callee in callers:
        circle = [*callers[callers.index(callee) :], callee]
        raise PlanningError(f"deployments are bound in a circle: {' -> '.join(one.name for one in circle)}")
    for need in callee.needs:
        _gather(need, (*callers, callee), callees)
    callees[id(callee)] = callee
