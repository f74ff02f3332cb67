"""The deployments and splits that an app calls: the graph of its dependencies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIWebSocketRoute, iter_route_contexts
from starlette.routing import BaseRoute, Host, Mount

from app_toolkit.core.batch import is_batched
from app_toolkit.errors import PlanningError
from app_toolkit.interfaces import DEPLOYMENT_CLASS, STREAM_LOG_KIND, Callee, Deployable, Reference, WeightedCallee


def calls(app: FastAPI, routes: Sequence[BaseRoute]) -> tuple[str, ...]:
    """Return the names of the deployments that these routes of an app may call directly, as far as is known.

    Any route may call those that `Toolkit(deployments=...)` names. Raises `PlanningError` for a route that depends on a
    deployment's class instead of the value that `bind` returns.
    """
    return called((*getattr(app, "deployments", ()), *_used_by(routes)))


def called(callees: Iterable[Callee]) -> tuple[str, ...]:
    """Return the names of the deployments that are called: of a split, its members."""
    return tuple(dict.fromkeys(name for each in callees for name in each.members or (each.name,)))


def find(app: FastAPI | Deployable) -> tuple[Deployable, ...]:
    """Return the deployments that an app calls, and those that they call, each after those that it is bound with.

    For a deployment: itself and those that it calls. For an app: the dependencies of its routes, WebSockets and mounted
    apps, and the ones that `Toolkit(deployments=...)` names. The members of a split are among them. Raises
    `PlanningError` if deployments are bound with each other in a circle, or if two have the same name.
    """
    return tuple(each for each in _callees(app) if isinstance(each, Deployable))


def splits(app: FastAPI | Deployable) -> tuple[WeightedCallee, ...]:
    """Return the splits that an app and its deployments call, found as by `find`."""
    return tuple(each for each in _callees(app) if isinstance(each, WeightedCallee))


def _callees(app: FastAPI | Deployable) -> tuple[Callee, ...]:
    found: dict[int, Callee] = {}
    for each in _used(app):
        _gather(each, (), found)
    taken = dict.fromkeys(getattr(app, "ingresses", ()), "an ingress")
    for each in found.values():
        cls = each.cls.__name__
        kind = f"a deployment of {cls}" if isinstance(each, Deployable) else f"a split of {cls}"
        if each.name in taken:
            how = f'{cls}.options(name="...").bind(...)' if isinstance(each, Deployable) else 'split(..., name="...")'
            raise PlanningError(
                f"{taken[each.name]} and {kind} are both named {each.name!r}: give one another name, as in {how}"
            )
        taken[each.name] = kind
    return tuple(found.values())


def keeping_streams(routes: Sequence[BaseRoute]) -> Iterator[tuple[str, str]]:
    """Yield each of these routes that keeps streams, as its method and path, and the kind of its log.

    The kind is as of `STREAM_LOG_KIND`.
    """
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


def _kinds_of_logs(dependant: Dependant) -> Iterator[str]:
    kind = getattr(dependant.call, STREAM_LOG_KIND, None)
    if kind is not None:
        yield kind
    for each in dependant.dependencies:
        yield from _kinds_of_logs(each)


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
    for each in dependant.dependencies:
        yield from _called(each, path)


def _gather(each: Callee, callers: tuple[Callee, ...], found: dict[int, Callee]) -> None:
    if id(each) in found:
        return
    if each in callers:
        circle = [*callers[callers.index(each) :], each]
        raise PlanningError(f"deployments are bound in a circle: {' -> '.join(one.name for one in circle)}")
    for need in each.needs:
        _gather(need, (*callers, each), found)
    found[id(each)] = each
